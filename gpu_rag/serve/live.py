"""The engine of a server: a live streaming driver in its own thread. It is reopened if its models die. After a change
of the index, another engine answers later questions by the same driver."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpu_rag.engine import MOST_PARTS, Engine, Given, OnText, Prepared, drive
from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.methods.registry import method_names
from gpu_rag.program.decide import RULE
from gpu_rag.program.history import Turn
from gpu_rag.runtime.accounts import RunStats
from gpu_rag.runtime.handle import Handle
from gpu_rag.runtime.streaming import StreamingDriver
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.serve.refusal import Refusal
from gpu_rag.settings.sections import ServeSettings
from gpu_rag.types import Question

WARM = Question("warm", "Which method answers first?")
READY, DEAD, STOPPING = "ready", "dead", "stopping"
LONGEST_PAUSE_S = 60.0
STOP_S = 5.0  # maximum wait at the end for a running batch, and for models to close
N_PREPARED = 256  # prepared methods that are cached


@dataclass(frozen=True)
class Wanted:
    """A method as questions want it, with the arguments of `Engine.prepare`. passages: its `limit`."""

    method: str
    retrieval_only: bool
    passages: int | None = None
    params: Given = None
    where: str = ""
    support: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for equal arguments."""
        return repr({**vars(self), "params": sorted((self.params or {}).items())})


class Ready(NamedTuple):
    """A prepared method, and the number of the engine that answers by it."""

    prepared: Prepared
    version: int


class Live:
    """Answers questions of any thread together in one thread.

    open_engine: returns an engine whose models open at `start`. It is called again after models died, which ends all
    open questions. say(line): called with a line for each death and revival. The stats are totals over all engines.
    """

    _driver: StreamingDriver  # set by `start`

    def __init__(self, open_engine: Callable[[], Engine], settings: ServeSettings, say: Callable[[str], None]):
        self._open_engine, self._settings, self._say = open_engine, settings, say
        self.engine = open_engine()  # the current or the last engine
        self.stats = RunStats()
        self.state, self.reason = STOPPING, "the server has not begun"
        self.lacking: dict[str, UsageError | None] = {}  # by method: why it cannot retrieve, None if it can
        self.answering: list[str] = []  # methods that answer
        self.llm: dict[str, Any] | None = None  # description of the language model, if there is one
        self.embedder: dict[str, Any] = {}  # description of the embedder
        self.gone = False  # dead, and not to be revived
        self._lock = threading.Lock()  # guards the ready methods; models stay open while it is held
        self._switching = threading.Lock()  # held while another engine is made ready; no question waits for it
        self._ready: dict[Hashable, Ready] = {}
        self._version = 0  # number of engines so far
        self._counting = threading.Lock()  # guards the open questions of each engine
        self._n_open = Counter[int]()
        self._replaced, self._idle = set[int](), set[int]()  # engines still in memory, and those that none asks
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    @property
    def n_running(self) -> int:
        """Number of open questions in the driver."""
        return self._driver.n_running

    def start(self) -> None:
        """Start the thread. Raises the errors of the models and of the index."""
        self._adopt(self.engine)
        self._thread.start()

    def prepare(self, wanted: Wanted) -> Ready:
        """`Engine.prepare`, cached. Thread-safe; may load files. Raises its errors, and Refusal."""
        self._check_ready()
        with self._lock:
            self._check_ready()  # models may have been closed meanwhile, and preparing would reopen them
            ready = self.cached(wanted)
            if ready is None:
                ready = Ready(_prepared(self.engine, wanted), self._version)
                # a filtered method keeps a part of the index in memory
                like = [key for key, other in self._ready.items() if bool(other.prepared.where) == bool(wanted.where)]
                if len(like) >= (MOST_PARTS if wanted.where else N_PREPARED):
                    del self._ready[like[0]]
                self._ready[wanted.key] = ready
            return ready

    def ready(self, prepared: Prepared) -> Ready:
        """A program that is no method, to be run by the current engine."""
        return Ready(prepared, self._version)

    def cached(self, wanted: Wanted) -> Ready | None:
        """The cached result of `prepare`, or None; never waits."""
        return self._ready.get(wanted.key)

    def _check_ready(self) -> None:
        if self.state != READY:
            raise Refusal(503, self.reason, headers={"Retry-After": "5"})

    def submit(
        self,
        ready: Ready,
        question: Question,
        on_end: Callable[[Outcome], None],
        group: Hashable = None,
        *,
        on_text: OnText = None,
        history: Sequence[Turn] = (),
    ) -> Handle:
        """Submit a question; on_end is called in the engine's thread. Groups take turns when questions wait.

        on_text, history: as in `engine.Prepared`. Raises Refusal if the question cannot be taken.
        """
        self._check_ready()

        def ended(outcome: Outcome) -> None:
            self._count(ready.version, -1)
            on_end(outcome)

        self._count(ready.version, 1)
        try:
            return self._driver.submit(question, ready.prepared.bind(question, on_text, history), ended, group)
        except UsageError as error:  # it died or was closed a moment ago
            self._count(ready.version, -1)
            raise Refusal(503, "the engine has stopped", headers={"Retry-After": "5"}) from error

    def _count(self, version: int, change: int) -> None:
        with self._counting:
            self._n_open[version] += change

    def replace(self, engine: Engine) -> bool:
        """Answer later questions from another engine with the same models; open questions keep the engine they have.
        False if the models were reopened meanwhile.

        The files of its index that are in use are checked, and its methods prepared, before. Raises the errors of the
        index.
        """
        engine.index.check_as(self.engine.index)
        with self._switching:
            if self.state != READY or engine.models is not self.engine.models:
                return False
            self._switch(engine)
            return True

    def release(self) -> None:
        """Free the memory and the locks of replaced indexes that no question has read since the last call."""
        with self._counting:
            idle = {version for version in list(self._replaced) if not self._n_open[version]}
        if unread := idle & self._idle:
            gc.collect()
            self._replaced -= unread
        self._idle = idle - unread

    def cancel(self, handle: Handle, reason: BaseException | None = None) -> None:
        """Cancel a question. The driver ignores questions that ended or that another driver took."""
        self._driver.cancel(handle, reason)

    def stop(self) -> None:
        """End the thread after the running batch, and close the models."""
        self.state, self.reason = STOPPING, "the server is stopping"
        self._end.set()
        if self._thread.ident is not None:
            self._driver.close()
            self._thread.join(STOP_S)
        closing = threading.Thread(target=self.engine.models.close, name="closing", daemon=True)
        closing.start()  # a model cannot be stopped in the middle of a batch
        closing.join(STOP_S)

    # --- the engine's thread -----------------------------------------------------------------------

    def _adopt(self, engine: Engine) -> None:
        """Open the models of an engine and load what its methods need, so that the first question does not wait."""
        models = engine.models
        self.llm = {**models.describe("llm"), "capable": models.llm().capable} if models.has_llm() else None
        self.embedder = models.describe("embedder")
        self._switch(engine)
        for method in [name for name, lack in self.lacking.items() if lack is None and self._settings.warm]:
            (answer,) = engine.run(method, [WARM], retrieval_only=True, decider=RULE).answers
            if answer.error is not None:  # report it now, not only to the first client
                self._say(f"{method} fails: {answer.error['message']}")
        self._driver = engine.live(self.stats)
        self.state, self.reason = READY, ""

    def _switch(self, engine: Engine) -> None:
        """Prepare the methods of an engine, then answer later questions from it."""
        version, ready = self._version + 1, dict[Hashable, Ready]()

        def lack(method: str, retrieval_only: bool) -> UsageError | None:
            """Why a method cannot be served (no stage, language model, package or setting); None if it can."""
            wanted = Wanted(method, retrieval_only)
            try:
                ready[wanted.key] = Ready(_prepared(engine, wanted), version)
            except UsageError as error:
                return error.with_traceback(None)  # whose frames would keep the callers alive
            return None

        lacking = {name: lack(name, True) for name in method_names()}
        answering = [name for name in method_names() if lacking[name] is None and lack(name, False) is None]
        with self._lock:
            if self._version:
                self._replaced.add(self._version)
            self.engine, self.lacking, self.answering = engine, lacking, answering
            self._ready, self._version = ready, version

    def _work(self) -> None:
        """Answer questions until the end. Dead models are reopened after growing pauses."""
        pause_s = first_s = self._settings.revive_seconds
        try:
            while not self._end.is_set():
                try:
                    drive(self._driver, self.engine.settings, self.stats)
                except GpuRagError as error:
                    self.state, self.reason, pause_s = DEAD, f"the engine has stopped: {error}", first_s
                    self._say(self.reason)
                while self.state == DEAD:
                    if not pause_s or self._end.wait(pause_s):
                        return
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                    self._revive()
        finally:
            if not self._end.is_set():  # also for unexpected errors, which the thread prints
                self.state, self.gone = DEAD, True
                self.reason = self.reason or "the engine has ended; see the server's output"

    def _revive(self) -> None:
        try:
            with self._switching:
                with self._lock:
                    self.engine.models.close()
                self._adopt(self._open_engine())
            self._say("the engine answers again")
        except GpuRagError as error:
            self.reason = f"the engine cannot be opened again: {error}"
            self._say(self.reason)


def _prepared(engine: Engine, wanted: Wanted) -> Prepared:
    decider = RULE if wanted.retrieval_only else None  # a key that may only read asks no model
    return engine.prepare(
        wanted.method, limit=wanted.passages, retrieval_only=wanted.retrieval_only, params=wanted.params,
        where=wanted.where, support=wanted.support, decider=decider,
    )  # fmt: skip
