"""The tables of HopRAG's stages: vertices, pseudo-questions, keywords, matches and edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.names import hashes_of, one_array, rows_of
from gpu_rag.index.stages.search import TextRows, rows_by_key
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

VERTICES = pa.schema(
    [
        ("id", pa.string()),  # the passage's id, or `passage@k` for its sentence k
        ("passage", pa.int32()),  # rows of PASSAGES, ascending
        ("start", pa.int32()),  # characters in the passage text
        ("end", pa.int32()),
    ]
)
QUESTIONS = pa.schema([("vertex", pa.int32()), ("text", pa.string())])  # sorted by (vertex, text), no duplicates
MATCHES = pa.schema([("question", pa.int32()), ("sim", pa.float64())])  # for each out-question; -1, -inf: no match
EDGES = pa.schema(
    [
        ("source", pa.int32()),  # rows of VERTICES; sorted by (source, target), each pair once
        ("target", pa.int32()),
        ("question", pa.int32()),  # the in-question that the edge carries
        ("out_question", pa.int32()),  # the out-question that it matches best
        ("sim", pa.float64()),
    ]
)
KEYWORDS = pa.schema([("keyword", pa.string())])  # sorted; the row is the keyword's number
LISTS = pa.schema([("numbers", pa.list_(pa.int32()))])  # rows of KEYWORDS, ascending
SIDES = ("in", "out", "vertex")  # sides with stored keywords, by file name


def questions_file(folder: Path, side: str) -> Path:
    """The file of the in- or out-questions in the folder of the stage `hop_questions`."""
    return folder / f"{side}_questions.parquet"


def read_questions(folder: Path, side: str) -> pa.Table:
    """The in- or out-questions of the stage `hop_questions`."""
    return tables.read_table(questions_file(folder, side), QUESTIONS)


def question_rows(side: str, folder: Path) -> TextRows:
    """The texts of the in- or out-questions."""
    texts = tables.whole_text(read_questions(folder, side)["text"])
    return TextRows(len(texts), lambda rows: texts.slice(rows.start, rows.stop - rows.start).to_pylist())


def text_keys(side: str, folder: Path) -> np.ndarray:
    """i64[Q]: a key of the text of each in- or out-question, for comparisons in this process, see `hashes_of`."""
    batches = tables.read_batches(questions_file(folder, side), QUESTIONS, ("text",))
    return np.concatenate([np.zeros(0, np.int64), *(hashes_of(batch["text"]) for batch in batches)])


def same_texts(side: str, now: Path, before: Path) -> np.ndarray:
    """i64[Q]: the row of an earlier in- or out-question with the text of each, -1 if there is none. now, before:
    folders of the stage `hop_questions`."""
    new, old = (one_array(read_questions(folder, side)["text"]) for folder in (now, before))
    rows, middle, _ = _same_ends([new], [old])
    wanted = new[middle]
    known = np.flatnonzero(pc.is_in(old, value_set=wanted).to_numpy(zero_copy_only=False))
    rows[middle] = np.append(known, -1)[rows_of(wanted, old.take(pa.array(known)))]
    return rows


def same_questions(side: str, now: Mapping[str, Path], before: Mapping[str, Path]) -> np.ndarray:
    """i64[Q]: the row of each in- or out-question in an earlier run, -1 if its vertex did not have it. now, before:
    folders of the stages `hop_vertices` and `hop_questions`."""
    (ids, old_ids), (numbers, old_vertex), (texts, old_texts) = (
        [read(folders) for folders in (now, before)]
        for read in (
            lambda of: one_array(tables.read_table(of["hop_vertices"] / "vertices.parquet", VERTICES, ["id"])["id"]),
            lambda of: read_questions(of["hop_questions"], side)["vertex"].to_numpy().astype(np.int64),
            lambda of: one_array(read_questions(of["hop_questions"], side)["text"]),
        )
    )
    vertex = rows_of(ids, old_ids)[numbers]
    rows, middle, old_middle = _same_ends([texts, pa.array(vertex)], [old_texts, pa.array(old_vertex)])
    texts, old_texts = texts[middle], old_texts[old_middle]
    keys, old_keys = (
        np.stack([owners, rows_of(given, old_texts)], 1).view(np.uint64)
        for owners, given in ((vertex[middle], texts), (old_vertex[old_middle], old_texts))
    )
    known = np.append(np.arange(len(old_vertex))[old_middle], -1)
    rows[middle] = known[rows_by_key(keys, old_keys)]
    return rows


def _same_ends(new: Sequence[pa.Array], old: Sequence[pa.Array]) -> tuple[np.ndarray, slice, slice]:
    """(i64[n]: the old row of each row of the equal beginnings and ends of two tables, the new rows between, the old
    ones). A change of few documents leaves long ones, which need no hash of a text."""
    n, n_old = len(new[0]), len(old[0])
    most = min(n, n_old)

    def are_equal(first: int, first_old: int) -> np.ndarray:
        sides = ((a.slice(first, most), b.slice(first_old, most)) for a, b in zip(new, old))
        equal = [pc.equal(*pair).to_numpy(zero_copy_only=False) for pair in sides]
        return np.logical_and.reduce(equal)  # type: ignore[no-any-return]

    head = int(np.append(are_equal(0, 0), False).argmin())
    most -= head
    tail = int(np.append(are_equal(n - most, n_old - most)[::-1], False).argmin())
    rows = np.arange(n)
    rows[n - tail :] += n_old - n
    return rows, slice(head, n - tail), slice(head, n_old - tail)


def write_lists(path: Path, lists: Ragged) -> None:
    """Write lists of numbers as a table of one column."""
    column = pa.LargeListArray.from_arrays(lists.offsets.numpy(), lists.values.int().numpy())
    tables.write_columns(path, LISTS, [column])


def read_lists(path: Path) -> Ragged:
    """The lists that `write_lists` wrote."""
    return lists_of(tables.read_table(path, LISTS))


def lists_of(table: pa.Table) -> Ragged:
    """The lists of a table: values i32[T], offsets i64[B + 1]."""
    column = table["numbers"]
    starts = tables.starts_of(pc.list_value_length(column).to_numpy())
    return Ragged(torch.from_numpy(pc.list_flatten(column).to_numpy().copy()), torch.from_numpy(starts))
