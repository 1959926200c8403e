"""HybGRAG's router: the entities of a question, their relations, and the retrieval module that uses them.

The rules propose an action. The decider gives the route, then the module. No action is taken twice: if the decider
repeats one, the rules' proposal is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from gpu_rag.methods.hybgrag.asks import MODULE, ROUTE, route_of
from gpu_rag.methods.hybgrag.examples import fenced, own_examples, read_examples
from gpu_rag.methods.hybgrag.rules import Candidate, candidates, first_action, next_action
from gpu_rag.methods.hybgrag.state import HYBRID, TEXT, Action, History, Params, Retrieved
from gpu_rag.models.ask import read_prompt
from gpu_rag.program.decide import decide
from gpu_rag.program.knowledge_base.query import Query
from gpu_rag.program.knowledge_base.query_prompt import QueryPrompt
from gpu_rag.program.knowledge_base.spoken import Spoken
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.run import Run

_MODULE_TEXTS = {
    HYBRID: "knowledge graph: search among what these entities and relations lead to",
    TEXT: "text documents: search all documents by what they say",
}


@dataclass(frozen=True)
class Router:
    """The router of one question. vector: vector of the question; ranked: the candidates for its entities, best first;
    spoken: the question as rules read it; unknown: names in it that no node has; proposed: the routes of the rules so
    far."""

    run: Run
    params: Params
    vector: np.ndarray
    ranked: list[Candidate]
    spoken: Spoken
    unknown: tuple[str, ...]
    proposed: list[Query] = field(default_factory=list)

    async def route(self, history: History) -> Action | None:
        """The next action that was not taken before; None if none is left."""
        proposal = self._proposal(history)
        self.proposed.append(route_of(proposal))
        if not kb_of(self.run.index).n_relations:
            return proposal
        shown, ranked = self._prompt(history, proposal), self.ranked
        route = await decide(self.run, ROUTE, proposal=proposal, shown=shown, candidates=ranked, history=history)
        topics = route.entities
        modules = (HYBRID, TEXT) if topics else (TEXT,)
        possible = [Action(name, topics, route.sure, route.operations, route.types) for name in modules]
        actions = [action for action in possible if not history.seen(action)]
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
        ranked, params, anything = self.ranked, self.params, self.spoken.anything
        action = next_action(history, ranked, params) if history.actions else first_action(ranked, params)
        if anything and not history.actions:
            action = Action(HYBRID, (*(action.topics if action and self.spoken.topics else ()), *anything))
        plain = {candidate.first.key for candidate in ranked if candidate.sure} | {topic.key for topic in anything}
        sure = action is not None and action.module != TEXT and all(topic.key in plain for topic in action.topics)
        types = tuple(kb_of(self.run.index).type_names[row] for row in self.spoken.types)
        return action and replace(action, sure=sure, operations=self.spoken.operations, types=types)

    def _prompt(self, history: History, proposal: Action | None) -> QueryPrompt:
        """The prompt of the route; examples collected for the index are fenced as untrusted text."""
        params, prompt = self.params, read_prompt("gpu_rag.methods.hybgrag.prompts:route")
        collected = () if params.routes else own_examples(self.run.index).routes
        examples = collected or read_examples(params.routes, "routes", False)
        return QueryPrompt(
            self.run, fenced(prompt) if collected else prompt, history.question, self.vector, route_of(proposal),
            "\n\n".join(example.route() for example in examples), history.text(),
            "hybgrag_shown", params.n_types, params.n_shown,
        )  # fmt: skip

    def remarks(self, action: Action, result: Retrieved) -> dict[str, tuple[str, ...]]:
        """The remarks of an answer: `unread` (not understood), `sought` (not known) and `barred` (ruled out)."""
        kb, own = kb_of(self.run.index), {candidate.first.key: candidate for candidate in self.ranked}
        own = own if action.query in self.proposed else {}
        known = own.keys() | {topic.key for topic in self.spoken.anything}
        as_spoken = action.operations == self.spoken.operations and all(topic.key in known for topic in action.topics)
        candidates = [own[topic.key] for topic in action.topics if topic.key in own]
        sought = [f"entity: {name}" for name in self.unknown]
        sought += [f"{relation} of {c.linked.name}" for c in candidates for relation in c.lacking]
        if action.module != TEXT and not (result.met and result.rows):
            sought.append(f"an answer to all of: {'; '.join(action.lines()[1:])}")
        barred = {row: f"{kb.node_names[row]}: ruled out by the question" for row in result.barred}
        barred |= {
            row: f"{kb.node_names[row]}: {reason}" for row, reason in self.spoken.ruled_out(action.query).items()
        }
        lines = tuple(barred[row] for row in sorted(barred)[: self.params.n_nodes])
        return {"unread": self.spoken.unread if as_spoken else (), "sought": tuple(sought), "barred": lines}


async def router_of(question: str, vector: np.ndarray, run: Run, params: Params) -> Router:
    """The router of a question. The candidates are noted in the trace."""
    ranked, spoken, unknown = await candidates(question, run, params)
    run.note(
        "hybgrag_candidates",
        len(ranked),
        tuple(f"{c.linked.name} ({c.linked.type}) {c.linked.score:.2f}" for c in ranked),
    )
    if not params.chains:
        spoken = Spoken(types=spoken.types)
    first = first_action(ranked, params).topics
    left_over = any(candidate.negated and candidate.first not in first for candidate in ranked)
    unread = tuple(dict.fromkeys((*spoken.unread, *(["not"] if left_over and params.chains else []))))
    return Router(run, params, vector, ranked, replace(spoken, unread=unread), unknown)
