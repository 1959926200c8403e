"""Merges of names: the log of a finished index, and manual edits that the next build applies.

Edits are stored in `edits/merges.jsonl` in the index: names that must never be merged (reject), and names that must be
merged (force).
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.folder import EDITS, sha256_text, write_atomic, writing
from gpu_rag.index.index import Index
from gpu_rag.index.work import Sources
from gpu_rag.methods.higra.report import pair_coverage
from gpu_rag.methods.higra.tables import Row, read_of
from gpu_rag.text.normalise import normalise_name

FILE = f"{EDITS}/merges.jsonl"
EXACT, SEMANTIC, FORCED = "exact", "semantic", "forced"
QUARANTINED = "quarantined"  # names too many for one entity, so they were not merged
REJECT: Final = "reject"
FORCE: Final = "force"
_N_SHOWN = 5


def merge_row(why: str, rule: str, score: float, members: Sequence[str], entity: Any) -> Row:
    """A row of HIGRA_MERGES. why: exact | semantic | forced | quarantined; entity: the merged entity, if there is
    one."""
    id = merge_id(why, members)
    return {"id": id, "why": why, "rule": rule, "score": score, "members": list(members), "entity": entity}


def merge_id(why: str, members: Sequence[str]) -> str:
    """A short id of a merge: the same for the same members in every build."""
    text = json.dumps([why, sorted(members)], ensure_ascii=False)
    return "m_" + hashlib.sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:10]


# --- edits -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    """One edit. id: id of the merge that it rejects, or of the forced merge; members: names or ids, as in
    HIGRA_MERGES."""

    id: str
    action: Literal["reject", "force"]
    members: Annotated[tuple[str, ...], Meta(min_length=2)]


Edits = tuple[Edit, ...]  # in the order made


def read_edits(path: Path | None) -> Edits:
    """The edits in a file; none if there is no file. Raises BadInput naming the invalid line."""
    if path is None or not path.is_file():
        return ()
    edits = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                edits += [_edit(line)] if line.strip() else []
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                given, expected = f"{path}:{number}: {error}", "a row made by gpu-rag merges"
                do = "mend or remove the line: the others stay"
                raise BadInput("not an edit of merges", given=given, expected=expected, do=do) from error
    return tuple(edits)


def _edit(line: bytes) -> Edit:
    edit = msgspec.json.decode(line, type=Edit)
    if edit.id not in {merge_id(why, edit.members) for why in (EXACT, SEMANTIC, FORCED)}:
        raise ValueError("its id does not belong to its members: one of them is altered")
    return edit


def write_edits(path: Path, edits: Edits) -> None:
    """Write all edits, replacing the file."""
    write_atomic(path, "".join(json.dumps(asdict(edit), ensure_ascii=False) + "\n" for edit in edits).encode())


def forget(folder: Path, names: frozenset[str]) -> None:
    """Drop the edits with a member that is among names, by sha256 of the normalised name."""
    path = folder / Path(FILE).name
    edits = read_edits(path)
    kept = [edit for edit in edits if names.isdisjoint(sha256_text(normalise_name(name)) for name in edit.members)]
    if len(kept) < len(edits):
        write_edits(path, tuple(kept))


def edited(edits: Edits, action: str) -> list[tuple[str, ...]]:
    """The members of the edits of one action, in the order made."""
    return [edit.members for edit in edits if edit.action == action]


def name_pairs(groups: Iterable[Sequence[str]]) -> frozenset[frozenset[str]]:
    """All pairs within each group."""
    return frozenset(frozenset(pair) for members in groups for pair in combinations(members, 2))


def file_of(sources: Sources) -> Path | None:
    """The edits file of a build."""
    return sources.edits / Path(FILE).name if sources.edits is not None else None


def edits_params(sources: Sources) -> dict[str, Any]:
    """The edits that a stage depends on, in sorted order; {} if there are none."""
    edits = read_edits(file_of(sources))
    return {"edits": sorted([e.action, *sorted(e.members)] for e in edits)} if edits else {}


# --- the log ---------------------------------------------------------------------------------------


class Merges:
    """The merge log of an index and its edits. Raises MissingLayer for an index without the stage `higra_merge`."""

    def __init__(self, index: Index):
        self._index, self.path = index, index.path / FILE
        self.log: list[Row] = read_of(index, "higra_merges").to_pylist()
        self.edits = read_edits(self.path)
        self.pairs = pair_coverage(index.manifest)

    def matching(self, text: str = "", why: str = "") -> list[Row]:
        """The merges with `text` in a name (both normalised) and with the given reason, in log order."""
        wanted = normalise_name(text)
        rows = [row for row in self.log if not why or row["why"] == why]
        return [row for row in rows if any(wanted in name for name in (*row["members"], row["entity"]))]

    def reject(self, ids: Iterable[str]) -> None:
        """Reject merges: their members stay apart. For a forced merge, its edit is undone. Raises BadInput."""
        by_id, edits = {row["id"]: row for row in self.log}, self.edits
        for id in ids:
            if id not in by_id:
                raise BadInput("no merge of this index has this id", given=id, do="list them with: gpu-rag merges DIR")
            if by_id[id]["why"] == QUARANTINED:
                raise BadInput("these names were left apart already", given=id, do="join two of them with --force")
            if by_id[id]["why"] == FORCED:
                edits = tuple(edit for edit in edits if edit.id != id)
            else:
                edits = tuple(dict.fromkeys([*edits, Edit(id, REJECT, tuple(by_id[id]["members"]))]))
        self.edits = edits

    def force(self, name: str, other: str) -> None:
        """Force the merge of two entities. name, other: names, aliases or ids. Raises BadInput, UsageError."""
        members = tuple(sorted({self.entity(name), self.entity(other)}))
        if len(members) < 2:
            raise UsageError("these are one entity already", given=f"{name!r} and {other!r}: {members[0]}")
        self.edits = tuple(dict.fromkeys([*self.edits, Edit(merge_id(FORCED, members), FORCE, members)]))

    def undo(self, ids: Iterable[str]) -> None:
        """Remove edits. Raises BadInput for an unknown id."""
        for id in ids:
            if all(edit.id != id for edit in self.edits):
                expected = ", ".join(e.id for e in self.edits) or "no edit"
                raise BadInput("no edit has this id", given=id, expected=expected)
            self.edits = tuple(edit for edit in self.edits if edit.id != id)

    def save(self) -> None:
        """Write the edits beside the manifest. Raises IndexLocked while a build runs, StorageError."""
        with writing(self._index.path):
            self.path.parent.mkdir(exist_ok=True)
            write_edits(self.path, self.edits)

    def entity(self, name: str) -> str:
        """The id of the entity with this id, name or alias. Raises BadInput if there is none or several."""
        table = read_of(self._index, "higra_entities")
        ids: list[str] = table["id"].to_pylist()
        if name in set(ids):
            return name
        wanted = normalise_name(name)
        for spellings in ([[name] for name in table["name"].to_pylist()], table["aliases"].to_pylist()):
            matching = [id for id, names in zip(ids, spellings) if wanted in map(normalise_name, names)]
            if len(matching) > 1:
                shown = " | ".join(matching[:_N_SHOWN])
                raise BadInput("several entities have this name", given=name, expected=f"one of the ids {shown}")
            if matching:
                return matching[0]
        near = difflib.get_close_matches(wanted, ids, n=1)
        raise BadInput("no entity has this name", given=name, do=f"did you mean {near[0]}?" if near else None)


def open_merges(folder: Path) -> Merges:
    """The merges of the index in `folder`. Raises BadInput, MissingLayer."""
    return Merges(Index.open(folder))
