"""Several servers of one model: requests go to the least loaded one, and avoid a dead server until it answers again."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpu_rag.errors import ContextOverflow, GpuRagError, ModelError, RequestFailed
from gpu_rag.models.llm.http_wire import (
    CHAT,
    MAX_WAIT_S,
    Exchanger,
    Failure,
    Outcome,
    Service,
    Unanswered,
    read_completion,
)
from gpu_rag.models.llm.interface import ApiKeys, ServerAccount, aborted
from gpu_rag.models.llm.own_server import OwnServer

LOOK_S = 10.0  # limit of GET /models, /health and /metrics, and of a trial request
BURST = 16  # requests started at once
CLOSE_S = 5.0  # wait for connections to end
LOAD_S = 900.0  # wait for a server that answers only HTTP 503 to load its model
LOAD_PAUSE_S = 8.0  # longest pause between tries meanwhile
# A server that refused for lack of capacity gets about one request more, plus 2 %, per reply time.
GROWTH = 0.02

START_S = 1800.0  # time for a server to answer
START_LOOK_S = 0.2
ATTEND_S = 0.5  # pause between checks whether a server runs
RESTARTS = 4  # in a row, without a reply between them
RESTART_S = 1.0  # pause before the first restart, doubled each time: a driver or a device may need time
MAX_RESTART_S = 60.0
GROUPS = 16  # after a death, the requests that ran are retried in this many groups, one after the other
PREEMPTIONS = re.compile(r"^vllm:num_preemptions_total(?:\{.*\})? (\S+)$", re.MULTILINE)
QUEUED_S = re.compile(r"^vllm:request_queue_time_seconds_sum(?:\{.*\})? (\S+)$", re.MULTILINE)

REVISION = ("revision", "model_sha", "sha", "digest")  # keys under which servers report their weights
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})/?$")  # path in the Hugging Face cache

_log = logging.getLogger(__name__)
Card = dict[str, Any]  # an entry of GET /models


@dataclass(frozen=True)
class Patience:
    """Time limits of a request and of connecting, and retries. A pause of backoff_s * 2^k s follows try k, from 0."""

    timeout_s: float
    connect_timeout_s: float
    retries: int
    backoff_s: float

    def pause_s(self, n_before: int) -> float:
        """Pause in seconds after a try that `n_before` tries preceded; at most MAX_WAIT_S."""
        return float(min(self.backoff_s * 2 ** min(n_before, 30), MAX_WAIT_S))


@dataclass(eq=False)
class Job:
    """A request in flight. body(job) makes the bytes to send; done(job, outcome) is called once, in the event loop's
    thread. The outcome is what `read` makes of the bytes of an answer, or an error.

    again: whether it repeats an earlier job. on_text: see `Exchanger.post`; None once a server has refused to stream.
    style: the style of the body sent last.
    """

    body: Callable[[Job], bytes]
    done: Callable[[Job, Any], None]
    read: Callable[[bytes], Any] = read_completion
    again: bool = False
    style: Any = None
    on_text: Callable[[str], None] | None = None
    n_tries: int = 0
    n_waits: int = 0  # tries that do not count, because the server was loading its model
    deaths: int = 0  # deaths of our own servers while it ran there
    sent_at: float = 0.0  # at first, the time when it was accepted
    tried: Server | None = None  # the server that got it last
    task: asyncio.Task[None] | None = None  # the task of the running try
    unwanted: bool = False
    over: bool = False


@dataclass(frozen=True)
class Address:
    """Address of a model server: the URL up to and with /v1, its key, and the path of its Unix socket if it has one.

    own: the server there, if this process starts and stops it; ca_file: further certificates for https.
    """

    url: str
    key: str | None = None
    socket: str = ""
    own: OwnServer | None = None
    ca_file: str = ""

    def exchanger(self, connect_timeout_s: float) -> Exchanger:
        """Make a client of this address. Opens no connection yet. Needs a running event loop."""
        return Exchanger(
            self.url, self.key, connect_timeout_s=connect_timeout_s, socket=self.socket, ca_file=self.ca_file
        )

    @property
    def name(self) -> str:
        """Name of the server in messages and accounts."""
        return self.url if self.own is None else self.own.name


def address_of(url: str, keys: ApiKeys, ca_file: str = "") -> Address:
    """The address with its key. keys: one for all servers, or one for each URL."""
    url = url.rstrip("/")
    if isinstance(keys, Mapping):
        keys = {address.rstrip("/"): key for address, key in keys.items()}.get(url)
    return Address(url, keys, ca_file=ca_file)


@dataclass(eq=False)
class Server:
    """One address and its state. limit: estimate of how many requests it takes at once, never above `max_limit`.

    live: whether it gets requests; down: the reason why it counts as dead (then it is checked only now and then). The
    other fields are for a server of our own. suspects: groups of jobs that ran when a server died; each group is tried
    with no other request; alone: whether such a group runs; n_deaths: deaths since the last reply; before: preemptions
    and queue seconds up to the last restart.
    """

    exchanger: Exchanger
    account: ServerAccount
    max_limit: int
    limit: float
    live: bool = True
    down: ModelError | None = None
    paused_until: float = 0.0
    unready_since: float | None = None  # time of the first HTTP 503 since the last reply
    is_waiting: bool = False  # whether a warning was logged
    cut_at: float = 0.0
    floor: float = 1.0
    n_sent: int = 0
    n_failures: int = 0  # pauses for a failure since the last reply
    busy_since: float = 0.0
    running: set[Job] = field(default_factory=set)
    in_question: list[tuple[Job, Failure]] = field(default_factory=list)  # jobs that wait for its answer
    refused: list[tuple[Job, ModelError]] = field(default_factory=list)  # jobs that wait for the result of a trial
    watch: asyncio.Task[None] | None = None
    trial: asyncio.Task[None] | None = None
    own: OwnServer | None = None
    suspects: deque[list[Job]] = field(default_factory=deque)
    alone: bool = False
    asleep: bool = False
    waking: asyncio.Task[Outcome] | None = None
    n_deaths: int = 0
    before: tuple[int, float] = (0, 0.0)
    counted: tuple[int, float] = (0, 0.0)  # the same since the restart, as last read

    def report(self) -> ServerAccount:
        """A copy of the account, with the counters that a server of our own reports."""
        if self.own is None:
            return replace(self.account)
        preemptions, queued_s = self.before[0] + self.counted[0], self.before[1] + self.counted[1]
        return replace(self.account, preemptions=preemptions, queue_s=self.account.queue_s + queued_s)

    @property
    def name(self) -> str:
        """Name of the server in messages and accounts."""
        return self.account.name

    def takes(self, now: float) -> bool:
        """Whether it can take another request."""
        free = len(self.running) < int(self.limit) and self.paused_until <= now
        if self.own is not None:  # gets nothing while its state is unknown
            free = free and self.watch is None and not self.suspects and not self.alone
        return self.live and self.trial is None and free

    def begun(self, job: Job, now: float) -> None:
        """Note that a job was sent to it."""
        if not self.running:
            self.busy_since = now
        self.running.add(job)
        self.n_sent += 1
        if job.tried is not None:
            self.account.retries += 1
        else:
            self.account.queue_s += now - job.sent_at
        job.sent_at, job.tried = now, self

    def left(self, job: Job, now: float) -> None:
        """Note that a job has left it."""
        if job in self.running:
            self.running.remove(job)
            if not self.running:
                self.account.busy_s += now - self.busy_since
                self.alone = False

    def answered(self) -> None:
        """Note a reply, and raise the limit."""
        self.account.requests += 1
        self.n_deaths, self.n_failures, self.unready_since, self.is_waiting = 0, 0, None, False
        self.limit = min(self.limit + 1 / self.limit + GROWTH, float(self.max_limit))

    def overloaded(self, sent_at: float, now: float) -> None:
        """Note a refusal for lack of capacity, and lower the limit to the number of requests still running.

        Refusals of requests that were in flight together lower the limit to no less than a quarter.
        """
        if sent_at > self.cut_at:
            self.cut_at, self.floor = now, max(1.0, self.limit / 4)
        self.limit = max(self.floor, min(self.limit, float(len(self.running))))


class Servers:
    """Jobs and the servers that run them. Everything runs in the thread of one event loop.

    After a failed try and a pause, a job is tried again, at another server if one is live. A server that asks for a
    pause (Retry-After) gets no request in that time, nor does one that broke off, while another is live. A server that
    answers 429 or 503, or too late, gets fewer requests at once. When an exchange breaks, GET /models tells whether the
    server is dead or only this request failed; a server counts as down after `patience.retries` more looks. When a
    request is refused for a reason that concerns all (key, address), a short trial tells whether all are refused, or
    only this one, by a prompt filter. The jobs of a server that is down go to the others, and it is checked again
    later. When all servers are down, every job ends with a ModelError; the next job tries all of them again.

    A server that answers only 503, while GET /models is well, is loading its model: its jobs wait up to LOAD_S, and
    such tries do not count. A `Keeper` looks after our own servers.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        model: str,
        revision: str,
        connections: int,
        patience: Patience,
        service: Service = CHAT,
    ):
        """revision: revision of the model; "" takes the reported one. service: what all jobs ask for. Needs the running
        event loop."""
        self._service = service
        self.model, self.revision, self.patience = model, revision, patience
        self.servers = []
        for address in addresses:
            exchanger = address.exchanger(patience.connect_timeout_s)
            account = ServerAccount(address.name)
            self.servers.append(Server(exchanger, account, connections, float(connections), own=address.own))
        self._loop = asyncio.get_running_loop()
        self.keeper = Keeper(self)
        self._waiting: deque[Job] = deque()
        self._open: dict[Job, None] = {}  # in order of arrival
        self._called = False  # whether a call of `dispatch` is scheduled

    async def open(self) -> list[Card]:
        """Look at all servers. Returns the model cards of servers that answer. Raises ModelError if one serves another
        model.

        A server that does not answer counts as down, unless none answers.
        """
        looks = await asyncio.gather(*(self._first_look(server) for server in self.servers))
        cards = [look for look in looks if isinstance(look, dict)]
        refusals = [look for look in looks if isinstance(look, ModelError)]
        if refusals:
            raise _all_of("not all servers can be used", refusals)
        ids = {str(card["id"]) for card in cards}
        if len(ids) > 1:
            served = zip((s.name for s, look in zip(self.servers, looks) if isinstance(look, dict)), cards)
            given = ", ".join(f"{url}: {card['id']}" for url, card in served)
            do = "name the one model after # in each address"
            raise ModelError("the servers serve different models", given=given, expected="one model id", do=do)
        unanswered = [self._silent(s, look) for s, look in zip(self.servers, looks) if isinstance(look, Failure)]
        if not cards:
            raise _all_of("no model server answers", unanswered)
        self.model = ids.pop()
        revisions = {revision for card in cards if (revision := revision_of(card))}
        if len(revisions) > 1:
            given = ", ".join(sorted(revisions))
            raise ModelError("the servers serve different revisions", given=given, expected="one revision")
        self.revision = self.revision or "".join(revisions)
        for server, look in zip(self.servers, looks):
            if isinstance(look, Failure):
                self.put_down(server, self._silent(server, look))
        if any(server.own for server in self.servers):
            self._attendant = self._loop.create_task(self.keeper.attend())
            self._attendant.add_done_callback(self._watched)
        return cards

    def add(self, jobs: Iterable[Job]) -> None:
        """Accept jobs."""
        for job in jobs:
            self._open[job], job.sent_at = None, self._loop.time()
            self._waiting.append(job)
        if all(server.down for server in self.servers):
            if any(server.own for server in self.servers):  # they were restarted often enough
                self._end_without_servers()
                return
            for server in self.servers:  # they may be alive again
                self._stop_watch(server)
                server.down = None
                self.look_at(server)
        self.dispatch()

    def abort(self, jobs: Iterable[Job]) -> None:
        """Give up jobs: those not sent end with RequestFailed, the others end when their try ends.

        The connection to a server of our own is closed at once, which stops its work.
        """
        for job in jobs:
            job.unwanted = True
            if job.task is None or (job.tried is not None and job.tried.own is not None):
                self.end(job, aborted())

    def drop(self, jobs: Iterable[Job]) -> None:
        """End jobs with RequestFailed, and close the connections of jobs in flight."""
        for job in jobs:
            self.end(job, aborted())
        self.dispatch()

    async def close(self) -> None:
        """End all jobs and close all connections."""
        self.end_all(ModelError("the engine was closed"))
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)
        await asyncio.gather(*(server.exchanger.close() for server in self.servers))
        owned = [server.own for server in self.servers if server.own is not None]
        await asyncio.gather(*(asyncio.to_thread(own.close) for own in owned))

    def end_all(self, error: GpuRagError) -> None:
        """End all jobs with `error`."""
        for job in list(self._open):
            self.end(job, error)
        self._waiting.clear()

    # --- jobs ---

    def dispatch(self) -> None:
        """Send as many waiting jobs as servers take, in bursts: the first leave before the last are started."""
        n_begun = 0
        for server in self.servers:
            while server.suspects and server.live and server.watch is None and not server.running:
                for job in server.suspects.popleft():
                    if not job.over:
                        server.alone = True
                        self._begin(job, server, self._loop.time())
        now, later = self._loop.time(), list[Job]()
        while self._waiting and (free := [server for server in self.servers if server.takes(now)]):
            if n_begun == BURST:
                self._dispatch_soon()
                break
            job = self._waiting.popleft()
            if any(s.live and s.paused_until <= now for s in self.servers if s is not job.tried):
                free = [server for server in free if server is not job.tried]
            if job.over:
                continue
            if free:
                self._begin(job, min(free, key=lambda s: (len(s.running), s.n_sent)), now)
                n_begun += 1
            else:
                later.append(job)
        self._waiting.extendleft(reversed(later))

    def _dispatch_soon(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon(self._dispatch_more)

    def _dispatch_more(self) -> None:
        self._called = False
        self.dispatch()

    def _begin(self, job: Job, server: Server, now: float) -> None:
        server.begun(job, now)
        job.task = self._loop.create_task(self._send(job, server))
        job.task.add_done_callback(partial(self._sent, job, server))

    async def _send(self, job: Job, server: Server) -> None:
        if server.asleep:
            await self.keeper.wake(server)
        body, limit_s = job.body(job), self.patience.timeout_s
        outcome: Any = await server.exchanger.post(self._service.path, body, limit_s, job.on_text)
        outcome = job.read(outcome) if isinstance(outcome, bytes) else outcome
        server.left(job, self._loop.time())
        job.task = None
        self._judge(job, server, outcome)

    def _sent(self, job: Job, server: Server, task: asyncio.Task[None]) -> None:
        server.left(job, self._loop.time())
        if task.cancelled():  # dropped, or its server went down
            server.account.failures += not job.over
            if job.task is not task:  # it is tried elsewhere
                return
            job.task = None
            self._send_elsewhere(job, Failure("the server went down"))
        elif (bug := task.exception()) is not None:
            self.end(job, _bug(bug))
        self.dispatch()

    def _judge(self, job: Job, server: Server, outcome: Any) -> None:
        server.account.failures += isinstance(outcome, (Failure, GpuRagError))
        match outcome:
            case ModelError() if self._service.trial is not None:
                server.refused.append((job, outcome))
                if server.trial is None:
                    server.trial = self._loop.create_task(self._try(server))
                    server.trial.add_done_callback(self._watched)
            case RequestFailed() if job.on_text is not None and not isinstance(outcome, ContextOverflow):
                job.on_text = None  # the server may refuse streaming
                self.send_again(job)
            case Failure():
                self._failed(job, server, outcome)
            case _:
                if not isinstance(outcome, GpuRagError):
                    server.answered()
                self.end(job, outcome)

    def _failed(self, job: Job, server: Server, failure: Failure) -> None:
        loads = failure.unready and server.own is None and self._loads(server, failure)
        job.n_tries, job.n_waits = job.n_tries + (not loads), job.n_waits + loads
        if failure.busy:
            server.overloaded(job.sent_at, self._loop.time())
        if (wait_s := self._rest_s(server, failure)) is not None:
            server.paused_until = max(server.paused_until, self._loop.time() + wait_s)
            self._loop.call_later(wait_s, self.dispatch)
        may_die = server.own is not None and not failure.alive  # jobs on a dying server are set apart
        if job.unwanted:
            self.end(job, aborted())
        elif server.down:
            self._send_elsewhere(job, failure)
        elif loads:
            self.look_at(server)
            pause_s = min(self.patience.pause_s(job.n_waits - 1), LOAD_PAUSE_S)
            self._loop.call_later(pause_s, self.send_again, job)
        elif may_die or not failure.again or job.n_tries > self.patience.retries:
            server.in_question.append((job, failure))
            self.look_at(server)
        else:
            self.try_again(job, failure)
            if failure.broken:
                self.look_at(server)

    def _rest_s(self, server: Server, failure: Failure) -> float | None:
        """Seconds without requests for a server: those that it asks for; else, if others are live, a pause that doubles
        with each failure. Requests that fail together count once."""
        has_failed = failure.broken and server.paused_until <= self._loop.time()
        others_live = server.own is None and any(other.live for other in self.servers if other is not server)
        if failure.wait_s is not None or not (has_failed and others_live):
            return failure.wait_s
        server.n_failures += 1
        return min(self.patience.pause_s(server.n_failures - 1), LOAD_PAUSE_S)

    def _loads(self, server: Server, failure: Failure) -> bool:
        """Whether a server that answers 503 may still be loading its model. Logs one warning when that takes long."""
        now = self._loop.time()
        if server.unready_since is None:
            server.unready_since = now
        waited_s = now - server.unready_since
        if waited_s > 2 * self.patience.backoff_s and not server.is_waiting:
            server.is_waiting = True
            words = "model server %s is not ready, as while it loads a model; waiting up to %.0f minutes: %s"
            _log.warning(words, server.name, LOAD_S / 60, failure.why)
        return waited_s < LOAD_S

    def try_again(self, job: Job, failure: Failure) -> None:
        """Send a job again after a pause; give it up when it has no tries left or another try is useless."""
        if not failure.again or job.n_tries > self.patience.retries:
            self._give_up(job, failure)
        else:
            self._loop.call_later(self.patience.pause_s(job.n_tries - 1), self.send_again, job)

    def _send_elsewhere(self, job: Job, failure: Failure) -> None:
        """Resend a job whose server went down, unless its tries are used up: it may be what kills servers."""
        if job.n_tries > self.patience.retries:
            self._give_up(job, failure)
        else:
            self.send_again(job)

    def _give_up(self, job: Job, failure: Failure) -> None:
        given = f"{failure.why}, {job.n_tries} times" if job.n_tries > 1 else failure.why
        self.end(job, Unanswered("the server did not complete the request", given=given))

    def send_again(self, job: Job) -> None:
        """Send a job again, ahead of the jobs not sent yet."""
        if job.unwanted:
            self.end(job, aborted())
        elif not job.over:
            self._waiting.appendleft(job)
            self.dispatch()

    def end(self, job: Job, outcome: Any) -> None:
        """End a job with its outcome. A job that has ended keeps its first outcome."""
        if job.over:
            return
        job.over = True
        self._open.pop(job, None)
        if job.task is not None:
            job.task.cancel()
        job.done(job, outcome)

    # --- trials and looks ---

    async def _try(self, server: Server) -> None:
        """Send a harmless request: if it is refused too, the server refuses everything."""
        content = {"model": self.model, **(self._service.trial or {})}
        limit_s = min(LOOK_S, self.patience.timeout_s)
        outcome = await server.exchanger.post(self._service.path, json.dumps(content).encode(), limit_s)
        server.trial = None
        refused, server.refused = server.refused, []
        if isinstance(outcome, ModelError):
            self.put_down(server, outcome)
        for job, error in refused:
            if isinstance(outcome, ModelError):
                self.send_again(job)
            else:
                self.end(job, RequestFailed("the server refused the request", given=error.given))
        self.dispatch()

    def look_at(self, server: Server, pause_s: float = 0.0) -> None:
        """Check whether a server is alive, after a pause. Does nothing while a check runs."""
        if server.watch is None:
            server.watch = self._loop.create_task(self._watch(server, pause_s))
            server.watch.add_done_callback(self._watched)

    def _stop_watch(self, server: Server) -> None:
        if server.watch is not None:
            server.watch.cancel()
            server.watch = None

    def _watched(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (bug := task.exception()) is not None:
            self.end_all(_bug(bug))  # no caller is left waiting

    async def _watch(self, server: Server, pause_s: float) -> None:
        """Ask a server until it answers. It counts as down after as many attempts as a request has tries."""
        if server.own is not None:
            await self.keeper.tend(server)
            return
        await asyncio.sleep(pause_s)
        n_looks = 0
        while not isinstance(look := await self.look(server), dict):
            if isinstance(look, Failure) and look.alive:
                break
            server.live = False
            if isinstance(look, Failure) and look.loading and self._loads(server, look):
                await asyncio.sleep(min(self.patience.pause_s(n_looks), LOAD_PAUSE_S))
                continue
            n_looks += 1
            if isinstance(look, ModelError) or n_looks > self.patience.retries:
                self.put_down(server, look if isinstance(look, ModelError) else self._silent(server, look, n_looks))
            await asyncio.sleep(self.patience.pause_s(n_looks - 1))
        server.watch = None
        if server.down:
            _log.warning("model server %s answers again", server.name)
        server.live, server.down = True, None
        questions, server.in_question = server.in_question, []
        for job, failure in questions:
            self._give_up(job, failure)
        self.dispatch()

    async def _first_look(self, server: Server) -> Card | Failure | ModelError:
        return await (self._patient_look(server) if server.own is None else self.keeper.start(server))

    def put_down(self, server: Server, reason: ModelError) -> None:
        """Send a server no more requests, and move its jobs to the others. If no server is left, all jobs end."""
        known, server.live, server.down = server.down, False, reason
        if all(other.down for other in self.servers):
            self._end_without_servers()
            return
        if server.own is None:
            self.look_at(server, MAX_WAIT_S)
        else:
            heir = next(other for other in self.servers if not other.down)
            heir.suspects.extend(server.suspects)
            server.suspects.clear()
        if known is None:
            _log.warning("going on without a model server: %s", reason)
        questions, server.in_question = server.in_question, []
        for job, failure in questions:
            self._send_elsewhere(job, failure)
        for job in list(server.running):
            job.n_tries += 1
            if job.task is not None:
                job.task.cancel()  # `_sent` sends it again
        self._dispatch_soon()  # an idle heir has suspects now

    def _end_without_servers(self) -> None:
        error = _all_of("no model server answers", [other.down for other in self.servers if other.down])
        for other in self.servers:
            other.in_question.clear()
            other.suspects.clear()
            self._stop_watch(other)
        self.end_all(error)

    def _silent(self, server: Server, failure: Failure, n_looks: int | None = None) -> ModelError:
        n_looks = n_looks or self._n_looks(failure)
        given = f"{server.name}: {failure.why}" + (f", {n_looks} times" if n_looks > 1 else "")
        return ModelError("the model server does not answer", given=given, do="start it, then run again")

    def _n_looks(self, failure: Failure) -> int:
        """Number of attempts before a run: as many as a request has tries; at most two if nothing listens there."""
        return min(self.patience.retries, 1 if failure.unreached else self.patience.retries) + 1

    async def _patient_look(self, server: Server) -> Card | Failure | ModelError:
        """Look up to `_n_looks` times, longer while the server loads. Returns the first answer or the last failure."""
        n_before = 0
        while True:
            look = await self.look(server)
            loads = isinstance(look, Failure) and look.loading and self._loads(server, look)
            if not isinstance(look, Failure) or (n_before + 1 >= self._n_looks(look) and not loads):
                return look
            await asyncio.sleep(look.wait_s if look.wait_s is not None else self.patience.pause_s(min(n_before, 4)))
            n_before += 1

    async def look(self, server: Server) -> Card | Failure | ModelError:
        """The card of the named model; without a name, of the only one that the server has."""
        outcome = await server.exchanger.get("/models", min(LOOK_S, self.patience.timeout_s))
        if isinstance(outcome, (Failure, ModelError)):
            return outcome
        url = server.name
        try:
            if isinstance(outcome, RequestFailed):
                raise ValueError(str(outcome))
            cards = {str(card["id"]): dict(card) for card in json.loads(outcome)["data"]}
            "".join(cards).encode()  # half of a surrogate pair is not part of a name
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            given = f"{url}/models: {error!r}"[:300]
            return ModelError("the server does not list its models", given=given, expected="an OpenAI-style list")
        model = next(iter(cards)) if not self.model and len(cards) == 1 else self.model
        if model not in cards:
            given = self.model or "no name"
            if len(self.servers) > 1:
                given = f"{given} at {url}"
            expected = f"one of {', '.join(sorted(cards)) or 'none'}"
            do = "name the model after # in the address"
            return ModelError("the server does not serve this model", given=given, expected=expected, do=do)
        revision = revision_of(cards[model])
        if self.revision and revision and revision != self.revision:
            given, do = f"{url}: {revision}", "set models.revision to the served revision, or serve that one"
            return ModelError("the server serves another revision", given=given, expected=self.revision, do=do)
        return cards[model]


class Keeper:
    """Keeper that starts, restarts and stops our own servers among `servers`, in the thread of their event loop.

    It restarts a server that dies or stops answering, at most RESTARTS times without a reply. The requests that ran at
    that time are retried in groups, one group at a time; after their second death each runs alone. A request that
    runs alone at its second or later death is given up. So a request that kills servers takes no others with it.
    """

    def __init__(self, servers: Servers):
        self._servers = servers
        self._loop = asyncio.get_running_loop()

    async def start(self, server: Server) -> Card | ModelError:
        """Start a server. Returns its model card once it answers."""
        own = _own(server)
        own.start()
        until = self._loop.time() + START_S
        while not own.ended() and self._loop.time() < until:
            await asyncio.sleep(START_LOOK_S)
            if not isinstance(await server.exchanger.get("../health", LOOK_S), bytes):
                continue
            card = await self._servers.look(server)
            if isinstance(card, (dict, ModelError)):
                return card
        given = f"{server.name}: {own.last_words()}" if own.ended() else f"no answer in {START_S:g} s"
        await asyncio.to_thread(own.stop)
        return ModelError("the model server did not start", given=given)

    async def attend(self) -> None:
        """Check now and then whether the servers still run."""
        while True:
            await asyncio.sleep(ATTEND_S)
            for server in self._servers.servers:
                if server.own is not None and server.live and server.own.ended():
                    self._servers.look_at(server)

    async def tend(self, server: Server) -> None:
        """Check a server whose state is unknown; restart it if it is dead."""
        if not await self._is_well(server):
            await self._revive(server)
            return
        server.watch = None
        questions, server.in_question = server.in_question, []
        for job, failure in questions:
            self._servers.try_again(job, failure)
        self._servers.dispatch()

    async def sleep(self) -> None:
        """Let idle servers free the memory of their GPUs until their next request."""
        for server in self._servers.servers:
            if server.own is not None and server.live and not server.running and not server.asleep:
                server.asleep = True
                await server.exchanger.post("../sleep?level=1", b"", self._servers.patience.timeout_s)

    async def wake(self, server: Server) -> None:
        """Wake a sleeping server; concurrent callers share one request."""
        if server.waking is None:
            request = server.exchanger.post("../wake_up", b"", self._servers.patience.timeout_s)
            server.waking = self._loop.create_task(request)
        await asyncio.shield(server.waking)
        server.asleep, server.waking = False, None

    async def count(self) -> None:
        """Read the servers' preemptions and queue times."""
        for server in self._servers.servers:
            if server.own is not None and server.live:
                answer = await server.exchanger.get("../metrics", LOOK_S)
                if isinstance(answer, bytes):
                    text = answer.decode("utf-8", "replace")
                    server.counted = (int(_metric(PREEMPTIONS, text)), _metric(QUEUED_S, text))

    async def _is_well(self, server: Server) -> bool:
        own, patience = _own(server), self._servers.patience
        for n_before in range(patience.retries + 1):
            answer = await server.exchanger.get("../health", LOOK_S)
            if own.ended() or isinstance(answer, bytes):
                return not own.ended()
            await asyncio.sleep(patience.pause_s(n_before))
        return False

    async def _revive(self, server: Server) -> None:
        """Restart a server, and set apart the requests that ran when it died."""
        own = _own(server)
        server.live = False
        server.n_deaths += 1
        reason = own.last_words()
        self._suspect(server, self._took_part(server), reason)
        server.before = (server.before[0] + server.counted[0], server.before[1] + server.counted[1])
        server.counted = (0, 0.0)
        _log.warning("%s died, %d times since its last reply: %s", server.name, server.n_deaths, reason)
        await asyncio.to_thread(own.stop)
        given = f"{server.name}: {reason}; {server.n_deaths} deaths without a reply between them"
        dead = ModelError("the model server died", given=given, do="run again to continue")
        if server.n_deaths <= RESTARTS:
            await asyncio.sleep(min(RESTART_S * 2 ** (server.n_deaths - 1), MAX_RESTART_S))
            card = await self.start(server)
            if isinstance(card, dict):
                server.live, server.asleep, server.watch = True, False, None
                self._servers.dispatch()
                return
            dead = card
        server.watch = None
        self._servers.put_down(server, dead)

    def _took_part(self, server: Server) -> list[Job]:
        """Requests that ran when a server died. Requests that never reached it are sent again at once."""
        running: list[tuple[Job, Failure | None]] = [(job, None) for job in server.running]
        questions, server.in_question = server.in_question, []
        suspects = []
        for job, failure in [*questions, *running]:
            task, job.task = job.task, None
            server.left(job, self._loop.time())
            if task is not None:
                task.cancel()
            if failure is not None and failure.unreached:
                self._servers.send_again(job)
            else:
                suspects.append(job)
        return suspects

    def _suspect(self, server: Server, jobs: list[Job], reason: str) -> None:
        """Give up the request that surely killed a server; put the others into groups to be retried."""
        groups: list[list[Job]] = []
        size = max(1, len(jobs) // GROUPS)
        for job in jobs:
            job.deaths += 1
            if job.unwanted or job.over:
                self._servers.abort([job])
            elif job.deaths > 1 and len(jobs) == 1:
                given = f"{server.name}: {reason}"
                what = f"the model server died {job.deaths} times while this request ran, at last alone"
                self._servers.end(job, RequestFailed(what, given=given))
            elif job.deaths == 1 and groups and len(groups[-1]) < size:
                groups[-1].append(job)
            else:
                groups.append([job])
        server.suspects.extendleft(reversed(groups))


def _own(server: Server) -> OwnServer:
    assert server.own is not None
    return server.own


def _metric(name: re.Pattern[str], text: str) -> float:
    """Sum of a metric over all lines that report it."""
    return sum(float(number) for number in name.findall(text))


def revision_of(card: Card) -> str:
    """Revision of a model in its GET /models entry; "" if there is none."""
    named = next((text for name in REVISION if isinstance(text := card.get(name), str) and text.strip()), "")
    if named:
        return named.strip().encode("utf-8", "replace").decode()
    snapshot = _SNAPSHOT.search(str(card.get("root") or ""))  # vLLM reports here the folder that it serves
    return snapshot[1] if snapshot else ""


def _bug(bug: BaseException) -> ModelError:
    error = ModelError("the engine's thread failed", given=repr(bug))
    error.__cause__ = bug
    return error


def _all_of(what: str, reasons: Sequence[ModelError]) -> ModelError:
    if len(reasons) == 1:
        return reasons[0]
    return ModelError(what, given="; ".join(str(reason) for reason in reasons))
