"""One thread that owns an engine: admits jobs while others run, hands each out as it finishes, survives deaths."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Protocol

from gpu_rag.errors import GpuRagError, ModelError, RequestFailed
from gpu_rag.models.llm.interface import ServerAccount, aborted
from gpu_rag.models.llm.vllm_jobs import Finished, Job, Piece

# A Ctrl-C reaches an engine's own process too: wait for our side of it before building the engine anew. Each further
# death doubles the wait: a driver that has lost a device, or memory that another process has yet to free, needs time.
CLOSE_FIRST_S, MOST_WAIT_S = 1.0, 60.0
JOIN_S = 30.0
# After a death the requests that were running are tried again in about this many groups, one after the other.
GROUPS = 16

Sink = Callable[[GpuRagError | None], None]


class EngineDied(Exception):
    """The engine cannot go on; its message says why."""


class Engine(Protocol):
    """An engine as the thread needs it. Every method may raise EngineDied."""

    def add(self, number: int, piece: Piece) -> None:
        """Take a piece. Raises RequestFailed for one that cannot be taken."""
        ...

    def step(self) -> list[tuple[int, Finished]]:
        """Work a little; the pieces that finished."""
        ...

    def abort(self, numbers: list[int]) -> None:
        """Forget pieces."""
        ...

    def sleep(self) -> None:
        """Free the memory of its device until the next piece, if it can."""
        ...

    def close(self) -> None:
        """Free everything. Never raises EngineDied."""
        ...


@dataclass(eq=False)
class Ticket:
    """A job on its way. done(error) is called once, in the service's thread, error None when the job is complete."""

    job: Job
    done: Sink
    deaths: int = 0
    left: int = 0  # pieces that are not finished
    waits_since: float | None = field(default_factory=perf_counter)
    over: bool = False

    def begin(self) -> list[tuple[Ticket, Piece]]:
        """The first pieces, of a job that is new or begins anew."""
        pieces = self.job.start()
        self.left = len(pieces)
        return [(self, piece) for piece in pieces]

    def take(self, piece: Piece, finished: Finished) -> list[tuple[Ticket, Piece]]:
        """Note a finished piece; those that can run now. The job ends with the last."""
        more = self.job.take(piece, finished)
        self.left += len(more) - 1
        if not self.left:
            self.end(None)
        return [(self, piece) for piece in more]

    def end(self, error: GpuRagError | None) -> None:
        """Hand the outcome out, once."""
        if not self.over:
            self.over = True
            self.done(error)


class EngineService:
    """Runs jobs on an engine that `build` makes, at most `window` pieces in the engine at once.

    When the engine dies it is built again, at most `restarts` times. Jobs that only waited are not concerned. Those
    that were running begin anew, in groups of a sixteenth of them and nothing beside, so that one that kills the engine
    takes few others with it: a job that was running at two deaths is given up (RequestFailed). After the last restart
    every job ends with a ModelError, and so does each that is submitted later.
    """

    def __init__(self, build: Callable[[], Engine], *, window: int, restarts: int):
        """Builds the engine, in the thread. Raises what `build` raises; ModelError when the engine dies over it."""
        self._build, self._window, self._restarts = build, window, restarts
        self.account = ServerAccount("")
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _dead
        self._dead: GpuRagError | None = None
        self._closing = threading.Event()
        self._engine: Engine | None = None
        self._running: dict[int, tuple[Ticket, Piece]] = {}
        self._waiting: deque[tuple[Ticket, Piece]] = deque()
        self._trial: list[Ticket] = []  # the group that is being tried, alone in the engine
        self._trial_waiting: deque[tuple[Ticket, Piece]] = deque()
        self._groups: deque[list[Ticket]] = deque()  # still to be tried
        self._n_pieces = 0
        built: queue.SimpleQueue[GpuRagError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, args=(built,), name="llm-engine", daemon=True)
        self._thread.start()
        error = built.get()
        if error is not None:
            raise error

    def submit(self, job: Job, done: Sink) -> Ticket:
        """Hand over a job; returns at once."""
        ticket = Ticket(job, done)
        with self._lock:
            dead = self._dead
            if dead is None:
                self._orders.put(lambda: self._waiting.extend(ticket.begin()))
        if dead is not None:
            ticket.end(dead)
        return ticket

    def abort(self, ticket: Ticket) -> None:
        """Give a job up; it ends with a RequestFailed unless it has ended before."""
        self._orders.put(partial(self._end, ticket, aborted()))

    def sleep(self) -> None:
        """Have an engine without jobs free the memory of its device until the next job; waits until it has."""
        done = threading.Event()
        self._orders.put(partial(self._sleep, done))
        while self._thread.is_alive() and not done.wait(CLOSE_FIRST_S):
            pass

    def close(self) -> None:
        """Give up every job and free the engine; waits at most 30 s for a step to end."""
        self._closing.set()
        self._orders.put(lambda: None)
        self._thread.join(JOIN_S)

    # --- in the thread ---

    def _main(self, built: queue.SimpleQueue[GpuRagError | None]) -> None:
        failure: GpuRagError = ModelError("the engine's thread ended", given="the error printed above")
        try:
            self._engine = self._started()
            built.put(None)
            while not self._closing.is_set():
                try:
                    self._take_orders()
                    self._feed()
                    if self._running:
                        self._step(self._engine)
                except EngineDied as death:
                    self._engine = self._restarted(death)
            failure = ModelError("the engine was closed")
        except GpuRagError as error:
            failure = error
        finally:  # whatever happens here, no caller is left waiting
            built.put(failure)
            self._give_up(failure)

    def _started(self) -> Engine:
        try:
            return self._build()
        except EngineDied as death:
            raise ModelError("the engine did not start", given=death) from death

    def _take_orders(self) -> None:
        """All that has arrived; waits when there is nothing else to do."""
        wait = self._is_idle()
        try:
            while True:
                self._orders.get(block=wait)()
                wait = False
        except queue.Empty:
            return

    def _is_idle(self) -> bool:
        return not (self._running or self._waiting or self._trial or self._groups)

    def _sleep(self, done: threading.Event) -> None:
        try:
            if self._engine is not None and self._is_idle():
                self._engine.sleep()
        finally:
            done.set()

    def _end(self, ticket: Ticket, error: GpuRagError) -> None:
        """End a job before its time; pieces that wait are skipped later."""
        ticket.end(error)
        numbers = [number for number, (owner, _) in self._running.items() if owner is ticket]
        for number in numbers:
            del self._running[number]
        if numbers and self._engine is not None:
            self._engine.abort(numbers)

    def _feed(self) -> None:
        """Fill the engine up to the window: from the group on trial while there is one, else from those that wait."""
        self._trial = [ticket for ticket in self._trial if not ticket.over]
        if self._groups and not self._trial:
            self._trial = self._groups.popleft()
            self._trial_waiting = deque(piece for ticket in self._trial for piece in ticket.begin())
        source = self._trial_waiting if self._trial else self._waiting
        while source and len(self._running) < self._window:
            ticket, piece = source.popleft()
            if not ticket.over:
                self._add(ticket, piece)

    def _add(self, ticket: Ticket, piece: Piece) -> None:
        assert self._engine is not None
        if ticket.waits_since is not None:
            self.account.queue_s += perf_counter() - ticket.waits_since
            ticket.waits_since = None
        self._n_pieces += 1
        self._running[self._n_pieces] = (ticket, piece)  # before the call: it may be what kills the engine
        try:
            self._engine.add(self._n_pieces, piece)
        except RequestFailed as refused:
            del self._running[self._n_pieces]
            self._end(ticket, refused)

    def _step(self, engine: Engine) -> None:
        began = perf_counter()
        done = engine.step()
        self.account.busy_s += perf_counter() - began
        for number, finished in done:
            found = self._running.pop(number, None)
            if found is None:  # aborted
                continue
            ticket, piece = found
            self._book(piece, finished)
            more = ticket.take(piece, finished)
            source = self._trial_waiting if ticket in self._trial else self._waiting
            source.extendleft(reversed(more))

    def _book(self, piece: Piece, finished: Finished) -> None:
        account = self.account
        account.add_tokens(len(piece.ids), finished.n_cached, len(finished.ids))
        account.queue_s += finished.queued_s
        if finished.n_preempted is not None:
            account.preemptions = (account.preemptions or 0) + finished.n_preempted

    def _restarted(self, death: EngineDied) -> Engine:
        """A new engine, and the jobs that were running put on probation. Raises ModelError after the last restart."""
        self.account.failures += 1
        running = list(dict.fromkeys(ticket for ticket, _ in self._running.values()))
        self._running.clear()
        old, self._engine = self._engine, None
        if old is not None:
            old.close()
        self._arraign(running, death)
        wait = min(CLOSE_FIRST_S * 2 ** (self.account.failures - 1), MOST_WAIT_S)
        if self.account.failures > self._restarts or self._closing.wait(wait):
            given = f"{death}; {self.account.failures} deaths, {self._restarts} restarts allowed"
            raise ModelError("the engine died", given=given, do="run again to go on with what is missing")
        return self._started()

    def _arraign(self, running: list[Ticket], death: EngineDied) -> None:
        """Give up the jobs that saw two deaths and form groups of the others."""
        for ticket in running:
            ticket.deaths += 1
            if ticket.deaths > 1:
                ticket.end(RequestFailed("the engine died twice while this request ran", given=death))
        suspects = [ticket for ticket in dict.fromkeys([*running, *self._trial]) if not ticket.over]
        self.account.retries += len(suspects)
        self._trial, self._trial_waiting = [], deque()
        self._waiting = deque(item for item in self._waiting if item[0] not in suspects)
        size = max(1, len(suspects) // GROUPS)
        groups = [suspects[i : i + size] for i in range(0, len(suspects), size)]
        self._groups.extendleft(reversed(groups))

    def _give_up(self, failure: GpuRagError) -> None:
        with self._lock:
            self._dead = failure
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        while not self._orders.empty():
            self._orders.get()()
        tickets = [ticket for ticket, _ in (*self._running.values(), *self._waiting, *self._trial_waiting)]
        tickets += [*self._trial, *(ticket for group in self._groups for ticket in group)]
        for ticket in tickets:
            ticket.end(failure)


class Placed:
    """A job at one of several engines; it moves on when its engine is dead for good. done: called once, at its end."""

    def __init__(self, job: Job, done: Sink):
        self.job, self.done, self.over = job, done, False
        self.at: tuple[EngineService, Ticket] | None = None


class EnginePool:
    """Several engines of one model: a job goes to the one with the fewest open jobs.

    An engine that died more often than it may be started again is left out, and its jobs go to the others; the last
    one's death is the death of all.
    """

    def __init__(self, builds: Sequence[Callable[[], Engine]], *, window: int, restarts: int):
        """Builds the engines one after the other. Raises what `EngineService` raises, the others closed."""
        self._open: dict[EngineService, int] = {}
        self._lock = threading.RLock()  # guards _open and where jobs are
        try:
            for build in builds:
                self._open[EngineService(build, window=window, restarts=restarts)] = 0
        except BaseException:
            self.close()
            raise
        self._all = list(self._open)

    def accounts(self) -> list[ServerAccount]:
        """The account of each engine, those that died too."""
        return [replace(one.account, name=f"vLLM engine {n}") for n, one in enumerate(self._all, 1)]

    def sleep(self) -> None:
        """Have engines without jobs free the memory of their devices until their next job."""
        with self._lock:
            services = list(self._open)
        for service in services:
            service.sleep()

    def submit(self, job: Job, done: Sink) -> Placed:
        """Hand over a job; returns at once."""
        placed = Placed(job, done)
        with self._lock:
            self._place(placed, ModelError("no engine is left"))
        return placed

    def abort(self, placed: Placed) -> None:
        """Give a job up; it ends with a RequestFailed unless it has ended before."""
        with self._lock:
            if placed.at is not None:
                service, ticket = placed.at
                service.abort(ticket)

    def close(self) -> None:
        """Give up every job and free the engines."""
        with self._lock:
            services = list(self._open)
            self._open.clear()
        for service in services:
            service.close()

    def _place(self, placed: Placed, error: GpuRagError) -> None:
        """At the engine with the fewest open jobs; without any the job ends with `error`."""
        if not self._open:
            placed.over = True
            placed.done(error)
            return
        service = min(self._open, key=self._open.__getitem__)
        self._open[service] += 1
        ticket = service.submit(placed.job, lambda failed: self._ended(placed, service, failed))
        if not ticket.over:  # else it may be elsewhere by now
            placed.at = (service, ticket)

    def _ended(self, placed: Placed, service: EngineService, error: GpuRagError | None) -> None:
        with self._lock:
            service.account.requests += error is None
            if isinstance(error, ModelError) and self._open.pop(service, None) is not None and not self._open:
                pass  # the last one
            elif isinstance(error, ModelError) and self._open:
                self._place(placed, error)
                return
            elif service in self._open:
                self._open[service] -= 1
            placed.over = True
        placed.done(error)
