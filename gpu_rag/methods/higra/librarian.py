"""The Librarian answers one sub-question from the passages retrieved for it. It is stateless, so calls can be batched.

A capable model gives every answer that the passages and relations support, with its evidence. Other models give the
single short answer of the shared reader, from the passages that the reader shows, without the relations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gpu_rag.methods.higra.asks import LIBRARIAN, Told
from gpu_rag.methods.higra.dialogue import Finding
from gpu_rag.program.decide import decide
from gpu_rag.program.reader import Support
from gpu_rag.program.rerank import reranked
from gpu_rag.program.run import Run

Find = Callable[[str], Awaitable[Support]]


async def consult(run: Run, question: str, find: Find, step: int = 0) -> Finding:
    """Retrieve for one sub-question and answer it."""
    retrieved = await find(question)
    retrieved = Support(*await reranked(run, question, retrieved.evidence, retrieved.paths))
    passages, reply = retrieved.evidence, Told("nothing was retrieved", (), ())
    if passages:
        reply = await decide(run, LIBRARIAN, run=run, question=question, passages=passages, paths=retrieved.paths)
    cited = tuple(passages[number - 1] for number in reply.passages)
    lines = (f"question: {question}", f"answer: {'; '.join(reply.answers) or 'none'}", f"evidence: {reply.evidence}")
    run.note("librarian", len(passages), (*lines, *(f"passage: {e.passage_id} {e.title}" for e in cited)))
    return Finding(question, reply.answers, reply.evidence, cited, retrieved, step)
