"""HybGRAG's upper bound: validator and commentor that know the gold nodes. For evaluation only.

Nothing here is reached from a method's `program` or `retrieve`: an oracle is made by code that has gold nodes, and
handed to `Engine.run` as the program to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_rag.methods.hybgrag.critic import seen_by_code, unknown_entities
from gpu_rag.methods.hybgrag.examples import Experience
from gpu_rag.methods.hybgrag.params import Params
from gpu_rag.methods.hybgrag.program import Refined, drafted, refined
from gpu_rag.methods.hybgrag.retrieve import relation_rows
from gpu_rag.methods.hybgrag.state import (
    INCORRECT,
    MISSING,
    REJECTED,
    TEXT,
    WRONG_INTERSECTION,
    WRONG_MODULE,
    Action,
    Feedback,
    Retrieved,
)
from gpu_rag.program.knowledge_base.reach import TopicNodes
from gpu_rag.program.verbs import Verbs
from gpu_rag.runtime.gather import gather
from gpu_rag.types import Draft, Question


@dataclass(frozen=True)
class OracleCritic:
    """gold: rows of the nodes that answer the question.

    Accepts where one of the first n_references nodes is gold. An entity is wrong when no gold node lies within `radius`
    edges of it; a relation when no chain with it leads to one; then of one entity another is missing, of several the
    intersection is wrong when it holds no gold node, else the module. tell: is given each action with its feedback.
    """

    verbs: Verbs
    params: Params
    gold: Sequence[int]
    tell: Callable[[Experience], None] | None = None

    async def accepts(self, question: str, action: Action, result: Retrieved) -> bool:
        """Whether a gold node stands at the top."""
        return bool(set(self.gold).intersection(result.ranking.rows[: self.params.n_references]))

    async def comment(self, question: str, action: Action, result: Retrieved) -> Feedback:
        """The fault, as the gold nodes show it."""
        said = await self._fault(action, result)
        if self.tell is not None and said.kind != REJECTED:
            self.tell(Experience(question, action, said))
        return said

    async def _fault(self, action: Action, result: Retrieved) -> Feedback:
        if self.params.feedback == "simple":
            return Feedback(REJECTED)
        plain = seen_by_code(action, result)
        if plain is not None:
            return plain
        if action.module == TEXT:
            return Feedback(WRONG_MODULE)
        found = [(topic, nodes) for topic, nodes in zip(action.topics, result.found) if nodes]
        held = await gather(
            *(
                self.verbs.topic_holds(
                    TopicNodes(nodes, relation_rows(topic.relations, self.verbs)), self.gold, radius=self.params.radius
                )
                for topic, nodes in found
            )
        )
        names = self.verbs.kb.relation_names
        wrong = [topic.entity for (topic, _), one in zip(found, held) if not one.ball]
        relations = tuple(
            (topic.entity, relation)
            for (topic, _), one in zip(found, held)
            if one.ball
            for relation in topic.relations
            if relation not in {names[r] for r in one.relations}
        )
        entities = (*unknown_entities(action, result), *wrong)
        if entities or relations:
            return Feedback(INCORRECT, entities, relations)
        if len(found) == 1:
            return Feedback(MISSING)
        common = set.intersection(*(set(one.nodes) for one in held))
        return Feedback(WRONG_MODULE if common else WRONG_INTERSECTION)


def oracle_program(gold: Mapping[str, Sequence[str]], tell: Callable[[Experience], None] | None = None) -> Any:
    """The program of `hybgrag` with an oracle for a critic, and without the reader.

    gold: question id to node ids. tell: is given the verified experiences of all questions, see `hybgrag_examples`.
    """

    async def program(question: Question, verbs: Verbs, params: Params) -> Draft:
        rows = [row for id in gold[question.id] if (row := verbs.kb.row_of(id)) is not None]
        outcome: Refined = await refined(question.text, verbs, params, OracleCritic(verbs, params, rows, tell))
        return await drafted(outcome, verbs)

    return program
