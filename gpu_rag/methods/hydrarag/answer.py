"""HydraRAG, step IV: an answer from the remaining paths, or the finding that they do not suffice.

The paths are summarised (`refinement`). Then one reply gives its reasons, which sub-questions are settled, whether the
question is settled, and the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.methods.hydrarag.asks import ANSWER, REFINE
from gpu_rag.methods.hydrarag.evidence import MAX_ANSWERS, named_first, ranked_nodes
from gpu_rag.methods.hydrarag.replies import folded
from gpu_rag.methods.hydrarag.state import Analysis, FoundPath, Search
from gpu_rag.program.decide import decide
from gpu_rag.program.knowledge_base.walks import statements
from gpu_rag.program.reader import is_answer
from gpu_rag.types import RankedNode


@dataclass(frozen=True)
class Attempt:
    """One attempt to answer. accepted: whether the search may end; text: None if no answer was found."""

    text: str | None
    accepted: bool
    nodes: tuple[RankedNode, ...] = ()


async def attempt(analysis: Analysis, chosen: Sequence[FoundPath], last: bool, search: Search) -> Attempt:
    """An attempt to answer from the chosen paths. last: no phase follows, so any known answer is given."""
    if not chosen:
        return Attempt(None, False, ranked_nodes(chosen, search))
    facts = [f"- {path.text} ({path.said_by}){statements(path.edges)}" for path in chosen]
    shown = {"question": analysis.question, "subquestions": analysis.subquestions}
    if search.params.refinement:
        facts.insert(0, await decide(search.run, REFINE, **shown, facts=facts))
    exact = search.asked
    if exact.exact and exact.nodes:
        names = "; ".join(search.kb.node_names[node] for node in exact.nodes[:MAX_ANSWERS])
        facts.insert(0, f"- by the graph these {len(exact.nodes)} answer the question: {names}")
    fields = {"analysis": analysis, "chosen": chosen, "last": last, "search": search}
    reply = await decide(search.run, ANSWER, **shown, facts=facts, **fields)
    text, nodes = folded(reply.answer), ranked_nodes(chosen, search)
    if not is_answer(text):
        return Attempt(None, reply.sufficient, nodes)
    return Attempt(text, reply.sufficient, named_first(text, nodes, chosen, search.kb))
