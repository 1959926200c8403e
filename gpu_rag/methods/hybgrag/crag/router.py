"""The router of the CRAG variant: type, dynamism and domain of the question, entities with relations, and the source.

The rules propose an action, and the decider gives its whole route in one reply. No action is taken twice: if the
decider repeats one, the rules' proposal is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.methods.hybgrag.crag.asks import AGAIN, ROUTE
from gpu_rag.methods.hybgrag.crag.references import Material
from gpu_rag.methods.hybgrag.crag.rules import Candidate, Classes, candidates, classes_of, first_action, next_action
from gpu_rag.methods.hybgrag.crag.state import GRAPH, TEXT, Action, History, Params
from gpu_rag.program.decide import decide
from gpu_rag.program.run import Run


@dataclass(frozen=True)
class Router:
    """The router of one question. ranked: candidate names of the graph; classes: by rule."""

    run: Run
    params: Params
    material: Material
    ranked: Sequence[Candidate]
    classes: Classes

    async def route(self, history: History) -> Action | None:
        """The next action that was not taken before; None if none is left."""
        proposal, last = self._proposal(history), history.actions[-1] if history.actions else None
        read = {action.batch for action in history.actions if action.module == TEXT}
        batch = next((i for i in range(self.material.n_batches(self.params)) if i not in read), None)
        relations = self._relations(proposal)
        is_left = {GRAPH: bool(relations), TEXT: batch is not None, AGAIN: last is not None and last.module == TEXT}
        sources = [source for source, left in is_left.items() if left]
        if not sources:
            return proposal
        route = await decide(
            self.run,
            ROUTE,
            proposal=proposal or last,
            last=last,
            history=history,
            names=[candidate.name for candidate in self.ranked],
            relations=relations,
            sources=sources,
            max_topics=self.params.max_topics,
        )
        action = route.action(batch or 0, last)
        if not history.seen(action):
            return action
        if proposal is not None:
            self.run.note("crag_repeated", 0, ("the action of the rules is taken",))
        return proposal

    def _proposal(self, history: History) -> Action | None:
        """The action that the rules propose."""
        if not history.actions:
            return first_action(self.classes, self.ranked, self.params)
        n_batches = self.material.n_batches(self.params)
        return next_action(history, self.classes, self.ranked, n_batches, self.params)

    def _relations(self, proposal: Action | None) -> list[str]:
        """The relations offered to the decider: the nearest ones of the candidates, then those of the proposal."""
        cosine = {relation: score for candidate in self.ranked for relation, score in candidate.relations}
        nearest = sorted(cosine, key=lambda relation: -cosine[relation])[: self.params.n_shown]
        topics = proposal.topics if proposal is not None else ()
        return list(dict.fromkeys((*nearest, *(relation for topic in topics for relation in topic.relations))))


async def router_of(question: str, material: Material, run: Run, params: Params) -> Router:
    """The router of a question. The candidates are noted in the trace."""
    ranked = await candidates(question, material, params)
    run.note("crag_candidates", len(ranked), tuple(candidate.name for candidate in ranked if candidate.is_asked))
    return Router(run, params, material, ranked, await classes_of(question))
