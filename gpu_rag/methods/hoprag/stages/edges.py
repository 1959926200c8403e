"""Makes edges from questions. Each out-question leads to the vertex of its best in-question; the strongest edges
stay."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_rag.graph.join.candidates import bucket_bits
from gpu_rag.index import tables
from gpu_rag.index.stage import Pairs, stage
from gpu_rag.index.stages.search import drop_changed
from gpu_rag.index.work import Sources, Work
from gpu_rag.lazy import torch
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.stages.matching import (
    Previous,
    Side,
    best_matches,
    match_exactly,
    match_nearly,
    only,
    sampled_matches,
)
from gpu_rag.methods.hoprag.stages.vertices import read_vertices
from gpu_rag.methods.hoprag.tables import (
    EDGES,
    KEYWORDS,
    MATCHES,
    QUESTIONS,
    questions_file,
    read_lists,
    same_questions,
    text_keys,
)
from gpu_rag.models.set import pick_device
from gpu_rag.settings import Settings
from gpu_rag.types import Ragged

_log = logging.getLogger(__name__)
Asked = tuple[Ragged, np.ndarray]  # keywords and text keys of the questions of a side
CANDIDATES_COST = 4_000.0  # cost of a question's candidates, in exact comparisons, at 18,900 to 1,001,700 passages


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The cut, and where matching among candidates begins."""
    return {name: getattr(settings.section(HopSettings), name) for name in ("edge_budget", "exact_limit")}


def _pairs(settings: Settings, sizes: Mapping[str, float]) -> float:
    """The number of question pairs to compare, or what candidates cost in comparisons."""
    n_in, n_out = sizes["hop_in_questions"], sizes["hop_out_questions"]
    is_exact = max(n_in, n_out) <= settings.section(HopSettings).exact_limit
    return n_out * (n_in if is_exact else CANDIDATES_COST)


@stage(
    "hop_edges",
    needs=("passages", "hop_vertices", "hop_questions", "hop_keywords", "hop_in_vectors", "hop_out_vectors"),
    version=4,
    params=_params,
    pairs=Pairs("questions squared", _pairs),
    graph=True,
)
def edges_stage(work: Work) -> dict[str, int]:
    """Write the tables `matches` (the best in-question of each out-question, before any cut) and `edges` (see
    `edges_of_matches`)."""
    outs, ins = read_side(work, "out"), read_side(work, "in")
    work.progress.start("hop_edges", len(outs.vertex), "questions")
    question, sim, mode = _match(work, outs, ins)
    tables.write_table(work.out / "matches.parquet", MATCHES, {"question": question, "sim": sim})
    out_vertex, in_vertex = outs.vertex.cpu().numpy(), ins.vertex.cpu().numpy()
    budget = work.settings.section(HopSettings).edge_budget
    n_vertices = tables.n_rows(work.stage_folders["hop_vertices"] / "vertices.parquet")
    edges, n_uncut = edges_of_matches(question, sim, out_vertex, in_vertex, n_vertices, budget)
    n_edges = tables.write_table(work.out / "edges.parquet", EDGES, edges)
    return {
        "hop_edges": n_edges,
        "hop_edges_uncut": n_uncut,
        "hop_edges_crossing": _n_crossing(work, edges),
        "hop_matched": int((question >= 0).sum()),
        **mode,
    }


def _match(work: Work, outs: Side, ins: Side) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """The best in-question and SIM of every out-question; counts of the mode, and figures of a sample of candidates."""
    previous = read_previous(work, outs, ins)
    if _is_exact(work):
        return *best_matches(work, outs, ins, previous, match_exactly), {"hop_exact": 1}
    match = partial(match_nearly, bits=_bits(_asked(outs), _asked(ins)))
    question, sim = best_matches(work, outs, ins, previous, match)
    sampled, n_found = sampled_matches(work, outs, ins, sim)
    _log.info("hop edges by candidates: %d of %d sampled matches that share a keyword are found", n_found, sampled)
    return question, sim, {"hop_candidates": 1, "hop_sampled": sampled, "hop_sampled_and_found": n_found}


def _is_exact(work: Work) -> bool:
    """Whether all questions are compared: up to `hops.exact_limit` questions on a side, and always on a GPU."""
    folder, limit = work.stage_folders["hop_questions"], work.settings.section(HopSettings).exact_limit
    is_small = max(tables.n_rows(questions_file(folder, side)) for side in ("in", "out")) <= limit
    return is_small or pick_device(work.settings.models.device) != "cpu"


def read_side(work: Work, side: str) -> Side:
    """The in- or out-questions, on the device of the models."""
    folders, device = work.stage_folders, pick_device(work.settings.models.device)
    rows = tables.read_table(questions_file(folders["hop_questions"], side), QUESTIONS, ["vertex"])
    vertex = rows["vertex"].to_numpy().astype(np.int64)
    lists = read_lists(folders["hop_keywords"] / f"{side}.parquet")
    vectors = tables.read_arrays(folders[f"hop_{side}_vectors"] / "vectors.safetensors")["vectors"]
    moved = Ragged(lists.values.to(device), lists.offsets.to(device))
    text = text_keys(side, folders["hop_questions"])
    return Side(torch.from_numpy(vectors).to(device), moved, torch.from_numpy(vertex).to(device), text)


def read_previous(work: Work, outs: Side, ins: Side) -> Previous | None:
    """The earlier state of the stage; None if it was of another mode, or had other buckets of candidates."""
    before, mode = work.previous_inputs, "hop_exact" if _is_exact(work) else "hop_candidates"
    if not before or work.previous is None or mode not in work.previous_counts:
        return None
    if mode == "hop_candidates":
        old = (
            (read_lists(before["hop_keywords"] / f"{side}.parquet"), text_keys(side, before["hop_questions"]))
            for side in ("out", "in")
        )
        if _buckets(before, *old) != _buckets(work.stage_folders, _asked(outs), _asked(ins)):
            return None
    rows = []
    for side in ("in", "out"):
        row = same_questions(side, work.stage_folders, before)
        now, then = (
            tables.read_arrays(folders[f"hop_{side}_vectors"] / "vectors.safetensors")["vectors"]
            for folders in (work.stage_folders, before)
        )
        if now.shape[1:] != then.shape[1:]:  # of another embedder
            return None
        drop_changed(row, now, then)
        rows.append(row)
    matches = tables.read_table(work.previous / "matches.parquet", MATCHES)
    return rows[0], rows[1], matches["question"].to_numpy(), matches["sim"].to_numpy()


def _asked(side: Side) -> Asked:
    return side.keywords, side.text


def _bits(outs: Asked, ins: Asked) -> np.ndarray:
    """The `bucket_bits` of the keywords of distinct questions."""
    return bucket_bits(*(only(lists, np.unique(text, return_index=True)[1]) for lists, text in (outs, ins)))


def _buckets(folders: Mapping[str, Path], outs: Asked, ins: Asked) -> dict[str, int]:
    """The `bucket_bits` of each keyword that has buckets."""
    bits = _bits(outs, ins)
    rows = np.flatnonzero(bits)
    words = tables.read_table(folders["hop_keywords"] / "keywords.parquet", KEYWORDS)["keyword"].take(pa.array(rows))
    return dict(zip(words.to_pylist(), bits[rows].tolist()))


def _n_crossing(work: Work, edges: dict[str, np.ndarray]) -> int:
    """The number of edges whose ends are in different documents."""
    path = work.stage_folders["passages"] / "passages.parquet"
    documents = (
        tables.read_table(path, tables.PASSAGES, ["doc_id"])["doc_id"].combine_chunks().dictionary_encode().indices
    )
    of_vertex = documents.to_numpy()[read_vertices(work, "passage")["passage"].to_numpy()]
    return int((of_vertex[edges["source"]] != of_vertex[edges["target"]]).sum())


# --- edges from matches -----------------------------------------------------------------------------


def edge_budget(n: int, factor: float) -> int:
    """The number of edges that n vertices may keep: floor(factor n log2 n); 0 for n < 2."""
    return math.floor(factor * n * math.log2(n)) if n > 1 else 0


def strongest_parallel(source: np.ndarray, target: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Rows i64[K] of one edge per pair (source, target): the strongest, ties to the first given.

    source, target: integers [M]; strength: f64[M], no NaN. Returned in order of (source, target).

    Edges 0->1 of strengths .5 and .7 and 0->2 of .6: rows 1 and 2.
    """
    order = np.lexsort((np.arange(len(source)), -strength, target, source))
    s, t = source[order], target[order]
    first = np.ones(len(order), bool)
    first[1:] = (s[1:] != s[:-1]) | (t[1:] != t[:-1])
    return order[first]


def cut_to_budget(source: np.ndarray, target: np.ndarray, strength: np.ndarray, budget: int) -> np.ndarray:
    """Rows i64[K], ascending, of the edges that stay: the `budget` strongest of all, and the strongest of each source.

    So no vertex loses its last out-edge, and at most `budget` edges plus one per vertex stay. Edges are ordered by
    falling strength, ties to the lower (source, target). Arguments as in `strongest_parallel`, each pair once; budget
    >= 0.

    Edges 0->1 (.9), 0->2 (.8), 1->2 (.1) with budget 1: 0->1 by strength and 1->2, the last of vertex 1.
    """
    order = np.lexsort((target, source, -strength))
    kept = np.zeros(len(order), bool)
    kept[order[:budget]] = True
    _, first = np.unique(source[order], return_index=True)
    kept[order[first]] = True
    return np.flatnonzero(kept)


def edges_of_matches(
    question: np.ndarray, sim: np.ndarray, out_vertex: np.ndarray, in_vertex: np.ndarray, n: int, factor: float
) -> tuple[dict[str, np.ndarray], int]:
    """HopRAG's edges from the best match of every out-question, and their number before the cut.

    question: integers [Q], the best in-question of each out-question, -1 for none; sim: f64[Q]. out_vertex, in_vertex:
    the vertex (below n) of each out- and in-question. An edge leads from the vertex of the out-question to that of the
    in-question. Of parallel edges the strongest stays, ties to the lowest in-question, then to the lowest out-question.
    Then edges are cut to `edge_budget(n, factor)`. Returns columns source, target, question, out_question, sim, sorted
    by (source, target).
    """
    out_question = np.flatnonzero(question >= 0)
    out_question = out_question[np.argsort(question[out_question], kind="stable")]
    columns = {
        "source": out_vertex[out_question],
        "target": in_vertex[question[out_question]],
        "question": question[out_question],
        "out_question": out_question,
        "sim": sim[out_question],
    }
    merged = strongest_parallel(columns["source"], columns["target"], columns["sim"])
    columns = {name: column[merged] for name, column in columns.items()}
    kept = cut_to_budget(columns["source"], columns["target"], columns["sim"], edge_budget(n, factor))
    return {name: column[kept] for name, column in columns.items()}, len(merged)
