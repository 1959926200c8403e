"""gpu-rag bench of every op: rows beside its peers, and wrong versions refused."""

from dataclasses import replace

import pytest
import torch

from gpu_rag.graph.bubble import bench as bubble
from gpu_rag.graph.ego import bench as ego
from gpu_rag.graph.nearest import bench as nearest
from gpu_rag.graph.pagerank import bench as pagerank
from gpu_rag.types import Blocks, TopK

SEVERAL = ("bubble",)  # whose function is called for the inputs or the check too


pytestmark = pytest.mark.usefixtures("small_bench")


OPS = {
    "pagerank": (pagerank, "personalized_pagerank"),
    "nearest": (nearest, "nearest"),
    "bubble": (bubble, "bubble_expansion"),
    "ego": (ego, "ego_balls"),
}  # the function that is timed
right = {name: getattr(module, name) for module, name in (*OPS.values(), (ego, "induced_subgraphs"))}


def last_row_unwritten(graph, seeds, weights, **options):
    result = torch.empty(seeds.batch, graph.n)
    result[:-1] = right["personalized_pagerank"](graph, seeds, weights, **options)[:-1]
    return result


def second_best_nearest(queries, base, k):
    found = right["nearest"](queries, base, k + 1)
    return TopK(found.ids[:, 1:], found.scores[:, 1:])


def unsorted_nearest(queries, base, k):
    found = right["nearest"](queries, base, k)
    return TopK(found.ids.flip(1), found.scores.flip(1))


def equal_costs(blocks, costs, *given, **options):
    if options.get("implementation") == "torch":
        return right["bubble_expansion"](blocks, costs, *given, **options)
    return right["bubble_expansion"](blocks, costs * 0 + 1, *given, **options)


def one_hop(graph, seeds, radius, **options):
    return right["ego_balls"](graph, seeds, radius - 1, **options)


def one_entry_lost(*given, **options):
    blocks = right["induced_subgraphs"](*given, **options)
    last = blocks.csr.indptr.clone()
    last[-1] -= 1
    return Blocks(replace(blocks.csr, indptr=last, indices=blocks.csr.indices[:-1]), blocks.offsets, blocks.global_ids)


def loose(name):
    """The op, which stops before it is exact."""
    return lambda *given, **options: right[name](*given, **{**options, "tol": 1e-3})


def fewer_trees(*given, **options):
    limit = 10 if options.get("implementation") == "torch" else 9
    return right["bubble_expansion"](*given, **{**options, "limit": limit})


WRONG = {
    "pagerank": [loose("personalized_pagerank"), last_row_unwritten],
    "nearest": [second_best_nearest, unsorted_nearest],
    "bubble": [equal_costs, fewer_trees],
    "ego": [one_hop, one_entry_lost],
}
ELSEWHERE = {one_entry_lost: "induced_subgraphs"}  # not the function of OPS


@pytest.mark.parametrize(
    ("op", "wrong"),
    [(op, wrong) for op in WRONG for wrong in WRONG[op]],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_wrong_op_is_refused_and_not_timed(op, wrong, run, monkeypatch):
    module, name = OPS[op]
    calls = []

    def counted(*given, **options):
        calls.append(1)
        return wrong(*given, **options)

    monkeypatch.setattr(module, ELSEWHERE.get(wrong, name), counted)
    arguments = ("--damping", "0.85", "--sizes", 300, "--batch", 40, "--rounds", 3, "--peers", "--json")
    result = run("bench", op, *arguments)
    assert result.status == 1 and "1 rows were refused" in result.err
    (row,) = result.document["rows"]
    assert row["note"].startswith("refused: ")
    measured = ("ms", "peer", "peer_ms", "ratio", "bytes", "pct_of_copy_bandwidth")
    assert [row[key] for key in measured] == [None] * len(measured)
    assert len(calls) == 1 or op in SEVERAL
