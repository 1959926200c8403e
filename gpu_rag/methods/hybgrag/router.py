"""HybGRAG's router: the entities of a question, their relations, and the retrieval module that uses them.

The rules propose an action. The decider gives the route, then the module. No action is taken twice: if the decider
repeats one, the rules' proposal is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu_rag.methods.hybgrag.asks import MODULE, ROUTE
from gpu_rag.methods.hybgrag.route_prompt import RoutePrompt
from gpu_rag.methods.hybgrag.rules import Candidate, candidates, first_action, next_action
from gpu_rag.methods.hybgrag.state import HYBRID, TEXT, Action, History, Params
from gpu_rag.program.decide import decide
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.run import Run

_MODULE_TEXTS = {
    HYBRID: "knowledge graph: search among what these entities and relations lead to",
    TEXT: "text documents: search all documents by what they say",
}


@dataclass(frozen=True)
class Router:
    """The router of one question. vector: of the question; ranked: candidates for its entities, best first."""

    run: Run
    params: Params
    vector: np.ndarray
    ranked: Sequence[Candidate]

    async def route(self, history: History) -> Action | None:
        """The next action that was not taken before; None if none is left."""
        proposal = self._proposal(history)
        if not kb_of(self.run.index).n_relations:
            return proposal
        shown = RoutePrompt(self.run, self.params, self.vector, history, proposal)
        route = await decide(self.run, ROUTE, proposal=proposal, shown=shown)
        topics = route.entities
        modules = (HYBRID, TEXT) if topics else (TEXT,)
        actions = [action for name in modules if not history.seen(action := Action(name, topics, route.sure))]
        if not actions:
            if proposal is not None:
                self.run.note("hybgrag_repeated", 0, ("the action of the rules is taken",))
            return proposal
        likely = proposal.module if proposal is not None and proposal.topics == topics else HYBRID
        (place,) = await decide(
            self.run,
            MODULE,
            question=history.question,
            topics=topics,
            options=[_MODULE_TEXTS[action.module] for action in actions],
            query=history.question,
            scores=[float(action.module == likely) for action in actions],
        )
        return actions[place]

    def _proposal(self, history: History) -> Action | None:
        """The action that the rules propose; sure if the question clearly states all its relations."""
        ranked, params = self.ranked, self.params
        action = next_action(history, ranked, params) if history.actions else first_action(ranked, params)
        plain = {candidate.first.key for candidate in ranked if candidate.sure}
        sure = action is not None and action.module != TEXT and all(topic.key in plain for topic in action.topics)
        return action and replace(action, sure=sure)


async def router_of(question: str, vector: np.ndarray, run: Run, params: Params) -> Router:
    """The router of a question. The candidates are noted in the trace."""
    ranked = await candidates(question, run, params)
    linked = tuple(f"{c.linked.name} ({c.linked.type}) {c.linked.score:.2f}" for c in ranked)
    run.note("hybgrag_candidates", len(linked), linked)
    return Router(run, params, vector, ranked)
