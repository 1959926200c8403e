"""Train a small graph neural network of PyG that ranks passages, on balls from our own sampler.

usage: python scripts/train_gnn_ranker.py [--entities N] [--steps N] [--device cuda]      prints a line of JSON
The graph is generated: passages that mention entities. A question names two entities of one passage, its gold. The
sampler takes a ball around the two seeds of each question; the balls of a batch are blocks of one graph. Two layers of
GraphSAGE (Hamilton, Ying and Leskovec, 2017) score the passages in it. `--sampler pyg` takes the balls by
NeighborLoader, which needs pyg-lib. To train on an index: `gpu_rag.Index.to_pyg`, whose HeteroData is PyG's feature and
graph store in one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import softmax

from gpu_rag.graph.csr import csr_from_edges, row_of_entry
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs
from gpu_rag.graph.ragged import row_of_value
from gpu_rag.types import Ragged

MENTIONS, BATCH, WIDTH = 4, 32, 16


@dataclass(frozen=True)
class World:
    """Nodes [entities | passages], and the entities that each passage mentions, i64[P, MENTIONS]."""

    graph: CheckedGraph
    mentions: torch.Tensor
    n_entities: int

    def questions(self, count: int, seed: int) -> tuple[Ragged, torch.Tensor]:
        """Draw questions: two seeds of each, and the node of its gold passage."""
        drawn = torch.Generator().manual_seed(seed)
        gold = torch.randint(len(self.mentions), (count,), generator=drawn)
        two = torch.rand(count, MENTIONS, generator=drawn).argsort(1)[:, :2].to(self.mentions.device)
        gold = gold.to(self.mentions.device)
        seeds = self.mentions[gold].gather(1, two).sort(1).values
        return Ragged(seeds.flatten(), torch.arange(count + 1, device=gold.device) * 2), gold + self.n_entities


def made(n_entities: int, device: str, seed: int = 0) -> World:
    """A passage for every entity, with MENTIONS different entities."""
    drawn = torch.Generator().manual_seed(seed)
    mentions = torch.stack([torch.randperm(n_entities, generator=drawn)[:MENTIONS] for _ in range(n_entities)])
    passage = torch.arange(n_entities).repeat_interleave(MENTIONS) + n_entities
    csr = csr_from_edges(mentions.flatten().to(device), passage.to(device), 2 * n_entities)
    return World(checked(csr), mentions.to(device), n_entities)


@dataclass(frozen=True)
class Balls:
    """The balls of a batch side by side. nodes, block: the node and the question of each place; edges: between places,
    i64[2, E]; seeds: bool, places of seeds."""

    nodes: torch.Tensor
    block: torch.Tensor
    edges: torch.Tensor
    seeds: torch.Tensor


def by_ego(world: World, seeds: Ragged) -> Balls:
    """Balls of radius 1 by gpu-rag: passages with a seed, and the seeds."""
    blocks = induced_subgraphs(world.graph, ego_balls(world.graph, seeds, 1))
    nodes, block = blocks.global_ids.long(), row_of_value(Ragged(blocks.global_ids, blocks.offsets))
    edges = torch.stack([row_of_entry(blocks.csr), blocks.csr.indices.long()])
    n = world.graph.csr.n
    return Balls(nodes, block, edges, torch.isin(block * n + nodes, row_of_value(seeds) * n + seeds.values))


def by_pyg(world: World, seeds: Ragged) -> Balls:
    """The same balls by NeighborLoader, with one question per batch."""
    csr = world.graph.csr
    data = Data(edge_index=torch.stack([row_of_entry(csr), csr.indices.long()]), num_nodes=csr.n)
    loader = NeighborLoader(data, [-1], input_nodes=seeds.values, batch_size=2, subgraph_type="induced")
    batches = [*loader]
    whole = Batch.from_data_list([Data(edge_index=batch.edge_index, num_nodes=batch.num_nodes) for batch in batches])
    nodes = torch.cat([batch.n_id for batch in batches])
    first = torch.cat([torch.arange(batch.num_nodes) < 2 for batch in batches])
    return Balls(nodes, whole.batch, whole.edge_index, first)


class Ranker(torch.nn.Module):
    """A network that scores every place of balls."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = SAGEConv(2, WIDTH, aggr="sum"), SAGEConv(WIDTH, 1, aggr="sum")

    def forward(self, balls: Balls, is_passage: torch.Tensor) -> torch.Tensor:
        """Log of the share of each place among the passages of its ball, f32[T]."""
        features = torch.stack([balls.seeds, is_passage], 1).float()
        score = self.two(self.one(features, balls.edges).relu(), balls.edges)[:, 0]
        return softmax(torch.where(is_passage, score, -1e9), balls.block).clamp_min(1e-12).log()


def step(world: World, ranker: Ranker, sample: Callable[..., Balls], seed: int) -> tuple[torch.Tensor, float]:
    """(loss, share of questions whose first passage is gold) of one batch."""
    seeds, gold = world.questions(BATCH, seed)
    balls = sample(world, seeds)
    share = ranker(balls, balls.nodes >= world.n_entities)
    own = balls.nodes == gold[balls.block]
    best = torch.full((BATCH,), -torch.inf, device=share.device).scatter_reduce_(0, balls.block, share.detach(), "amax")
    return -share[own].mean(), float((share[own] >= best[balls.block[own]]).float().mean())


def train(n_entities: int, n_steps: int, device: str, sample: Callable[..., Balls] = by_ego) -> dict[str, float]:
    """Train. Returns hits@1, before and after, of questions that were never trained on."""
    torch.manual_seed(0)
    world, ranker = made(n_entities, device), Ranker().to(device)
    optimiser = torch.optim.Adam(ranker.parameters(), lr=0.05)
    began, before = time.perf_counter(), step(world, ranker, sample, 1_000_000)[1]
    for seed in range(n_steps):
        loss, _ = step(world, ranker, sample, seed)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    after = step(world, ranker, sample, 1_000_000)[1]
    return {"before": before, "after": after, "loss": float(loss.detach()), "s": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GNN that ranks passages.")
    parser.add_argument("--entities", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sampler", choices=("ego", "pyg"), default="ego")
    args = parser.parse_args()
    sample = by_ego if args.sampler == "ego" else by_pyg
    print(json.dumps(train(args.entities, args.steps, args.device, sample)))


if __name__ == "__main__":
    main()
