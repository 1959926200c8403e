"""The rounds driver by hand: gathers, cancellation, budgets, failures, stops, order of work, sizes."""

import gc
import textwrap
import weakref

import pytest
from toy_steps import Toys, ask, embed, graph, llm, pairs, toy

import gpu_rag.runtime
from gpu_rag.errors import BudgetExceeded, Cancelled, GpuRagError, ModelError, RequestFailed, StorageError, UsageError
from gpu_rag.runtime import Budget, Kind, RunStats, batched, gather, request_seed, run_rounds
from gpu_rag.types import Question

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")


def run(*programs, toys=None, **options):
    return run_rounds(pairs(programs), (toys or Toys()).resources, **options)


def one(program, toys=None, **options):
    return run(program, toys=toys, **options)[0]


def test_the_example_of_the_package_runs():
    doc = gpu_rag.runtime.__doc__
    code = textwrap.dedent("\n".join(line for line in doc.splitlines() if line.startswith("    ")))
    names = {}
    exec(code, names)
    (outcome,) = names["outcomes"]
    assert outcome.draft.text == "one for two for who?"
    assert [step.verb for step in outcome.trace] == ["search"]


def test_cheap_calls_are_drained_before_one_large_dear_batch():
    def program(n_cheap):
        async def run(ctx):
            for i in range(n_cheap):
                await graph(i)
            return await llm(n_cheap)

        return run

    toys, stats = Toys(), RunStats()
    run(*(program(n) for n in (0, 3, 1)), toys=toys, stats=stats)
    assert toys.log == [("graph", [0, 0]), ("graph", [1]), ("graph", [2]), ("llm", [0, 3, 1])]
    dear, cheap = stats.steps["llm"], stats.steps["graph"]
    assert (dear.n_calls, dear.n_batches, dear.batch_sizes, dear.largest_batch) == (3, 1, {3: 1}, 3)
    assert (cheap.n_calls, cheap.n_batches, cheap.batch_sizes) == (4, 3, {2: 1, 1: 2})


def test_max_live_bounds_the_open_questions_and_a_finished_one_admits_the_next():
    live, most, drawn = [0], [0], []

    async def program(ctx):
        live[0] += 1
        most[0] = max(most[0], live[0])
        for _ in range(int(ctx.question.id) % 3):
            await graph(0)
        live[0] -= 1
        return ctx.question.id

    def source():
        for i in range(20):
            drawn.append(live[0])
            yield Question(str(i), "?"), program

    done = []
    outcomes = run_rounds(source(), Toys().resources, max_live=4, on_done=lambda o: done.append(o.question.id))
    assert [o.draft for o in outcomes] == [str(i) for i in range(20)]
    assert most[0] <= 4 and max(drawn) <= 3
    assert sorted(done, key=int) == [str(i) for i in range(20)] and done != sorted(done, key=int)
    with pytest.raises(UsageError, match="max_live=0"):
        run_rounds([], {}, max_live=0)
    assert run_rounds([], {}) == []


def test_seeds_follow_the_question_and_the_place_of_the_call():
    async def program(ctx):
        return ctx.request_seed((1, 2), 1)

    assert one(program, run_seed=7).draft == request_seed(7, "q0", (1, 2), 1)
    # A recorded value: replies are kept under seeds, so the formula must never change by accident.
    assert request_seed(0, "q", (0,), 0) == 725422461
    seeds = {request_seed(s, q, slot, a) for s in (0, 1) for q in "pq" for slot in ((0,), (0, 0), (1,)) for a in (0, 1)}
    assert len(seeds) == 24 and all(0 <= seed < 2**31 for seed in seeds)


def test_await_while_unwinding_is_refused():
    log = []

    async def inner():
        try:
            await llm(1)
        finally:
            log.append("inner")
            await graph(99)

    async def sibling():
        try:
            await gather(inner(), inner())
        finally:
            try:
                await gather(ask(graph, 99), graph(99))
            except Cancelled as error:
                log.append(str(error))
            await graph(99)
            log.append("never")

    async def fails():
        await graph(1)
        raise KeyError("k")

    async def program(ctx):
        try:
            await gather(fails(), sibling(), ask(graph, 2))
        finally:
            log.append(await graph(3))  # not cancelled itself: its own cleanup works

    toys = Toys()
    outcome = one(program, toys=toys)
    assert isinstance(outcome.error, KeyError)
    assert log == ["inner", "inner", "the work was cancelled; a sibling failed or the run stopped", 3]
    assert all(99 not in args for _, args in toys.log)


def test_a_sibling_that_never_gives_up_is_left_behind():
    tries = []

    async def stubborn():
        while len(tries) < 500:
            try:
                await graph(1)
            except Cancelled:
                tries.append(1)

    async def bad():
        await graph(0)
        raise ValueError("now")

    async def program(ctx):
        await gather(bad(), stubborn(), llm(1))

    toys = Toys()
    assert str(one(program, toys).error) == "now"
    assert toys.log == [("graph", [0, 1])] and 0 < len(tries) < 100


def test_what_gather_takes():
    async def program(ctx):
        nested = await gather(gather(graph(1), ask(graph, 2)), gather(), ask(graph, 3))
        return nested, await gather()

    assert one(program).draft == ([[1, 2], [], 3], [])
    strand = ask(graph, 1)
    with pytest.raises(UsageError, match="twice"):
        gather(strand, strand)
    with pytest.raises(UsageError, match="gather takes coroutines and calls; given int"):
        gather(ask(graph, 1), gather(ask(graph)), 5)


class Foreign:
    def __await__(self):
        yield "something else"


def raises_when_called(ctx):
    raise ZeroDivisionError("early")


async def awaits_foreign(ctx):
    await Foreign()


async def lacks_a_resource(ctx):
    await batched(Kind("cellar", "graph", 1), name="dig")(lambda cellar, queries: queries)(1)


async def has_one_too_many(ctx):
    await graph(1, 2, 3)


async def unhashable(ctx):
    await graph(1, [])


async def bug(ctx):
    await graph(0)
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
        (awaits_foreign, UsageError, "can await calls of steps and gathers only; given str"),
        (lacks_a_resource, UsageError, "lacks the resource of a step; given dig, which needs cellar; expected toys"),
        (unhashable, UsageError, "the parameters of a step must be hashable; given graph ([],)"),
        (has_one_too_many, TypeError, "graph(query, k) does not take 3 values and []"),
        (bug, KeyError, "missing"),
        (stops_iteration, RuntimeError, "StopIteration"),
        (exits_generator, GeneratorExit, ""),
    ],
)
def test_a_broken_program_is_its_own_failure(program, kind, message):
    async def good(ctx):
        return await graph(1) + await llm(1)

    before, broken, after = run(good, program, good)
    assert (before.draft, after.draft, before.error, after.error) == (2, 2, None, None)
    assert type(broken.error) is kind and message in str(broken.error) and broken.draft is None


def test_a_failure_keeps_no_frames():
    class Big:
        pass

    watched = []

    async def program(ctx):
        big = Big()
        watched.append(weakref.ref(big))
        try:
            await graph(1)
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    outcome = one(program)
    assert outcome.error.__traceback__ is None and outcome.error.__cause__.__traceback__ is None
    gc.collect()
    assert watched[0]() is None


def test_one_error_value_for_many_calls_is_not_shared():
    shared = RequestFailed("the same")

    async def program(ctx):
        await graph(1)

    outcomes = run(*[program] * 3, toys=Toys({"graph": lambda queries, k: [shared] * len(queries)}))
    assert len({id(o.error) for o in outcomes}) == 3 and shared.__traceback__ is None
    assert all((type(o.error), str(o.error), o.error.what) == (RequestFailed, "the same", "the same") for o in outcomes)


def failing(error):
    def answers(queries, k):
        if k == 9:
            raise error
        return queries

    return Toys({"graph": answers})


async def good_then_bad(ctx):
    first = await graph(1)
    if ctx.question.id in ("q1", "q3"):
        await graph(1, k=9)
    return first


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (GpuRagError("out of memory"), GpuRagError, "out of memory"),
        (ValueError("shapes"), GpuRagError, "the step graph failed; given ValueError: shapes"),
        (StopIteration(3), GpuRagError, "the step graph failed"),
    ],
)
def test_an_exception_of_a_step_fails_its_batch_alone(raised, kind, message):
    outcomes = run(*[good_then_bad] * 5, toys=failing(raised))
    assert [o.draft for o in outcomes] == [1, None, 1, None, 1]
    for outcome in (outcomes[1], outcomes[3]):
        assert type(outcome.error) is kind and message in str(outcome.error)
    assert outcomes[1].error is not outcomes[3].error


@pytest.mark.parametrize(
    ("answers", "given"), [([1], "1 answers"), ([1, 2, 3], "3 answers"), (None, "NoneType"), ({1: 2, 2: 3}, "dict")]
)
def test_a_wrong_number_of_answers_is_named(answers, given):
    for outcome in run(*[lambda ctx: ask(graph)] * 2, toys=Toys({"graph": lambda queries, k: answers})):
        assert str(outcome.error) == f"the step graph broke its contract; given {given}; expected 2 answers"


@pytest.mark.parametrize("stop", [ModelError("engine down"), Cancelled("stop"), KeyboardInterrupt()])
def test_what_stops_the_run_stops_it_cleanly(stop):
    closed, done = [], []

    async def program(ctx):
        try:
            if ctx.question.id == "q0":
                return "early"
            await graph(0)
            if ctx.question.id == "q1":
                return "first round"
            await gather(ask(llm), ask(llm))
        finally:
            closed.append(ctx.question.id)

    def down(queries, k):
        raise stop

    stats = RunStats()
    with pytest.raises(type(stop)):
        run(*[program] * 4, toys=Toys({"llm": down}), on_done=done.append, stats=stats)
    assert [(o.question.id, o.draft) for o in done] == [("q0", "early"), ("q1", "first round")]
    assert sorted(closed) == ["q0", "q1", "q2", "q3"]
    assert stats.wall_s > 0


def test_a_model_error_inside_a_program_stops_the_run_unless_caught():
    async def down(ctx):
        raise ModelError("tokenizer service is down")

    async def caught(ctx):
        try:
            await down(ctx)
        except ModelError:
            return await graph(1)

    assert one(caught).draft == 1
    with pytest.raises(ModelError, match="tokenizer"):
        run(caught, down)


def test_errors_of_the_caller_stop_the_run_and_close_the_rest():
    closed = []

    async def program(ctx):
        try:
            for _ in range(int(ctx.question.id)):
                await graph(0)
        finally:
            closed.append(ctx.question.id)

    def full(outcome):
        if outcome.question.id == "1":
            raise StorageError("the disk is full")

    pairs = [(Question(str(i), "?"), program) for i in range(4)]
    with pytest.raises(StorageError):
        run_rounds(pairs, Toys().resources, on_done=full)
    assert closed[:2] == ["0", "1"] and sorted(closed) == ["0", "1", "2", "3"]

    def source():
        yield pairs[3]
        raise StorageError("cannot read")

    closed.clear()
    with pytest.raises(StorageError):
        run_rounds(source(), Toys().resources, max_live=1)
    assert closed == ["3"]


async def five_asks(ctx):
    for i in range(5):
        try:
            await llm(i)
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
        return await llm(9)

    first, other = run(five_asks, small, budget=budget)
    assert first.usage.llm_calls == n_calls and other.draft == 9
    if message is None:
        assert first.draft == "all"
    else:
        assert type(first.error) is BudgetExceeded and str(first.error) == message


def test_a_budget_of_seconds_counts_the_question_s_own_share(clock):
    def slow(queries, k):
        clock.sleep(0.02)
        return queries

    async def program(ctx):
        for _ in range(int(ctx.question.id)):
            await embed(1)
        return "done"

    programs = [(Question(str(n), "?"), program) for n in (1, 1, 5)]
    outcomes = run_rounds(programs, Toys({"embed": slow}).resources, budget=Budget(max_s=0.019))
    assert [o.draft for o in outcomes] == ["done", "done", None]
    # a third of one batch; of the third question also all of the next one, with which its budget is used up
    assert [o.usage.embed_s for o in outcomes] == pytest.approx([0.02 / 3, 0.02 / 3, 0.02 / 3 + 0.02])
    assert [o.usage.wall_s for o in outcomes] == pytest.approx([0.02, 0.02, 0.04])


def test_a_budget_met_in_a_gather_ends_the_whole_question():
    closed = []

    async def strand(i):
        try:
            return await graph(i)
        finally:
            closed.append(i)

    async def program(ctx):
        await gather(*(strand(i) for i in range(4)))

    toys = Toys()
    outcome = one(program, toys=toys, budget=Budget(max_calls=2))
    assert type(outcome.error) is BudgetExceeded and toys.log == []
    assert sorted(closed) == [0, 1, 2], "the fourth had not begun"
    with pytest.raises(UsageError, match="max_calls=0"):
        Budget(max_calls=0)
    with pytest.raises(UsageError, match="max_s=nan"):
        Budget(max_s=float("nan"))


def test_wide_long_and_deep_programs_need_no_recursion():
    step = toy("step", max_batch=4096)

    async def wide(ctx):
        calls = await gather(*(step(i) for i in range(10_000)))
        return sum(calls) + sum(await gather(*(ask(step, i) for i in range(10_000))))

    async def long(ctx):
        return sum([await step(1) for _ in range(5_000)])

    async def deep(ctx, n=1_500):
        return await step(1) if n == 0 else (await gather(deep(ctx, n - 1)))[0] + 1

    async def deep_and_cancelled(ctx):
        await gather(step(-1), deep(ctx))

    outcomes = run(wide, long, deep, deep_and_cancelled)

    assert [o.draft for o in outcomes] == [99_990_000, 5_000, 1_501, None]
    assert str(outcomes[3].error) == "refused -1"
    nested = ask(step, 7)
    for _ in range(3_000):
        nested = gather(nested)
    nested.discard()
