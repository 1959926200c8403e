"""Checks of HopRAG's stages: vertices, questions, keywords, vectors, matches and edges against each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.graph.frontier import FrontierQuery, described, score_lists
from gpu_rag.graph.ragged import some_lists
from gpu_rag.index import tables
from gpu_rag.index.checks import outside, wrong_vectors
from gpu_rag.index.index import Index
from gpu_rag.methods.hoprag.stages.edges import edges_of_matches
from gpu_rag.methods.hoprag.stages.words import union_of_rows
from gpu_rag.methods.hoprag.tables import EDGES, KEYWORDS, MATCHES, SIDES, VERTICES, read_lists, read_questions
from gpu_rag.types import Ragged


def _table(index: Index, stage: str, file: str, schema: pa.Schema) -> dict[str, np.ndarray]:
    table = tables.read_table(index.folder(stage) / file, schema)
    return {name: table[name].to_numpy() for name in schema.names}


def _n_rows(index: Index, side: str) -> int:
    if side == "vertex":
        return len(_table(index, "hop_vertices", "vertices.parquet", VERTICES)["id"])
    return int(read_questions(index.folder("hop_questions"), side).num_rows)


def _vertices(index: Index, stage: str) -> Iterator[str]:
    rows = _table(index, stage, "vertices.parquet", VERTICES)
    passage, start, end = rows["passage"], rows["start"], rows["end"]
    if len(np.unique(rows["id"].astype(str))) != len(rows["id"]):
        yield "vertices: an id comes twice"
    if not np.array_equal(np.unique(passage), np.arange(index.n_passages)) or (np.diff(passage) < 0).any():
        yield "vertices: not every passage has its vertices, in order"
        return
    lengths = np.asarray([len(text) for text in index.passages["text"].to_pylist()])[passage]
    if bad := int(((start < 0) | (end > lengths) | (start > end)).sum()):
        yield f"vertices: {bad} lie outside their passage"


def _questions(index: Index, stage: str) -> Iterator[str]:
    for side in ("in", "out"):
        table = read_questions(index.folder(stage), side)
        vertex = table["vertex"].to_numpy()
        if outside(vertex, _n_rows(index, "vertex")):
            yield f"{side}_questions: a row number that no vertex has"
        rows = list(zip(vertex.tolist(), table["text"].to_pylist()))
        if any(a >= b for a, b in zip(rows, rows[1:])):
            yield f"{side}_questions: not sorted by vertex and text, each once"


def _keywords(index: Index, stage: str) -> Iterator[str]:
    words = _table(index, stage, "keywords.parquet", KEYWORDS)["keyword"].tolist()
    if any(a >= b for a, b in zip(words, words[1:])):
        yield "keywords: not sorted, each once"
    for side in SIDES:
        path, n_rows = index.folder(stage) / f"{side}.parquet", _n_rows(index, side)
        yield from _wrong_lists(read_lists(path), n_rows, len(words), f"keywords of {side}")


def _wrong_lists(lists: Ragged, n_rows: int, n_words: int, what: str) -> Iterator[str]:
    """Faults of ascending lists of numbers below n_words, one list a row."""
    values, offsets = lists.values.numpy(), lists.offsets.numpy()
    if len(offsets) != n_rows + 1:
        yield f"{what}: {len(offsets) - 1} lists for {n_rows} rows"
        return
    inner = np.ones(max(len(values) - 1, 0), bool)
    inner[offsets[(offsets > 0) & (offsets < len(values))] - 1] = False  # skip the step from one list to the next
    if outside(values, n_words) or (np.diff(values)[inner] <= 0).any():
        yield f"{what}: a list is not ascending rows of the vocabulary"


def _words(index: Index, stage: str) -> Iterator[str]:
    known = _table(index, "hop_keywords", "keywords.parquet", KEYWORDS)["keyword"]
    others = _table(index, stage, "topic_words.parquet", KEYWORDS)["keyword"].tolist()
    if any(a >= b for a, b in zip(others, others[1:])) or not set(others).isdisjoint(known):
        yield "topic words: not sorted, each once, or known as keywords"
    lists = read_lists(index.folder(stage) / "topics.parquet")
    yield from _wrong_lists(lists, _n_rows(index, "vertex"), len(known) + len(others), "topics of vertex")
    edges, folder = _table(index, "hop_edges", "edges.parquet", EDGES), index.folder("hop_keywords")
    sides = (
        (read_lists(folder / f"{side}.parquet"), torch.from_numpy(edges[row].copy()))
        for side, row in zip(_SIDES, ("out_question", "question"))
    )
    expected, stored = union_of_rows(*sides, n=len(known)), read_lists(index.folder(stage) / "edges.parquet")
    if not (torch.equal(expected.values, stored.values) and torch.equal(expected.offsets, stored.offsets)):
        yield "keywords of edges: not those of their questions"


def _vectors(index: Index, stage: str) -> Iterator[str]:
    side = stage.removeprefix("hop_").removesuffix("_vectors")
    yield from wrong_vectors(index, stage, _n_rows(index, side), "rows", zeros=True)


def _edges(index: Index, stage: str) -> Iterator[str]:
    matches = _table(index, stage, "matches.parquet", MATCHES)
    vertex = {side: read_questions(index.folder("hop_questions"), side)["vertex"].to_numpy() for side in ("in", "out")}
    question, sim = matches["question"], matches["sim"]
    if len(question) != len(vertex["out"]):
        yield f"matches: {len(question)} for {len(vertex['out'])} out-questions"
        return
    if bad := outside(question + 1, len(vertex["in"]) + 1):
        yield f"matches: {bad} with a row number that no in-question has"
        return
    matched = np.flatnonzero(question >= 0)
    if (vertex["in"][question[matched]] == vertex["out"][matched]).any():
        yield "matches: an out-question matches one of its own vertex"
    scores = _scores(index, matched, question[matched])
    if not np.array_equal(sim[matched], scores) or not np.isneginf(np.delete(sim, matched)).all():
        yield "matches: a SIM is not that of its two questions"
        return
    factor = index.manifest.stages[stage].params["edge_budget"]
    expected, _ = edges_of_matches(question, sim, vertex["out"], vertex["in"], _n_rows(index, "vertex"), factor)
    stored = _table(index, stage, "edges.parquet", EDGES)
    if not all(np.array_equal(stored[name], expected[name]) for name in EDGES.names):
        yield "edges: not those of the matches"


_SIDES = ("out", "in")
_ROWS = 1 << 16  # questions compared at a time: it bounds memory


def _scores(index: Index, out_rows: np.ndarray, in_rows: np.ndarray) -> np.ndarray:
    vectors = (tables.read_arrays(index.folder(f"hop_{side}_vectors") / "vectors.safetensors") for side in _SIDES)
    left, right = (torch.from_numpy(arrays["vectors"]) for arrays in vectors)
    left_words, right_words = (read_lists(index.folder("hop_keywords") / f"{side}.parquet") for side in _SIDES)
    things, scores = described(right, right_words, 2**31), [np.zeros(0)]
    for start in range(0, len(out_rows), _ROWS):
        i, j = (torch.from_numpy(rows[start : start + _ROWS].astype(np.int64)) for rows in (out_rows, in_rows))
        queries = FrontierQuery(left[i].float(), some_lists(left_words, i))
        scores.append(score_lists(queries, things, Ragged(j, torch.arange(len(j) + 1))).numpy())
    return np.concatenate(scores)


_CHECKS = {
    "hop_vertices": _vertices,
    "hop_questions": _questions,
    "hop_keywords": _keywords,
    "hop_in_vectors": _vectors,
    "hop_out_vectors": _vectors,
    "hop_vertex_vectors": _vectors,
    "hop_edges": _edges,
    "hop_words": _words,
}


def check_hops(index: Index) -> Iterator[str]:
    """The faults of the index's hop stages, one line each. Only the first stage with faults is reported."""
    for stage, check in _CHECKS.items():
        if stage in index.stages:
            broken = list(check(index, stage))
            yield from broken
            if broken:  # later stages depend on it
                return


CHECKS = dict.fromkeys(_CHECKS, check_hops)
