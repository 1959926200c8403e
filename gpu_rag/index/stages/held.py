"""Documents that an index holds, read from its tables instead of from their files.

Their ids pass the same checks as the ids of rows of files. The result differs from reading the files in two ways: white
space between passages becomes spaces; and the text of a row that the index rejected, because its id stood for another
text, is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index import tables
from gpu_rag.index.metadata import FILE as METADATA
from gpu_rag.index.metadata import LANGUAGE, read_metadata, rows_of
from gpu_rag.index.names import one_array
from gpu_rag.index.names import rows_of as rows_of_names
from gpu_rag.index.stages.rejected import read_rejects
from gpu_rag.index.work import Sources
from gpu_rag.sources.corpus import Outcome
from gpu_rag.sources.rows import TAKEN
from gpu_rag.text.language import language_of
from gpu_rag.types import Document, Reject

_AT_ONCE = 1 << 10  # documents that are Python objects at the same time


@dataclass(frozen=True)
class HeldDocument(Document):
    """A document with its language and the rows of its passages."""

    language: str = ""
    passages: tuple[dict[str, Any], ...] = ()


def held_readers(sources: Sources) -> dict[Path, Callable[[], Iterator[Outcome]]]:
    """A reader for each held source, by path. Tables are read on first use. Memory: the passages of their indexes."""
    open_tables = cache(_Tables)  # an index may hold several sources
    return {source.path: partial(_outcomes, open_tables, source.passages, source.path.name) for source in sources.held}


def _outcomes(open_tables: Callable[[Path], _Tables], folder: Path, name: str) -> Iterator[Outcome]:
    return open_tables(folder).outcomes(name)


class _Tables:
    """The tables of the stage `passages` of an index."""

    def __init__(self, folder: Path):
        """Read the tables in the folder of the stage. Raises IndexCorrupt for tables that no build writes."""
        self._documents = tables.read_table(folder / "documents.parquet", tables.DOCUMENTS)
        n, path = self._documents.num_rows, folder / METADATA
        self._metadata = read_metadata(path, n) if path.exists() else None
        # a column with a fraction stores its integers as floats too
        self._has_fractions = {name for name, column in _floats(self._metadata) if (column % 1 > 0).any()}
        passages = tables.read_table(folder / "passages.parquet", tables.PASSAGES)
        lines = tables.read_table(folder / "lines.parquet", tables.LINES)
        ids = one_array(self._documents["id"])
        owner = rows_of_names(one_array(passages["doc_id"]), ids)
        sizes = np.bincount(owner[owner >= 0], minlength=n)
        if len(lines) != len(passages) or (owner < 0).any() or not sizes.all():
            raise IndexCorrupt("passages and documents of an index do not fit together", given=folder)
        self._passages = passages.append_column("line", lines["line"])
        # passages of the document at row d, by start: order[bounds[d]:bounds[d + 1]]
        self._order = np.lexsort((passages["start"].to_numpy(), owner))
        self._bounds = np.append(0, np.cumsum(sizes))
        self._row = {id: row for row, id in enumerate(ids.to_pylist())}
        files, numbers = self._documents["file"].to_pylist(), self._documents["line"].to_pylist()
        self._places = list(zip(files, numbers))
        # only a question, whose contexts other questions may repeat, gives several documents a line
        n_documents = Counter(place for place in self._places if place[1])
        self._question_files = {file for (file, _), count in n_documents.items() if count > 1}
        self._rejects = list(read_rejects(folder / "rejects.jsonl"))

    def outcomes(self, name: str) -> Iterator[Outcome]:
        """Documents and rejects of the source with this name, by file and line, as a reader of its files gives them."""
        items: list[tuple[str, int, int | Reject]] = [
            (file, line, row) for row, (file, line) in enumerate(self._places) if source_name(file) == name
        ]
        items += [(reject.file, reject.line, reject) for reject in self._rejects if source_name(reject.file) == name]
        items.sort(key=lambda item: (item[0].encode(), item[1]))
        for start in range(0, len(items), _AT_ONCE):
            block = [(item, self._row_of(item)) for _, _, item in items[start : start + _AT_ONCE]]
            documents = self._read([row for _, row in block if row is not None])
            for item, row in block:
                if row is None:
                    assert isinstance(item, Reject)
                    yield Outcome(item, was_taken=TAKEN in item.reason)
                    continue
                document = documents[row]
                if isinstance(item, Reject):
                    document = replace(document, file=item.file, line=item.line)
                prefix = _prefix(document)
                document = replace(document, id=document.id.removeprefix(prefix))  # its reader claims the id again
                yield Outcome(document, document.file in self._question_files, prefix and f"{prefix}{document.id}")

    def _row_of(self, item: int | Reject) -> int | None:
        """The row of a document, or of the first copy of a rejected repetition; None for other rejects."""
        if not isinstance(item, Reject):
            return item
        return self._row.get(item.id) if item.reason.startswith("duplicate of ") else None

    def _read(self, rows: Sequence[int]) -> dict[int, HeldDocument]:
        """The documents at some rows, which may repeat."""
        distinct = sorted(set(rows))
        spans = [self._order[self._bounds[row] : self._bounds[row + 1]] for row in distinct]
        passages = self._passages.take(pa.array(np.concatenate([np.zeros(0, np.int64), *spans]))).to_pylist()
        columns = self._documents.take(pa.array(distinct, pa.int64())).to_pylist()
        has_language = self._metadata is not None and LANGUAGE in self._metadata.column_names
        documents, first = dict[int, HeldDocument](), 0
        for row, span, metadata, fields in zip(distinct, spans, rows_of(self._metadata, distinct), columns):
            own_passages, first = tuple(passages[first : first + len(span)]), first + len(span)
            text = _joined(own_passages)
            language = metadata.pop(LANGUAGE, "") if has_language else language_of(text)
            numbers = {name: value for name, value in metadata.items() if name in self._has_fractions}
            metadata |= {name: int(value) for name, value in numbers.items() if float(value).is_integer()}
            fields |= {"pages": tuple(fields["pages"]), "metadata": metadata, "language": str(language)}
            documents[row] = HeldDocument(**fields, text=text, passages=own_passages)
        return documents


def _floats(table: pa.Table | None) -> Iterator[tuple[str, np.ndarray]]:
    """(name, values f64) of each column of floats; NaN stands for a missing value."""
    for column in [] if table is None else table.schema:
        if pa.types.is_floating(column.type):
            yield column.name, table[column.name].to_numpy()  # type: ignore[index]


def source_name(file: str) -> str:
    """The name of the source of a file. file: as the index names it."""
    return file.partition("/")[0]


def _prefix(document: Document) -> str:
    """The prefix "FILE:" that the id of a row gets if it is taken, for rows in a folder or .zip; else ""."""
    source, _, inner = document.file.partition("/")
    if not inner or not document.line:
        return ""
    return f"{document.file if source.lower().endswith('.zip') else inner}:"


MAX_SPACES = 10_000_000  # characters of the longest text


def _joined(passages: Sequence[dict[str, Any]]) -> str:
    """The text of a document from its passages, which may overlap. Spaces replace the white space between them."""
    parts, length = list[str](), 0
    for passage in passages:
        gap, text = passage["start"] - length, passage["text"]
        if gap > MAX_SPACES:
            raise IndexCorrupt("a passage begins far behind the one before", given=f"{passage['id']}: {gap} characters")
        parts += [" " * gap, text] if gap >= 0 else [text[-gap:]]
        length = max(length, passage["start"] + len(text))
    return "".join(parts)
