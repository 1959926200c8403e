"""The example of a GNN ranker learns, on balls of our own sampler and of PyG's; an index is PyG's feature and graph
store."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from project_scripts import script

pytestmark = pytest.mark.skipif(find_spec("torch_geometric") is None, reason="needs PyG")


def test_a_ranker_learns_what_both_seeds_say() -> None:
    found = script("train_gnn_ranker").train(200, 20, "cpu")
    assert found["before"] < 0.6 and found["after"] > 0.9, "the gold passage is the only one beside both seeds"


def test_balls_have_the_seeds_and_every_edge_between_their_nodes() -> None:
    ranker = script("train_gnn_ranker")
    world = ranker.made(40, "cpu")
    seeds, gold = world.questions(6, 1)
    balls = ranker.by_ego(world, seeds)
    csr = world.graph.csr
    dense = torch.zeros(csr.n, csr.n, dtype=torch.bool)
    dense[torch.repeat_interleave(torch.arange(csr.n), csr.indptr.diff()), csr.indices.long()] = True
    for q in range(6):
        own, places = seeds.values[2 * q : 2 * q + 2], (balls.block == q).nonzero()[:, 0]
        nodes = balls.nodes[places]
        assert set(nodes.tolist()) == {*own.tolist(), *dense[own].any(0).nonzero()[:, 0].tolist()}
        assert int(gold[q]) in nodes and sorted(nodes[balls.seeds[places]].tolist()) == sorted(own.tolist())
        assert int((balls.block[balls.edges[0]] == q).sum()) == int(dense[nodes][:, nodes].sum())


@pytest.mark.skipif(find_spec("pyg_lib") is None, reason="needs pyg-lib")
def test_the_loader_of_pyg_takes_the_same_balls() -> None:
    ranker = script("train_gnn_ranker")
    world = ranker.made(40, "cpu")
    ours, theirs = (sample(world, world.questions(6, 1)[0]) for sample in (ranker.by_ego, ranker.by_pyg))

    def pairs(balls: Any) -> list[tuple[int, int, bool]]:
        return sorted(zip(balls.block.tolist(), balls.nodes.tolist(), balls.seeds.tolist()))

    assert pairs(ours) == pairs(theirs) and ours.edges.shape == theirs.edges.shape
