"""The engine answers questions over one index. It binds a method, the models and a driver."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakMethod

from gpu_rag_kernels.dispatch import preferring, recording, taken

from gpu_rag.errors import BadInput, GpuRagError, RequestFailed, UsageError
from gpu_rag.index.folder import canonical_json, checksums, sha256_text
from gpu_rag.index.index import Index
from gpu_rag.methods.registry import (
    ALL,
    AUTO,
    best_method,
    check_passages,
    check_stages,
    load_method,
    method_names,
    method_of,
    needs,
    served,
    stage_narrowers,
)
from gpu_rag.methods.registry import Program as ProgramModule
from gpu_rag.models.fingerprint import file_sha256, identity
from gpu_rag.models.set import ModelSet
from gpu_rag.program.decide import RULE, decider_of
from gpu_rag.program.kinds import Models
from gpu_rag.program.reader import read
from gpu_rag.program.rerank import DEPTH, reranked
from gpu_rag.program.run import Decider, OnChoice, Run
from gpu_rag.program.steps import llm as llm_step
from gpu_rag.program.support import grounded, supported
from gpu_rag.runtime.accounts import Budget, RunStats
from gpu_rag.runtime.core import Program as Bound
from gpu_rag.runtime.rounds import Outcome, run_rounds
from gpu_rag.runtime.streaming import StreamingDriver, run_streaming
from gpu_rag.runtime.trace import Context
from gpu_rag.settings import Settings
from gpu_rag.settings.check import checked
from gpu_rag.types import Answer, Draft, Grounding, Question, Reply

if TYPE_CHECKING:
    from gpu_rag.program.history import Turn

Program = Callable[[Question, Run, Any], Any]
MAX_VIEWS = 8  # maximum number of filtered views of the index in memory
OnText = Callable[[str], None] | None
Given = Mapping[str, Any] | None  # parameters of a method by name; they override the settings


@dataclass(frozen=True)
class RunResult:
    """Answers in the order of the questions (empty with keep=False), and the run's totals."""

    answers: list[Answer]
    stats: RunStats
    wall_s: float


class Bind(Protocol):
    """The type of `Prepared.bind`."""

    def __call__(self, question: Question, on_text: OnText = None, history: Sequence[Turn] = ()) -> Bound:
        """Return the program that answers the question. A driver runs it."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A method that was checked against an index and bound to it. A driver runs `bind(question)`.

    where: the metadata filter of documents, "" for none. Arguments of `bind`: on_text, see `program.run.Run`; history,
    the earlier turns of the conversation, see `program.history`.
    """

    method: str
    config_hash: str
    bind: Bind
    where: str = ""


def method_for(index: Index, name: str) -> str:
    """The method that a name such as `auto` means for an index; other names do not change. Raises UsageError."""
    if name == AUTO and name not in method_names():  # the folder of `auto` may have been removed
        return best_method(index)
    stands_for = getattr(load_method(name), "stands_for", None)
    return name if stands_for is None else str(stands_for(index))


def methods_for(index: Index, names: Sequence[str]) -> list[str]:
    """The methods to compare: "all" alone means all that the index serves but `auto`, which is one of them."""
    return [name for name in served(index.stages) if name != AUTO] if list(names) == [ALL] else list(names)


def checked_method(index: Index, name: str) -> str:
    """Resolve a name with `method_for`, and check that the index has all stages that the method reads. Raises
    MissingLayer, whose message has the command to run."""
    method = method_for(index, name)
    check_stages(method, index.stages, str(index.path), index.manifest.sources)
    check_passages(method, index.n_passages, index.stages, str(index.path))
    return method


class Engine:
    """One index with its models and settings. Methods run over it one after another and share everything loaded."""

    def __init__(self, index: Index, settings: Settings, models: ModelSet):
        self.index, self.settings, self.models = index, settings, models
        self.on_reply: Callable[[Reply | RequestFailed], None] | None = None  # called with each finished reply
        self._models: dict[bool, Models] = {}
        index.device, index.threads = models.device, settings.models.op_threads(models.device)
        self._stats = RunStats()  # stats of the current run
        self._brings_models = False  # see `join`
        self._lock, self._parts = threading.Lock(), dict[str, Index | None]()
        taken(settings.graph.preferences(), index.device)
        for method in settings.method:  # report wrong names even if their method never runs
            self.params(method)

    def params(self, method: str, given: Given = None) -> Any:
        """The parameters of a method, checked. Values in `given` override the settings."""
        values = {**self.settings.method.get(method, {}), **(given or {})}
        return checked(load_method(method).Params, values, f"method.{method}")

    def narrowed(self, where: str) -> Index | None:
        """A view of the documents that match a metadata filter, see `index.narrow`: the index itself if all documents
        match, None if none does. The views that were used last stay in memory. Thread-safe. Raises UsageError.

        where: the filter, see `index.where`.
        """
        from gpu_rag.index.narrow import narrowed
        from gpu_rag.index.where import matching

        with self._lock:
            if where in self._parts:
                index = self._parts.pop(where)
            else:
                fits = matching(where, self.index.metadata)
                view = narrowed(self.index, fits, stage_narrowers()) if fits.any() and not fits.all() else None
                index = self.index if fits.all() else view
            while len(self._parts) >= MAX_VIEWS:
                del self._parts[next(iter(self._parts))]
            self._parts[where] = index
            return index

    def asks_model(self, retrieval_only: bool, decider: Decider | None = None) -> bool:
        """Whether a run may ask the language model. Retrieval alone does only if the settings let the model decide and
        no `decider` is given."""
        if not retrieval_only or not self.models.has_llm():
            return self.models.has_llm()
        return decider is None and self.model_decides()

    def model_decides(self) -> bool:
        """Whether the settings let a language model decide."""
        chosen = self.settings.models.decider
        return self.models.has_llm() and (chosen == "model" or (chosen == "auto" and self.models.is_capable()))

    def config(
        self,
        method: str,
        *,
        retrieval_only: bool = False,
        params: Given = None,
        where: str = "",
        decider: Decider | None = None,
    ) -> dict[str, Any]:
        """Everything that an answer depends on. A resumed run compares these values by name."""
        settings, method = self.settings, method_for(self.index, method)
        chosen = self.params(method, params)
        config: dict[str, Any] = {
            "method": method,
            "params": asdict(chosen),
            "reader": asdict(settings.reader),
            "seed": settings.runtime.seed,
            "budget": [settings.runtime.max_calls, settings.runtime.max_tokens, settings.runtime.max_seconds],
            "index": self.index.manifest.digest(),
        }
        if where:
            config["where"] = where
        if files := getattr(chosen, "files", ()):  # a path alone would not show that the file has changed
            config["files"] = {file: _content_of(Path(file)) for file in files}
        if (own_config := getattr(load_method(method), "config", None)) is not None:
            config.update(own_config(self.index, chosen))
        if self.asks_model(retrieval_only, decider):
            config["llm"] = {**identity(self.models.describe("llm")), "capable": self.models.llm().capable}
            config["decider"] = settings.models.decider
        if settings.models.reranker:
            config["reranker"] = self.models.describe("reranker")
        ran_by = taken(settings.graph.preferences(), self.index.device)
        config["graph"] = {family: ran_by[family] for family in method_of(method).inexact}
        if "passage_vectors" in needs(method):
            config["embedder"] = embedder = self.models.describe("embedder")
            self.index.check_embedder(embedder["name"], embedder["content_hash"])
        return config

    def config_hash(self, method: str, **options: Any) -> str:
        """A short hash of `config`, which has the same arguments."""
        return sha256_text(canonical_json(self.config(method, **options)))[:16]

    def _models_of_run(self, with_llm: bool) -> Models:
        """The models of a run, opened once. Raises IndexMismatch if the index was built with another embedder."""
        if with_llm not in self._models:
            embedder = self.models.embedder()
            self.index.check_embedder(embedder.name, embedder.content_hash)
            llm = self.models.llm() if with_llm else None
            note = WeakMethod(self._note_reply)  # a strong reference would be a cycle that keeps index and models alive
            on_reply, encoder = partial(_call_if_alive, note), self.models.cross_encoder()
            self._models[with_llm] = Models(llm, embedder, on_reply=on_reply, encoder=encoder)
        return self._models[with_llm]

    def _note_reply(self, reply: Reply | RequestFailed) -> None:
        """Record the time of a reply inside a batch, and report the reply."""
        self._stats.llm.answered(time.perf_counter())
        self._report(reply)

    def _report(self, reply: Reply | RequestFailed) -> None:
        if self.on_reply is not None:
            self.on_reply(reply)

    def prepare(
        self,
        method: str,
        *,
        limit: int | None = None,
        retrieval_only: bool = False,
        program: Program | None = None,
        params: Given = None,
        support: bool = False,
        where: str = "",
        decider: Decider | None = None,
        on_choice: OnChoice | None = None,
    ) -> Prepared:
        """Bind a method to this index, for `run` or for a live driver. Most arguments are as for `run`.

        params: parameters that override the settings. decider: replaces the decider of the settings. Raises
        MissingLayer, IndexMismatch, UsageError, ModelError.
        """
        retrieval_only, method = retrieval_only or not self.models.has_llm(), checked_method(self.index, method)
        module = load_method(method)
        options: dict[str, Any] = {"retrieval_only": retrieval_only, "params": params, "where": where}
        config_hash = self.config_hash(method, decider=decider, **options)
        asks = self.asks_model(retrieval_only, decider)
        index = self.part_for(method, where) if where else self.index
        chosen = self.params(method, params)
        if (check := getattr(module, "check", None)) is not None:  # checks the parameters against the index
            check(index or self.index, chosen)
        models = self._models_of_run(asks)
        reader, k, keep = self.settings.reader, limit or self.settings.reader.passages, 0
        if models.encoder is not None and program is None and "kb" not in needs(method):
            k, keep = max(k, DEPTH), k
        if decider is None:
            decider = RULE if not asks else decider_of(self.settings.models.decider, models.llm)
        own_program: Program = getattr(module, "program", _reading(module))
        program_of = program or (_retrieval(module) if retrieval_only else own_program)
        own = self.resources

        def bind(question: Question, on_text: OnText = None, history: Sequence[Turn] = ()) -> Bound:
            def bound(ctx: Context) -> Coroutine[Any, Any, Draft]:
                if index is None:
                    return _nothing()
                ctx.resources = {"index": index, **own}  # a driver may outlive this index
                run = Run(ctx, index, models, decider, reader, k, on_text, keep, on_choice=on_choice)
                if history:
                    return _after(history, question, run, lambda asked: program_of(asked, run, chosen), support)
                coroutine = program_of(question, run, chosen)
                return _with_support(question.text, coroutine) if support else coroutine

            return bound

        return Prepared(method, config_hash, bind, where)

    def part_for(self, method: str, where: str) -> Index | None:
        """The view that a method reads under a filter, see `narrowed`; the stages that it reads are made here. Raises
        UsageError if one of them cannot be filtered."""
        from gpu_rag.index.narrow import View

        method, index = method_for(self.index, method), self.narrowed(where)
        lacking = [] if index is None else [stage for stage in needs(method) if stage not in index.stages]
        if lacking:
            raise UsageError(
                f"{method} cannot be filtered by metadata of documents",
                given=f"--where {where}; it reads {', '.join(lacking)}",
                expected="a method over a corpus",
                do="leave --where out",
            )
        if isinstance(index, View):
            for stage in needs(method):
                index.make(stage)
        return index

    def live(self, stats: RunStats | None = None, *, with_llm: bool = True) -> StreamingDriver:
        """A streaming driver for questions that arrive one by one. Submit `prepare(method).bind(question)` to it, by
        this engine or another one with the same models and settings, and let a thread `drive` it. It does not keep this
        engine alive.

        with_llm: whether to use the language model, if the settings name one.
        """
        self._stats = stats = RunStats() if stats is None else stats
        with_llm = with_llm and self.models.has_llm()
        slow, low_water = self._slow() if with_llm else {"slow": None}, self.settings.runtime.low_water
        resources = {"models": self._models_of_run(with_llm)}
        return StreamingDriver(resources, **slow, low_water=low_water, stats=stats, **self._limits(None))

    def join(self, stats: RunStats, *, brings_models: bool) -> None:
        """Prepare from now on for the live driver of another engine. stats: statistics of the driver; brings_models:
        whether questions bring the models of this engine, all but the language model, which is always the driver's."""
        self._stats, self._brings_models = stats, brings_models

    @property
    def resources(self) -> dict[str, Any]:
        """{name: resource} that each question of this engine brings to the driver, in addition to its index."""
        return {"models": self._models_of_run(self.models.has_llm())} if self._brings_models else {}

    def _limits(self, max_live: int | None) -> dict[str, Any]:
        """Keyword arguments of a driver: its limits and its seed."""
        runtime = self.settings.runtime
        limits = (runtime.max_calls or None, runtime.max_tokens or None, runtime.max_seconds or None)  # 0: no limit
        budget = Budget(*limits) if any(limits) else None
        return {"max_live": max_live or runtime.max_live, "budget": budget, "run_seed": runtime.seed}

    def _slow(self) -> dict[str, Any]:
        """Keyword arguments of a streaming driver: the step whose calls run outside of it, and who answers them."""
        report = partial(_call_if_alive, WeakMethod(self._report))
        return {"slow": (llm_step, self.models.streaming_llm()), "on_answer": report}

    def run(
        self,
        method: str,
        questions: Iterable[Question],
        *,
        limit: int | None = None,
        retrieval_only: bool = False,
        on_begin: Callable[[Question], None] | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        keep: bool = True,
        max_live: int | None = None,
        stats: RunStats | None = None,
        program: Program | None = None,
        support: bool = False,
        where: str = "",
        decider: Decider | None = None,
        on_choice: OnChoice | None = None,
    ) -> RunResult:
        """Answer all questions with one method. Without a language model, answers have evidence but no text.

        limit: passages to retrieve (default: as many as the reader shows).
        retrieval_only: do not read, so that answers have no text; a model that decides still does, see `asks_model`.
        This is always so with `models.llm = "none"`.
        on_begin(question) is called when a question begins, on_answer(answer) as soon as it ends.
        keep: whether to return the answers. If not, questions are drawn one by one, and memory does not grow with them.
        max_live: how many questions are open at once; overrides the setting. stats: totals to add to.
        program: runs instead of the method's own program, with the method's parameters. An evaluation uses it for an
        oracle, which knows what no method may know.
        support: whether each answer includes the sentences that are relevant to its question.
        where: a metadata filter, see `index.where`; the method sees only the documents that match.
        decider: replaces the decider of the settings. on_choice: see `Run`.

        If a question fails, its answer has status "failed". Raises MissingLayer and IndexMismatch before any work, and
        ModelError if a model is down.
        """
        prepared = self.prepare(
            method, limit=limit, retrieval_only=retrieval_only, program=program, support=support, where=where,
            decider=decider, on_choice=on_choice,
        )  # fmt: skip
        answers: dict[str, Answer] = {}
        self._stats = stats = RunStats() if stats is None else stats

        def start(question: Question) -> tuple[Question, Bound]:
            if on_begin is not None:
                on_begin(question)
            return question, prepared.bind(question)

        def done(outcome: Outcome) -> None:
            answer = answer_of(outcome, prepared)
            if keep:
                answers[outcome.question.id] = answer
            if on_answer is not None:
                on_answer(answer)

        asked = list(questions) if keep else []
        began, asks_model = time.perf_counter(), self.asks_model(retrieval_only, decider)
        self._run_programs(map(start, asked if keep else questions), asks_model, done, max_live, stats)
        return RunResult([answers[q.id] for q in asked], stats, time.perf_counter() - began)

    def _run_programs(
        self,
        programs: Iterable[tuple[Question, Bound]],
        asks_model: bool,
        on_done: Callable[[Outcome], None],
        max_live: int | None,
        stats: RunStats,
    ) -> None:
        """Run bound programs by the driver of the settings. Arguments: as in `asks_model`, `_limits` and `run`."""
        models, runtime = self._models_of_run(asks_model), self.settings.runtime
        options = {**self._limits(max_live), "on_done": on_done, "stats": stats, "keep": False}
        with preferring(self.settings.graph.preferences()), recording() as used, _scanning_new_objects():
            if runtime.driver == "streaming" and models.llm is not None:
                run_streaming(programs, {"models": models}, **self._slow(), low_water=runtime.low_water, **options)
            else:
                run_rounds(programs, {"models": models}, **options)
        stats.add_implementations(used)


def drive(driver: StreamingDriver, settings: Settings, stats: RunStats) -> None:
    """Run a live driver in the calling thread until it is closed and drained. Raises the errors of
    `StreamingDriver.run`."""
    with preferring(settings.graph.preferences()), recording() as used:
        try:
            driver.run()
        finally:
            stats.add_implementations(used)


@contextmanager
def _scanning_new_objects() -> Iterator[None]:
    """Inside, the garbage collector skips the objects that exist already: libraries, models and the index. It would
    scan them again and again while answers are made."""
    if gc.get_freeze_count():  # the caller has done so, or a run in another thread
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _call_if_alive(method: WeakMethod[Any], reply: Reply | RequestFailed) -> None:
    if (alive := method()) is not None:
        alive(reply)


def _content_of(path: Path) -> str:
    """Hash of a file, or of all files below a folder. Raises BadInput."""
    try:
        return sha256_text(canonical_json(checksums(path))) if path.is_dir() else file_sha256(path)
    except OSError as error:
        raise BadInput("a file of the settings cannot be read", given=f"{path}: {error.strerror}") from error


def _retrieval(module: ProgramModule) -> Program:
    """The method's `retrieve` as a program, whose draft has evidence; its only text is a number counted exactly."""

    async def program(question: Question, run: Run, params: Any) -> Draft:
        support = await module.retrieve(question, run, params)
        if run.keep:
            passages, paths = await reranked(run, question.text, support.evidence, support.paths, run.keep)
            support = replace(support, evidence=passages, paths=paths)
        nodes, pools = getattr(support, "nodes", ()), getattr(support, "pools", ())  # only over knowledge bases
        remarks: dict[str, Any] = {
            name: getattr(support, name, ()) for name in ("missing", "unread", "barred", "sought")
        }
        count = getattr(support, "count", "") or None
        status = "answered" if count else "retrieved"
        draft = Draft(count, support.evidence, support.paths, status, nodes, pools, **remarks)
        has_findings = bool(draft.evidence or draft.paths or nodes) and not draft.doubtful
        return draft if has_findings else replace(draft, text=None, status="unsupported")

    return program


def _reading(module: ProgramModule) -> Program:
    """The method's `retrieve`, then the shared reader: the program of a method that defines none."""

    async def program(question: Question, run: Run, params: Any) -> Draft:
        return await read(run, question.text, await module.retrieve(question, run, params))

    return program


async def _nothing() -> Draft:
    """The draft if no document matches the filter."""
    return Draft(None, (), (), "unsupported")


async def _with_support(question: str, program: Coroutine[Any, Any, Draft]) -> Draft:
    draft = await program
    return replace(draft, support=await supported(question, draft))


async def _after(
    history: Sequence[Turn],
    question: Question,
    run: Run,
    program: Callable[[Question], Coroutine[Any, Any, Draft]],
    support: bool,
) -> Draft:
    """Condense a question and its earlier turns into one question, then run the program on it."""
    from gpu_rag.program.history import condensed

    text = await condensed(run, question.text, history)
    running = program(replace(question, text=text))
    draft = await (_with_support(text, running) if support else running)
    return draft if text == question.text else replace(draft, condensed=text)


def answer_of(outcome: Outcome, prepared: Prepared) -> Answer:
    """The answer to one question, made from its outcome."""
    question, draft, error, method = outcome.question, outcome.draft, outcome.error, prepared.method
    common: dict[str, Any] = {"trace": outcome.trace, "usage": outcome.usage, "config_hash": prepared.config_hash}
    common["where"] = prepared.where
    if draft is None:
        reason = {"type": type(error).__name__, "message": str(error) or type(error).__name__}
        return Answer(question.id, question.text, method, "failed", None, error=reason, **common)
    asked = draft.condensed or question.text
    shown = draft.evidence, draft.paths, draft.nodes
    grounding = Grounding() if draft.text is None else grounded(asked, draft.text, *shown)
    status = "unsupported" if grounding.status == "unsupported" or draft.doubtful else draft.status
    common.update(nodes=draft.nodes, pools=draft.pools, support=draft.support, grounding=grounding)
    common.update(condensed=draft.condensed, missing=draft.missing, source=draft.source)
    common.update(unread=draft.unread, barred=draft.barred, sought=draft.sought)
    return Answer(question.id, question.text, method, status, draft.text, draft.evidence, draft.paths, **common)


def check_unique(questions: Sequence[Question]) -> None:
    """Raise GpuRagError if two questions share an id, because their rows could not be told apart."""
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise GpuRagError("two questions have one id", given=question.id, do="give each question an id of its own")
        seen.add(question.id)
