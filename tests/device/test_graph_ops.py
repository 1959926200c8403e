"""Every graph op on the stand-in device: the result is there, and is that of the CPU."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from gpu_rag_kernels.dispatch import preferring, recording
from joins import hybrid_argmax
from ragged_lists import ragged
from stand_in import CUDA, Device, OnDevice, stand_in

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.graph import components
from gpu_rag.graph.bubble import bubble_expansion, localise, node_costs
from gpu_rag.graph.cluster import exact_groups, radius_clusters
from gpu_rag.graph.csr import csr_from_edges, row_of_entry
from gpu_rag.graph.ego import checked, ego_balls, induced_subgraphs
from gpu_rag.graph.frontier import FrontierQuery, described, frontier_topk, hop_edges, score_lists
from gpu_rag.graph.fuse import minmax_rows, rrf
from gpu_rag.graph.join import join_index
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.graph.memory import free_bytes
from gpu_rag.graph.nearest import nearest, topk_rows
from gpu_rag.graph.pagerank import personalized_pagerank, prepare
from gpu_rag.graph.paths import Ends, Window, nodes_on_paths, path_graph, score_paths, search_paths
from gpu_rag.graph.reach import EITHER, reachable, typed_graph
from gpu_rag.types import CSR, Ragged, TopK

N, M, DIMS, BATCH = 60, 140, 16, 5
Put = Callable[[Any], Any]


class World:
    """Inputs on the CPU, from one seed."""

    def __init__(self) -> None:
        self.random = torch.Generator().manual_seed(3)

    def ids(self, high: int, *size: int) -> torch.Tensor:
        return torch.randint(high, size, generator=self.random)

    def rows(self, n: int) -> torch.Tensor:
        drawn = torch.randn(n, DIMS, generator=self.random)
        return drawn / drawn.norm(dim=1, keepdim=True)

    def words(self, n: int, high: int = 20) -> Ragged:
        return ragged([sorted(set(self.ids(high, 4).tolist())) for _ in range(n)])

    @cached_property
    def edges(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weight = torch.rand(M, generator=self.random) + 0.1
        return self.ids(N - 2, M), self.ids(N - 2, M), weight

    @cached_property
    def csr(self) -> CSR:
        return csr_from_edges(*self.edges[:2], N)

    @cached_property
    def weighted(self) -> CSR:
        return csr_from_edges(*self.edges[:2], N, self.edges[2], undirected=False)

    @cached_property
    def seeds(self) -> Ragged:
        return ragged([[0, 5], [7], [], [1, 2, 3], [N - 1]])

    @cached_property
    def vectors(self) -> torch.Tensor:
        return self.rows(N)

    @cached_property
    def queries(self) -> torch.Tensor:
        return self.rows(BATCH)


Op = Callable[[World, Put, str], Any]
OPS: dict[str, Op] = {}


def op(function: Op) -> Op:
    OPS[function.__name__] = function
    return function


@op
def pagerank(w: World, put: Put, by: str) -> Any:
    weights = Ragged(torch.arange(1.0, 8.0), w.seeds.offsets)
    one = personalized_pagerank(put(w.csr), put(w.seeds), put(weights), implementation=by)
    return one, personalized_pagerank(put(w.weighted), put(w.seeds), implementation=by, block=2)


@op
def balls_and_blocks(w: World, put: Put, by: str) -> Any:
    graph = checked(put(w.csr))
    balls = ego_balls(graph, put(w.seeds), 2, implementation=by, include=[(0, 20), (24, N)])
    blocks = induced_subgraphs(graph, balls, implementation=by)
    return ego_balls(graph, put(w.seeds), 3, limit=9, implementation=by), balls, blocks


@op
def walks(w: World, put: Put, by: str) -> Any:
    relation = w.ids(3, M)
    graph = typed_graph(*put((w.edges[0], relation, w.edges[1])), N, 3)
    chains = ragged([[0, 1], [2], [1], [], [-1, 0]])
    ways = Ragged(torch.full_like(chains.values, EITHER), chains.offsets)
    found = reachable(graph, put(w.seeds), put(chains), put(ways), implementation=by)
    tails, kinds = put(row_of_entry(w.csr)), put(torch.zeros(w.csr.m, dtype=torch.int64))
    other = typed_graph(tails, kinds, put(w.csr.indices), w.csr.n, 1)
    return found, other


@op
def bubbles(w: World, put: Put, by: str) -> Any:
    cost = put(w.ids(9, N) + 1)
    anchors = put(ragged([[0, 5, 9], [7, 8], [], [1, 2, 3], [4]]))
    groups = put(ragged([[0, 1, 0], [0, 1], [], [0, 1, 2], [0]]))
    nodes = localise(put(w.csr), anchors, lambda _, node: cost[node], hops=3, limit=12, implementation=by)
    blocks = induced_subgraphs(put(w.csr), nodes, implementation=by)
    paid = cost[blocks.global_ids.long()]
    found = bubble_expansion(blocks, paid, anchors, groups, limit=4, implementation=by)
    question, node = put(w.ids(BATCH, 9)), put(w.ids(N, 9))
    return nodes, found, node_costs(put(w.queries), put(w.vectors), question, node)


@op
def paths(w: World, put: Put, by: str) -> Any:
    graph, topics = path_graph(put(w.csr)), put(ragged([[0, 5], [7], [1, 2, 3]]))
    flag, count = put(torch.tensor([True, False, False])), put(torch.tensor([0, 0, 1]))
    ends, window = Ends(flag, ~flag), Window(count, count + 5)
    found = search_paths(graph, topics, 2, ends, window, implementation=by)
    vectors = put(w.rows(w.csr.m).half())
    scored = score_paths(found, put(w.queries[:3]), vectors, topics, beam=6, implementation=by)
    return found, scored, nodes_on_paths(graph, topics, 2, ends, implementation=by)


@op
def hops(w: World, put: Put, by: str) -> Any:
    words, asked = w.words(M), FrontierQuery(put(w.queries), put(w.words(BATCH, 30)))
    indptr = torch.arange(N + 1) * M // N
    vectors = put(w.rows(40).half())
    held = hop_edges(put(indptr), put(w.ids(N, M).int()), put(w.ids(40, M).int()), vectors, put(words), 20)
    things = described(put(w.vectors.half()), put(w.words(N)), 20)
    lists = put(w.seeds)
    return (
        frontier_topk(asked, held, lists, 3, implementation=by),
        score_lists(asked, things, lists, implementation=by),
    )


@op
def joins(w: World, put: Put, by: str) -> Any:
    left, right = put(w.rows(30).half()), put(w.rows(70).half())
    mine, theirs = put(w.words(30)), put(w.words(70))
    groups = put(w.ids(4, 30)), put(w.ids(4, 70))
    held = join_index(right, theirs, groups=groups[1], implementation=by)
    return (
        hybrid_argmax(left, mine, right, theirs, exclude=groups, implementation=by),
        held.best(left, mine, groups=groups[0]),
    )


@op
def groups_of_rows(w: World, put: Put, by: str) -> Any:
    near = torch.cat([w.vectors, w.vectors + 0.02])
    near = put((near / near.norm(dim=1, keepdim=True)).half())
    keys = put(w.words(N, 200))
    return (
        radius_clusters(near, 0.02, implementation=by),
        radius_clusters(near, 0.3, 3, implementation=by),
        exact_groups(keys),
        components.connected_components(put(w.csr)),
    )


@op
def neighbours(w: World, put: Put, by: str) -> Any:
    base, queries = put(w.vectors.half()), put(w.queries)
    scores = put(torch.randn(4, 500, generator=torch.Generator().manual_seed(2)))
    return (
        nearest(queries, base, 7, implementation=by), nearest(queries[:0], base, 4, implementation=by),
        topk_rows(scores, 9), topk_rows(scores, 600),
    )  # fmt: skip


@op
def fusion(w: World, put: Put, by: str) -> Any:
    ids = torch.stack([torch.randperm(30, generator=w.random)[:6] for _ in range(2 * BATCH)]).int()
    scores = torch.arange(6, 0, -1.0).expand(BATCH, 6).contiguous()
    rankings = [put(TopK(part, scores)) for part in ids.split(BATCH)]
    return rrf(rankings, 8, constants=[60, 0]), minmax_rows(put(w.queries))


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for one in fields(value):
            yield from tensors(getattr(value, one.name))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors(one)


def same(found: Any, expected: Any, error: float = 0.0) -> bool:
    pairs = list(zip(tensors(found), tensors(expected), strict=True))
    return all(
        a.shape == b.shape and a.dtype == b.dtype
        and (torch.equal(a, b) if not error or not a.is_floating_point() else torch.allclose(a, b, 0, error))
        for a, b in pairs
    )  # fmt: skip


@pytest.mark.parametrize("by", ["torch", "auto"])
@pytest.mark.parametrize("name", OPS)
def test_result_is_on_the_device_and_that_of_the_cpu(device: Device, name: str, by: str) -> None:
    """Bit by bit: the stand-in computes with the CPU's torch."""
    with recording() as ran:
        found = OPS[name](World(), device.put, by)
    expected = OPS[name](World(), lambda held: held, "torch")
    held = list(tensors(found))
    assert held and all(isinstance(t, OnDevice) for t in held)
    assert same(device.back(found), expected)
    assert {one for chosen in ran.values() for one in chosen} <= {"torch", "reference"}
    assert not device.atomic_sums, "the last bits would differ from run to run"


@pytest.mark.parametrize("name", ["pagerank", "balls_and_blocks", "walks", "bubbles", "paths", "hops", "joins",
                                  "groups_of_rows", "neighbours", "fusion"])  # fmt: skip
def test_it_is_what_compiled_code_says(device: Device, name: str) -> None:
    found = device.back(OPS[name](World(), device.put, "auto"))
    assert same(found, OPS[name](World(), lambda held: held, "numba"), 2e-6 if name == "pagerank" else 0.0)


def test_without_its_device_an_op_is_caught(device: Device) -> None:
    """The tests above catch an op that forgets where its graph is."""

    def forgets(csr: CSR) -> torch.Tensor:
        return torch.arange(csr.n) * csr.indptr.diff()

    with pytest.raises(RuntimeError, match="two devices"):
        forgets(device.put(World().csr))


@dataclass(frozen=True)
class Mixed:
    """A call whose second argument is left on the CPU."""

    name: str
    call: Callable[[World, Put], Any]


MIXED = [
    Mixed("edges", lambda w, put: csr_from_edges(put(w.edges[0]), w.edges[1], N)),
    Mixed("edge weights", lambda w, put: csr_from_edges(put(w.edges[0]), put(w.edges[1]), N, w.edges[2])),
    Mixed("balls", lambda w, put: ego_balls(put(w.csr), w.seeds, 1)),
    Mixed("prior", lambda w, put: personalized_pagerank(put(w.csr), prior=torch.rand(2, N))),
    Mixed("nearest", lambda w, put: nearest(w.queries, put(w.vectors), 2)),
    Mixed("fusion", lambda w, put: rrf([put(held(w)), held(w)], 2, constants=[1, 1])),
    Mixed("costs", lambda w, put: node_costs(put(w.queries), w.vectors, *put((w.ids(BATCH, 3), w.ids(N, 3))))),
    Mixed("join", lambda w, put: hybrid_argmax(put(w.queries), put(w.words(BATCH)), w.vectors, w.words(N))),
    Mixed("CSR", lambda w, put: prepare(replace(put(w.csr), indices=w.csr.indices))),
]


def held(w: World) -> TopK:
    return TopK(w.ids(9, 2, 3).int(), torch.tensor([[3.0, 2.0, 1.0]]).expand(2, 3))


@pytest.mark.parametrize("mixed", MIXED, ids=lambda mixed: mixed.name)
def test_two_devices_in_one_call_are_refused_in_words(device: Device, mixed: Mixed) -> None:
    with pytest.raises(BadInput, match="device|cuda"):
        mixed.call(World(), device.put)


def test_what_works_on_the_cpu_alone_says_so(device: Device) -> None:
    w = World()
    with pytest.raises(UsageError, match="works on the CPU"):
        personalized_pagerank(device.put(w.csr), device.put(w.seeds), implementation="numba")
    with pytest.raises(UsageError, match="works on the CPU"), preferring({"ops": "numba"}):
        ego_balls(device.put(w.csr), device.put(w.seeds), 1)


def test_seeds_may_stay_on_the_cpu_since_they_are_read_there(device: Device) -> None:
    w = World()
    found = personalized_pagerank(device.put(w.csr), w.seeds)
    assert torch.equal(device.back(found), device.back(personalized_pagerank(device.put(w.csr), device.put(w.seeds))))


def test_memory_of_the_device_is_what_counts() -> None:
    w = World()
    with stand_in(free=1 << 20) as device:
        assert free_bytes(CUDA) == free_bytes(torch.device("cuda")) == 1 << 20
        n = 3_000_000  # a result of more bytes than are given without a look
        seeds = device.put(Ragged(torch.zeros(n, dtype=torch.int64), torch.arange(n + 1)))
        with pytest.raises(BadInput, match="not enough memory.*cuda:0"):
            personalized_pagerank(device.put(w.csr), seeds)
        with pytest.raises(BadInput, match="not enough memory.*cuda:0"):
            nearest(device.put(w.queries), device.put(w.vectors), 10**8)


def test_a_large_state_begins_in_f16(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    w = World()
    graph, seeds = prepare(device.put(w.csr)), device.put(w.seeds)
    small = device.back(personalized_pagerank(graph, seeds))
    monkeypatch.setattr("gpu_rag.graph.pagerank.matrix.MAX_RECORDED", 64 * w.csr.n - 1)
    large = device.back(personalized_pagerank(graph, seeds))
    for state, found in (("f32", small), ("f16", large)):
        assert torch.equal(found, device.back(personalized_pagerank(graph, seeds, state=state)))
    assert not torch.equal(small, large) and float((small - large).abs().sum(1).max()) < 2e-6


def test_no_op_moves_its_graph_back_and_forth(device: Device) -> None:
    """Every copy is small beside the graph and the vectors: seeds, sizes, a number a question."""
    src, dst = World().ids(1999, 2, 20_000)
    csr = csr_from_edges(src, dst, 2000)  # the last node is alone
    w = World()
    seeds, graph = device.put(w.seeds), prepare(device.put(csr))
    device.forget()
    personalized_pagerank(graph, seeds)
    personalized_pagerank(graph, prior=torch.ones(BATCH, csr.n, device=CUDA))
    blocks = induced_subgraphs(graph.pull, ego_balls(graph.pull, seeds, 1))
    blocks_pagerank(blocks, seeds)
    base = device.put(World().rows(5000).half())
    nearest(device.put(w.queries), base, 5)
    most = max(device.copies, key=lambda copy: copy.bytes)
    assert most.bytes <= 8 * 64 * w.seeds.values.numel() < csr.n * 8 < csr.m * 4, most
    files = ("matrix", "inputs.py:teleport_of_prior")
    to_host = [copy for copy in device.copies if copy.to == "cpu" and copy.where.startswith(files)]
    assert max(copy.bytes for copy in to_host) <= 16 * 64, "two numbers a question"
