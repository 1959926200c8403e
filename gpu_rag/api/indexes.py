"""An index that answers questions: retrieve, ask, answer and their async variants, jobs, exports."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
from gpu_rag.api.questions import Asked, checked_questions
from gpu_rag.engine import Engine, answer_of, check_unique
from gpu_rag.errors import BadInput, ModelError, UsageError
from gpu_rag.index import index as opened
from gpu_rag.index.work import Progress
from gpu_rag.methods.registry import AUTO
from gpu_rag.models.llm.interface import LLM, ApiKeys
from gpu_rag.models.set import ModelSet
from gpu_rag.program.decide import RULE
from gpu_rag.report.answers import Result, Results
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.settings import Settings
from gpu_rag.settings.check import unknown_name
from gpu_rag.types import Evidence

if TYPE_CHECKING:
    from gpu_rag.api.job import Job
    from gpu_rag.index.build import BuildReport
    from gpu_rag.index.facts import Fact


Models = tuple[Settings, LLM | None, ApiKeys]  # settings that name models, a model as an object, keys of servers


class Retrieving(TypedDict, total=False):
    """The keyword arguments of a retrieval, see `Index`."""

    method: str | None
    k: int | None
    where: str | None
    settings: SettingsLike
    embedder: str | None


class Asking(Retrieving, total=False):
    """The keyword arguments of a question to a language model, see `Index`."""

    llm: str | LLM | None
    api_key: ApiKeys


@dataclass(frozen=True)
class _Opened:
    """Open models, the arguments they were opened with, and a function that closes them once."""

    models: ModelSet
    by: Models
    close: Callable[[], object]


class Index(opened.Index):
    """An index that answers questions: `Index.open(dir)`, then `retrieve`, `ask` and `answer`. It is thread-safe.

    Keyword arguments of these methods; None stands for the default of each:
    method: a method by name; `auto`: the best method by `tune`, else the best that the index was built for.
    k: number of passages; the default is the setting `reader.passages`, 5.
    where: a filter of documents by their metadata, such as "year >= 2020", in the language of `--where`.
    settings: Settings, or sections such as {"reader": {"passages": 3}}; they override the index's own.
    llm: the language model: a name as in the setting `models.llm`, such as "http://HOST:PORT/v1#MODEL", or an object.
    embedder: the embedder, as in the setting `models.embedder`; by default the embedder of the build.
    api_key: the key of the model's server, or a mapping from address to key.

    A wrong argument raises UsageError, which names it. The models of a call stay open for the next one. They are closed
    by a call with other models or settings, by `close`, at the end of a `with` block, or with the index. report: of the
    build, if `build` returned the index.
    """

    report: BuildReport | None = None

    def __init__(self, path: Path, manifest: Any, device: str):
        super().__init__(path, manifest, device)
        self._opened: _Opened | None = None
        self._opening = threading.Lock()  # held while deciding which models are open
        self._models_lock = threading.Lock()  # held by the user of the models
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
        """The k best passages, with scores and the paths that led to them. No language model is asked.

        One question gives one result, with the sentences that bear on it. Several questions give a list, without
        sentences.
        """
        single = _is_single(question)
        results = self._run(question, True, support=single, **keywords)
        return results[0] if single else results

    def ask(self, question: Asked, **keywords: Unpack[Asking]) -> Result:
        """The answer to one question, with the sentences that bear on it."""
        return self._run([question], False, support=True, **keywords)[0]

    def answer(self, questions: Asked | Iterable[Asked], **keywords: Unpack[Asking]) -> Results:
        """The answers to questions, in order."""
        return self._run(questions, False, **keywords)

    async def aretrieve(self, question: Any, **keywords: Unpack[Retrieving]) -> Result | Results:
        """An awaitable `retrieve`. The questions of all coroutines are batched together; cancelling aborts the
        question."""
        single = _is_single(question)
        results = await self._arun(question, True, support=single, **keywords)
        return results[0] if single else results

    async def aask(self, question: Asked, **keywords: Unpack[Asking]) -> Result:
        """An awaitable `ask`, see `aretrieve`."""
        return (await self._arun([question], False, support=True, **keywords))[0]

    async def aanswer(self, questions: Asked | Iterable[Asked], **keywords: Unpack[Asking]) -> Results:
        """An awaitable `answer`, see `aretrieve`."""
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
        """Answer a file of questions into the file `out`, with one durable row per question. A repeated call continues
        the job.

        limit: only the first questions. retry_set_aside: ask questions again during which the process died;
        retry_unread: also those for which a model reply could not be read. Raises BadInput, IndexMismatch if `out`
        holds answers made with other settings, IndexLocked, ModelError.
        """
        from gpu_rag.api.job import answer_file

        by, options = self._call(False, **keywords)
        engine = partial(self._own_engine, by, retry_unread=retry_unread)
        retries = {"retry_set_aside": retry_set_aside, "retry_unread": retry_unread}
        return answer_file(self, questions, out, engine, options, checked_count("limit", limit), progress, retries)

    # --- facts -------------------------------------------------------------------------------------

    def neighbours(self, name: str, *, k: int | None = 20) -> list[Fact]:
        """At most k facts around a name, the best connected other ends first. Raises BadInput for a name that the index
        lacks, MissingLayer."""
        from gpu_rag.index.facts import load_facts

        return self.loaded("facts", load_facts).around(checked_text("name", name), checked_count("k", k) or 20)

    def paths(self, start: str, end: str, *, k: int | None = 5, hops: int | None = 4) -> list[tuple[Fact, ...]]:
        """At most k chains of up to `hops` facts between two names, in any direction of the facts.

        Shorter chains come first, then chains through names with fewer facts. Raises as `neighbours`.
        """
        from gpu_rag.index.facts import load_facts

        facts = self.loaded("facts", load_facts)
        names = checked_text("start", start), checked_text("end", end)
        return facts.chains(*names, checked_count("k", k) or 5, checked_count("hops", hops) or 4)

    def passage(self, id: str) -> Evidence:
        """One passage by its id, with score 0. Raises BadInput for an unknown id."""
        row = self.rows_of_passages.get(checked_text("id", id))
        if row is None:
            raise BadInput("no such passage", given=id, expected="the passage_id of an evidence")
        return self.evidence([row], [0.0], "")[0]

    # --- files and other libraries -----------------------------------------------------------------

    def export(self, form: str, out: PathLike) -> list[Path]:
        """Write the index as "parquet" or "pyg" (a folder) or "graphml" (a file). Returns the written files.

        Raises UsageError for another form, and if `out` exists.
        """
        from gpu_rag.index.export import export

        return export(self, checked_text("form", form), checked_path("out", out))

    def to_pyg(self) -> Any:
        """The index as torch_geometric.data.HeteroData, with the kinds and attributes of `index.hetero`.

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
        """An engine with its own models, which the caller must close. replies: a file that stores the model's
        replies."""
        chosen, given = checked_settings(settings, self.manifest.defaults(), llm=llm)
        return self._own_engine((chosen, given, api_key), replies, retry_unread)

    def _own_engine(self, by: Models, replies: Path | None, retry_unread: bool) -> Engine:
        return Engine(self, by[0], _models(by, replies, retry_unread))

    def close(self) -> None:
        """Close the open models when all open questions have ended. The next call opens models again."""
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
        """An engine with the open models if the last call named the same, else with new ones. The caller holds both
        locks."""
        if self._opened is None or self._live.failed or not _same(self._opened.by, by):
            self._close_models()
            self._live.failed = False
            models = _models(by)
            # keep only the models: an engine holds the index, which could then not be freed at once
            self._opened = _Opened(models, by, weakref.finalize(self, models.close))
        return Engine(self, by[0], self._opened.models)

    @contextmanager
    def _working(self, by: Models) -> Iterator[Engine]:
        """Give exclusive use of an engine inside the block."""
        with self._opening:
            self._live.drain()
            self._models_lock.acquire()
        try:
            yield self._engine(by)
        except ModelError:
            self._close_models()  # the next call opens a dead model again
            raise
        finally:
            self._models_lock.release()

    # --- runs --------------------------------------------------------------------------------------

    def _call(
        self,
        retrieval_only: bool,
        *,
        method: str | None = None,
        k: int | None = None,
        where: str | None = None,
        settings: SettingsLike = None,
        embedder: str | None = None,
        llm: Any = None,
        api_key: ApiKeys = None,
        support: bool = False,
        **unknown: object,
    ) -> tuple[Models, dict[str, Any]]:
        """The checked keyword arguments of a call: the models that it names, and options of `Engine.run`."""
        for name in unknown:
            raise unknown_name("keyword", name, [*Asking.__annotations__])
        if os.getpid() != self._process:  # its threads and locks stayed in the parent
            do = "open it in this process: gpu_rag.Index.open(path); or start processes by spawn"
            raise UsageError("an index does not outlive a fork", given=repr(self), do=do)
        chosen, given = checked_settings(settings, self.manifest.defaults(), llm=llm, embedder=embedder)
        options = {
            "method": checked_text("method", method, AUTO),
            "limit": checked_count("k", k),
            "where": checked_text("where", where, ""),
            "retrieval_only": retrieval_only,
            "decider": RULE if retrieval_only else None,
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
                future.cancel()  # no effect on a finished one
        return Results(Result(**vars(answer_of(outcome, method))) for outcome in outcomes)

    def _submit(self, by: Models, options: dict[str, Any], asked: list[Any], futures: list[Future[Outcome]]) -> Any:
        """Submit questions to the live engine. Returns the method that was prepared for them."""
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
                        self._live.start(engine, with_llm)
                        started = True  # from here on the thread owns the lock
                finally:
                    if not started:
                        self._models_lock.release()
                if not asked or self._live.submit(prepared, asked, futures):
                    return prepared


def _is_single(question: object) -> bool:
    """Whether the argument is one question and not several."""
    from gpu_rag.types import Question

    return isinstance(question, (str, Question, Mapping))


def _models(by: Models, replies: Path | None = None, retry_unread: bool = False) -> ModelSet:
    settings, llm, api_key = by
    given: dict[str, Any] = {"llm": llm, "api_key": api_key, "vllm": settings.vllm, "retry_unread": retry_unread}
    return ModelSet(settings.models, replies, **given)


def _same(models: Models, other: Models) -> bool:
    return models[0] == other[0] and models[1] is other[1] and models[2] == other[2]


def load_pyg(path: PathLike) -> Any:
    """The torch_geometric.data.HeteroData written by `gpu-rag export --format pyg`; no pickle is read.

    Raises BadInput, IndexCorrupt, MissingBackend.
    """
    from gpu_rag.index import hetero

    return hetero.to_hetero_data(hetero.read_hetero(checked_path("path", path)))
