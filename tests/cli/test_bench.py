"""gpu-rag bench: the rows it prints, what it refuses to time, and the arithmetic in it."""

import importlib.util
import os
import sys

import numpy as np
import pytest
import torch

from gpu_rag.bench import peers as peers_module
from gpu_rag.bench import run as runner
from gpu_rag.bench.inputs import power_law
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.csr import check_csr, csr_from_edges
from gpu_rag.graph.nearest import bench as nearest
from gpu_rag.graph.pagerank import Job, Options, prepare
from gpu_rag.graph.pagerank import bench as pagerank
from gpu_rag.graph.pagerank.bench import passes_of, solve_bytes, solve_exactly
from gpu_rag.graph.pagerank.inputs import teleport_of
from gpu_rag.types import CSR, Ragged

KEYS = {
    "op", "graph", "n", "m", "B", "damping", "hops", "k", "dims", "ms", "asked", "peer", "peer_ms", "ratio", "sampled",
    "bytes", "pct_of_copy_bandwidth", "copy_gb_s", "cpu_ms", "peer_cpu_ms", "cpu_ratio", "l1_error", "peer_l1_error",
    "threads", "peer_threads", "rounds", "device", "implementation", "note",
}  # fmt: skip
TINY = ("--sizes", 300, "--batch", "1,20", "--rounds", 1, "--json")


pytestmark = pytest.mark.usefixtures("small_bench")


def test_all_ops_beside_their_peers(run):
    result = run("bench", "pagerank", "nearest", "--peers", "--damping", "0.85", *TINY).ok
    document = result.document
    assert set(document) == {"rows", "date", "command", "machine", "threads", "rounds"}
    assert all(set(row) == KEYS for row in document["rows"])
    found = {(row["op"], row["B"], row["damping"]) for row in document["rows"]}
    damping = {"pagerank": 0.85, "nearest": None}
    assert found == {(op, b, damping[op]) for op in damping for b in (1, 20)}
    by_op = {op: [row for row in document["rows"] if row["op"] == op] for op in ("pagerank", "nearest")}
    assert [len(by_op[op]) for op in by_op] == [8, 4]
    for row in document["rows"]:
        assert row["ms"] > 0 and row["bytes"] > 0 and not row["note"].startswith("refused")
        assert (row["peer"] is None) == ("is not installed" in row["note"])
        expected = 100 * row["bytes"] / (row["ms"] * 1e-3) / (row["copy_gb_s"] * 1e9)
        assert row["pct_of_copy_bandwidth"] == pytest.approx(expected, rel=1e-4)
        if row["peer"] is not None:
            assert row["ratio"] == pytest.approx(row["peer_ms"] / row["ms"], rel=1e-4)
            assert row["cpu_ratio"] == pytest.approx(row["peer_cpu_ms"] / row["cpu_ms"], rel=1e-4)
            one_by_one = row["peer"] in ("igraph prpack", "networkx")
            assert row["sampled"] in (range(1, 17) if one_by_one else range(row["B"], max(16, row["B"]) + 1))
    assert all(row["l1_error"] <= 1e-6 and row["m"] > 0 for row in by_op["pagerank"])
    assert all(row["peer_l1_error"] <= 1e-6 for row in by_op["pagerank"] if row["peer"])


def test_a_missing_peer_is_named(run, monkeypatch):
    monkeypatch.setattr(sys.modules[peer_file("pagerank").__package__], "find_spec", lambda name: None)
    document = run("bench", "pagerank", "nearest", "--peers", "--damping", "0.5", *TINY).document
    missing = [row for row in document["rows"] if row["peer"] is None]
    assert {row["note"].split(" is not")[0] for row in missing} == {"igraph prpack", "networkx", "faiss flat"}
    assert all("gpu-rag[bench]" in row["note"] and row["ms"] and row["ratio"] is None for row in missing)
    assert {row["peer"] for row in document["rows"]} == {
        None,
        "scipy CSR @ dense",
        "torch CSR @ dense",
        "numpy argpartition",
    }


def test_without_a_checkout_ops_are_timed_alone(run, monkeypatch, tmp_path):
    monkeypatch.setattr(peers_module, "FOLDER", tmp_path / "scripts" / "bench_peers")
    peer_file.cache_clear()
    result = run("bench", "pagerank", "--peers", "--damping", "0.5", *TINY)
    assert result.status == 2 and "a checkout of gpu-rag" in result.error and str(tmp_path) in result.error
    alone = run("bench", "pagerank", "bubble", "--damping", "0.5", *TINY).ok.document["rows"]
    assert len(alone) == 4 and all(row["ms"] and row["peer"] is None for row in alone)


@pytest.mark.skipif(importlib.util.find_spec("igraph") is None, reason="needs igraph")
@pytest.mark.parametrize("threads", ["2", None])
def test_igraph_is_not_quoted_with_several_openmp_threads(threads, run, monkeypatch):
    if threads is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    document = run("bench", "pagerank", "--peers", "--damping", "0.5", *TINY).document
    (row, _) = [row for row in document["rows"] if row["peer"] == "igraph prpack"]
    assert (row["peer_ms"], row["ratio"], row["sampled"]) == (None, None, None)
    assert row["note"].startswith(f"not timed: OMP_NUM_THREADS is {threads or 'not set'}")


def test_a_fresh_process_takes_one_openmp_thread(cli):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    result = cli.run_process("bench", "nearest", "--sizes", 300, "--batch", 1, "--json", env=environment).ok
    assert result.document["machine"]["OMP_NUM_THREADS"] == "1"


def test_what_does_not_fit_is_said(run, monkeypatch):
    monkeypatch.setattr(runner, "free_bytes", lambda device: 10_000)
    result = run("bench", "pagerank", "--peers", "--damping", "0.5", *TINY)
    assert result.status == 0
    assert [row["ms"] for row in result.document["rows"]] == [None, None]
    assert all("GB are free" in row["note"] for row in result.document["rows"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "nearest", "--sizes", "3"),
        ("bench", "nearest", "--batch", "0"),
        ("bench", "pagerank", "--damping", "1"),
        ("bench", "pagerank", "walk"),
        ("bench", "nearest", "--device", "abacus"),
    ],
)
def test_bad_usage(arguments, run):
    result = run(*arguments)
    assert (result.status, result.out) == (2, "")


def test_a_wrong_peer_is_marked(run, monkeypatch):
    monkeypatch.setattr(peer_file("pagerank"), "n_power_steps", lambda damping, tol: 3)
    document = run("bench", "pagerank", "--peers", "--damping", "0.85", *TINY).document
    for row in document["rows"]:
        if row["peer"] == "scipy CSR @ dense":
            assert "the peer fails the check: the L1 error" in row["note"] and row["peer_l1_error"] > 1e-6


def test_bytes_by_hand():
    # 10 nodes, 30 entries: a tile reads 120 + 88 bytes of graph; 3 questions of f32 read and write 240 bytes of state
    assert solve_bytes(10, 30, False, batch=3, width=32, passes={4: 1}) == 208 + 240
    assert solve_bytes(10, 30, True, batch=3, width=32, passes={4: 1}) == 208 + 120 + 240
    assert solve_bytes(10, 30, False, batch=3, width=32, passes={4: 5, 8: 2}) == 5 * 448 + 2 * (208 + 480)
    assert solve_bytes(10, 30, False, batch=33, width=32, passes={4: 1}) == 2 * 208 + 33 * 80
    assert nearest.nearest_bytes(n=100, dims=8, batch=2, k=5) == 3200 + 64 + 80


def test_passes_by_hand():
    seeds = Ragged(torch.tensor([3, 50, 120]), torch.tensor([0, 1, 3]))
    side = torch.arange(100)
    graph = prepare(
        csr_from_edges(torch.cat([side, side, side]), 100 + torch.cat([side, side * 7 % 100, side // 9]), 200)
    )

    def passes(implementation: str, **options: float) -> dict[int, int]:
        chosen = Options(**{"damping": 0.5, "tol": 1e-6, "max_iter": 200, "block": 16, "threads": 1, **options})
        return passes_of(Job(graph, teleport_of(graph, seeds, None, None), implementation, chosen))

    # .268^11 is below 1e-6: twelve steps from an error of 2, and the check
    assert passes("torch") == {2: 0, 4: 12, 8: 1} and passes("torch", tol=1e-12) == {2: 0, 8: 23}
    in_halves = passes("torch", state="f16")
    assert in_halves[2] > 0 and in_halves[2] + in_halves[4] == 12
    assert passes("numba", damping=0.0) == {2: 0, 4: 1, 8: 1}


def test_pagerank_by_torch_is_timed_in_both_states(run, monkeypatch):
    monkeypatch.setattr(pagerank, "pick_implementation", lambda graph: "torch")
    document = run("bench", "pagerank", "--peers", "--damping", "0.5", *TINY).document
    by_name = {
        name: [row for row in document["rows"] if row["implementation"] == name] for name in ("torch", "torch f16")
    }
    assert len(by_name["torch"]) + len(by_name["torch f16"]) == len(document["rows"])
    assert {row["B"] for row in by_name["torch f16"]} == {1, 20} and not any(
        row["peer"] for row in by_name["torch f16"]
    )
    assert all(row["l1_error"] <= 1e-6 and row["note"] == "" for row in by_name["torch f16"])
    assert by_name["torch f16"][0]["bytes"] < by_name["torch"][0]["bytes"]


def test_graphs_are_sound_and_follow_their_seed():
    first, again, other = power_law(500, 1), power_law(500, 1), power_law(500, 2)
    check_csr(first)
    assert first.n == 500 and prepare(first).symmetric
    assert torch.equal(first.indices, again.indices) and torch.equal(first.indptr, again.indptr)
    assert not torch.equal(first.indptr, other.indptr)


@pytest.mark.skipif(importlib.util.find_spec("igraph") is None, reason="needs igraph")
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("undirected", [True, False])
def test_peers_solve_the_same_equation(undirected, weighted):
    generator = np.random.default_rng(4)
    ring = torch.arange(40)  # nobody is dangling: libraries differ in what they do then
    src = torch.cat([ring, torch.from_numpy(generator.integers(0, 40, 80))])
    dst = torch.cat([(ring + 1) % 40, torch.from_numpy(generator.integers(0, 40, 80))])
    weight = torch.rand(120, generator=torch.Generator().manual_seed(0)) + 0.1 if weighted else None
    csr: CSR = csr_from_edges(src, dst, 40, weight, undirected=undirected)
    seeds = Ragged(torch.tensor([1, 5, 9]), torch.tensor([0, 1, 3]))
    mass = Ragged(torch.tensor([2.0, 1.0, 3.0]), seeds.offsets)
    pi = np.zeros((40, 2))
    pi[1, 0], pi[5, 1], pi[9, 1] = 1, 0.25, 0.75
    exact = solve_exactly(csr, pi, 0.85).T
    problem = peer_file("pagerank").Problem(csr, seeds, mass, undirected)
    for make in peer_file("pagerank").PEERS:
        peer = make(problem, 0.85)
        found = np.asarray(peer.run(peer.inputs(0, 2)))
        assert np.abs(found - exact).sum(1).max() <= 1e-6, peer.name
