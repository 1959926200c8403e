"""A decider that knows the gold of each question and errs with a given probability; for evaluation only.

For a Choose it takes the options that lead to gold, earlier ones first. If there are none it takes nothing, or the
first option if the choice may not be empty. An Ask is answered with its `gold`. With probability 1 - p the decision is
wrong: a choice takes random options that do not lead to gold, and an Ask gets the reply of its rule. Draws depend on
the run's seed, the question and the place in the program, so runs are reproducible. A decision without gold is left to
another decider, by default the rule.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from gpu_rag.errors import UsageError
from gpu_rag.index.index import Index
from gpu_rag.models.ask import Ask, Choose, Fields, Options, Taken, call
from gpu_rag.program.decide import RULE, awaited
from gpu_rag.program.run import Decider, Run
from gpu_rag.runtime.gather import gather


@dataclass(frozen=True)
class Gold:
    """The gold of one question.

    documents: ids; answers: accepted ones; meta: other keys of its row, such as `decomposition`, `topic_entity` and
    `path`; nodes: ids of knowledge base nodes that answer it.
    """

    documents: frozenset[str] = frozenset()
    answers: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """The gold of one question in the index of its run, as passed to `Ask.gold` and `Choose.helps`. passages: rows."""

    index: Index
    passages: frozenset[int]
    gold: Gold


@dataclass(frozen=True)
class Oracle:
    """A decider that knows the gold and is right with probability p.

    gold: by question id. only: the name of the only decision that the oracle takes, "" for all; left: decisions that it
    leaves. otherwise: the decider for these and for decisions without gold. n_decisions: {question id: number of
    decisions with gold}; by_rule: names of decisions without gold. watch: called with each choice that gold settles:
    the question's gold, name, fields, right positions, and the positions that `otherwise` would take.
    """

    gold: Mapping[str, Gold]
    p: float = 1.0
    only: str = ""
    left: frozenset[str] = frozenset()
    otherwise: Decider = RULE
    watch: Callable[[Known, str, Fields, Sequence[int], Sequence[int]], None] | None = None
    n_decisions: Counter[str] = field(default_factory=Counter)
    by_rule: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not 0.0 <= self.p <= 1.0:
            raise UsageError("an oracle is right with a probability", given=self.p, expected="0 to 1")

    async def reply(self, run: Run, ask: Ask[Any], fields: Fields) -> Taken:
        """The gold reply to an Ask, or the reply of its rule."""
        gold = self.known(run, ask.name)
        right = None if ask.gold is None or gold is None else await awaited(call(ask.gold, fields, gold))
        if right is None:
            self.by_rule.add(ask.name)
            return await self.otherwise.reply(run, ask, fields)
        self.n_decisions[run.ctx.question.id] += 1
        if self._draw(run, ask.name).random() < self.p:
            return Taken(right, "oracle")
        return await RULE.reply(run, ask, fields)

    async def choice(self, run: Run, choose: Choose, options: Options, fields: Fields) -> Taken:
        """The options that lead to gold."""
        gold = self.known(run, choose.name)
        if choose.helps is None or gold is None:
            self.by_rule.add(choose.name)
            return await self.otherwise.choice(run, choose, options, fields)
        self.n_decisions[run.ctx.question.id] += 1
        helpful = await helpful_among(len(options.texts), choose, fields, gold)
        right = helpful[: options.k] or ([] if options.allow_none else [0])
        draw = self._draw(run, options.name, *options.texts[:1])  # before a watch: its calls have slots of their own
        if self.watch is not None:
            believed = await self.otherwise.choice(run, choose, options, fields)
            self.watch(gold, choose.name, fields, right, believed.value)
        wrong = [i for i in range(len(options.texts)) if i not in helpful]
        if draw.random() < self.p or not wrong:
            return Taken(right, "oracle")
        return Taken(sorted(draw.sample(wrong, min(max(len(right), 1), len(wrong)))), "oracle")

    def known(self, run: Run, name: str) -> Known | None:
        """The gold of the question for a decision by its name; None if it is not known, or not to be used."""
        takes = self.only in ("", name) and name not in self.left
        gold = self.gold.get(run.ctx.question.id) if takes else None
        if gold is None:
            return None
        rows = run.index.loaded("passages of documents", _passages_of)
        return Known(run.index, frozenset(row for id in gold.documents for row in rows.get(id, ())), gold)

    def _draw(self, run: Run, *names: str) -> Random:
        return Random("|".join((str(run.ctx.request_seed(run.ctx.slot)), *names)))


async def helpful_among(n: int, choose: Choose, fields: Fields, gold: Known) -> list[int]:
    """The positions of the options that lead to gold, ascending, out of n options. choose: has `helps`."""
    assert choose.helps is not None
    verdicts: Any = [call(choose.helps, fields, gold, i) for i in range(n)]
    if any(map(inspect.isawaitable, verdicts)):
        verdicts = await gather(*verdicts)
    return [i for i in range(n) if verdicts[i]]


def _passages_of(index: Index) -> dict[str, list[int]]:
    """{document id: rows of its passages}."""
    rows: dict[str, list[int]] = {}
    for passage, document in enumerate(index.passage_doc_ids):
        rows.setdefault(document, []).append(passage)
    return rows
