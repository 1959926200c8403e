"""Restarts at a few nodes and among the last ones are those of the same prior written out, by every implementation."""

import pytest
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import PageRankGraph, Restarts, personalized_pagerank, prepare

N, LAST = 60, 25
ALL = pytest.mark.parametrize("implementation", ["numba", "torch"])


def graph(*, undirected: bool = True) -> PageRankGraph:
    """Nodes 5, 34, 35 and 59 have no edge."""
    ends = torch.randint(0, N, (2, 150), generator=torch.Generator().manual_seed(2))
    kept = ~torch.isin(ends, torch.tensor([5, 34, 35, 59])).any(0)
    return prepare(csr_from_edges(*ends[:, kept], N, undirected=undirected))


def restarts(batch: int) -> Restarts:
    """Nodes that several questions share, one that stands twice, dangling ones, rows without seeds, a row of zeros."""
    g = torch.Generator().manual_seed(5)
    nodes = torch.stack([torch.randperm(N - LAST - 1, generator=g)[:4] for _ in range(batch)])
    nodes += nodes >= 5
    nodes[:, 0] = 5
    mass, last = torch.rand(batch, 4, generator=g), torch.rand(batch, LAST, generator=g)
    nodes[1, 3], mass[1, 3] = nodes[1, 1], 0.0
    mass[2] = 0.0
    if batch > 3:
        mass[3], last[3] = 0.0, 0.0
    return Restarts(nodes, mass, last)


def written_out(given: Restarts) -> torch.Tensor:
    prior = torch.zeros(len(given.last), N)
    prior.scatter_add_(1, given.nodes, given.mass)
    prior[:, N - LAST :] = given.last
    return prior


@ALL
@pytest.mark.parametrize("undirected", [True, False], ids=["symmetric", "directed"])
def test_are_those_of_the_prior_written_out(implementation: str, undirected: bool) -> None:
    made, given = graph(undirected=undirected), restarts(40)
    expected = personalized_pagerank(made, prior=written_out(given), tol=1e-9, implementation="numba")
    found = personalized_pagerank(made, prior=given, tol=1e-9, implementation=implementation)
    assert float((found - expected).abs().sum(1).max()) < 1e-6
    assert not found[3].any() and bool((found.sum(1)[4:] - 1).abs().max() < 1e-5)


@ALL
def test_a_row_and_a_range_of_nodes_have_the_same_bits(implementation: str) -> None:
    made, given = graph(), restarts(40)
    whole = personalized_pagerank(made, prior=given, implementation=implementation)
    assert torch.equal(
        personalized_pagerank(made, prior=given, implementation=implementation, ids=(30, N)), whole[:, 30:]
    )
    for b in (0, 1, 2, 3, 39):
        alone = Restarts(*(part[b : b + 1] for part in (given.nodes, given.mass, given.last)))
        assert torch.equal(personalized_pagerank(made, prior=alone, implementation=implementation)[0], whole[b]), b


def test_what_does_not_fit_is_refused() -> None:
    made, given = graph(), restarts(3)
    wrong = {
        "below 35": Restarts(given.nodes + 30, given.mass, given.last),
        "at least 0": Restarts(given.nodes - 30, given.mass, given.last),
        "negative": Restarts(given.nodes, -given.mass, given.last),
        "not finite": Restarts(given.nodes, given.mass, given.last / 0),
        "do not fit": Restarts(given.nodes[:2], given.mass, given.last),
        "not in the graph": Restarts(given.nodes, given.mass, torch.ones(3, N + 1)),
    }
    for words, one in wrong.items():
        with pytest.raises(BadInput, match=words):
            personalized_pagerank(made, prior=one)
    with pytest.raises(BadInput, match="the range of nodes is not in the graph"):
        personalized_pagerank(made, prior=given, ids=(3, N + 1))
