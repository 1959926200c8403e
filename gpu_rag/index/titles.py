"""Heavy edges between passages and the nodes of their titles: a passage is about its title, others mention it."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.names import normalised, one_array, rows_of

TITLE_WEIGHT = 15.0  # weight of the edge between a passage and the entity of its title; other edges weigh at most 1
MAX_PASSAGES = 10  # maximum per title; a title of more passages is not their topic
BRACKET = re.compile(r"\s*\(([^()]*)\)\s*$")


def title_edges(
    titles: pa.ChunkedArray, names: pa.Array | pa.ChunkedArray, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(node, passage), i64 each, of each passage whose title is a known name, with or without its final bracket;
    passages ascend. Titles of more than MAX_PASSAGES passages are skipped.

    titles: titles of all passages; names: normalised; rows: the node of each, without rows its position. Of equal names
    the first counts.
    """
    known = one_array(names)
    passages, telling = telling_titles(titles)
    node = rows_of(normalised(telling), known)
    bracketed, short = without_brackets(telling)
    node[bracketed] = np.where(node[bracketed] < 0, rows_of(normalised(short), known), node[bracketed])
    is_known = node >= 0
    return (node if rows is None else np.append(rows, -1)[node])[is_known], passages[is_known]


def telling_titles(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.LargeStringArray]:
    """(passages i64, their titles) for titles of at most MAX_PASSAGES passages, ascending; empty titles do not
    count. column: the title of each passage."""
    titles = one_array(column)
    encoded = titles.dictionary_encode()
    code, empty = encoded.indices.to_numpy(), pc.equal(titles, "").to_numpy(zero_copy_only=False)
    shared = np.bincount(code, minlength=len(encoded.dictionary))
    passages = np.flatnonzero((shared[code] <= MAX_PASSAGES) & ~empty)
    return passages, titles.take(pa.array(passages))


def without_brackets(names: pa.LargeStringArray) -> tuple[np.ndarray, pa.LargeStringArray]:
    """(rows i64 of the names with a final bracket, these names without it)."""
    rows = np.flatnonzero(pc.match_substring(names, "(").to_numpy(zero_copy_only=False))
    texts = [
        (row, BRACKET.sub("", name))
        for row, name in zip(rows.tolist(), names.take(pa.array(rows)).to_pylist())
        if BRACKET.search(name)
    ]
    return np.array([row for row, _ in texts], np.int64), pa.array([text for _, text in texts], pa.large_string())
