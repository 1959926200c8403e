"""HiGraRetriever with one reading: the Librarian of HiGraAgent alone, on the question itself.

Seeds near the question, personalized PageRank on the subgraph around them, reciprocal rank fusion with similarity; see
`higra_context` and `gpu_rag.methods.higra.rank`.
"""

from __future__ import annotations

from functools import partial

from gpu_rag.methods.higra.context import Params, graph_context
from gpu_rag.methods.higra.librarian import consult
from gpu_rag.program.reader import Support
from gpu_rag.program.verbs import Verbs
from gpu_rag.types import Draft, Question

__all__ = ["Params", "program", "retrieve"]


async def retrieve(question: Question, verbs: Verbs, params: Params) -> Support:
    """The verbs.limit passages that come first in reading order, and the relations read with them as paths."""
    context = await graph_context(question.text, verbs, params, verbs.limit)
    return Support(context.passages[: verbs.limit], context.paths)


async def program(question: Question, verbs: Verbs, params: Params) -> Draft:
    """One call to the Librarian; several answers are joined by "; "."""
    found = await consult(question.text, verbs, partial(graph_context, verbs=verbs, params=params))
    if not found.answers:
        return Draft(None, found.context.passages, found.context.paths, "unsupported")
    evidence = {e.passage_id: e for e in (*found.cited, *found.context.passages)}
    return Draft("; ".join(found.answers), tuple(evidence.values()), found.context.paths)
