"""gpu-rag bench of the ops on neighbourhoods, relations, groups and joins: rows, peers, and wrong ops refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from gpu_rag.bench import measure
from gpu_rag.graph.bubble import bench as bubble
from gpu_rag.graph.cluster import bench as cluster
from gpu_rag.graph.components import bench as components
from gpu_rag.graph.ego import bench as ego
from gpu_rag.graph.frontier import bench as frontier
from gpu_rag.graph.join import bench as join
from gpu_rag.graph.local_pagerank import bench as blocks_pagerank
from gpu_rag.graph.pagerank import bench as pagerank
from gpu_rag.graph.reach import bench as reach
from gpu_rag.types import Blocks, Ragged

TINY = ("--sizes", 300, "--batch", "1,20", "--rounds", 1, "--damping", "0.85", "--json")
WHOLE = ("components", "groups", "clusters")
PEERS = {
    "blocks-pagerank": {"igraph prpack", "networkx", "scipy CSR @ vector"},
    "bubble": {"scipy dijkstra", "igraph distances", "networkx"},
    "ego": {"igraph", "networkx ego_graph", "scipy", "PyG k_hop_subgraph"},
    "reach": {"scipy CSR a relation", "Python dict"},
    "intersect": {"scipy + numpy intersect1d", "Python dict and sets"},
    "components": {"scipy", "igraph", "networkx"},
    "groups": {"scipy", "Python dict"},
    "clusters": {"scikit-learn DBSCAN"},
    "join": {"numpy + scipy"},
}


@pytest.fixture(autouse=True)
def one_thread_and_a_small_copy(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(measure, "COPY_BYTES", 2**20)
    monkeypatch.setattr(measure.Copy, "moved", 2**21)


@pytest.mark.parametrize("op", PEERS)
def test_rows_beside_peers(op, run):
    result = run("bench", op, "--peers", *TINY)
    assert result.status == 0, result.err
    rows = result.document["rows"]
    batches = (1,) if op in WHOLE else (1, 20)
    assert {(row["B"], row["peer"]) for row in rows} == set(itertools.product(batches, PEERS[op]))
    for row in rows:
        assert row["ms"] > 0 and row["bytes"] > 0 and row["peer_ms"] > 0 and 1 <= row["sampled"] <= 20
        assert "fails the check" not in row["note"]


def test_the_graph_of_an_index(run, index):
    document = run(
        "bench", "blocks-pagerank", "bubble", "ego", "--index", index, "--batch", 2, "--quick", "--json"
    ).document
    assert [(row["graph"], row["B"], row["rounds"]) for row in document["rows"]] == [("index", 2, 1)] * 3


def test_quick_fills_in_what_is_not_given(run):
    document = run("bench", "groups", "reach", "--quick", "--sizes", 400, "--json").document
    assert [(row["op"], row["n"], row["B"]) for row in document["rows"]] == [
        ("groups", 400, 1), ("reach", 400, 1), ("reach", 400, 64),
    ]  # fmt: skip
    assert "--quick --sizes 400" in document["command"] and document["rounds"] == 1


def test_hops(run):
    tiny = ("--sizes", 300, "--batch", 3, "--rounds", 1, "--json")
    ops = ("ego", "reach", "intersect", "paths", "frontier")
    document = run("bench", *ops, "--hops", "1,2", *tiny).document
    assert [(row["op"], row["hops"]) for row in document["rows"]] == [(op, hops) for op in ops for hops in (1, 2)]
    assert all(row["ms"] > 0 for row in document["rows"]) and "--hops 1,2" in document["command"]
    assert document["rows"][1]["bytes"] > document["rows"][0]["bytes"]
    usual = run("bench", *ops, "groups", *tiny).document["rows"]
    assert [row["hops"] for row in usual] == [2, 2, 2, 2, 1, None]


def test_a_walk_that_does_not_move_on_is_refused(run, monkeypatch):
    whole = frontier.frontier_topk

    def from_the_start(asked, edges, front, *given, **options):
        first.setdefault(len(asked.vectors), front)
        return whole(asked, edges, first[len(asked.vectors)], *given, **options)

    first: dict = {}
    monkeypatch.setattr(frontier, "frontier_topk", from_the_start)
    result = run("bench", "frontier", "--hops", "1,2", "--sizes", 300, "--batch", 3, "--rounds", 1, "--json")
    assert result.status == 1
    assert [row["note"][:8] for row in result.document["rows"]] == ["", "refused:"]


# --- wrong ops are refused -------------------------------------------------------------------------

right_pagerank = pagerank.personalized_pagerank
right = {
    name: getattr(module, name)
    for module, name in (
        (blocks_pagerank, "blocks_pagerank"), (bubble, "bubble_expansion"), (ego, "ego_balls"),
        (ego, "induced_subgraphs"), (reach, "reachable"), (reach, "intersect"), (components, "connected_components"),
        (cluster, "exact_groups"), (cluster, "radius_clusters"), (join, "join_index"),
    )
}  # fmt: skip


def loose_blocks(*given, **options):
    return right["blocks_pagerank"](*given, **{**options, "tol": 1e-3})


def unweighted_blocks(blocks, seeds, weights, **options):
    return right["blocks_pagerank"](blocks, seeds, **options)


def neighbours_block(*given, **options):
    found = right["blocks_pagerank"](*given, **options)
    return Ragged(found.values.flip(0), found.offsets)


def equal_costs(blocks, costs, *given, **options):
    if options.get("implementation") == "torch":
        return right["bubble_expansion"](blocks, costs, *given, **options)
    return right["bubble_expansion"](blocks, costs * 0 + 1, *given, **options)


def fewer_trees(*given, **options):
    limit = 10 if options.get("implementation") == "torch" else 9
    return right["bubble_expansion"](*given, **{**options, "limit": limit})


def one_hop(graph, seeds, radius, **options):
    return right["ego_balls"](graph, seeds, radius - 1, **options)


def one_entry_lost(*given, **options):
    blocks = right["induced_subgraphs"](*given, **options)
    last = blocks.csr.indptr.clone()
    last[-1] -= 1
    return Blocks(replace(blocks.csr, indptr=last, indices=blocks.csr.indices[:-1]), blocks.offsets, blocks.global_ids)


def one_direction(graph, starts, chain, ways, **options):
    return right["reachable"](graph, starts, chain, Ragged(ways.values * 0 + 1, ways.offsets), **options)


def the_first_list(a, b, **options):
    return a


def one_shared_value_lost(a, b, **options):
    found = right["intersect"](a, b, **options)
    return Ragged(found.values[:-1], found.offsets.clamp(max=len(found.values) - 1))


def every_node_alone(csr):
    return torch.arange(csr.n)


def one_group(keys):
    return torch.zeros(keys.batch, dtype=torch.int64)


def wider_clusters(vectors, eps):
    return right["radius_clusters"](vectors, 2.0)


def without_keywords(vectors, words):
    return right["join_index"](vectors, Ragged(words.values[:0], torch.zeros_like(words.offsets)))


WRONG = [
    ("blocks-pagerank", blocks_pagerank, "blocks_pagerank", loose_blocks),
    ("blocks-pagerank", blocks_pagerank, "blocks_pagerank", unweighted_blocks),
    ("blocks-pagerank", blocks_pagerank, "blocks_pagerank", neighbours_block),
    ("bubble", bubble, "bubble_expansion", equal_costs),
    ("bubble", bubble, "bubble_expansion", fewer_trees),
    ("ego", ego, "ego_balls", one_hop),
    ("ego", ego, "induced_subgraphs", one_entry_lost),
    ("reach", reach, "reachable", one_direction),
    ("intersect", reach, "reachable", one_direction),
    ("intersect", reach, "intersect", the_first_list),
    ("intersect", reach, "intersect", one_shared_value_lost),
    ("components", components, "connected_components", every_node_alone),
    ("groups", cluster, "exact_groups", one_group),
    ("clusters", cluster, "radius_clusters", wider_clusters),
    ("join", join, "join_index", without_keywords),
]


@pytest.mark.parametrize(
    ("op", "module", "name", "wrong"), WRONG, ids=[f"{op} {wrong.__name__}" for op, *_, wrong in WRONG]
)
def test_a_wrong_op_is_refused_and_not_timed(op, module, name, wrong, run, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    arguments = ("--damping", "0.85", "--sizes", 300, "--batch", 1 if op in WHOLE else 20, "--rounds", 3, "--json")
    result = run("bench", op, *arguments)
    assert result.status == 1
    (row,) = result.document["rows"]
    assert row["note"].startswith("refused: ") and row["ms"] is None


def not_filled(graph, seeds, weights, *, out, **options):
    """Writes all rows but the last into the buffer that calls reuse."""
    right_pagerank(graph, seeds, weights, out=out[: seeds.batch].clone(), **options)
    return out


def test_the_reused_buffer_does_not_hide_what_was_not_written(run, monkeypatch):
    monkeypatch.setattr(pagerank, "personalized_pagerank", not_filled)
    result = run("bench", "pagerank", *TINY)
    assert result.status == 1 and all(row["note"].startswith("refused: ") for row in result.document["rows"])


def test_the_buffer_is_reused_and_grows():
    buffer = pagerank.Buffer(7, torch.device("cpu"))
    first = buffer.rows(4)
    first.fill_(1.0)
    again = buffer.rows(3)
    assert again.shape == (3, 7) and again.isnan().all() and again.data_ptr() == first.data_ptr()
    assert buffer.rows(9).shape == (9, 7)


def test_most_questions_of_intersect_have_an_answer():
    from gpu_rag.bench.case import Config

    (case,) = reach.intersect_cases(Config(sizes=(2000,), batches=(64,)))
    found = case.run(case.inputs(0, 64)).offsets.diff()
    assert int((found > 0).sum()) > 48 and int(found.max()) > 3


# --- arithmetic and references ---------------------------------------------------------------------


def test_bytes_by_hand():
    assert blocks_pagerank.blocks_bytes(10, 30, False) == 120 + 160
    assert blocks_pagerank.blocks_bytes(10, 30, True) == 240 + 160
    assert bubble.bubble_bytes(10, 30) == 120 + 10 * (16 + 48)
    assert ego.ego_bytes(n=10, m=30, read=100) == 400 + 80 + 120 + 160


def test_labels_are_compared_as_groups():
    wanted = np.array([0, 0, 2, -1])
    assert components.check_labels(torch.tensor([5, 5, 1, -1]), wanted).ok
    for labels in ([5, 5, 5, -1], [5, 4, 1, -1], [5, 5, 1, 2], [5, 5, -1, -1], [5, 5, 1]):
        assert not components.check_labels(torch.tensor(labels), wanted).ok
