"""Random programs: the same outcomes whatever max_live and max_batch are, and equal to an oracle without a driver.

Programs are trees; the oracle walks a tree with plain recursion, one node after another, so it knows neither batches
nor coroutines. Plausible wrong drivers run through the same checks and must fail them.
"""

import random
from functools import cache
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_steps import FirstInTimeWins, Toys, cost, grown, interpret, metered, pairs, said, toy, trees, visible

from gpu_rag.errors import GpuRagError
from gpu_rag.runtime import RunStats, rounds, run_rounds
from gpu_rag.runtime.batches import Batch, cheapest_batches, run_batch
from gpu_rag.runtime.core import Core

SERVICES = {"text": "text", "graph": "graph", "walk": "graph", "embed": "embed", "llm": "llm"}


@cache
def steps(max_batch):
    return {name: toy(name, service, max_batch=max_batch) for name, service in SERVICES.items()}


def oracle(tree):
    """The program's result, or its error."""
    match tree:
        case ("call", *call):
            answer = said(*call)
            if isinstance(answer, GpuRagError):
                raise answer
            return answer
        case ("seq" | "gather", parts):
            return [oracle(part) for part in parts]
        case ("fail", tag):
            raise ValueError(f"bug {tag}")
        case ("try", part):
            try:
                return oracle(part)
            except (ValueError, GpuRagError) as error:
                return ("caught", type(error).__name__, str(error))
        case ("finally", part, call):
            try:
                return oracle(part)
            finally:
                oracle(call)


def run(forest, max_live=1024, max_batch=1024, core=Core, batches=cheapest_batches, answer=run_batch):
    seen, stats, ended = [], RunStats(), []

    def answering(name):
        def answers(queries, k):
            assert len(queries) <= max_batch
            assert [q[:2] for q in queries] == sorted(q[:2] for q in queries), "a batch is ordered by (question, slot)"
            assert {q[2] for q in queries} == {k}, "one batch, one key"
            seen.append((name, len(queries)))
            values = [said(name, *q[2:]) for q in queries]
            return [metered(v) for v in values] if name == "llm" else values

        return answers

    def program(order, tree):
        def call(name, k, query, slot):
            return steps(max_batch)[name]((order, slot, k, query), k)

        return lambda ctx: interpret(tree, ctx, call)

    toys = Toys({name: answering(name) for name in SERVICES})
    programs = pairs(program(i, tree) for i, tree in enumerate(forest))
    with patch.multiple(rounds, Core=core, cheapest_batches=batches, run_batch=answer):
        outcomes = run_rounds(programs, toys.resources, max_live=max_live, on_done=ended.append, stats=stats)
    assert sorted(o.question.id for o in ended) == sorted(o.question.id for o in outcomes)
    return outcomes, seen, stats


def whole(outcome):
    return (*visible(outcome), cost(outcome))


def check(forest, **driver):
    """The law of a driver, over all sizes."""
    first = None
    for max_live, max_batch in ((1024, 1024), (1, 1024), (2, 1), (3, 2)):
        outcomes, seen, stats = run(forest, max_live, max_batch, **driver)
        assert [o.question.id for o in outcomes] == [f"q{i}" for i in range(len(forest))]
        for tree, outcome in zip(forest, outcomes):
            try:
                expected = (oracle(tree), None)
            except (ValueError, GpuRagError) as error:
                expected = (None, (type(error), str(error)))
            assert (outcome.draft, outcome.error and (type(outcome.error), str(outcome.error))) == expected
        assert sum(o.usage.llm_calls for o in outcomes) == sum(n for name, n in seen if name == "llm")
        assert {v: s.n_calls for v, s in stats.steps.items()} == {
            v: sum(n for name, n in seen if name == v) for v in {name for name, _ in seen}
        }
        for name, names in (("llm_s", ["llm"]), ("graph_s", ["graph", "walk", "text"]), ("embed_s", ["embed"])):
            spent = sum(stats.steps[v].s for v in names if v in stats.steps)
            assert sum(getattr(o.usage, name) for o in outcomes) == pytest.approx(spent, abs=1e-9)
        result = [whole(o) for o in outcomes]
        first = first or result
        assert result == first, f"max_live={max_live}, max_batch={max_batch} changed the outcomes"


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(trees(), min_size=2, max_size=6))
def test_random_programs_keep_the_law(forest):
    check(forest)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(trees(), min_size=1, max_size=5), st.data())
def test_one_failing_program_never_disturbs_the_others(forest, data):
    alone = [whole(run([tree])[0][0]) for tree in forest]
    at = data.draw(st.integers(0, len(forest)))
    bad = ("gather", [("call", "llm", 1, 1), ("seq", [("call", "text", 1, 1), ("fail", 9)])])
    outcomes, _, _ = run([*forest[:at], bad, *forest[at:]], max_live=3)
    others = [whole(o) for i, o in enumerate(outcomes) if i != at]
    assert [o[1:3] for o in others] == [o[1:3] for o in alone]
    assert [o[4] for o in others] == [o[4] for o in alone]
    assert str(outcomes[at].error) == "bug 9"


def test_many_large_programs_keep_the_law():
    rng = random.Random(0)
    check([grown(rng, 4) for _ in range(60)])


FOREST = [
    ("seq", [("call", "graph", 1, 0), ("call", "llm", 2, 9)]),
    ("gather", [("seq", [("call", "graph", 1, i), ("call", "llm", 1, i)]) for i in range(3)]),
    ("seq", [("call", "graph", 1, 7), ("call", "llm", 1, 8)]),
    ("gather", [("seq", [("call", "graph", 1, 1), ("fail", 1)]), ("seq", [("call", "graph", 1, 2)]), ("fail", 2)]),
    ("gather", [("seq", [("call", "llm", 1, -1), ("fail", 0)]), ("call", "llm", 2, 3)]),
    ("seq", [("call", "graph", 1, 5), ("call", "graph", 2, 6), ("call", "llm", 1, 4)]),
]


class FailureStopsAll(Core):
    def _end(self, run, draft, error):
        super()._end(run, draft, error)
        if error is not None:
            self.close()


def unsorted_batches(core):
    groups = core.waiting.pop(min(core.waiting))
    return [
        Batch(step, key, calls[i : i + step.kind.max_batch])
        for (step, key, _), calls in groups.items()
        for i in range(0, len(calls), step.kind.max_batch)
    ]


def results_by_arrival(core, batch):
    answered = run_batch(core, batch)
    return [(pending, result, s) for (pending, _, s), (_, result, _) in zip(answered, reversed(answered))]


def mixed_keys(core):
    merged = {}
    for batch in cheapest_batches(core):
        merged.setdefault(batch.step, []).extend(batch.calls)
    return [Batch(step, calls[0].call.key, sorted(calls)) for step, calls in merged.items()]


def one_batch_of_a_rank(core):
    """Only the first batch runs; what else waits at that rank comes later, so a question's order depends on others."""
    batches = cheapest_batches(core)
    for batch in batches[1:]:
        rank = batch.step.kind.rank
        core.waiting.setdefault(rank, {}).setdefault((batch.step, batch.key, 0), []).extend(batch.calls)
    return batches[:1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"core": FailureStopsAll},
        {"core": FirstInTimeWins},
        {"batches": unsorted_batches},
        {"batches": mixed_keys},
        {"batches": one_batch_of_a_rank},
        {"answer": results_by_arrival},
    ],
    ids=lambda wrong: next(iter(wrong.values())).__name__,
)
def test_wrong_drivers_are_caught(wrong):
    check(FOREST)
    with pytest.raises((AssertionError, KeyError)):
        check(FOREST, **wrong)
