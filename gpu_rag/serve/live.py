"""The served indexes, each with an engine, and the thread whose streaming driver answers over all of them.

The engines are reopened if their models die. After a change of an index, a new engine answers later questions.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpu_rag.engine import MAX_VIEWS, Engine, Given, OnText, Prepared, drive
from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.methods.registry import method_names
from gpu_rag.models.set import ModelSet
from gpu_rag.program.decide import RULE
from gpu_rag.program.history import Turn
from gpu_rag.runtime.accounts import RunStats
from gpu_rag.runtime.handle import Handle
from gpu_rag.runtime.streaming import StreamingDriver
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.serve.refusal import Refusal
from gpu_rag.settings import Settings
from gpu_rag.settings.sections import ServeSettings
from gpu_rag.types import Question

WARM = Question("warm", "Which method answers first?")
READY, DEAD, STOPPING = "ready", "dead", "stopping"
MAX_PAUSE_S = 60.0
STOP_S = 5.0  # maximum wait at the end for a running batch, and for models to close
N_PREPARED = 256  # prepared methods in the cache of an index


@dataclass(frozen=True)
class Wanted:
    """A method and the arguments of `Engine.prepare` that a request wants; passages: its `limit`."""

    method: str
    retrieval_only: bool
    passages: int | None = None
    params: Given = None
    where: str = ""
    support: bool = False

    @property
    def key(self) -> Hashable:
        """A key of the cache, equal for equal arguments."""
        return repr({**vars(self), "params": sorted((self.params or {}).items())})


class Ready(NamedTuple):
    """A prepared method. version: number of the engine that prepared it, counted for its index."""

    prepared: Prepared
    version: int


class ServedIndex:
    """An index of the server, with its engine and its prepared methods. thread: answers questions over all indexes."""

    def __init__(self, name: str, thread: EngineThread, engine: Engine):
        self.name, self.thread = name, thread
        self.engine = engine  # the current or the last engine
        self.embedder: dict[str, Any] = {}  # description of the embedder
        self.lacking: dict[str, UsageError | None] = {}  # {method: the reason why it cannot retrieve, or None}
        self.answering: list[str] = []  # methods that can answer
        self._lock = threading.Lock()  # guards the ready methods; models stay open while it is held
        self._ready: dict[Hashable, Ready] = {}
        self._version = 0  # number of engines so far
        self._counting = threading.Lock()  # guards the open questions of each engine
        self._n_open = Counter[int]()
        self._replaced = set[int]()  # versions of replaced engines that are still in memory
        self._idle = set[int]()  # replaced versions without an open question at the last `release`

    def prepare(self, wanted: Wanted) -> Ready:
        """`Engine.prepare`, cached. Thread-safe; may load files. Raises its errors, and Refusal."""
        self.thread.check_ready()
        with self._lock:
            self.thread.check_ready()  # models may have been closed meanwhile, and preparing would reopen them
            ready = self.cached(wanted)
            if ready is None:
                ready = Ready(_prepare(self.engine, wanted), self._version)
                # fewer filtered methods are cached, since each keeps a part of the index in memory
                same = [key for key, other in self._ready.items() if bool(other.prepared.where) == bool(wanted.where)]
                if len(same) >= (MAX_VIEWS if wanted.where else N_PREPARED):
                    del self._ready[same[0]]
                self._ready[wanted.key] = ready
            return ready

    def ready(self, prepared: Prepared) -> Ready:
        """A program that is not a method, to be run by the current engine."""
        return Ready(prepared, self._version)

    def cached(self, wanted: Wanted) -> Ready | None:
        """The cached result of `prepare`, or None; never waits."""
        return self._ready.get(wanted.key)

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
        self.thread.check_ready()

        def ended(outcome: Outcome) -> None:
            self._count(ready.version, -1)
            on_end(outcome)

        self._count(ready.version, 1)
        try:
            return self.thread.driver.submit(question, ready.prepared.bind(question, on_text, history), ended, group)
        except UsageError as error:  # the driver died or was closed a moment ago
            self._count(ready.version, -1)
            raise Refusal(503, "the engine has stopped", headers={"Retry-After": "5"}) from error

    def _count(self, version: int, change: int) -> None:
        with self._counting:
            self._n_open[version] += change

    def replace(self, engine: Engine) -> bool:
        """Answer later questions from another engine with the same models; open questions keep their engine. False if
        the models were reopened meanwhile.

        First checks the files of its index that are in use, and prepares its methods. Raises the errors of the index.
        """
        engine.index.check_as(self.engine.index)
        with self.thread.switching:
            if self.thread.state != READY or engine.models is not self.engine.models:
                return False
            self.switch(engine)
            return True

    def release(self) -> None:
        """Free the memory and the locks of replaced engines without an open question, now and at the last call."""
        with self._counting:
            idle = {version for version in list(self._replaced) if not self._n_open[version]}
        if unread := idle & self._idle:
            gc.collect()
            self._replaced -= unread
        self._idle = idle - unread

    def close_models(self) -> None:
        """Close the models of the engine, after any method that is being prepared with them."""
        with self._lock:
            self.engine.models.close()

    def switch(self, engine: Engine) -> None:
        """Prepare the methods of an engine, then answer later questions from it."""
        engine.join(self.thread.stats, brings_models=engine.models is not self.thread.models)
        self.embedder = engine.models.describe("embedder")
        version, ready = self._version + 1, dict[Hashable, Ready]()

        def lack(method: str, retrieval_only: bool) -> UsageError | None:
            """The reason why a method cannot be served (no stage, language model, package or setting), or None."""
            wanted = Wanted(method, retrieval_only)
            try:
                ready[wanted.key] = Ready(_prepare(engine, wanted), version)
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


class EngineThread:
    """The thread that answers questions over all indexes together.

    open_engines: returns {name of an index: its engine}, the default index first; their models open at `start`. It is
    called again after models died, which ends all open questions. say(line): called for each death and revival. stats:
    totals over all engines. indexes: {name: the served index}.
    """

    driver: StreamingDriver  # the driver of the first engine, like its models and settings; set by `start`
    models: ModelSet
    _driver_settings: Settings

    def __init__(
        self, open_engines: Callable[[], Mapping[str, Engine]], settings: ServeSettings, say: Callable[[str], None]
    ):
        self._open_engines, self._settings, self._say = open_engines, settings, say
        self.stats = RunStats()
        self.indexes = {name: ServedIndex(name, self, engine) for name, engine in open_engines().items()}
        self.state, self.reason = STOPPING, "the server has not begun"
        self.llm: dict[str, Any] | None = None  # description of the language model, if there is one
        self.gone = False  # dead for good
        self.switching = threading.Lock()  # held while another engine is made ready; no question waits for it
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises the errors of the models and of the indexes."""
        self._adopt({name: live.engine for name, live in self.indexes.items()})
        self._thread.start()

    def check_ready(self) -> None:
        """Raise Refusal (503) unless questions are answered."""
        if self.state != READY:
            raise Refusal(503, self.reason, headers={"Retry-After": "5"})

    def stop(self) -> None:
        """End the thread after the running batch, and close the models."""
        self.state, self.reason = STOPPING, "the server is stopping"
        self._end.set()
        if self._thread.ident is not None:
            self.driver.close()
            self._thread.join(STOP_S)
        closing = threading.Thread(target=self._close_models, name="closing", daemon=True)
        closing.start()  # a model cannot be stopped in the middle of a batch
        closing.join(STOP_S)

    def _close_models(self) -> None:
        for live in reversed(self.indexes.values()):  # the first index has the language model that the others use
            live.close_models()

    # --- the engine's thread -----------------------------------------------------------------------

    def _adopt(self, engines: Mapping[str, Engine]) -> None:
        """Open the models of the engines and load what their methods need, so that the first question does not
        wait."""
        first = next(iter(engines.values()))
        models = self.models = first.models
        self._driver_settings = first.settings
        self.llm = {**models.describe("llm"), "capable": models.llm().capable} if models.has_llm() else None
        for name, engine in engines.items():
            live = self.indexes[name]
            live.switch(engine)
            for method in [method for method, lack in live.lacking.items() if lack is None and self._settings.warm]:
                (answer,) = engine.run(method, [WARM], retrieval_only=True, decider=RULE).answers
                if answer.error is not None:  # report it now, not only to the first client
                    self._say(f"{method} fails: {answer.error['message']}")
        self.driver = first.live(self.stats)
        self.state, self.reason = READY, ""

    def _work(self) -> None:
        """Answer questions until the end. Dead models are reopened after growing pauses."""
        pause_s = first_s = self._settings.revive_seconds
        try:
            while not self._end.is_set():
                try:
                    drive(self.driver, self._driver_settings, self.stats)
                except GpuRagError as error:
                    self.state, self.reason, pause_s = DEAD, f"the engine has stopped: {error}", first_s
                    self._say(self.reason)
                while self.state == DEAD:
                    if not pause_s or self._end.wait(pause_s):
                        return
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
                    self._revive()
        finally:
            if not self._end.is_set():  # also for unexpected errors, which the thread prints
                self.state, self.gone = DEAD, True
                self.reason = self.reason or "the engine has ended; see the server's output"

    def _revive(self) -> None:
        """Open engines again. If that fails, the state stays DEAD, with the reason."""
        try:
            with self.switching:
                self._close_models()
                self._adopt(self._open_engines())
            self._say("the engine answers again")
        except GpuRagError as error:
            self.reason = f"the engine cannot be opened again: {error}"
            self._say(self.reason)


def _prepare(engine: Engine, wanted: Wanted) -> Prepared:
    decider = RULE if wanted.retrieval_only else None  # a client's key that may only read asks no model
    return engine.prepare(
        wanted.method, limit=wanted.passages, retrieval_only=wanted.retrieval_only, params=wanted.params,
        where=wanted.where, support=wanted.support, decider=decider,
    )  # fmt: skip
