"""HiGraRetriever's fused ranking: PageRank on each subgraph against networkx, the whole against the specification."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.index.index import Index
from gpu_rag.index.name_table import NameTable
from gpu_rag.methods.higra.batched import HigraRanking, Params, Seeded, SubgraphScores, higra_rank, subgraph_scores
from gpu_rag.methods.higra.graph import HigraGraph
from gpu_rag.types import CSR

Edge = tuple[int, int]


class Part:
    """The part of an index that the ranking needs."""

    device, threads = "cpu", 1

    def __init__(self, graph: HigraGraph):
        self.graph = graph

    def loaded(self, part: str, load: Callable[[Any], Any]) -> Any:
        assert part == "higra"
        return self.graph


def plain(src: Sequence[int], dst: Sequence[int], n: int) -> CSR:
    pairs = sorted({(min(a, b), max(a, b)) for a, b in zip(src, dst) if a != b})
    tensors = [torch.tensor([pair[i] for pair in pairs], dtype=torch.int64) for i in (0, 1)]
    csr = csr_from_edges(*tensors, n, undirected=True)
    return CSR(csr.indptr, csr.indices)


def graph_of(n: int, n_passages: int, relations: Sequence[Edge], links: Sequence[Edge]) -> HigraGraph:
    """relations: (subject, object), sorted here; links: (entity, passage)."""
    ends = sorted(relations)
    subjects, objects = [s for s, _ in ends], [o for _, o in ends]
    graph = HigraGraph(
        index=cast(Index, None),
        entity_graph=plain(subjects, objects, n),
        full_graph=plain([*subjects, *(e for e, _ in links)], [*objects, *(n + p for _, p in links)], n + n_passages),
        names=NameTable.of(pa.array([], pa.string()), np.zeros(0, np.int64)),
    )
    relations = pa.table({"subject": subjects, "object": objects, "label": ["r"] * len(ends)})
    graph.__dict__.update(relations=relations, ends=(np.array(subjects, np.int64), np.array(objects, np.int64)))
    return graph


class Oracle:
    """The specification by networkx, one question at a time."""

    def __init__(self, graph: HigraGraph, links: Sequence[Edge]):
        self.n = graph.n_entities
        self.ends = list(zip(graph.relations["subject"].to_pylist(), graph.relations["object"].to_pylist()))
        self.entities = nx.Graph()
        self.entities.add_nodes_from(range(self.n))
        self.entities.add_edges_from(pair for pair in self.ends if pair[0] != pair[1])
        self.links = set(links)

    def subgraph(self, seeds: Sequence[int], radius: int) -> nx.Graph:
        inside = {v for s in seeds for v in nx.single_source_shortest_path_length(self.entities, s, radius)}
        return nx.Graph(self.entities.subgraph(inside))

    def augmented(self, inner: nx.Graph) -> nx.Graph:
        outer = nx.Graph(inner)
        outer.add_edges_from((e, self.n + p) for e, p in self.links if e in inner)
        return outer

    @staticmethod
    def pagerank(graph: nx.Graph, seeds: Sequence[int], damping: float) -> dict[int, float]:
        restart = dict.fromkeys(set(seeds), 1.0)
        found: dict[int, float] = nx.pagerank(graph, damping, restart, max_iter=2000, tol=1e-12, dangling=restart)
        return found

    def rankings(self, seeds: Sequence[int], params: Params) -> tuple[list[int], list[int]]:
        """Relations and passages by the graph, best first; scores nearer than 1e-9 count as equal."""
        if not seeds:
            return [], []
        inner = self.subgraph(seeds, params.radius)
        p = self.pagerank(inner, seeds, params.damping)
        outer = self.augmented(inner)
        q = self.pagerank(outer, seeds, params.damping)
        by_relation = {r: (p[s] + p[o]) / 2 for r, (s, o) in enumerate(self.ends) if s in p and o in p}
        by_passage = {v - self.n: q[v] for v in outer if v >= self.n}
        return _sorted(by_relation), _sorted(by_passage)


def _sorted(scores: dict[int, float]) -> list[int]:
    return sorted(scores, key=lambda item: (-round(scores[item], 7), item))


def fused(structure: Sequence[int], similarity: Sequence[int], params: Params) -> dict[int, float]:
    total: dict[int, float] = defaultdict(float)
    for place, item in enumerate(structure, 1):
        total[item] += 1 / (params.structure_constant + place)
    for place, item in enumerate(similarity, 1):
        total[item] += 1 / (params.similarity_constant + place)
    return total


def random_case(rng: np.random.Generator, n: int = 40, n_passages: int = 25) -> tuple[HigraGraph, list[Edge]]:
    relations = [tuple(map(int, pair)) for pair in rng.integers(0, n, (60, 2))]  # parallel ones and self-loops too
    links = list({(int(rng.integers(n)), int(rng.integers(n_passages))) for _ in range(70)})
    return graph_of(n, n_passages, relations, links), links  # type: ignore[arg-type]


def run(graph: HigraGraph, params: Params, asked: Sequence[Seeded]) -> list[HigraRanking]:
    return higra_rank.run(Part(graph), asked, (params.radius, params.damping, params.constants))  # type: ignore[arg-type, return-value]


def scored(graph: HigraGraph, params: Params, seeds: Sequence[Sequence[int]]) -> SubgraphScores:
    return subgraph_scores(graph, seeds, params.radius, params.damping, params.depth)


@pytest.mark.parametrize("damping", [0.5, 0.85])
@pytest.mark.parametrize("radius", [0, 1, 2])
def test_each_subgraph_of_a_batch_has_networkx_pagerank(radius: int, damping: float) -> None:
    rng = np.random.default_rng(radius)
    graph, links = random_case(rng)
    oracle = Oracle(graph, links)
    seeds = [sorted({int(v) for v in rng.integers(0, 40, 1 + b % 5)}) for b in range(30)]
    params = Params(radius=radius, damping=damping)
    scores = scored(graph, params, seeds)
    for (blocks, values), augment in ((scores.entities, False), (scores.nodes, True)):
        bounds = blocks.offsets.tolist()
        for b, (lo, hi) in enumerate(zip(bounds, bounds[1:])):
            part = oracle.subgraph(seeds[b], radius)
            part = oracle.augmented(part) if augment else part
            expected = oracle.pagerank(part, seeds[b], damping)
            got = dict(zip(blocks.global_ids[lo:hi].tolist(), values[lo:hi].tolist()))
            assert set(got) == set(expected)
            assert sum(abs(got[v] - expected[v]) for v in got) <= 2e-6
            assert max(abs(got[v] - expected[v]) for v in got) <= 1e-6


def test_the_fused_ranking_is_that_of_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Params, "tol", 1e-10)
    rng = np.random.default_rng(7)
    graph, links = random_case(rng)
    oracle, params = Oracle(graph, links), Params(structure_constant=3.0, similarity_constant=20.0)
    asked = [
        Seeded(
            tuple(sorted({int(v) for v in rng.integers(0, 40, 3)})),
            tuple(rng.permutation(60)[:12].tolist()),
            tuple(rng.permutation(25)[:9].tolist()),
        )
        for _ in range(20)
    ]
    for one, ranking in zip(asked, run(graph, params, asked)):
        structure = oracle.rankings(one.seeds, params)
        for ranks, similarity, got in zip(
            structure, (one.relations, one.passages), (ranking.relations, ranking.passages)
        ):
            expected = fused(ranks, similarity, params)
            assert got.rows == tuple(sorted(expected, key=lambda item: (-np.float32(expected[item]), item)))
            assert got.scores == pytest.approx([expected[row] for row in got.rows], rel=1e-5)
        inner = oracle.subgraph(one.seeds, 1)
        assert ranking.n_entities == len(inner)
        assert ranking.n_passages == len(oracle.augmented(inner)) - len(inner)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 90))
def test_a_question_alone_is_that_question_in_any_batch(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    graph, _ = random_case(rng)
    asked = [
        Seeded(
            tuple({int(v) for v in rng.integers(0, 40, int(rng.integers(0, 4)))}),
            tuple(rng.permutation(60)[:5].tolist()),
            tuple(rng.permutation(25)[:5].tolist()),
        )
        for _ in range(size)
    ]
    together = run(graph, Params(), asked)
    at = int(rng.integers(size))
    assert run(graph, Params(), [asked[at]]) == [together[at]]
    assert run(graph, Params(), asked[::-1])[::-1] == together


def test_without_seeds_similarity_alone_ranks() -> None:
    graph, _ = random_case(np.random.default_rng(1))
    one = Seeded((), (4, 2), (9, 1, 3))
    (ranking,) = run(graph, Params(), [one])
    assert ranking.passages.rows == (9, 1, 3) and ranking.relations.rows == (4, 2)
    assert (ranking.n_entities, ranking.n_passages) == (0, 0)
    seeded = Seeded((3, 5), one.relations, one.passages)
    assert run(graph, Params(), [seeded])[0].passages.rows != ranking.passages.rows


def wrong_whole_graph(oracle: Oracle, seeds: Sequence[int], params: Params) -> dict[int, float]:
    """PageRank on all entities instead of on the subgraph."""
    return oracle.pagerank(oracle.entities, seeds, params.damping)


def wrong_directed(oracle: Oracle, seeds: Sequence[int], params: Params) -> dict[int, float]:
    """Edges taken in their direction only."""
    graph = nx.DiGraph((s, o) for s, o in oracle.ends if s != o)
    inner = oracle.subgraph(seeds, params.radius)
    graph = nx.DiGraph(graph.subgraph(inner))
    graph.add_nodes_from(inner)
    return oracle.pagerank(graph, seeds, params.damping)


def wrong_parallel(oracle: Oracle, seeds: Sequence[int], params: Params) -> dict[int, float]:
    """Parallel relations counted as often as they stand there."""
    graph = oracle.subgraph(seeds, params.radius)
    for s, o in graph.edges:
        graph[s][o]["weight"] = sum({s, o} == {*ends} for ends in oracle.ends)
    return oracle.pagerank(graph, seeds, params.damping)


@pytest.mark.parametrize("wrong", [wrong_whole_graph, wrong_directed, wrong_parallel])
def test_plausible_wrong_versions_are_told_apart(wrong: Callable[..., dict[int, float]]) -> None:
    graph = graph_of(6, 1, [(0, 1), (1, 0), (0, 2), (2, 3), (3, 4), (5, 0)], [(1, 0)])
    oracle = Oracle(graph, [(1, 0)])
    scores = scored(graph, Params(), [[0]])
    blocks, values = scores.entities
    other = wrong(oracle, [0], Params())
    got = dict(zip(blocks.global_ids.tolist(), values.tolist()))
    assert set(got) == {0, 1, 2, 5}
    assert max(abs(got[v] - other.get(v, 0.0)) for v in got) > 1e-3
