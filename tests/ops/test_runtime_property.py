"""Random programs: the same outcomes whatever max_live and max_batch are, and equal to an oracle without a driver.

Programs are trees; the oracle walks a tree with plain recursion, one node after another, so it knows neither batches
nor coroutines. Plausible wrong drivers run through the same checks and must fail them.
"""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import GpuRagError, RequestFailed
from gpu_rag.runtime import Call, Executor, Metered, RunStats, gather, rounds, run_rounds
from gpu_rag.runtime.batches import Batch, cheapest_batches, run_batch
from gpu_rag.runtime.core import Core
from gpu_rag.types import Question

VERBS = {"text": ("text", 0), "graph": ("graph", 1), "walk": ("graph", 1), "llm": ("llm", 3)}

# --- programs as trees -----------------------------------------------------------------------------
# ("call", verb, k, arg) | ("seq", [tree]) | ("gather", [tree]) | ("fail", tag) | ("try", tree)
# ("finally", tree, call); an argument below 0 is one that the executor refuses


def trees():
    arg = st.sampled_from([*range(10), -1])
    call = st.tuples(st.just("call"), st.sampled_from(sorted(VERBS)), st.integers(1, 2), arg)
    leaf = st.one_of(*[call] * 9, st.tuples(st.just("fail"), st.integers(0, 3)))
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(st.just("seq"), st.lists(inner, min_size=2, max_size=5)),
            st.tuples(st.just("gather"), st.lists(inner, min_size=2, max_size=5)),
            st.tuples(st.just("try"), inner),
            st.tuples(st.just("finally"), inner, call),
        ),
        max_leaves=20,
    )


def reply(verb, k, arg):
    return f"{verb}/{k}/{arg}"


def oracle(tree):
    """What the program returns; raises what it raises."""
    match tree:
        case ("call", verb, k, arg):
            if arg < 0:
                raise RequestFailed(f"refused {verb}")
            return reply(verb, k, arg)
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


async def interpret(tree, ctx, order):
    match tree:
        case ("call", verb, k, arg):
            result = await Call(verb, (k,), (order, ctx.slot, k, arg))
            ctx.note(verb, k, (result,))
            return result
        case ("seq", parts):
            return [await interpret(part, ctx, order) for part in parts]
        case ("gather", parts):
            at = ctx.slot
            items = []
            for i, part in enumerate(parts):  # calls go in directly, with the slot that they will have
                direct = part[0] == "call"
                items.append(
                    Call(part[1], (part[2],), (order, (*at, i), part[2], part[3]))
                    if direct
                    else interpret(part, ctx, order)
                )
            return await gather(*items)
        case ("fail", tag):
            raise ValueError(f"bug {tag}")
        case ("try", part):
            try:
                return await interpret(part, ctx, order)
            except Exception as error:  # noqa: BLE001 - Cancelled too
                return ("caught", type(error).__name__, str(error))
        case ("finally", part, call):
            try:
                return await interpret(part, ctx, order)
            finally:
                await interpret(call, ctx, order)


# --- running and checking --------------------------------------------------------------------------


def executors(max_batch, seen):
    def make(verb, service, rank):
        def run(static, args):
            assert len(args) <= max_batch
            assert [a[:2] for a in args] == sorted(a[:2] for a in args), "a batch is ordered by (question, slot)"
            assert {a[2] for a in args} == {static[0]}, "one batch, one static"
            seen.append((verb, len(args)))
            values = [RequestFailed(f"refused {verb}") if a[3] < 0 else reply(verb, a[2], a[3]) for a in args]
            return [Metered(v, n_prompt=10, n_generated=1) for v in values] if verb == "llm" else values

        return Executor(run, service, rank, max_batch)

    return {verb: make(verb, *spec) for verb, spec in VERBS.items()}


def run(forest, max_live=1024, max_batch=1024, core=Core, batches=cheapest_batches, answer=run_batch):
    def program(order, tree):
        return lambda ctx: interpret(tree, ctx, order)

    programs = [(Question(f"q{i}", "?"), program(i, tree)) for i, tree in enumerate(forest)]
    seen, stats, ended = [], RunStats(), []
    with patch.multiple(rounds, Core=core, cheapest_batches=batches, run_batch=answer):
        outcomes = run_rounds(
            programs, executors(max_batch, seen), max_live=max_live, on_done=ended.append, stats=stats
        )
    assert sorted(o.question.id for o in ended) == sorted(o.question.id for o in outcomes)
    return outcomes, seen, stats


def visible(outcome):
    """Everything of an outcome but seconds and the text of the traceback."""
    usage = {k: v for k, v in asdict(outcome.usage).items() if not k.endswith("_s")}
    trace = tuple(replace(step, s=0.0) for step in outcome.trace)
    error = outcome.error and (type(outcome.error), str(outcome.error))
    return outcome.question.id, outcome.draft, error, trace, usage


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
        assert stats.n_failed == sum(o.error is not None for o in outcomes)
        assert sum(o.usage.llm_calls for o in outcomes) == sum(n for verb, n in seen if verb == "llm")
        assert {v: s.n_calls for v, s in stats.steps.items()} == {
            v: sum(n for verb, n in seen if verb == v) for v in {verb for verb, _ in seen}
        }
        for name, verbs in (("llm_s", ["llm"]), ("graph_s", ["graph", "walk", "text"])):
            spent = sum(stats.steps[v].s for v in verbs if v in stats.steps)
            assert sum(getattr(o.usage, name) for o in outcomes) == pytest.approx(spent, abs=1e-9)
        result = [visible(o) for o in outcomes]
        first = first or result
        assert result == first, f"max_live={max_live}, max_batch={max_batch} changed the outcomes"


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(trees(), min_size=2, max_size=6))
def test_random_programs_keep_the_law(forest):
    check(forest)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(trees(), min_size=1, max_size=5), st.data())
def test_one_failing_program_never_disturbs_the_others(forest, data):
    alone = [visible(run([tree])[0][0]) for tree in forest]
    at = data.draw(st.integers(0, len(forest)))
    bad = ("gather", [("call", "llm", 1, 1), ("seq", [("call", "text", 1, 1), ("fail", 9)])])
    outcomes, _, _ = run([*forest[:at], bad, *forest[at:]], max_live=3)
    others = [visible(o) for i, o in enumerate(outcomes) if i != at]
    assert [o[1:3] for o in others] == [o[1:3] for o in alone]
    assert [o[4] for o in others] == [o[4] for o in alone]
    assert str(outcomes[at].error) == "bug 9"


def grown(rng, depth):
    """A tree of up to 4**depth leaves, mostly without failures."""
    if depth == 0 or rng.random() < 0.1:
        bad = rng.random() < 0.02
        return ("fail", 1) if bad else ("call", rng.choice(sorted(VERBS)), rng.randint(1, 2), rng.randint(0, 99))
    if rng.random() < 0.1:
        return ("try", ("finally", grown(rng, depth - 1), ("call", "text", 1, 5)))
    return (rng.choice(["seq", "gather"]), [grown(rng, depth - 1) for _ in range(rng.randint(1, 4))])


def test_many_large_programs_keep_the_law():
    rng = random.Random(0)
    check([grown(rng, 4) for _ in range(60)])


# --- wrong drivers ---------------------------------------------------------------------------------

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


class FirstInTimeWins(Core):
    def _fail_group(self, group, index, error):
        super()._fail_group(group, 0, error) if group.error is None else None
        group.n_running = 0


def unsorted_batches(core):
    groups = core.waiting.pop(min(core.waiting))
    return [
        Batch(verb, static, calls[i : i + core.executors[verb].max_batch])
        for (verb, static), calls in groups.items()
        for i in range(0, len(calls), core.executors[verb].max_batch)
    ]


def results_by_arrival(core, batch):
    answered = run_batch(core, batch)
    return [(pending, result, s) for (pending, _, s), (_, result, _) in zip(answered, reversed(answered))]


def mixed_statics(core):
    merged = {}
    for batch in cheapest_batches(core):
        merged.setdefault(batch.verb, []).extend(batch.calls)
    return [Batch(verb, calls[0].call.static, sorted(calls)) for verb, calls in merged.items()]


def one_batch_of_a_rank(core):
    """Only the first batch runs; what else waits at that rank comes later, so a question's order depends on others."""
    batches = cheapest_batches(core)
    for batch in batches[1:]:
        rank = core.executors[batch.verb].rank
        core.waiting.setdefault(rank, {}).setdefault((batch.verb, batch.static), []).extend(batch.calls)
    return batches[:1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"core": FailureStopsAll},
        {"core": FirstInTimeWins},
        {"batches": unsorted_batches},
        {"batches": mixed_statics},
        {"batches": one_batch_of_a_rank},
        {"answer": results_by_arrival},
    ],
    ids=lambda wrong: next(iter(wrong.values())).__name__,
)
def test_wrong_drivers_are_caught(wrong):
    check(FOREST)
    with pytest.raises((AssertionError, KeyError)):
        check(FOREST, **wrong)
