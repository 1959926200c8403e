"""The merges of a finished index, and edits of them by hand, which the next build applies."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index import tables
from gpu_rag.index.folder import WriteLock
from gpu_rag.index.index import Index
from gpu_rag.methods.higra.merge_edits import FILE, FORCE, FORCED, REJECT, Edit, Edits, merge_id
from gpu_rag.methods.higra.tables import HIGRA_ENTITIES, HIGRA_MERGES
from gpu_rag.text.normalise import normalise_name

Row = dict[str, Any]
_N_SHOWN = 5


class Merges:
    """The merge log of an index and its edits. Raises MissingLayer for an index without the layer `higra_merge`."""

    def __init__(self, index: Index):
        self._index, self.path = index, index.path / FILE
        folder = index.folder("higra_merge")
        self.log: list[Row] = tables.read_table(folder / "higra_merges.parquet", HIGRA_MERGES).to_pylist()
        self._entities = tables.read_table(folder / "higra_entities.parquet", HIGRA_ENTITIES)
        self.edits = Edits.read(self.path)

    def found(self, text: str = "", why: str = "") -> list[Row]:
        """The merges that have `text` in a name (as normalised) and that reason; in the order of the log."""
        wanted = normalise_name(text)
        rows = [row for row in self.log if not why or row["why"] == why]
        return [row for row in rows if any(wanted in name for name in (*row["members"], row["entity"]))]

    def reject(self, ids: Iterable[str]) -> None:
        """Tells the members of these merges apart; of a forced merge it takes the edit back. Raises BadInput."""
        by_id = {row["id"]: row for row in self.log}
        edits = self.edits
        for id in ids:
            if id not in by_id:
                raise BadInput("no merge of this index has this id", given=id, do="list them with: gpu-rag merges DIR")
            row = by_id[id]
            edits = (
                edits.without(id) if row["why"] == FORCED else edits.with_edit(Edit(id, REJECT, tuple(row["members"])))
            )
        self.edits = edits

    def force(self, one: str, other: str) -> None:
        """Makes one entity of two. one, other: a name, an alias, or an id. Raises BadInput, UsageError."""
        members = sorted({self.entity(one), self.entity(other)})
        if len(members) < 2:
            raise UsageError("these are one entity already", given=f"{one!r} and {other!r}: {members[0]}")
        self.edits = self.edits.with_edit(Edit(merge_id(FORCED, members), FORCE, tuple(members)))

    def undo(self, ids: Iterable[str]) -> None:
        """Takes edits back. Raises BadInput where there is no such edit."""
        for id in ids:
            if all(edit.id != id for edit in self.edits.edits):
                raise BadInput(
                    "no edit has this id", given=id, expected=", ".join(e.id for e in self.edits.edits) or "no edit"
                )
            self.edits = self.edits.without(id)

    def save(self) -> None:
        """Writes the edits beside the manifest. Raises IndexLocked while a build runs, StorageError."""
        with WriteLock(self._index.path):
            self.edits.write(self.path)

    def entity(self, name: str) -> str:
        """The id of the entity that is meant. Raises BadInput where there is none or several."""
        ids: list[str] = self._entities["id"].to_pylist()
        if name in set(ids):
            return name
        wanted = normalise_name(name)
        for ways_of in (self._names, self._aliases):
            rows = ways_of().get(wanted, [])
            if len(rows) > 1:
                shown = " | ".join(ids[row] for row in rows[:_N_SHOWN])
                raise BadInput("several entities have this name", given=name, expected=f"one of the ids {shown}")
            if rows:
                return ids[rows[0]]
        near = difflib.get_close_matches(wanted, ids, n=1)
        raise BadInput("no entity has this name", given=name, do=f"did you mean {near[0]}?" if near else None)

    def _names(self) -> dict[str, list[int]]:
        return _rows_by(self._entities["name"].to_pylist(), lambda name: [name])

    def _aliases(self) -> dict[str, list[int]]:
        return _rows_by(self._entities["aliases"].to_pylist(), lambda aliases: aliases)


def _rows_by(column: list[Any], ways: Callable[[Any], list[str]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for row, value in enumerate(column):
        for name in {normalise_name(way) for way in ways(value)}:
            found[name].append(row)
    return found


def open_merges(folder: Path) -> Merges:
    """The merges of the index in `folder`. Raises BadInput, MissingLayer."""
    return Merges(Index.open(folder))
