"""A critic that knows the gold nodes: the upper bound of the method's paper, and a teacher for a user's own model.

`gpu-rag tune --method hybgrag` runs the loop with it on questions with known answers. The router is the user's; what
it did and what was right are `Seen`, out of which examples for all three prompts are made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_rag.graph.ragged import ragged_of_lists, row_of_value
from gpu_rag.graph.reach import ANY
from gpu_rag.index.index import Index
from gpu_rag.methods.hybgrag.batched import TILE, TopicNodes, walked
from gpu_rag.methods.hybgrag.critic import Critic, unknown_entities
from gpu_rag.methods.hybgrag.examples import Experience, Validation
from gpu_rag.methods.hybgrag.program import refined, supported
from gpu_rag.methods.hybgrag.retrieve import first_nodes, relation_rows
from gpu_rag.methods.hybgrag.state import HYBRID, Action, Fault, Feedback, Params, Retrieved
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.run import Run
from gpu_rag.runtime.gather import gather
from gpu_rag.runtime.step import batched
from gpu_rag.types import Draft, Question

N_ROUTES, N_VALIDATIONS, N_EXPERIENCES = 10, 12, 30
WORDS = 40  # of a reference's document in an example


@dataclass(frozen=True)
class Leads:
    """How a topic stands to gold nodes. nodes: those that it reaches; relations: those of the topic that are part of a
    chain to one of them; ball: whether a chain of any relations leads to one of them."""

    nodes: tuple[int, ...]
    relations: tuple[int, ...]
    ball: bool


@batched(GRAPH, tile=TILE, name="kb_held")
def leading(index: Index, queries: list[tuple[TopicNodes, Sequence[int]]], radius: int) -> list[Leads]:
    """How each topic leads to its gold nodes within `radius` steps."""
    kb = kb_of(index)
    walks = walked(kb, [[topic, TopicNodes(topic.nodes, (ANY,))] for topic, _ in queries], radius, index.threads)
    gold = ragged_of_lists([sorted(set(nodes)) for _, nodes in queries], kb.device)
    keys = row_of_value(gold) * max(kb.n, 1) + gold.values
    chain, node = row_of_value(walks.ends), walks.ends.values.long()
    of_topic = torch.tensor(walks.of_topic, device=kb.device)
    hit = torch.isin(of_topic[chain] // 2 * max(kb.n, 1) + node, keys)
    nodes: list[set[int]] = [set() for _ in queries]
    relations: list[set[int]] = [set() for _ in queries]
    for c, v in zip(chain[hit].tolist(), node[hit].tolist()):
        topic, by_any = divmod(walks.of_topic[c], 2)
        relations[topic].update(walks.chains[c])
        if not by_any:
            nodes[topic].add(v)
    return [
        Leads(tuple(sorted(reached)), tuple(r for r in topic.relations if r in used), ANY in used)
        for (topic, _), reached, used in zip(queries, nodes, relations)
    ]


@dataclass
class Seen:
    """What an oracle saw. routes: actions that led to gold; validations: (one, whether the model's own was wrong);
    experiences: actions with the feedback that gold proves right."""

    routes: list[Experience] = field(default_factory=list)
    validations: list[tuple[Validation, bool]] = field(default_factory=list)
    experiences: list[Experience] = field(default_factory=list)

    def joined(self, other: Seen) -> Seen:
        """What both saw."""
        return Seen(
            self.routes + other.routes, self.validations + other.validations, self.experiences + other.experiences
        )

    def document(
        self, routes: int = N_ROUTES, validations: int = N_VALIDATIONS, experiences: int = N_EXPERIENCES
    ) -> dict[str, list[dict[str, Any]]]:
        """The examples as JSON, at most so many: routes by their relations in turn, validations by the type of the
        answer and whether one fits, those first that the model got wrong, experiences by the kind of feedback."""
        by_question = sorted(self.routes, key=lambda one: one.question)
        judged = sorted(self.validations, key=lambda pair: (not pair[1], pair[0].question, pair[0].references))
        faults = sorted(self.experiences, key=lambda one: one.question)
        kept = {
            "routes": _in_turn(by_question, lambda one: tuple(t.relations for t in one.action.topics), routes),
            "validations": _in_turn((one for one, _ in judged), lambda one: (one.type, one.fits is None), validations),
            "experiences": _in_turn(faults, lambda one: one.feedback and one.feedback.kind, experiences),
        }
        return {name: [one.row() for one in some] for name, some in kept.items()}


def _in_turn(items: Iterable[Any], group: Callable[[Any], Hashable], most: int) -> list[Any]:
    """At most so many different items, of each group in turn, so that rare ones stay."""
    groups: dict[Hashable, list[Any]] = {}
    for one in dict.fromkeys(items):
        groups.setdefault(group(one), []).append(one)
    lists = sorted(groups.values(), key=lambda some: (len(some), some[0].question))
    longest = max(map(len, lists), default=0)
    return [some[at] for at in range(longest) for some in lists if at < len(some)][:most]


@dataclass(frozen=True)
class OracleCritic(Critic):
    """gold: rows of the nodes that answer the question.

    Accepts where one of the first n_references nodes is gold. An entity is wrong when no gold node lies within `radius`
    edges of it; a relation when no chain with it leads to one; then of one entity another is missing, of several the
    intersection is wrong when it holds no gold node, else the module. seen: where it notes what it saw.
    """

    gold: Sequence[int] = ()
    seen: Seen | None = None

    async def fitting(self, question: str, action: Action, result: Retrieved) -> int | None:
        """The first place, where a gold node stands at the top: the order of the nodes is judged as it is."""
        shown = result.rows[: self.params.n_references]
        right = next((place for place, row in enumerate(shown) if row in set(self.gold)), None)
        if self.seen is not None and shown:
            believed = await super().fitting(question, action, result) if self.run.model_decides else None
            self.seen.validations.append((self._validation(question, action, result, right), believed != right))
            if right is not None and action.module == HYBRID:
                self.seen.routes.append(Experience(question, action))
        return None if right is None else 0

    def _validation(self, question: str, action: Action, result: Retrieved, fits: int | None) -> Validation:
        kb, lines = kb_of(self.run.index), list[str]()
        for place, node in enumerate(first_nodes(self.run, action, result, self.params.n_references), 1):
            paths = (f"path: {path}" for path in node.paths if self.params.paths)
            lines += [f"[{place}] {node.name} ({node.type})", " ".join(node.text.split()[:WORDS]), *paths]
        types = [kb.type_names[kb.node_type[row]] for row in self.gold]
        return Validation(question, types[0] if types else "", tuple(lines), fits)

    async def comment(self, question: str, action: Action, result: Retrieved) -> Feedback:
        """The fault, as the gold nodes show it."""
        said = await self._fault(action, result)
        if self.seen is not None and said.kind != Fault.REJECTED:
            self.seen.experiences.append(Experience(question, action, said))
        return said

    async def _fault(self, action: Action, result: Retrieved) -> Feedback:
        plain = self.plain(action, result)
        if plain is not None:
            return plain
        kb = kb_of(self.run.index)
        found = [(topic, nodes) for topic, nodes in zip(action.topics, result.found) if nodes]
        topics = (TopicNodes(nodes, relation_rows(topic.relations, kb)) for topic, nodes in found)
        leads = await gather(*(leading((topic, tuple(self.gold)), self.params.radius) for topic in topics))
        wrong = [topic.entity for (topic, _), one in zip(found, leads) if not one.ball]
        relations = tuple(
            (topic.entity, relation)
            for (topic, _), one in zip(found, leads)
            if one.ball
            for relation in topic.relations
            if relation not in {kb.relation_names[r] for r in one.relations}
        )
        entities = (*unknown_entities(action, result), *wrong)
        if entities or relations:
            return Feedback(Fault.INCORRECT, entities, relations)
        if len(found) == 1:
            return Feedback(Fault.MISSING)
        common = set.intersection(*(set(one.nodes) for one in leads))
        return Feedback(Fault.WRONG_MODULE if common else Fault.WRONG_INTERSECTION)


def oracle_program(gold: Mapping[str, Sequence[str]], seen: Seen | None = None) -> Any:
    """The program of `hybgrag` with an oracle for a critic, and without the reader. gold: question id to node ids."""

    async def program(question: Question, run: Run, params: Params) -> Draft:
        kb = kb_of(run.index)
        rows = [row for id in gold[question.id] if (row := kb.row_of(id)) is not None]
        return await supported(*await refined(question.text, run, params, OracleCritic(run, params, rows, seen)), run)

    return program
