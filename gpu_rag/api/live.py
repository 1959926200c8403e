"""Questions of coroutines, answered together in one thread, which ends when none is open."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from gpu_rag.engine import Engine, Prepared, drive
from gpu_rag.errors import Cancelled, GpuRagError, ModelError, UsageError
from gpu_rag.runtime.accounts import RunStats
from gpu_rag.runtime.streaming import StreamingDriver
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.types import Question


class Live:
    """Runs a live engine in a thread. models: the lock of the models' user; the thread holds it while it runs.

    Only one thread at a time may call `submit`.
    """

    def __init__(self, models: threading.Lock):
        self._models = models
        self._lock = threading.Lock()  # guards the fields below
        self._driver: StreamingDriver | None = None  # accepts questions
        self._engine: Engine | None = None
        self._with_llm = False
        self._n_open = 0
        self.failed = False  # a run ended with an error: its models must be reopened

    def engine(self, with_llm: bool) -> Engine | None:
        """The running engine if it can take more questions, else None. Retrieval can join a run with answers, but not
        the reverse."""
        with self._lock:
            fits = self._driver is not None and self._with_llm >= with_llm
            return self._engine if fits else None

    def drain(self) -> None:
        """Take no more questions. When all open ones have ended, the thread ends and frees the models."""
        with self._lock:
            if self._driver is not None:
                self._driver.close()
            self._driver = self._engine = None

    def start(self, engine: Engine, with_llm: bool) -> None:
        """Start a thread that drives an engine. The caller holds the lock of the models; the thread releases it."""
        stats = RunStats()
        driver = engine.live(stats, with_llm=with_llm and engine.models.has_llm())
        with self._lock:
            self._driver, self._engine, self._with_llm, self._n_open = driver, engine, with_llm, 0
        threading.Thread(target=self._drive, args=(engine, driver, stats), name="gpu-rag", daemon=True).start()

    def submit(self, prepared: Prepared, questions: Sequence[Question], futures: Sequence[Future[Outcome]]) -> bool:
        """Submit questions, each with a future for its outcome. Cancelling a future aborts its question.

        Returns False and submits nothing if the driver has ended meanwhile.
        """
        with self._lock:
            driver = self._driver
            if driver is None:
                return False
            self._n_open += len(futures)
        for question, future in zip(questions, futures):
            self._submit(driver, prepared, question, future)
        return True

    def _submit(self, driver: StreamingDriver, prepared: Prepared, question: Question, future: Future[Outcome]) -> None:
        def end(outcome: Outcome) -> None:
            with self._lock:
                if self._driver is driver:
                    self._n_open -= 1
                    if not self._n_open:
                        driver.close()
                        self._driver = self._engine = None
            if future.set_running_or_notify_cancel():
                cause = outcome.error.__cause__ if isinstance(outcome.error, Cancelled) else None
                if isinstance(cause, GpuRagError):  # for example a dead model: no question can be answered
                    future.set_exception(cause)
                else:
                    future.set_result(outcome)

        try:
            handle = driver.submit(question, prepared.bind(question), end)
        except UsageError as error:  # it died after the first of these questions
            if future.set_running_or_notify_cancel():
                future.set_exception(
                    ModelError("the run has ended", do="ask again").with_traceback(error.__traceback__)
                )
            return
        future.add_done_callback(lambda done: driver.cancel(handle) if done.cancelled() else None)

    def _drive(self, engine: Engine, driver: StreamingDriver, stats: RunStats) -> None:
        try:
            drive(driver, engine.settings, stats)
        except GpuRagError:
            self.failed = True  # each open question gets the error as its cause
        finally:
            with self._lock:
                if self._driver is driver:
                    self._driver = self._engine = None
            self._models.release()
