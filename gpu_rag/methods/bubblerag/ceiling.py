"""BubbleRAG with a perfect chooser, for `eval --ceiling`: its graphs grow by the relations that gold passages state.

Keywords, groups and trees are those without a model.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from gpu_rag.graph.ragged import row_of_value, some_lists
from gpu_rag.index.index import Index
from gpu_rag.methods.bubblerag.batched import Params
from gpu_rag.methods.bubblerag.graph import bubble_graph, is_relation, node_text
from gpu_rag.methods.bubblerag.program import evidence_graphs, pre_retrieval, supported_by
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.types import Question


def helpful(index: Index, gold: Collection[int]) -> set[str]:
    """The relations that gold passages state."""
    passages = bubble_graph(index).passages
    rows = torch.tensor(sorted(gold), dtype=passages.values.dtype, device=passages.values.device)
    nodes = row_of_value(passages)[torch.isin(passages.values, rows)].unique().tolist()
    return {node_text(index, v) for v in nodes if is_relation(index, v)}


async def retrieve(question: Question, run: Run, params: Params) -> tuple[Support, set[int]]:
    """The passages that come first, and all that mention or state a node of the evidence graphs."""
    before = await pre_retrieval(run, question, params, run.limit)
    grown = await evidence_graphs(run, question.text, before, params)
    support = await supported_by(run, question.text, before, grown, params, run.limit)
    passages = bubble_graph(run.index).passages
    nodes = sorted({v for graph in grown.graphs for v in (*graph.entities, *graph.relations)})
    rows = torch.tensor(nodes, dtype=torch.int64, device=passages.values.device)
    return support, set(some_lists(passages, rows).values.tolist())


CEILINGS = {"bubblerag": (helpful, retrieve)}
