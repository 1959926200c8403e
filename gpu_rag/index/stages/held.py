"""Documents that an index holds, read from its tables in place of the files that they came from.

They pass the same checks of ids as rows of files do. Two things differ from reading the files. White space between
passages is spaces. Of a row that the index rejected because its id stood for another text, that text is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index import tables
from gpu_rag.index.metadata import FILE as METADATA
from gpu_rag.index.metadata import LANGUAGE, read_metadata, rows_of
from gpu_rag.index.names import one_array
from gpu_rag.index.names import rows_of as rows_named
from gpu_rag.index.work import Sources
from gpu_rag.sources.corpus import Outcome
from gpu_rag.sources.rows import TAKEN
from gpu_rag.text.language import language_of
from gpu_rag.types import Document, Reject

_AT_ONCE = 1 << 10  # documents held as Python objects


@dataclass(frozen=True)
class HeldDocument(Document):
    """A document with its language and the rows of its passages."""

    language: str = ""
    passages: tuple[dict[str, Any], ...] = ()


def held_readers(sources: Sources) -> dict[Path, Callable[[], Iterator[Outcome]]]:
    """A reader for each source whose files are not read. Memory: the passages of their indexes."""
    opened = cache(_Held)
    return {held.path: partial(_read, opened, held.passages, held.path.name) for held in sources.held}


def _read(opened: Callable[[Path], _Held], folder: Path, name: str) -> Iterator[Outcome]:
    return opened(folder).outcomes(name)


class _Held:
    """The tables of the stage `passages` of an index."""

    def __init__(self, folder: Path):
        """Read them. Raises IndexCorrupt for tables that no build writes."""
        self._documents = tables.read_table(folder / "documents.parquet", tables.DOCUMENTS)
        n, path = self._documents.num_rows, folder / METADATA
        self._about = read_metadata(path, n) if path.exists() else None
        self._mixed = {name for name, column in _floats(self._about) if (column % 1 > 0).any()}
        passages = tables.read_table(folder / "passages.parquet", tables.PASSAGES)
        lines = tables.read_table(folder / "lines.parquet", tables.LINES)
        ids = one_array(self._documents["id"])
        owner = rows_named(one_array(passages["doc_id"]), ids)
        sizes = np.bincount(owner[owner >= 0], minlength=n)
        if len(lines) != len(passages) or (owner < 0).any() or not sizes.all():
            raise IndexCorrupt("passages and documents of an index do not fit together", given=folder)
        self._passages = passages.append_column("line", lines["line"])
        self._order = np.lexsort((passages["start"].to_numpy(), owner))  # of each document in turn
        self._bounds = np.append(0, np.cumsum(sizes))
        self._row = {id: row for row, id in enumerate(ids.to_pylist())}
        files, numbers = self._documents["file"].to_pylist(), self._documents["line"].to_pylist()
        self._places = list(zip(files, numbers))
        shared = Counter(place for place in self._places if place[1])
        self._of_questions = {file for (file, _), count in shared.items() if count > 1}
        self._rejects = _rejects_of(folder / "rejects.jsonl")

    def outcomes(self, name: str) -> Iterator[Outcome]:
        """Documents and rejects of the source of this name, by file and line."""
        items: list[tuple[str, int, int | Reject]] = [
            (file, line, row) for row, (file, line) in enumerate(self._places) if _source(file) == name
        ]
        items += [(reject.file, reject.line, reject) for reject in self._rejects if _source(reject.file) == name]
        items.sort(key=lambda item: (item[0].encode(), item[1]))
        for start in range(0, len(items), _AT_ONCE):
            some = [(item, self._row_of(item)) for _, _, item in items[start : start + _AT_ONCE]]
            documents = self._read([row for _, row in some if row is not None])
            for item, row in some:
                if row is None:
                    assert isinstance(item, Reject)
                    yield Outcome(item, was_taken=TAKEN in item.reason)
                    continue
                document = documents[row]
                if isinstance(item, Reject):
                    document = replace(document, file=item.file, line=item.line)
                prefix = _prefix(document)
                document = replace(document, id=document.id.removeprefix(prefix))  # it is claimed again
                yield Outcome(document, document.file in self._of_questions, prefix and f"{prefix}{document.id}")

    def _row_of(self, item: int | Reject) -> int | None:
        """The row of a document; for a rejected repetition that of its first copy; None for other rejects."""
        if not isinstance(item, Reject):
            return item
        return self._row.get(item.id) if item.reason.startswith("duplicate of ") else None

    def _read(self, rows: Sequence[int]) -> dict[int, HeldDocument]:
        distinct = sorted(set(rows))
        spans = [self._order[self._bounds[row] : self._bounds[row + 1]] for row in distinct]
        passages = self._passages.take(pa.array(np.concatenate([np.zeros(0, np.int64), *spans]))).to_pylist()
        about, documents, first = rows_of(self._about, distinct), dict[int, HeldDocument](), 0
        for row, span, metadata, given in zip(
            distinct, spans, about, self._documents.take(pa.array(distinct, pa.int64())).to_pylist()
        ):
            mine, first = tuple(passages[first : first + len(span)]), first + len(span)
            text = _joined(mine)
            known = self._about is not None and LANGUAGE in self._about.column_names
            language = metadata.pop(LANGUAGE, "") if known else language_of(text)
            numbers = {name: value for name, value in metadata.items() if name in self._mixed}  # all floats now
            metadata |= {name: int(value) for name, value in numbers.items() if float(value).is_integer()}
            pages = tuple(given.pop("pages"))
            documents[row] = HeldDocument(
                **given, text=text, pages=pages, metadata=metadata, language=str(language), passages=mine
            )
        return documents


def _floats(table: pa.Table | None) -> Iterator[tuple[str, np.ndarray]]:
    """Columns of numbers that are not all integers, f64 with NaN for none."""
    for column in [] if table is None else table.schema:
        if pa.types.is_floating(column.type):
            yield column.name, table[column.name].to_numpy()  # type: ignore[index]


def _source(file: str) -> str:
    """The name of the source that a file, as the index names it, belongs to."""
    return file.partition("/")[0]


def _prefix(document: Document) -> str:
    """The text before the id of a row of a file in a folder or a .zip, if the id is taken; "" for other documents."""
    source, _, inner = document.file.partition("/")
    if not inner or not document.line:
        return ""
    return f"{document.file if source.lower().endswith('.zip') else inner}:"


def _joined(passages: Sequence[dict[str, Any]]) -> str:
    """The text of a document, with spaces in place of the white space between its passages."""
    parts, length = list[str](), 0
    for passage in passages:
        gap, text = passage["start"] - length, passage["text"]
        parts += [" " * gap, text] if gap >= 0 else [text[-gap:]]
        length = max(length, passage["start"] + len(text))
    return "".join(parts)


def _rejects_of(path: Path) -> list[Reject]:
    try:
        return [msgspec.json.decode(line, type=Reject) for line in path.read_bytes().splitlines()]
    except (OSError, msgspec.MsgspecError) as error:
        raise IndexCorrupt("the rejects of an index cannot be read", given=f"{path}: {error}") from error
