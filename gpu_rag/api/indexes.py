"""An index that answers: retrieve, ask, answer and their awaitable twins, jobs, exports."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, overload

from gpu_rag.api.arguments import (
    PathLike,
    SettingsLike,
    checked_count,
    checked_key,
    checked_path,
    checked_settings,
    checked_text,
)
from gpu_rag.api.live import Live
from gpu_rag.api.models import Models, engine_over, open_engine, open_models
from gpu_rag.api.questions import Asked, checked_questions
from gpu_rag.engine import Engine, answer_of, check_unique
from gpu_rag.errors import ModelError, UsageError
from gpu_rag.index import index as opened
from gpu_rag.index.work import Progress
from gpu_rag.methods.registry import AUTO
from gpu_rag.models.llm.interface import LLM, ApiKeys
from gpu_rag.models.set import ModelSet
from gpu_rag.report.answers import Result, Results
from gpu_rag.runtime.tasks import Outcome

if TYPE_CHECKING:
    from gpu_rag.api.job import Job
    from gpu_rag.index.build import BuildReport


class Retrieving(TypedDict, total=False):
    """The keywords of a retrieval, see `Index`."""

    method: str
    k: int | None
    where: str
    settings: SettingsLike
    embedder: str | None


class Asking(Retrieving, total=False):
    """The keywords of a question to a language model, see `Index`."""

    llm: str | LLM | None
    api_key: ApiKeys


@dataclass(frozen=True)
class _Opened:
    """Models that stay open, what they were opened by, and the function that closes them, once."""

    models: ModelSet
    by: Models
    close: Callable[[], object]


class Index(opened.Index):
    """An index that answers: `Index.open(dir)`, then `retrieve`, `ask` and `answer`. Any thread may call it.

    Keywords of these:
    method: a method by name; `auto` is the one that `tune` found best, else the best that the index was built for.
    k: how many passages; the default is the setting `reader.passages`, 5.
    where: a filter of documents by their metadata, such as "year >= 2020", in the language of `--where`.
    settings: Settings, or sections such as {"reader": {"passages": 3}}, over those of the index.
    llm: the language model: a name as in the setting `models.llm`, such as "http://HOST:PORT/v1#MODEL", or an object.
    embedder: the embedder, as in the setting `models.embedder`; the one that the index was built with by default.
    api_key: the key of the model's server, or a mapping from address to key.

    A wrong argument raises UsageError, which names it. The models of a call stay open for the next one, until a call
    names other models or settings, `close`, the end of a `with` block, or the end of the index. report: of its build,
    where `build` returned it.
    """

    report: BuildReport | None = None

    def __init__(self, path: Path, manifest: Any, device: str):
        super().__init__(path, manifest, device)
        self._opened: _Opened | None = None
        self._opening = threading.Lock()  # held while it is decided which models are open
        self._models_lock = threading.Lock()  # held by whoever works with the models
        self._live = Live(self._models_lock)
        self._process = os.getpid()

    def __repr__(self) -> str:
        counts = self.counts()
        sizes = (f"{counts[name]:,} {name}" for name in ("passages", "entities", "kb_nodes") if counts.get(name))
        return f"Index({str(self.path)!r}: {', '.join(sizes)})"

    # --- questions ---------------------------------------------------------------------------------

    @overload
    def retrieve(self, question: Asked, **keywords: Unpack[Retrieving]) -> Result: ...  # type: ignore[overload-overlap]

    @overload
    def retrieve(self, question: Iterable[Asked], **keywords: Unpack[Retrieving]) -> Results: ...

    def retrieve(self, question: Any, **keywords: Unpack[Retrieving]) -> Result | Results:
        """The k best passages, with scores and the paths that led to them; no language model is asked.

        One question gives one result, with the sentences that bear on it; several give a list, without these.
        """
        single = _is_single(question)
        results = self._run(question, True, support=single, **keywords)
        return results[0] if single else results

    def ask(self, question: Asked, **keywords: Unpack[Asking]) -> Result:
        """The answer to one question, with the sentences that bear on it."""
        return self._run([question], False, support=True, **keywords)[0]

    def answer(self, questions: Asked | Iterable[Asked], **keywords: Unpack[Asking]) -> Results:
        """The answers to questions, in their order."""
        return self._run(questions, False, **keywords)

    async def aretrieve(self, question: Any, **keywords: Unpack[Retrieving]) -> Result | Results:
        """`retrieve`, awaited: questions of all coroutines are batched together; cancelling gives the question up."""
        single = _is_single(question)
        results = await self._arun(question, True, support=single, **keywords)
        return results[0] if single else results

    async def aask(self, question: Asked, **keywords: Unpack[Asking]) -> Result:
        """`ask`, awaited, see `aretrieve`."""
        return (await self._arun([question], False, support=True, **keywords))[0]

    async def aanswer(self, questions: Asked | Iterable[Asked], **keywords: Unpack[Asking]) -> Results:
        """`answer`, awaited, see `aretrieve`."""
        return await self._arun(questions, False, **keywords)

    def answer_file(
        self,
        questions: PathLike,
        out: PathLike,
        *,
        limit: int | None = None,
        retry_set_aside: bool = False,
        retry_unread: bool = False,
        progress: Progress | None = None,
        **keywords: Unpack[Asking],
    ) -> Job:
        """Answer a file of questions into the file `out`, a durable row each; called again it continues.

        limit: only the first so many questions. retry_set_aside: ask questions again over which the process died;
        retry_unread: also those where a reply of the model could not be read.
        Raises BadInput, IndexMismatch where `out` holds answers by other settings, IndexLocked, ModelError.
        """
        from gpu_rag.api.job import answer_file

        models, options = self._call(False, **keywords)
        retries = {"retry_set_aside": retry_set_aside, "retry_unread": retry_unread}
        return answer_file(self, questions, out, models, options, checked_count("limit", limit), progress, retries)

    def plan_answers(
        self,
        questions: PathLike,
        out: PathLike,
        *,
        limit: int | None = None,
        n_sample: int | None = None,
        **keywords: Unpack[Asking],
    ) -> dict[str, Any]:
        """The cost of `answer_file` with the same arguments, predicted from a sample that is really answered."""
        from gpu_rag.api.job import plan_answers

        models, options = self._call(False, **keywords)
        limit, n_sample = checked_count("limit", limit), checked_count("n_sample", n_sample)
        return plan_answers(self, questions, out, models, options, limit, n_sample)

    # --- files and other libraries -----------------------------------------------------------------

    def export(self, form: str, out: PathLike) -> list[Path]:
        """Write the index as "parquet" or "pyg" (a folder) or "graphml" (a file). Returns the files written.

        Raises UsageError for another form, and where `out` exists.
        """
        from gpu_rag.index.export import export

        return export(self, checked_text("form", form), checked_path("out", out))

    def to_pyg(self) -> Any:
        """This index as torch_geometric.data.HeteroData; kinds and attributes are those of `index.hetero`.

        Raises MissingBackend.
        """
        from gpu_rag.index import hetero

        return hetero.to_hetero_data(hetero.hetero_graph(self))

    # --- models ------------------------------------------------------------------------------------

    def engine(
        self,
        settings: SettingsLike = None,
        *,
        replies: Path | None = None,
        llm: Any = None,
        api_key: ApiKeys = None,
        retry_unread: bool = False,
    ) -> Engine:
        """An engine with models of its own, which its user closes. replies: a file that keeps the model's replies."""
        chosen, given = checked_settings(settings, self.manifest.defaults(), llm=llm)
        return open_engine(self, (chosen, given, api_key), replies, retry_unread)

    def close(self) -> None:
        """Close the models that are open, when the questions that are asked have ended. The next call opens others."""
        with self._opening:
            self._live.drain()
            with self._models_lock:
                self._close_models()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_models(self) -> None:
        closed, self._opened = self._opened, None
        if closed is not None:
            closed.close()

    def _engine(self, by: Models) -> Engine:
        """An engine with the open models, where the last call named the same. The caller holds both locks."""
        if self._opened is None or self._live.failed or not _same(self._opened.by, by):
            self._close_models()
            self._live.failed = False
            models = open_models(by[0], llm=by[1], api_key=by[2])
            # of the models alone: an engine knows the index, which would then never be let go at once
            self._opened = _Opened(models, by, weakref.finalize(self, models.close))
        return engine_over(self, self._opened.models, by[0])

    @contextmanager
    def _working(self, by: Models) -> Iterator[Engine]:
        """An engine that nobody else uses meanwhile."""
        with self._opening:
            self._live.drain()
            self._models_lock.acquire()
        try:
            yield self._engine(by)
        except ModelError:
            self._close_models()  # a model that died is opened anew by the next call
            raise
        finally:
            self._models_lock.release()

    # --- runs --------------------------------------------------------------------------------------

    def _call(
        self,
        retrieval_only: bool,
        *,
        method: str = AUTO,
        k: int | None = None,
        where: str = "",
        settings: SettingsLike = None,
        embedder: str | None = None,
        llm: Any = None,
        api_key: ApiKeys = None,
        support: bool = False,
    ) -> tuple[Models, dict[str, Any]]:
        """The keywords of a call, checked: the models that it names, and options of `Engine.run`."""
        if os.getpid() != self._process:  # its threads and locks stayed in the parent
            do = "open it in this process: gpu_rag.Index.open(path); or start processes by spawn"
            raise UsageError("an index does not outlive a fork", given=repr(self), do=do)
        chosen, given = checked_settings(settings, self.manifest.defaults(), llm=llm, embedder=embedder)
        options = {
            "method": checked_text("method", method),
            "limit": checked_count("k", k),
            "where": checked_text("where", where),
            "retrieval_only": retrieval_only,
            "support": support,
        }
        return (chosen, given, checked_key(api_key)), options

    def _run(self, questions: object, retrieval_only: bool, **keywords: Any) -> Results:
        asked = checked_questions(questions)
        by, options = self._call(retrieval_only, **keywords)
        check_unique(asked)
        with self._working(by) as engine:
            answers = engine.run(questions=asked, **options).answers
        return Results(Result(**vars(answer)) for answer in answers)

    async def _arun(self, questions: object, retrieval_only: bool, **keywords: Any) -> Results:
        asked = checked_questions(questions)
        by, options = self._call(retrieval_only, **keywords)
        futures: list[Future[Outcome]] = [Future() for _ in asked]
        try:
            method = await asyncio.to_thread(self._submit, by, options, asked, futures)
            outcomes = await asyncio.gather(*map(asyncio.wrap_future, futures))
        finally:
            for future in futures:
                future.cancel()  # one that has ended stays as it is
        return Results(Result(**vars(answer_of(outcome, method))) for outcome in outcomes)

    def _submit(self, by: Models, options: dict[str, Any], asked: list[Any], futures: list[Future[Outcome]]) -> Any:
        """Have questions answered by the live engine. Returns the method that was prepared for them."""
        while True:
            with self._opening:
                with_llm = not options["retrieval_only"]
                engine = self._live.engine(with_llm) if self._opened and _same(self._opened.by, by) else None
                if engine is not None:
                    prepared = engine.prepare(**options)
                    if self._live.submit(prepared, asked, futures):
                        return prepared
                    continue
                self._live.drain()
                self._models_lock.acquire()
                started = False
                try:
                    engine = self._engine(by)
                    prepared = engine.prepare(**options)
                    if asked:
                        self._live.start(engine, with_llm and engine.models.has_llm())
                        started = True  # from here on the lock is the thread's
                finally:
                    if not started:
                        self._models_lock.release()
                if not asked or self._live.submit(prepared, asked, futures):
                    return prepared


def _is_single(question: object) -> bool:
    """Whether it is one question and not several."""
    from gpu_rag.types import Question

    return isinstance(question, (str, Question, Mapping))


def _same(one: Models, other: Models) -> bool:
    return one[0] == other[0] and one[1] is other[1] and one[2] == other[2]


def load_pyg(path: PathLike) -> Any:
    """The torch_geometric.data.HeteroData that `gpu-rag export --format pyg` wrote; no pickle is read.

    Raises BadInput, IndexCorrupt, MissingBackend.
    """
    from gpu_rag.index import hetero

    return hetero.to_hetero_data(hetero.read_hetero(checked_path("path", path)))
