"""Edits of merges by hand: which names are told apart and which are made one, kept in `merges.jsonl` in the index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.index.folder import write_atomic
from gpu_rag.index.work import Sources

FILE = "merges.jsonl"
EXPECTED = "a row made by gpu-rag merges"
EXACT, SEMANTIC, FORCED = "exact", "semantic", "forced"
REJECT, FORCE = "reject", "force"
Pair = frozenset[str]


def merge_id(why: str, members: Sequence[str]) -> str:
    """A short name of a merge: the same for the same members in every build."""
    text = json.dumps([why, sorted(members)], ensure_ascii=False)
    return "m_" + hashlib.sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:10]


@dataclass(frozen=True)
class Edit:
    """One edit. id: that of the merge it rejects, or of the forced merge; members: names or ids, as in HIGRA_MERGES."""

    id: str
    action: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Edits:
    """All edits of an index, in the order made."""

    edits: tuple[Edit, ...] = ()

    @classmethod
    def of(cls, sources: Sources) -> Edits:
        """The edits that a build applies."""
        return cls() if sources.merges is None else cls.read(sources.merges)

    @classmethod
    def read(cls, path: Path) -> Edits:
        """The edits in a file; none where there is no file. Raises BadInput naming the line that is no edit."""
        if not path.is_file():
            return cls()
        found = []
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.strip():
                found.append(_edit(line, f"{path}:{number}"))
        return cls(tuple(found))

    def write(self, path: Path) -> None:
        """Replaces the file."""
        rows = ({"id": e.id, "action": e.action, "members": list(e.members)} for e in self.edits)
        write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())

    def with_edit(self, edit: Edit) -> Edits:
        """With one more; an edit that is there already is not repeated."""
        return self if edit in self.edits else Edits((*self.edits, edit))

    def without(self, id: str) -> Edits:
        """Without the edits of this id."""
        return Edits(tuple(edit for edit in self.edits if edit.id != id))

    @property
    def rejected(self) -> frozenset[Pair]:
        """Pairs of names that never become one."""
        return frozenset(pairs(edit.members for edit in self.edits if edit.action == REJECT))

    @property
    def forced(self) -> list[tuple[str, ...]]:
        """Names that become one, in the order made."""
        return [edit.members for edit in self.edits if edit.action == FORCE]


def pairs(groups: Iterable[Sequence[str]]) -> Iterable[Pair]:
    """All pairs within each group."""
    return (frozenset(pair) for members in groups for pair in combinations(members, 2))


def edits_params(sources: Sources) -> dict[str, Any]:
    """What a stage depends on: the edits, in any order of making; nothing where there are none."""
    edits = Edits.of(sources).edits
    return {"edits": sorted([e.action, *sorted(e.members)] for e in edits)} if edits else {}


def _edit(line: str, where: str) -> Edit:
    try:
        row = json.loads(line)
        id, action, members = row["id"], row["action"], row["members"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("not an edit of merges", given=f"{where}: {error}", expected=EXPECTED) from error
    texts = isinstance(members, list) and all(isinstance(member, str) for member in members)
    if not isinstance(id, str) or action not in (REJECT, FORCE) or not texts or len(members) < 2:
        raise BadInput("not an edit of merges", given=f"{where}: {line[:80]}", expected=EXPECTED)
    return Edit(id, action, tuple(members))
