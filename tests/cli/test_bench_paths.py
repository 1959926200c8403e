"""gpu-rag bench paths: its rows, its peers, and the wrong searches that its check refuses."""

from __future__ import annotations

import pytest
import torch

from gpu_rag.bench import measure, peers
from gpu_rag.bench.case import Config
from gpu_rag.bench.graphs import power_law
from gpu_rag.graph import paths as op
from gpu_rag.graph.paths import bench as paths

TINY = ("--sizes", 300, "--batch", "1,70", "--rounds", 1, "--json")
right = paths.searched


@pytest.fixture(autouse=True)
def one_thread_and_a_small_copy(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(measure, "COPY_BYTES", 2**20)
    monkeypatch.setattr(measure.Copy, "moved", 2**21)


def test_rows_beside_peers(run):
    result = run("bench", "paths", "--peers", *TINY)
    assert result.status == 0, result.err
    rows = result.document["rows"]
    assert [(row["B"], row["peer"]) for row in rows] == [(b, p) for b in (1, 70) for p in ("igraph", "networkx")]
    for row in rows:
        assert row["note"] == paths.NOTE and row["ms"] > 0 and row["bytes"] > 0 and 1 <= row["sampled"] <= 16
        assert (row["implementation"], row["k"], row["dims"]) == ("numba", paths.BEAM, paths.DIMS)


def test_peers_are_not_timed_where_they_take_minutes(run, monkeypatch):
    monkeypatch.setattr(paths, "NETWORKX_NODES", 299)
    monkeypatch.setattr(paths, "IGRAPH_NODES", 299)
    rows = run("bench", "paths", "--peers", *TINY).document["rows"]
    assert {row["note"] for row in rows} == {"not timed above 299 nodes"}


def test_missing_peers_are_named(run, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    rows = run("bench", "paths", "--peers", *TINY).document["rows"]
    assert {row["note"].split(" is not")[0] for row in rows} == {"igraph", "networkx"}


def narrow_beam(world, asked, threads=1, sizes=None):
    kept, paths.BEAM = paths.BEAM, 5
    try:
        return right(world, asked, threads, sizes)
    finally:
        paths.BEAM = kept


def scores_of_others(world, asked, threads=1, sizes=None):
    found, scores = right(world, asked, threads, sizes)
    return found, scores.roll(1)


def one_path_lost(world, asked, threads=1, sizes=None):
    found, scores = right(world, asked, threads, sizes)
    last = torch.ones(found.size, dtype=torch.bool)
    last[-1:] = False
    return found.rows(last), scores[last]


def other_questions(world, asked, threads=1, sizes=None):
    return right(world, asked.flip(0), threads, sizes)


@pytest.mark.parametrize("wrong", [narrow_beam, scores_of_others, one_path_lost, other_questions])
def test_a_wrong_search_is_refused(run, monkeypatch, wrong):
    monkeypatch.setattr(paths, "searched", wrong)
    result = run("bench", "paths", *TINY)
    assert result.status == 1 and any(row["note"].startswith("refused: question") for row in result.document["rows"])


def test_the_peers_paths_are_all_paths():
    """With a beam that keeps everything the op finds what igraph finds."""
    igraph = pytest.importorskip("igraph")
    world = paths.world_of(power_law(60, 0), Config(sizes=(), batches=(3,)))
    graph = igraph.Graph(world.graph.n, edges=paths._pairs(world.graph))
    topics = op.Ragged(world.topics[:3].flatten(), torch.tensor([0, 2, 4, 6]))
    closed, least = torch.zeros(3).bool(), torch.zeros(3).long()
    found = op.search_paths(world.graph, topics, 2, op.Ends(closed, closed), op.Window(least, least + 4))
    for question in range(3):
        one, other = world.topics[question].tolist()
        every = sorted(tuple(path) for path in graph.get_all_simple_paths(one, to=other, maxlen=4))
        ours = [tuple(v for v in row if v >= 0) for row in found.nodes[found.question == question].tolist()]
        assert ours == every
