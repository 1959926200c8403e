"""A perfect reader of the fresh questions: the gold expressions of `score.Graph` as the queries that a model may say.

What goes wrong then is the fault of what can be said, or of its execution. A reply is JSON and read under the schema of
the decision, so a relation or a type that is not shown is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.replies import Topics
from gpu_rag.models.ask import Ask, Choose, Fields, Options, Taken
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.decide import RULE
from gpu_rag.program.knowledge_base.query import (
    ANYTHING,
    OTHERS,
    STATED_BY,
    STATED_ON,
    Constraint,
    Operations,
    Query,
    Topic,
)
from gpu_rag.program.run import Run
from gpu_rag.types import Malformed, Reply

PLAIN = re.compile(r" \(disease\)$")  # PrimeKG writes it behind names; people do not
WAYS = {">": "out", "<": "in", "-": "either"}


class Unsayable(ValueError):
    """No query says this expression."""


@dataclass(frozen=True)
class Said:
    """A part of a query. The topics that are not negated come first."""

    topics: tuple[Topic, ...]
    operations: Operations = field(default_factory=Operations)

    def then(self, relation: str, way: str) -> Said:
        """The nodes that a relation leads to from these."""
        fixed = self.operations.without or self.operations.aggregate or any(topic.negated for topic in self.topics)
        if fixed or (self.operations.constraints and self.operations.constraints[0].relation != STATED_BY):
            raise Unsayable("a relation that leads from a result")
        longer = (
            msgspec.structs.replace(t, relations=(*t.relations, relation), ways=(*t.ways, way)) for t in self.topics
        )
        return replace(self, topics=tuple(longer))  # type: ignore[arg-type]

    def but(self, **changed: Any) -> Said:
        return replace(self, operations=msgspec.structs.replace(self.operations, **changed))

    @property
    def name(self) -> str | None:
        """The name, if this is one thing."""
        return self.topics[0].entity if len(self.topics) == 1 and not self.topics[0].relations else None


def said(expression: Any, names: Mapping[str, str], kb: KnowledgeBase) -> Said:
    """An expression of `score.Graph.gold` as a query. names: of the template."""
    if isinstance(expression, str):
        name = names[expression[1:]] if expression.startswith("$") else expression
        nodes = kb.named(name)
        return Said((Topic(PLAIN.sub("", name), kb.type_names[kb.node_type[nodes[0]]] if nodes else "", ()),))
    op, *rest = expression
    if op == "any":
        return Said((Topic(ANYTHING, "", ()),))
    if op in WAYS:
        relation, there = rest
        if there[0] == "minus" and (there[1][-1] == ["any"] or there[1][1] == "type"):  # all but one that is named
            return Said((Topic(OTHERS, there[1][2] if there[1][1] == "type" else "", (relation,), (WAYS[op],)),))
        if op == "<" and relation == "type" and there in kb.type_names:
            return Said((Topic(ANYTHING, there, ()),))
        return said(there, names, kb).then(relation, WAYS[op])
    if op in ("and", "or", "minus"):
        first, *others = (said(part, names, kb) for part in rest)
        for other in others:
            first = {"and": _both, "or": _either, "minus": _without}[op](first, other)
        return first
    if op == "count":
        return said(rest[0], names, kb).but(aggregate="count")
    if op == "at":
        base = said(rest[1], names, kb)
        stated = Constraint(STATED_BY, "equal", rest[0])
        return base.but(constraints=(*base.operations.constraints, stated))
    if op == "latest":
        return said(rest[1], names, kb).then(rest[0], "out").but(aggregate="last", by=STATED_ON)
    base = said(rest[-1], names, kb)
    if op in ("more", "less"):
        compared = Constraint(rest[0], op, rest[1])
        return base.but(constraints=(*base.operations.constraints, compared))
    if op == "no":
        return replace(base, topics=(*base.topics, Topic(ANYTHING, "", (rest[0],), ("either",), True)))
    return base.but(aggregate="first" if op == "min" else "last", by=rest[1] if op == "most" else rest[0])


def _both(one: Said, other: Said) -> Said:
    if other == Said((Topic(ANYTHING, "", ()),), Operations(constraints=other.operations.constraints)):
        return one.but(constraints=(*one.operations.constraints, *other.operations.constraints))
    if one.operations != Operations() or other.operations != Operations():
        raise Unsayable("operations of a part")
    return Said((*one.topics, *other.topics))


def _either(one: Said, other: Said) -> Said:
    joined = _both(one.but(either=False), other.but(either=False))
    return joined.but(either=True)


def _without(one: Said, other: Said) -> Said:
    """The first part without the second. Things that are named alone are left out; of a value only the year is."""
    if {constraint.compare for constraint in other.operations.constraints} == {"less", "more"}:
        after, before = sorted(other.operations.constraints, key=lambda constraint: constraint.value)
        year = int(before.value[:4]) - 1
        if after.value != f"{year - 1}-12-31" or one.topics != other.topics:
            raise Unsayable("not between two values")
        return one.but(constraints=(Constraint(after.relation, "unequal", str(year)),))
    if other.operations not in (Operations(), Operations(either=True)) or any(t.negated for t in other.topics):
        raise Unsayable("a difference in a difference")
    left_out = tuple(t.entity for t in other.topics if not t.relations and t.entity != ANYTHING)
    topics = (topic for topic in other.topics if topic.entity not in left_out)
    negated = tuple(msgspec.structs.replace(topic, negated=True) for topic in topics)
    result = one.but(without=(*one.operations.without, *left_out))
    return replace(result, topics=(*result.topics, *negated))


@dataclass
class PerfectReader:
    """A decider that reads questions perfectly; rules decide the rest. queries: by question id."""

    queries: dict[str, Query]

    async def reply(self, run: Run, ask: Ask[Any], fields: Fields) -> Taken:
        query = self.queries.get(run.ctx.question.id)
        if query is not None and ask.name == "topics":
            named = (t.entity for t in query.entities if t.entity != ANYTHING)
            names = (*named, *query.operations.without)
            return Taken(Topics(tuple(dict.fromkeys(names))), "oracle")
        if query is None or ask.name not in ("query", "hybgrag_route"):
            return await RULE.reply(run, ask, fields)
        text = msgspec.json.encode(query).decode()
        models = replace(run.models, llm=ScriptedLLM(lambda _: "", context_tokens=1 << 20))
        shown = replace(fields["shown"], run=replace(run, models=models))
        value, _ = ask.read(Reply(text, "stop", 0, 0, 0), {**fields, "shown": shown})
        assert not isinstance(value, Malformed), f"{run.ctx.question.id}: {value.reason}"
        return Taken(value, "oracle")

    async def choice(self, run: Run, choose: Choose, options: Options, fields: Fields) -> Taken:
        return await RULE.choice(run, choose, options, fields)
