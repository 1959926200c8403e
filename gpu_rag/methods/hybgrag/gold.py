"""The right choices of router and critic in HybGRAG, given the gold nodes of a question, for `program.oracle`.

The first route is the one, among those that the rules consider, whose nodes are most like the gold nodes. A reference
is right if it is a gold node. An entity is wrong if no gold node lies within `radius` edges of it. A relation is wrong
if no chain with it leads to one. If no entity and no relation is wrong: with one entity, another is missing; with
several, the intersection is wrong if it holds no gold node, else the module is.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gpu_rag.methods.hybgrag.batched import Leads, TopicNodes, leading
from gpu_rag.methods.hybgrag.rules import Candidate
from gpu_rag.methods.hybgrag.state import Action, Fault, Feedback, History, Params, Retrieved
from gpu_rag.program.knowledge_base.query import Plan, Query, Topic, part_of, solve
from gpu_rag.program.knowledge_base.views import kb_of, relation_rows
from gpu_rag.program.oracle import Known
from gpu_rag.runtime.gather import gather


def gold_rows(known: Known) -> tuple[int, ...]:
    """The rows of the gold nodes, in their order."""
    kb = kb_of(known.index)
    return tuple(row for id in known.gold.nodes if (row := kb.row_of(id)) is not None)


async def route(known: Known, candidates: Sequence[Candidate], history: History) -> Query | None:
    """The gold route: topics are added as long as the F1 of their common nodes and the gold nodes rises. None if no
    topic leads to a gold node, and after the first action."""
    kb, gold = kb_of(known.index), set(gold_rows(known))
    chosen, best = list[tuple[Candidate, Topic]](), 0.0
    while not history.actions and len(chosen) < Params.max_topics:
        used = [candidate for candidate, _ in chosen]
        spare = [c for c in candidates if not any(c.overlaps(other) or c is other for other in used)]
        longer = [[*chosen, (c, topic)] for c in spare for topic in c.topics(1)]
        parts = ([part_of(kb, replace(t, negated=False), c.linked.nodes) for c, t in pairs] for pairs in longer)
        solutions = await gather(*(solve(Plan(tuple(part))) for part in parts))
        worth = [2 * len(gold & {*solved.nodes}) / (len(gold) + len(solved.nodes) or 1) for solved in solutions]
        place = max(range(len(worth)), key=worth.__getitem__, default=-1)
        if place < 0 or worth[place] <= best:
            break
        chosen, best = longer[place], worth[place]
    return Query(tuple(replace(topic, negated=False) for _, topic in chosen), True) if chosen else None


def answers_question(known: Known, position: int, rows: Sequence[int]) -> bool:
    """Whether the reference at a position is a gold node; for the position after the last, whether none of them is."""
    gold = set(gold_rows(known))
    return rows[position] in gold if position < len(rows) else gold.isdisjoint(rows)


def holds_answer(known: Known, position: int, rows: Sequence[int]) -> bool:
    """Whether some reference is a gold node; for the position after the first, whether none is."""
    return set(gold_rows(known)).isdisjoint(rows) == (position == 1)


async def proves(
    known: Known, position: int, action: Action, result: Retrieved, faults: Sequence[Feedback], radius: int
) -> bool:
    """Whether gold proves a fault of an action, see the module."""
    return faults[position] in await proved(known, action, result, radius)


async def proved(known: Known, action: Action, result: Retrieved, radius: int) -> list[Feedback]:
    """The faults of an action that gold proves."""
    kb, gold = kb_of(known.index), gold_rows(known)
    topics = [(topic, nodes) for topic, nodes in zip(action.topics, result.starts) if nodes]
    starts = (TopicNodes(nodes, relation_rows(topic.relations, kb)) for topic, nodes in topics)
    leads: tuple[Leads, ...] = tuple(await gather(*(leading((start, gold), radius) for start in starts)))
    faults = [Feedback(Fault.INCORRECT, (topic.entity,)) for (topic, _), lead in zip(topics, leads) if not lead.ball]
    for (topic, _), lead in zip(topics, leads):
        right = {kb.relation_names[row] for row in lead.relations}
        wrong = (relation for relation in topic.relations if lead.ball and relation not in right)
        faults += [Feedback(Fault.INCORRECT, relations=((topic.entity, relation),)) for relation in wrong]
    if faults:
        return faults
    if len(topics) == 1:
        return [Feedback(Fault.MISSING)]
    common = set.intersection(*(set(lead.nodes) for lead in leads))
    return [Feedback(Fault.WRONG_MODULE if common else Fault.WRONG_INTERSECTION)]
