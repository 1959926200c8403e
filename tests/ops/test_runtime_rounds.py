"""The rounds driver by hand: gathers, cancellation, budgets, failures, stops, order of work, sizes."""

from __future__ import annotations

import gc
import textwrap
import tracemalloc
import weakref

import pytest

import gpu_rag.runtime
from gpu_rag.errors import BudgetExceeded, Cancelled, GpuRagError, ModelError, RequestFailed, StorageError, UsageError
from gpu_rag.runtime import Budget, Call, Context, Executor, Metered, RunStats, gather, request_seed, run_rounds
from gpu_rag.runtime.core import Core
from gpu_rag.types import Question

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")


class Bench:
    """Executors that log what they ran. A negative argument is refused; "llm" costs 10 + 1 tokens."""

    def __init__(self, **max_batch):
        self.log = []
        self.executors = {
            verb: Executor(self._answer(verb), service, rank, max_batch.get(verb, 1000))
            for verb, (service, rank) in {"cheap": ("graph", 1), "other": ("text", 1), "llm": ("llm", 3)}.items()
        }

    def _answer(self, verb):
        def run(static, args):
            self.log.append((verb, list(args)))
            values = [RequestFailed(f"refused {a}") if a < 0 else a for a in args]
            return [Metered(v, 10, 4, 1) for v in values] if verb == "llm" else values

        return run

    def run(self, *programs, **options):
        pairs = [(Question(f"q{i}", "?"), program) for i, program in enumerate(programs)]
        return run_rounds(pairs, self.executors, **options)

    def one(self, program, **options):
        return self.run(program, **options)[0]


def call(verb, arg=0, k=0):
    return Call(verb, (k,), arg)


async def ask(verb, arg=0):
    return await call(verb, arg)


def test_the_example_of_the_package_runs():
    doc = gpu_rag.runtime.__doc__
    code = textwrap.dedent("\n".join(line for line in doc.splitlines() if line.startswith("    ")))
    names = {}
    exec(code, names)
    (outcome,) = names["outcomes"]
    assert outcome.draft.text == "passage 0 for passage 1 for who?"
    assert [step.verb for step in outcome.trace] == ["search"]


# --- order of work ---------------------------------------------------------------------------------


def test_cheap_calls_are_drained_before_one_large_dear_batch():
    def program(n_cheap):
        async def run(ctx):
            for i in range(n_cheap):
                await call("cheap", i)
            return await call("llm", n_cheap)

        return run

    bench, stats = Bench(), RunStats()
    bench.run(*(program(n) for n in (0, 3, 1)), stats=stats)
    assert bench.log == [("cheap", [0, 0]), ("cheap", [1]), ("cheap", [2]), ("llm", [0, 3, 1])]
    assert stats.n_rounds == 4 and stats.n_questions == 3 and stats.n_failed == 0
    llm, cheap = stats.steps["llm"], stats.steps["cheap"]
    assert (llm.n_calls, llm.n_batches, llm.batch_sizes, llm.largest_batch) == (3, 1, {3: 1}, 3)
    assert (cheap.n_calls, cheap.n_batches, cheap.batch_sizes) == (4, 3, {2: 1, 1: 2})
    assert 0 <= stats.overhead_s <= stats.wall_s


def test_batches_are_ordered_by_question_and_slot_and_split_by_static():
    async def late(ctx):  # its calls are queued after those of the next question, yet come first
        return await gather(ask("cheap", 1), ask("cheap", 2))

    async def early(ctx):
        return [await call("cheap", 3), await call("cheap", 4, k=9)]

    async def third(ctx):
        return await call("cheap", 5)

    bench = Bench()
    assert [o.draft for o in bench.run(late, early, third)] == [[1, 2], [3, 4], 5]
    assert bench.log == [("cheap", [1, 2, 3, 5]), ("cheap", [4])]
    bench = Bench(cheap=3)
    bench.run(late, early, third)
    assert bench.log == [("cheap", [1, 2, 3]), ("cheap", [5]), ("cheap", [4])]


def test_max_live_bounds_the_open_questions_and_a_finished_one_admits_the_next():
    live, most, drawn = [0], [0], []

    async def program(ctx):
        live[0] += 1
        most[0] = max(most[0], live[0])
        for _ in range(int(ctx.question.id) % 3):
            await call("cheap")
        live[0] -= 1
        return ctx.question.id

    def source():
        for i in range(20):
            drawn.append(live[0])
            yield Question(str(i), "?"), program

    done = []
    outcomes = run_rounds(source(), Bench().executors, max_live=4, on_done=lambda o: done.append(o.question.id))
    assert [o.draft for o in outcomes] == [str(i) for i in range(20)]
    assert most[0] <= 4 and max(drawn) <= 3
    assert sorted(done, key=int) == [str(i) for i in range(20)] and done != sorted(done, key=int)
    with pytest.raises(UsageError, match="max_live=0"):
        run_rounds([], {}, max_live=0)
    assert run_rounds([], {}) == []


def test_slots_are_paths_and_seeds_follow_them():
    seen = {}

    async def strand(ctx, name):
        seen[name, 0] = ctx.slot
        await call("cheap")
        seen[name, 1] = ctx.slot
        await gather(ask("cheap"), call("cheap"))
        seen[name, 2] = ctx.slot

    async def program(ctx):
        seen["root", 0] = ctx.slot
        await call("cheap")
        await gather(strand(ctx, "a"), call("cheap"), strand(ctx, "b"))
        seen["root", 2] = ctx.slot
        return ctx.request_seed((1, 2), 1)

    outcome = Bench().one(program, run_seed=7)
    assert seen == {
        ("root", 0): (0,),
        ("a", 0): (1, 0, 0),
        ("a", 1): (1, 0, 1),
        ("a", 2): (1, 0, 2),
        ("b", 0): (1, 2, 0),
        ("b", 1): (1, 2, 1),
        ("b", 2): (1, 2, 2),
        ("root", 2): (2,),
    }
    assert outcome.draft == request_seed(7, "q0", (1, 2), 1)
    # A recorded value: replies are kept under seeds, so the formula must never change by accident.
    assert request_seed(0, "q", (0,), 0) == 725422461
    seeds = {request_seed(s, q, slot, a) for s in (0, 1) for q in "pq" for slot in ((0,), (0, 0), (1,)) for a in (0, 1)}
    assert len(seeds) == 24 and all(0 <= seed < 2**31 for seed in seeds)


def test_the_trace_follows_the_program_text_not_the_time():
    async def slow(ctx):
        await call("llm", 1)
        ctx.note("slow", 5, ("x",), "abc")

    async def quick(ctx):
        await call("cheap", 1)
        ctx.note("quick", 2)

    async def program(ctx):
        ctx.note("begin", 0)
        await gather(slow(ctx), quick(ctx))
        ctx.note("end", 1)

    steps = Bench().one(program).trace
    assert [(s.step, s.verb, s.n_candidates, s.chosen, s.reply_hash) for s in steps] == [
        (0, "begin", 0, (), ""),
        (1, "slow", 5, ("x",), "abc"),
        (2, "quick", 2, (), ""),
        (3, "end", 1, (), ""),
    ]
    assert steps[0].s == 0.0 and steps[1].s > 0 and steps[2].s > 0 and steps[3].s == 0.0


def test_a_context_works_without_a_driver():
    ctx = Context(Question("q", "?"), 3)
    ctx.note("by hand", 1)
    assert ctx.slot == () and ctx.steps()[0].verb == "by hand"
    assert ctx.request_seed((0,)) == request_seed(3, "q", (0,), 0)


# --- gather and cancellation -----------------------------------------------------------------------


def test_failure_by_position_cancels_later_siblings_and_lets_earlier_ones_end():
    ended = []

    async def sibling(name, *verbs, fail=False):
        try:
            for verb in verbs:
                await call(verb, 1)
            if fail:
                raise ValueError(name)
            ended.append(name)
        except Cancelled:
            ended.append(f"{name} cancelled")
            raise

    async def program(ctx):
        with pytest.raises(ValueError, match="second"):
            await gather(sibling("first", "llm"), sibling("second", "cheap", fail=True), sibling("third", "llm"))
        return "went on"

    bench = Bench()
    assert bench.one(program).draft == "went on"
    assert ended == ["third cancelled", "first"]
    assert bench.log == [("cheap", [1]), ("llm", [1])], "the cancelled call never ran"


def test_an_earlier_sibling_that_fails_later_takes_over():
    async def fail(name, verb):
        await call(verb, 1)
        raise ValueError(name)

    async def program(ctx):
        await gather(fail("first", "llm"), fail("second", "cheap"))

    assert str(Bench().one(program).error) == "first"


def test_await_while_unwinding_is_refused():
    log = []

    async def inner():
        try:
            await call("llm", 1)
        finally:
            log.append("inner")
            await call("cheap", 99)

    async def sibling():
        try:
            await gather(inner(), inner())
        finally:
            try:
                await gather(ask("cheap", 99), call("cheap", 99))
            except Cancelled as error:
                log.append(str(error))
            await call("cheap", 99)
            log.append("never")

    async def fails():
        await call("cheap", 1)
        raise KeyError("k")

    async def program(ctx):
        try:
            await gather(fails(), sibling(), ask("cheap", 2))
        finally:
            log.append(await call("cheap", 3))  # not cancelled itself: its own cleanup works

    bench = Bench()
    outcome = bench.one(program)
    assert isinstance(outcome.error, KeyError)
    assert log == ["inner", "inner", "the work was cancelled; a sibling failed or the run stopped", 3]
    assert all(99 not in args for _, args in bench.log)


def test_a_sibling_that_never_gives_up_is_left_behind():
    tries = []

    async def stubborn():
        while len(tries) < 500:
            try:
                await call("cheap", 1)
            except Cancelled:
                tries.append(1)

    async def bad():
        await call("cheap", 0)
        raise ValueError("now")

    async def program(ctx):
        await gather(bad(), stubborn(), call("llm", 1))

    bench = Bench()
    assert str(bench.one(program).error) == "now"
    assert bench.log == [("cheap", [0, 1])] and 0 < len(tries) < 100


def test_a_sibling_that_swallows_its_cancellation_is_just_ended():
    async def swallow():
        try:
            return await call("llm", 1)
        except Exception:  # noqa: BLE001
            return "fallback"

    async def program(ctx):
        try:
            await gather(call("cheap", -1), swallow())
        except RequestFailed as error:
            return str(error)

    assert Bench().one(program).draft == "refused -1"


def test_the_cost_of_a_cancelled_call_counts_when_it_ran():
    async def sibling(arg):
        return await call("llm", arg)

    async def program(ctx):
        await gather(sibling(-1), sibling(2))

    usage = Bench().one(program).usage
    assert (usage.llm_calls, usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens) == (2, 20, 8, 2)


def test_a_late_reply_is_charged_after_the_end():
    outcomes = []
    core = Core(Bench().executors, lambda order, outcome: outcomes.append(outcome))

    async def program(ctx):
        await gather(ask("cheap", 1), ask("llm", 2))

    order = core.open(Question("q", "?"), program)
    core.resume()
    (cheap,), (llm,) = core.waiting[1]["cheap", (0,)], core.waiting[3]["llm", (0,)]
    assert (cheap.slot, llm.slot) == ((0, 0, 0), (0, 1, 0))
    core.settle(cheap, RequestFailed("no"), 0.25)
    core.resume()
    assert isinstance(outcomes[0].error, RequestFailed) and not core.live
    core.settle(llm, Metered(5, 7, 0, 2), 0.5)
    core.resume()
    usage = outcomes[0].usage
    assert (usage.llm_calls, usage.prompt_tokens, usage.llm_s, usage.graph_s) == (1, 7, 0.5, 0.25)
    assert core.stats.n_late_calls == 1 and len(outcomes) == 1 and order == 0


def test_a_question_can_be_cancelled_from_outside():
    outcomes, closed = [], []
    core = Core(Bench().executors, lambda order, outcome: outcomes.append(outcome))

    async def program(ctx):
        try:
            await call("cheap", 1)
        finally:
            closed.append(1)

    order = core.open(Question("q", "?"), program)
    core.resume()
    core.cancel_question(order, Cancelled("the client went away"))
    assert closed == [1] and str(outcomes[0].error) == "the client went away" and not core.live


def test_what_gather_takes():
    async def program(ctx):
        nested = await gather(gather(call("cheap", 1), ask("cheap", 2)), gather(), ask("cheap", 3))
        return nested, await gather()

    assert Bench().one(program).draft == ([[1, 2], [], 3], [])
    strand = ask("cheap", 1)
    with pytest.raises(UsageError, match="twice"):
        gather(strand, strand)
    with pytest.raises(UsageError, match="gather takes coroutines and calls; given int"):
        gather(ask("cheap", 1), gather(ask("cheap")), 5)


# --- failures of programs --------------------------------------------------------------------------


class Foreign:
    def __await__(self):
        yield "something else"


def raises_when_called(ctx):
    raise ZeroDivisionError("early")


async def awaits_foreign(ctx):
    await Foreign()


async def unknown_verb(ctx):
    await call("nothing")


async def unhashable(ctx):
    await Call("cheap", ([],), 1)


async def bug(ctx):
    await call("cheap")
    {}["missing"]


async def stops_iteration(ctx):
    raise StopIteration("odd")


async def exits_generator(ctx):
    raise GeneratorExit


@pytest.mark.parametrize(
    ("program", "kind", "message"),
    [
        (raises_when_called, ZeroDivisionError, "early"),
        (lambda ctx: 5, UsageError, "a program is an async function; given int"),
        (awaits_foreign, UsageError, "can await calls and gathers only; given str"),
        (unknown_verb, UsageError, "no executor answers this verb; given nothing; expected cheap, llm, other"),
        (unhashable, UsageError, "must be hashable"),
        (bug, KeyError, "missing"),
        (stops_iteration, RuntimeError, "StopIteration"),
        (exits_generator, GeneratorExit, ""),
    ],
)
def test_a_broken_program_is_its_own_failure(program, kind, message):
    async def good(ctx):
        return await call("cheap", 1) + await call("llm", 1)

    before, broken, after = Bench().run(good, program, good)
    assert (before.draft, after.draft, before.error, after.error) == (2, 2, None, None)
    assert type(broken.error) is kind and message in str(broken.error) and broken.draft is None


def test_errors_can_be_caught_and_the_program_goes_on():
    async def program(ctx):
        caught = []
        for attempt in (lambda: Foreign(), lambda: call("nothing"), lambda: call("cheap", -1)):
            try:
                await attempt()
            except GpuRagError as error:
                caught.append(type(error).__name__)
        return caught, await call("cheap", 4)

    assert Bench().one(program).draft == (["UsageError", "UsageError", "RequestFailed"], 4)


def test_a_failure_keeps_its_traceback_as_text_and_no_frames():
    class Big:
        pass

    watched = []

    async def program(ctx):
        big = Big()
        watched.append(weakref.ref(big))
        try:
            await call("cheap", 1)
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    outcome = Bench().one(program)
    assert "KeyError: 'inner'" in outcome.traceback and "in program" in outcome.traceback
    assert outcome.error.__traceback__ is None and outcome.error.__cause__.__traceback__ is None
    gc.collect()
    assert watched[0]() is None


def test_one_error_value_for_many_calls_is_not_shared():
    shared = RequestFailed("the same")

    async def program(ctx):
        await call("cheap", 1)

    executors = {"cheap": Executor(lambda static, args: [shared] * len(args), "graph", 1)}
    outcomes = run_rounds([(Question(str(i), "?"), program) for i in range(3)], executors)
    assert len({id(o.error) for o in outcomes}) == 3 and shared.__traceback__ is None
    assert len({o.traceback for o in outcomes}) == 1
    assert all((type(o.error), str(o.error), o.error.what) == (RequestFailed, "the same", "the same") for o in outcomes)


# --- failures of executors -------------------------------------------------------------------------


def failing(error):
    def run(static, args):
        if static == ("bad",):
            raise error
        return args

    return {"v": Executor(run, "graph", 1)}


async def good_then_bad(ctx):
    first = await Call("v", (), 1)
    if ctx.question.id in "13":
        await Call("v", ("bad",), 1)
    return first


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (GpuRagError("out of memory"), GpuRagError, "out of memory"),
        (ValueError("shapes"), GpuRagError, "the executor of v failed; given ValueError: shapes"),
        (StopIteration(3), GpuRagError, "the executor of v failed"),
    ],
)
def test_an_exception_of_an_executor_fails_its_batch_alone(raised, kind, message):
    programs = [(Question(str(i), "?"), good_then_bad) for i in range(5)]
    outcomes = run_rounds(programs, failing(raised))
    assert [o.draft for o in outcomes] == [1, None, 1, None, 1]
    for outcome in (outcomes[1], outcomes[3]):
        assert type(outcome.error) is kind and message in str(outcome.error)
        if not isinstance(raised, StopIteration):
            assert "raise error" in outcome.traceback, "the executor's own frames are in the text"
    assert outcomes[1].error is not outcomes[3].error


@pytest.mark.parametrize(
    ("results", "given"), [([1], "1 results"), ([1, 2, 3], "3 results"), (None, "NoneType"), ({1: 2, 2: 3}, "dict")]
)
def test_a_wrong_number_of_results_is_named(results, given):
    async def program(ctx):
        return await Call("v", (), 1)

    outcomes = run_rounds(
        [(Question(str(i), "?"), program) for i in range(2)], {"v": Executor(lambda s, a: results, "graph", 1)}
    )
    for outcome in outcomes:
        assert str(outcome.error) == f"the executor of v broke its contract; given {given}; expected 2 results"


@pytest.mark.parametrize("stop", [ModelError("engine down"), Cancelled("stop"), KeyboardInterrupt()])
def test_what_stops_the_run_stops_it_cleanly(stop):
    closed, done = [], []

    async def program(ctx):
        try:
            if ctx.question.id == "0":
                return "early"
            await call("cheap")
            if ctx.question.id == "1":
                return "first round"
            await gather(ask("llm"), ask("llm"))
        finally:
            closed.append(ctx.question.id)

    def down(static, args):
        raise stop

    executors = Bench().executors | {"llm": Executor(down, "llm", 3)}
    stats = RunStats()
    with pytest.raises(type(stop)):
        run_rounds([(Question(str(i), "?"), program) for i in range(4)], executors, on_done=done.append, stats=stats)
    assert [(o.question.id, o.draft) for o in done] == [("0", "early"), ("1", "first round")]
    assert sorted(closed) == ["0", "1", "2", "3"]
    assert stats.wall_s > 0 and stats.n_questions == 4 and stats.n_failed == 0


def test_a_model_error_inside_a_program_stops_the_run_unless_caught():
    async def down(ctx):
        raise ModelError("tokenizer service is down")

    async def caught(ctx):
        try:
            await down(ctx)
        except ModelError:
            return await call("cheap", 1)

    assert Bench().one(caught).draft == 1
    with pytest.raises(ModelError, match="tokenizer"):
        Bench().run(caught, down)


def test_errors_of_the_caller_stop_the_run_and_close_the_rest():
    closed = []

    async def program(ctx):
        try:
            for _ in range(int(ctx.question.id)):
                await call("cheap")
        finally:
            closed.append(ctx.question.id)

    def full(outcome):
        if outcome.question.id == "1":
            raise StorageError("the disk is full")

    pairs = [(Question(str(i), "?"), program) for i in range(4)]
    with pytest.raises(StorageError):
        run_rounds(pairs, Bench().executors, on_done=full)
    assert closed[:2] == ["0", "1"] and sorted(closed) == ["0", "1", "2", "3"]

    def source():
        yield pairs[3]
        raise StorageError("cannot read")

    closed.clear()
    with pytest.raises(StorageError):
        run_rounds(source(), Bench().executors, max_live=1)
    assert closed == ["3"]


def test_executors_are_checked():
    with pytest.raises(UsageError, match="unknown service"):
        Executor(lambda s, a: a, "disk", 1)
    with pytest.raises(UsageError, match="max_batch=0"):
        Executor(lambda s, a: a, "graph", 1, 0)


# --- budgets ---------------------------------------------------------------------------------------


async def five_asks(ctx):
    for i in range(5):
        try:
            await call("llm", i)
        except Exception:  # noqa: BLE001 - a budget is no error that a program can catch
            return "caught"
    return "all"


@pytest.mark.parametrize(
    ("budget", "n_calls", "message"),
    [
        (Budget(max_calls=5, max_tokens=1000), 5, None),
        (Budget(max_calls=3), 3, "the question has no calls left; given 4; expected <= 3"),
        (Budget(max_tokens=22), 2, "the question has no tokens left; given 22; expected < 22"),
        (Budget(max_tokens=23), 3, "the question has no tokens left; given 33; expected < 23"),
        (Budget(max_tokens=55), 5, None),
    ],
)
def test_budgets_of_calls_and_tokens(budget, n_calls, message):
    async def small(ctx):
        return await call("llm", 9)

    bench = Bench()
    first, other = bench.run(five_asks, small, budget=budget)
    assert first.usage.llm_calls == n_calls and other.draft == 9
    if message is None:
        assert first.draft == "all"
    else:
        assert type(first.error) is BudgetExceeded and str(first.error) == message


def test_a_budget_of_seconds_counts_the_question_s_own_share(clock):
    def slow(static, args):
        clock.sleep(0.02)
        return args

    async def program(ctx):
        for _ in range(int(ctx.question.id)):
            await Call("v", (), 1)
        return "done"

    programs = [(Question(str(n), "?"), program) for n in (1, 1, 5)]
    outcomes = run_rounds(programs, {"v": Executor(slow, "embed", 2)}, budget=Budget(max_s=0.019))
    assert [o.draft for o in outcomes] == ["done", "done", None]
    # a third of one batch; of the third question also all of the next one, with which its budget is used up
    assert [o.usage.embed_s for o in outcomes] == pytest.approx([0.02 / 3, 0.02 / 3, 0.02 / 3 + 0.02])
    assert [o.usage.wall_s for o in outcomes] == pytest.approx([0.02, 0.02, 0.04])


def test_a_budget_met_in_a_gather_ends_the_whole_question():
    closed = []

    async def strand(i):
        try:
            return await call("cheap", i)
        finally:
            closed.append(i)

    async def program(ctx):
        await gather(*(strand(i) for i in range(4)))

    bench = Bench()
    outcome = bench.one(program, budget=Budget(max_calls=2))
    assert type(outcome.error) is BudgetExceeded and bench.log == []
    assert sorted(closed) == [0, 1, 2], "the fourth had not begun"
    with pytest.raises(UsageError, match="max_calls=0"):
        Budget(max_calls=0)
    with pytest.raises(UsageError, match="max_s=nan"):
        Budget(max_s=float("nan"))


# --- size ------------------------------------------------------------------------------------------


def test_wide_long_and_deep_programs_need_no_recursion():
    async def wide(ctx):
        calls = await gather(*(call("cheap", i) for i in range(10_000)))
        return sum(calls) + sum(await gather(*(ask("cheap", i) for i in range(10_000))))

    async def long(ctx):
        return sum([await call("cheap", 1) for _ in range(5_000)])

    async def deep(ctx, n=1_500):
        return await call("cheap", 1) if n == 0 else (await gather(deep(ctx, n - 1)))[0] + 1

    async def deep_and_cancelled(ctx):
        await gather(call("cheap", -1), deep(ctx))

    bench = Bench(cheap=4096)
    outcomes = bench.run(wide, long, deep, deep_and_cancelled)
    assert [o.draft for o in outcomes] == [99_990_000, 5_000, 1_501, None]
    assert str(outcomes[3].error) == "refused -1"
    nested = ask("cheap", 7)
    for _ in range(3_000):
        nested = gather(nested)
    nested.discard()


def test_what_an_open_question_weighs():
    """At most 4 kB a question that waits, with its context, task, coroutine, call and place in the queue."""
    n, held = 2_000, []

    async def program(ctx):
        for i in range(5):
            await call("cheap", i)

    def run(static, args):
        held.append(tracemalloc.get_traced_memory()[0])
        return args

    programs = [(Question(str(i), "?"), program) for i in range(n)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run_rounds(programs, {"cheap": Executor(run, "graph", 1, n)}, max_live=n)
    finally:
        tracemalloc.stop()
    assert (max(held) - before) / n < 4_000
