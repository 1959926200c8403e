"""HiGraRetriever with a perfect chooser, for `eval --ceiling`: its seeds are entities of gold passages."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpu_rag.graph.ego import ego_balls
from gpu_rag.graph.ragged import ragged_of_lists
from gpu_rag.index.index import Index
from gpu_rag.methods.higra import retriever
from gpu_rag.methods.higra.batched import Params
from gpu_rag.methods.higra.graph import entity_options, higra_graph
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.types import Question


def helpful(index: Index, gold: Collection[int]) -> set[str]:
    """The entities of gold passages."""
    links = higra_graph(index).links
    entities = links["entity"].to_numpy()[np.isin(links["passage"].to_numpy(), list(gold))]
    return set(entity_options(index, np.unique(entities).tolist()))


async def retrieve(question: Question, run: Run, params: Params) -> tuple[Support, set[int]]:
    """The passages that come first, and all of the subgraph around the seeds: what they lead to within `radius`."""
    begun = await retriever.started(run, question.text, params)
    support = await retriever.ranked_from(run, question.text, begun, params, run.limit)
    graph, seeds = higra_graph(run.index), begun[2]
    starts = ragged_of_lists([sorted(set(seeds))], run.index.device)
    ball = ego_balls(graph.checked[0], starts, params.radius, threads=run.index.threads).values.cpu().numpy()
    near = np.isin(graph.links["entity"].to_numpy(), ball)
    return support, set(graph.links["passage"].to_numpy()[near].tolist())


CEILINGS = dict.fromkeys(("higra-retriever", "higra-agent"), (helpful, retrieve))
