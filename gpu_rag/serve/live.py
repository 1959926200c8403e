"""The engine of a server: a live streaming driver in its own thread. It is reopened if its models die, and replaced
after the index has changed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpu_rag.engine import MOST_PARTS, Engine, Given, OnText, Prepared
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


class Replaced(Exception):
    """The engine that the method was prepared for is, or is being, replaced: prepare the method again."""


class Live:
    """Answers questions of any thread together in one thread.

    open_engine: returns an engine whose models open at `start`. It is called again after models died, which ends all
    open questions. say(line): called with a line for each death and revival. The stats are totals over all engines.
    version: the number of engines adopted so far.
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
        self.gone = False  # dead, and not to be revived
        self.version = 0
        self._next: Engine | None = None  # replaces the engine when its open questions have ended
        self._lock = threading.Lock()  # guards the prepared methods
        self._swap = threading.Lock()  # guards the driver, the version and the next engine; never held for long
        self._prepared: dict[Hashable, Prepared] = {}
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

    def prepare(self, wanted: Wanted) -> Prepared:
        """`Engine.prepare`, cached. Thread-safe; may load files. Raises its errors, and Refusal."""
        self._check_ready()
        with self._lock:
            self._check_ready()  # models may have been closed meanwhile, and preparing would reopen them
            return self._prepare(wanted)

    def _prepare(self, wanted: Wanted) -> Prepared:
        prepared = self.cached(wanted)
        if prepared is None:
            # a key that may only read asks no model
            decider = RULE if wanted.retrieval_only else None
            prepared = self.engine.prepare(
                wanted.method, limit=wanted.passages, retrieval_only=wanted.retrieval_only, params=wanted.params,
                where=wanted.where, support=wanted.support,
                decider=decider,
            )  # fmt: skip
            # a filtered method keeps a part of the index in memory
            like = [key for key, other in self._prepared.items() if bool(other.where) == bool(wanted.where)]
            if len(like) >= (MOST_PARTS if wanted.where else N_PREPARED):
                del self._prepared[like[0]]
            self._prepared[wanted.key] = prepared
        return prepared

    def cached(self, wanted: Wanted) -> Prepared | None:
        """The cached result of `prepare`, or None; never waits."""
        return self._prepared.get(wanted.key)

    def _check_ready(self) -> None:
        if self.state != READY:
            raise Refusal(503, self.reason, headers={"Retry-After": "5"})

    def submit(
        self,
        prepared: Prepared,
        question: Question,
        on_end: Callable[[Outcome], None],
        group: Hashable = None,
        *,
        version: int,
        on_text: OnText = None,
        history: Sequence[Turn] = (),
    ) -> Handle:
        """Submit a question; on_end is called in the engine's thread. Groups take turns when questions wait.

        version: the value of `self.version` before `prepared` was looked up. on_text, history: as in `engine.Prepared`.
        Raises Refusal if the question cannot be taken, and Replaced.
        """
        self._check_ready()
        with self._swap:
            if self._next is not None or version != self.version:
                raise Replaced
            try:
                return self._driver.submit(question, prepared.bind(question, on_text, history), on_end, group)
            except UsageError as error:  # it died or was closed a moment ago
                raise Refusal(503, "the engine has stopped", headers={"Retry-After": "5"}) from error

    def replace(self, engine: Engine) -> None:
        """Switch to another engine with the same models as soon as all open questions have ended.

        The parts of the index that its methods need are loaded first. Raises the errors of the index.
        """
        for method in method_names():
            with suppress(UsageError):
                engine.prepare(method, retrieval_only=True, decider=RULE)
        with self._swap:
            self._next = engine
            self._driver.close()

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
        """Take a new engine and load what its methods need, so that the first question does not wait."""
        with self._lock:
            self._prepared.clear()
            self.engine, models = engine, engine.models
            self.llm = {**models.describe("llm"), "capable": models.llm().capable} if models.has_llm() else None
            lacking = {name: self._lack(name, True) for name in method_names()}
            answering = [name for name in method_names() if lacking[name] is None and self._lack(name, False) is None]
        self.lacking, self.answering = lacking, answering
        for method in [name for name, lack in self.lacking.items() if lack is None and self._settings.warm]:
            (answer,) = engine.run(method, [WARM], retrieval_only=True, decider=RULE).answers
            if answer.error is not None:  # report it now, not only to the first client
                self._say(f"{method} fails: {answer.error['message']}")
        with self._swap:
            self._driver, self._next, self.version = engine.live(self.stats), None, self.version + 1
        self.state, self.reason = READY, ""

    def _lack(self, method: str, retrieval_only: bool) -> UsageError | None:
        """Why a method cannot be served (no stage, language model, package or setting); None if it can."""
        try:
            self._prepare(Wanted(method, retrieval_only))
        except UsageError as error:
            return error
        return None

    def _work(self) -> None:
        """Answer questions until the end. Dead models are reopened after growing pauses."""
        pause_s = first_s = self._settings.revive_seconds
        try:
            while not self._end.is_set():
                try:
                    self.engine.drive(self._driver, self.stats)
                    if self._next is not None and not self._end.is_set():
                        self._adopt(self._next)
                        gc.collect()  # frees the locks of the old index, for which a removal waits
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
            with self._lock:  # models stay open while a method is being prepared
                self.engine.models.close()
            self._adopt(self._open_engine())
            self._say("the engine answers again")
        except GpuRagError as error:
            self.reason = f"the engine cannot be opened again: {error}"
            self._say(self.reason)
