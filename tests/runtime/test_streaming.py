"""The streaming driver by hand: what it sends when, live submission, cancellation, stops, accounts, memory."""

import queue
import random
import threading
import time
import tracemalloc
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from toy_steps import Toys, embed, graph, llm, metered, pairs, toy

from gpu_rag.errors import BudgetExceeded, ModelError, UsageError
from gpu_rag.runtime import Budget, RunStats, StreamingDriver, gather, run_rounds, run_streaming, streaming
from gpu_rag.types import Question

PATIENCE_S = 60.0  # only a bug takes so long

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")


class ByHand:
    """A slow service that answers when told to: `answers` says how many of the open requests a poll gives out."""

    def __init__(self, answers=lambda n_open: n_open, log=()):
        self.answers, self.log = answers, log if log is None else []
        self.open, self.lost, self.error = {}, [], None

    def submit(self, key, query):
        self.open[key] = query
        if self.log is not None:
            self.log.append(("sent", query))

    def poll(self, timeout_s):
        if self.error is not None:
            raise self.error
        keys = list(self.open)[: self.answers(len(self.open))]
        return [(key, self.result(key, self.open.pop(key))) for key in keys]

    def result(self, key, query):
        return metered(query)

    def abort(self, key):
        self.lost.append(self.open[key])

    @property
    def n_open(self):
        return len(self.open)


class Threaded:
    """A service with threads of its own, which answer each request after a while."""

    def __init__(self):
        self.done, self.open, self.workers = queue.SimpleQueue(), set(), ThreadPoolExecutor(4)

    def submit(self, key, query):
        self.open.add(key)
        self.workers.submit(self.work, key, query)

    def work(self, key, query):
        time.sleep(0.002 * random.random())
        self.done.put((key, metered(query)))

    def poll(self, timeout_s):
        try:
            found = self.done.get(timeout=timeout_s)
        except queue.Empty:
            return []
        self.open.discard(found[0])
        return [found]

    def abort(self, key):
        pass

    @property
    def n_open(self):
        return len(self.open)


def run(programs, service, toys=None, **options):
    return run_streaming(pairs(programs), (toys or Toys()).resources, (llm, service), **options)


def ramp(ctx):
    async def program():
        await embed(ctx.question.id)
        await graph(ctx.question.id)
        return await llm(ctx.question.id)

    return program()


def test_below_the_mark_the_oldest_questions_go_ahead_so_that_the_llm_begins():
    toys, service = Toys(), ByHand(answers=lambda n_open: 0)
    service.answers = lambda n_open: n_open if len(service.log) == 8 else 0
    log_at_first = []
    plain = service.submit

    def submit(key, query):
        log_at_first.append(len(toys.log))
        plain(key, query)

    service.submit = submit
    outcomes = run([ramp] * 8, service, toys, low_water=2)
    assert toys.log[:2] == [("embed", ["q0", "q1"]), ("graph", ["q0", "q1"])]
    assert log_at_first[:2] == [2, 2], "requests were sent before most questions were embedded"
    assert [o.draft for o in outcomes] == [f"q{i}" for i in range(8)]


def test_above_the_mark_cheap_calls_run_as_large_batches():
    toys, service = Toys(), ByHand(answers=lambda n_open: 0)
    service.answers = lambda n_open: n_open if len(service.log) == 40 else 0
    run([ramp] * 40, service, toys, low_water=2)
    sizes = [len(args) for _, args in toys.log]
    assert sizes[:3] == [2, 2, 38] or sizes[2:] == sorted(sizes[2:]), sizes
    assert max(sizes) >= 30 and sum(sizes) == 80


def test_calls_that_lead_to_no_request_are_not_fed_in_small_pieces():
    async def program(ctx):
        for i in range(4):
            await graph(i)

    toys = Toys()
    run([program] * 600, ByHand(), toys, low_water=4)
    assert len(toys.log) < 40 and max(len(queries) for _, queries in toys.log) == streaming.MAX_CHEAP
    toys.log.clear()
    run_streaming(pairs([program] * 600), toys.resources, None, max_live=1024)
    assert len(toys.log) == 12, "without any slow service batches are full"


def test_batches_keep_to_the_order_of_questions_and_to_max_batch():
    step, toys = toy("step", max_batch=5), Toys()

    async def program(ctx):
        await gather(*(step((ctx.question.id, i)) for i in range(3)))

    run_streaming(pairs([program] * 4), toys.resources, None)
    assert [queries for _, queries in toys.log] == [
        [("q0", 0), ("q0", 1), ("q0", 2), ("q1", 0), ("q1", 1)],
        [("q1", 2), ("q2", 0), ("q2", 1), ("q2", 2), ("q3", 0)],
        [("q3", 1), ("q3", 2)],
    ]


def test_max_live_bounds_the_open_questions():
    live, most = [0], [0]

    async def program(ctx):
        live[0] += 1
        most[0] = max(most[0], live[0])
        await llm(1)
        live[0] -= 1
        return ctx.question.id

    done = []
    outcomes = run([program] * 50, ByHand(lambda n: 1), max_live=4, on_done=lambda o: done.append(o.question.id))
    assert most[0] == 4 and [o.draft for o in outcomes] == [f"q{i}" for i in range(50)] and len(done) == 50
    assert run([program] * 3, ByHand(), keep=False, on_done=lambda o: done.append(1)) == [] and len(done) == 53


def test_the_requests_of_cancelled_siblings_are_aborted_and_their_late_replies_counted():
    async def sibling(arg):
        try:
            return await llm(arg)
        finally:
            await llm("while it unwinds")

    async def program(ctx):
        await gather(graph(-1), sibling(1), gather(llm(2), sibling(3)))

    service = ByHand(answers=lambda n_open: 0)
    service.answers = lambda n_open: n_open if service.lost else 0
    stats = RunStats()
    (outcome,) = run([program], service, low_water=1, stats=stats)
    assert str(outcome.error) == "refused -1"
    assert sorted(service.lost) == [1, 2, 3] and ("sent", "while it unwinds") not in service.log
    assert (outcome.usage.llm_calls, outcome.usage.prompt_tokens, stats.n_late_calls) == (3, 30, 3)
    assert stats.stages["(cancelled)"].llm_calls == 3 and service.n_open == 0


def test_a_budget_that_is_used_up_aborts_the_other_requests(clock):
    async def one(arg):
        return [await llm((arg, i)) for i in range(3)]

    async def program(ctx):
        await gather(one("a"), one("b"))

    service = ByHand(answers=lambda n_open: 1)
    (outcome,) = run([program], service, budget=Budget(max_calls=2))
    assert type(outcome.error) is BudgetExceeded and service.lost == [("b", 0)]
    slow = ByHand(answers=lambda n_open: clock.sleep(0.02) or n_open)
    outcomes = run([lambda ctx: one("a"), lambda ctx: one("b")], slow, budget=Budget(max_s=0.015))
    assert [type(o.error) for o in outcomes] == [BudgetExceeded, BudgetExceeded]
    halves = [o.usage.llm_s for o in outcomes]
    assert halves == pytest.approx([0.02, 0.02]), "each has half of the time that both requests were open"


def test_ctrl_c_aborts_what_is_open_and_closes_coroutines():
    closed = []

    async def program(ctx):
        try:
            await llm(ctx.question.id)
        finally:
            closed.append(ctx.question.id)

    service = ByHand(answers=lambda n_open: 0)
    plain = service.poll

    def poll(timeout_s):
        if timeout_s > 0:
            service.answers = lambda n_open: 2
            raise KeyboardInterrupt
        return plain(timeout_s)

    service.poll = poll
    done, stats = [], RunStats()
    with pytest.raises(KeyboardInterrupt):
        run([program] * 3, service, on_done=done.append, stats=stats)
    assert sorted(closed) == sorted(service.lost) == ["q0", "q1", "q2"] and done == []
    assert stats.n_late_calls == 2, "two replies had come by then: they are taken, for the cache below"


def test_a_dead_service_stops_the_run_and_names_the_question_to_blame():
    closed, done = [], []

    async def program(ctx):
        try:
            await llm(ctx.question.id)
        finally:
            closed.append(ctx.question.id)

    service = ByHand()
    service.error = ModelError("the engine died")
    service.error.request = "q1"
    with pytest.raises(ModelError, match="the engine died") as caught:
        run([program] * 3, service, on_done=done.append)
    assert caught.value.question == "q1" and len(closed) == 3 and done == []
    service.error.question = None
    with pytest.raises(ModelError, match="the engine died") as caught:
        run_rounds(pairs([program] * 2), Toys({"llm": lambda queries, k: service.poll(0.0)}).resources)
    assert caught.value.question == "q1"
    lost = ByHand()
    lost.result = lambda key, query: ModelError("gone")
    with pytest.raises(ModelError, match="gone") as caught:
        run([program], lost)
    assert caught.value.question is None


def test_what_on_done_or_the_questions_raise_stops_the_run():
    async def program(ctx):
        return await llm(1)

    def no_space(outcome):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run([program] * 3, ByHand(), on_done=no_space)

    def source():
        yield Question("q0", "?"), program
        raise ValueError("a bad line")

    service = ByHand(answers=lambda n_open: 0)
    with pytest.raises(ValueError, match="a bad line"):
        run_streaming(source(), Toys().resources, (llm, service), max_live=1024)


@pytest.fixture
def live():
    """live(service, **options): a driver that runs in a thread of its own, closed with the test."""
    started = []

    def start(service, **options):
        driver = StreamingDriver(Toys().resources, (llm, service), **options)
        thread = threading.Thread(target=driver.run, daemon=True)
        thread.start()
        started.append((driver, thread))
        return driver

    yield start
    for driver, thread in started:
        driver.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


async def three(ctx):
    a = await graph(1)
    b = await gather(llm(2), llm(3))
    return [a, *b, ctx.question.id]


def test_questions_are_submitted_to_a_live_driver_from_several_threads(live):
    driver, ends = live(Threaded(), max_live=16), []

    def submit(name, program):
        ended = Future()
        driver.submit(Question(name, "?"), program, ended.set_result)
        return ended

    def client(name):
        moods = random.Random(name)
        for i in range(20):
            ends.append(submit(f"{name}{i}", three))
            time.sleep(moods.random() * 0.002)

    clients = [threading.Thread(target=client, args=(name,)) for name in "abc"]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    drafts = [ended.result(PATIENCE_S).draft for ended in ends]
    assert {draft[3] for draft in drafts} == {f"{name}{i}" for name in "abc" for i in range(20)}
    assert all(draft[:3] == [1, 2, 3] for draft in drafts)
    assert submit("late", three).result(PATIENCE_S).draft[3] == "late", "an idle driver wakes"
    refused = submit("no", lambda ctx: 5).result(PATIENCE_S)
    assert refused.error.what == "a program is an async function"
    driver.close()
    with pytest.raises(UsageError, match="the driver is closed; given question x"):
        submit("x", three)


async def staged(ctx):
    await graph(1)
    ctx.note("find", 5)
    await llm(1)
    await llm(2)
    ctx.note("read", 0)
    await gather(llm(3), llm(4))
    ctx.note("check", 0)
    await llm(5)
    return "done"


@pytest.mark.parametrize("driver", ["rounds", "streaming"])
def test_costs_are_booked_by_the_note_that_they_led_to(driver):
    stats, programs = RunStats(), pairs([staged] * 3)
    if driver == "rounds":
        outcomes = run_rounds(programs, Toys().resources, stats=stats)
    else:
        outcomes = run_streaming(programs, Toys().resources, (llm, ByHand()), stats=stats)
    found = {name: (c.n_notes, c.n_calls, c.llm_calls, c.prompt_tokens) for name, c in stats.stages.items()}
    assert found == {
        "find": (3, 3, 0, 0),
        "read": (3, 6, 6, 60),
        "check": (3, 6, 6, 60),
        "(after the last note)": (0, 3, 3, 30),
    }
    assert [c.cached_tokens for c in stats.stages.values()] == [0, 24, 24, 12]
    assert sum(c.llm_s for c in stats.stages.values()) == pytest.approx(sum(o.usage.llm_s for o in outcomes))
    assert all(c.wait_s >= -1e-6 for c in stats.stages.values()) and stats.stages["find"].graph_s > 0
    assert outcomes[0].trace[0].s > 0


def sleepy(clock, seconds):
    return lambda queries, k: clock.sleep(seconds) or queries


@pytest.mark.parametrize("driver", ["rounds", "streaming"])
def test_idle_time_of_the_llm_has_its_reasons(driver, clock):
    async def program(ctx):
        await embed(1)  # 30 ms: ramp-up
        await llm(1)  # 40 ms
        await graph(1)  # 50 ms: graph
        await llm(2)
        clock.sleep(0.02)  # a program that works itself
        await llm(3)
        await graph(2)  # 50 ms: nothing left to ask

    slow = Toys({name: sleepy(clock, s) for name, s in (("embed", 0.03), ("graph", 0.05), ("llm", 0.04))}).resources
    stats = RunStats()
    if driver == "rounds":
        run_rounds(pairs([program]), slow, stats=stats)
    else:
        service = ByHand()
        plain = service.poll
        service.poll = lambda timeout_s: [] if timeout_s == 0 else clock.sleep(0.04) or plain(timeout_s)
        run_streaming(pairs([program]), slow, (llm, service), stats=stats)
    causes = {"ramp-up": 0.03, "graph": 0.05, "programs": 0.02, "nothing left to ask": 0.05}
    assert stats.llm.idle_s == pytest.approx(causes)
    assert stats.llm.busy_s == pytest.approx(3 * 0.04) and stats.wall_s == pytest.approx(0.15 + 0.12)
    assert stats.llm.share == pytest.approx(0.15 / 0.27)
    assert stats.llm.doing_s["programs"] == pytest.approx(0.02)


def test_a_queue_that_ran_dry_in_a_batch_is_half_idle(clock):
    async def asks(ctx):
        await llm(1)

    async def searches(ctx):
        await graph(1)
        await llm(2)

    slow = Toys({"graph": sleepy(clock, 0.1)})
    service, stats = ByHand(), RunStats()
    polls = iter([False])
    plain = service.poll
    service.poll = lambda timeout_s: plain(timeout_s) if next(polls, True) else []
    run([asks, searches], service, slow, low_water=1, stats=stats)
    assert stats.llm.idle_s["graph"] == pytest.approx(0.05) and stats.llm.busy_s == pytest.approx(0.05)


def test_memory_does_not_grow_with_the_questions():
    async def program(ctx):
        for i in range(3):
            await llm(i)
            ctx.note(f"step {i}", 1, ("x" * 50,))

    def most(n):
        tracemalloc.start()
        try:
            programs = ((Question(str(i), "?"), program) for i in range(n))
            run_streaming(programs, Toys().resources, (llm, ByHand(log=None)), max_live=100, keep=False)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = 500, 8500
    grown = most(many) - most(few)
    assert grown < 32 * (many - few), "less than any object takes; free lists of Python grow by 100 kB, in any order"
