"""HopRAG with a perfect chooser, for `eval --ceiling`: a hop to a gold passage wherever an option leads to one."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpu_rag.index.index import Index
from gpu_rag.methods.hoprag.batched import edge_question, hop_graph, vertex_passage
from gpu_rag.methods.hoprag.program import Params, kept, visited
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.types import Question


def helpful(index: Index, gold: Collection[int]) -> set[str]:
    """The questions of the edges that lead to gold passages."""
    target, _, passage = hop_graph(index).on_host
    return {edge_question(index, edge) for edge in np.flatnonzero(np.isin(passage[target], list(gold))).tolist()}


async def retrieve(question: Question, run: Run, params: Params) -> tuple[Support, set[int]]:
    """The passages kept, and all that the walk met."""
    scores = await visited(question, run, params)
    return kept(run, scores, params), {vertex_passage(run.index, v) for v in scores}


CEILINGS = {"hoprag": (helpful, retrieve)}
