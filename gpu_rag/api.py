"""The Python API: `build`, `Index.open`, then `retrieve`, `ask` and `answer` of the index, and `evaluate`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, overload

from gpu_rag.engine import Engine, check_unique
from gpu_rag.errors import BadInput
from gpu_rag.evaluation.compare import DEFAULT_AT, Comparison, compare
from gpu_rag.evaluation.judge import open_judge
from gpu_rag.index import hetero
from gpu_rag.index import index as opened
from gpu_rag.index.build import BuildReport, build_index
from gpu_rag.index.folder import EDITS, WriteLock
from gpu_rag.index.manifest import mend_manifest
from gpu_rag.index.saved_settings import check_same_models, saved_settings, settings_to_save
from gpu_rag.index.work import Progress, Sources
from gpu_rag.methods.registry import DEFAULT, marked, stages_for
from gpu_rag.models.llm.cache import mend_replies
from gpu_rag.models.llm.interface import LLM, ApiKeys
from gpu_rag.models.set import ModelSet, OpenWorkers
from gpu_rag.report.answers import Result, Results
from gpu_rag.settings import Settings, make_settings, merge
from gpu_rag.sources.named import all_sources, named_source
from gpu_rag.sources.questions import QuestionRow, read_questions
from gpu_rag.types import Question, Reject

COMPARED = tuple(marked("compared"))
PathLike = str | Path
SettingsLike = Settings | Mapping[str, Any] | None


@dataclass(frozen=True)
class Kept:
    """Models that stay open, what they were opened for, and what closes them, once."""

    models: ModelSet
    settings: Settings
    llm: LLM | None
    api_key: ApiKeys
    close: Callable[[], object]


def _paths(given: PathLike | Sequence[PathLike]) -> tuple[Path, ...]:
    return (Path(given),) if isinstance(given, (str, Path)) else tuple(Path(p) for p in given)


def build(
    corpus: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    methods: Sequence[str] | None = None,
    openie: PathLike | Sequence[PathLike] = (),
    kg: PathLike | Sequence[PathLike] = (),
    skb: PathLike | Sequence[PathLike] = (),
    sources: Sequence[str] = (),
    settings: Settings | Mapping[str, Any] | None = None,
    strict: bool = False,
    fresh: bool = False,
    forget_replies: bool = False,
    retry_unread: bool = False,
    progress: Progress | None = None,
    llm: LLM | None = None,
    api_key: ApiKeys = None,
) -> BuildReport:
    """Indexes a corpus into the folder `out`, with the stages that `methods` need; resumes what is there.

    methods: the default one unless given; none for a knowledge base alone, whose tables are built in any case. kg:
    files of triples; skb: folders of nodes and edges; sources: "NAME=kg|documents|web:PATH". The corpus may then be ().
    settings: Settings, or nested sections such as {"index": {"chunk_words": 200}}, over what an index in `out`
    remembers. openie: ready extraction results; they switch the extractor to `import`. llm: an LLM object instead of
    the one that the settings name. Raises BadInput, IndexLocked, StorageError, IndexMismatch (other models than those
    that made what is there, without fresh). fresh: from nothing, with the replies that are kept; forget_replies:
    without them too; retry_unread: replies that could not be read are asked again, in stages that stand too.
    """
    target, fresh = Path(out), fresh or forget_replies
    if not fresh:
        mend_manifest(target)
    replies = target / "replies.sqlite"
    if replies.is_file() and not forget_replies:
        with WriteLock(target):  # before a model opens the file
            mend_replies(replies)
    if isinstance(settings, Settings):
        chosen = settings
    else:
        imported = {"index": {"extractor": "import"}} if _paths(openie) else {}
        chosen = make_settings(merge(imported, settings or {}), saved_settings(target, fresh))
    given = sources_of(corpus, target, openie=openie, kg=kg, skb=skb, sources=sources, strict=strict)
    stages = stages_for(default_methods(given) if methods is None else methods, given)
    models = open_models(chosen, replies, llm=llm, api_key=api_key, retry_unread=retry_unread)
    with closing(models):
        if not fresh:
            check_same_models(target, stages, chosen, models)
        return build_index(
            target,
            stages,
            chosen,
            given,
            models,
            saved_settings=settings_to_save(chosen),
            progress=progress,
            fresh=fresh,
            forget_replies=forget_replies,
            retry_unread=retry_unread,
        )


def open_models(
    settings: Settings,
    replies: Path | None = None,
    *,
    llm: LLM | None = None,
    api_key: ApiKeys = None,
    retry_unread: bool = False,
) -> ModelSet:
    """The models that the settings name, loaded on first use. replies: a file that keeps the LLM's."""
    placed: dict[str, Any] = {"vllm": settings.vllm, "workers": workers_of(settings)}
    return ModelSet(settings.models, replies, llm=llm, api_key=api_key, retry_unread=retry_unread, **placed)


def workers_of(settings: Settings) -> OpenWorkers | None:
    """The function that opens the workers that the settings ask for; None where models run in this process."""
    if settings.scale.address == "none":
        return None
    from gpu_rag.cluster import RayWorkers

    return partial(RayWorkers, settings.scale)


def sources_of(
    corpus: PathLike | Sequence[PathLike],
    out: Path,
    *,
    openie: PathLike | Sequence[PathLike] = (),
    kg: PathLike | Sequence[PathLike] = (),
    skb: PathLike | Sequence[PathLike] = (),
    sources: Sequence[str] = (),
    strict: bool = False,
) -> Sources:
    """The sources that `build` is given, as its stages take them. Raises BadInput, and UsageError for wrong names."""
    named = all_sources(_paths(kg), _paths(skb), [named_source(text) for text in sources])
    documents = tuple(source.path for source in named if source.kind == "documents")
    for path in _paths(corpus):
        if not path.exists():
            raise BadInput("no such corpus", given=path, expected="a file or folder that exists")
    return Sources((*_paths(corpus), *documents), _paths(openie), strict, out / EDITS, named)


def default_methods(sources: Sources) -> tuple[str, ...]:
    """The methods where none is named: the default one; without a corpus none, and only the knowledge base is built."""
    return (DEFAULT,) if sources.corpus or not sources.named else ()


class Index(opened.Index):
    """An index that answers: `Index.open(dir)`, then `retrieve`, `ask` and `answer`.

    The models that a call opened stay open for the next one, until another call names other settings, `close`, the end
    of a `with` block, or the end of the process.
    """

    _kept: Kept | None = None

    def engine(
        self,
        settings: Settings | Mapping[str, Any] | None = None,
        *,
        replies: Path | None = None,
        llm: LLM | None = None,
        api_key: ApiKeys = None,
        retry_unread: bool = False,
    ) -> Engine:
        """An engine over this index. Settings that are not given come from the index, then from the defaults."""
        saved = self.manifest.defaults()
        chosen = settings if isinstance(settings, Settings) else make_settings(settings or {}, saved)
        models = open_models(chosen, replies, llm=llm, api_key=api_key, retry_unread=retry_unread)
        self.device = models.device
        return Engine(self, chosen, models)

    @overload
    def retrieve(  # type: ignore[overload-overlap]  # a text is a sequence of texts too
        self,
        question: str | Question,
        *,
        method: str = ...,
        k: int | None = ...,
        settings: SettingsLike = ...,
        where: str = ...,
    ) -> Result: ...

    @overload
    def retrieve(
        self,
        question: Sequence[str | Question],
        *,
        method: str = ...,
        k: int | None = ...,
        settings: SettingsLike = ...,
        where: str = ...,
    ) -> Results: ...

    def retrieve(
        self,
        question: str | Question | Sequence[str | Question],
        *,
        method: str = DEFAULT,
        k: int | None = None,
        settings: SettingsLike = None,
        where: str = "",
    ) -> Result | Results:
        """The k best passages (default 5), with scores and the paths that led to them; no language model is asked.

        One question gives one result, with the sentences that bear on it; a list gives a list, without these. where:
        as in `answer`.
        """
        run = partial(self._run, method=method, settings=settings, limit=k, retrieval_only=True, where=where)
        return run([question], support=True)[0] if isinstance(question, (str, Question)) else run(question)

    def ask(
        self,
        question: str | Question,
        *,
        method: str = DEFAULT,
        settings: SettingsLike = None,
        llm: LLM | None = None,
        api_key: ApiKeys = None,
        where: str = "",
    ) -> Result:
        """The answer to one question, with the sentences that bear on it: what `gpu-rag ask` prints."""
        run = partial(self._run, method=method, settings=settings, llm=llm, api_key=api_key)
        return run([question], support=True, where=where)[0]

    def answer(
        self,
        questions: str | Question | Sequence[str | Question],
        *,
        method: str = DEFAULT,
        settings: SettingsLike = None,
        retrieval_only: bool = False,
        limit: int | None = None,
        llm: LLM | None = None,
        api_key: ApiKeys = None,
        where: str = "",
    ) -> Results:
        """Answers questions (texts or Question objects), in order. limit: passages retrieved a question.

        llm: an LLM object instead of the one that the settings name. api_key: of its server, or a mapping from address
        to key. where: a filter of documents by their metadata, such as "year >= 2020", in the language of `--where`.
        """
        given = [questions] if isinstance(questions, (str, Question)) else questions
        run = partial(self._run, method=method, settings=settings, llm=llm, api_key=api_key)
        return run(given, retrieval_only=retrieval_only, limit=limit, where=where)

    def _run(
        self,
        questions: Sequence[str | Question],
        *,
        method: str,
        settings: SettingsLike,
        llm: LLM | None = None,
        api_key: ApiKeys = None,
        **options: Any,
    ) -> Results:
        """Runs a method; options: as of `Engine.run`."""
        chosen = [q if isinstance(q, Question) else Question(f"q{i}", q) for i, q in enumerate(questions, 1)]
        check_unique(chosen)
        answers = self._engine(settings, llm, api_key).run(method, chosen, **options).answers
        return Results(Result(**vars(answer)) for answer in answers)

    def _engine(self, settings: SettingsLike, llm: LLM | None, api_key: ApiKeys) -> Engine:
        """An engine with the models of the last call, where that was given the same settings, model and key."""
        saved = self.manifest.defaults()
        chosen = settings if isinstance(settings, Settings) else make_settings(settings or {}, saved)
        kept = self._kept
        if kept is not None and kept.settings == chosen and kept.llm is llm and kept.api_key == api_key:
            return Engine(self, chosen, kept.models)
        self.close()
        engine = self.engine(chosen, llm=llm, api_key=api_key)
        # of the models alone: an engine knows the index, which would then never be let go at once
        self._kept = Kept(engine.models, chosen, llm, api_key, weakref.finalize(self, engine.models.close))
        return engine

    def close(self) -> None:
        """Closes the models that are open. The next call opens them again."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def to_pyg(self) -> Any:
        """This index as torch_geometric.data.HeteroData; kinds and attributes are those of `index.hetero`.

        Raises MissingBackend.
        """
        return hetero.to_hetero_data(hetero.hetero_graph(self))


def load_pyg(path: PathLike) -> Any:
    """The torch_geometric.data.HeteroData that `gpu-rag export --format pyg` wrote; no pickle is read.

    Raises BadInput, IndexCorrupt, MissingBackend.
    """
    return hetero.to_hetero_data(hetero.read_hetero(Path(path)))


def load_questions(path: PathLike, limit: int | None = None) -> tuple[list[QuestionRow], list[Reject]]:
    """(questions, rejects) of a file of questions; at most `limit` questions."""
    rows: list[QuestionRow] = []
    rejects: list[Reject] = []
    for item in read_questions(Path(path)):
        if isinstance(item, Reject):
            rejects.append(item)
        elif limit is None or len(rows) < limit:
            rows.append(item)
        else:
            break
    if not rows:
        reason = f"{rejects[0].file}:{rejects[0].line} {rejects[0].reason}" if rejects else "the file is empty"
        raise BadInput("no question could be read", given=f"{path}: {reason}")
    return rows, rejects


def evaluate(
    index: Index | PathLike,
    questions: PathLike | Sequence[QuestionRow],
    *,
    methods: Sequence[str] = COMPARED,
    retrieval_only: bool = False,
    at: Sequence[int] = DEFAULT_AT,
    settings: Settings | Mapping[str, Any] | None = None,
    llm: LLM | None = None,
    judge: bool = False,
    replies: Path | None = None,
    api_key: ApiKeys = None,
    where: str = "",
) -> Comparison:
    """Compares methods on questions with gold ids or answers; `.document` is what `eval --json` prints.

    judge: whether a model judges the answers too (`eval.judge`, else the one that answers). replies: a file that keeps
    what models replied. llm: an LLM object instead of the one that the settings name. where: as in `Index.answer`.
    """
    chosen = index if isinstance(index, Index) else Index.open(index)
    rows = load_questions(questions)[0] if isinstance(questions, (str, Path)) else list(questions)
    engine = chosen.engine(settings, replies=replies, llm=llm, api_key=api_key)
    opened_judge = open_judge(engine, replies=replies, api_key=api_key) if judge else nullcontext()
    with closing(engine.models), opened_judge as judging:
        return compare(engine, methods, rows, retrieval_only=retrieval_only, at=at, judge=judging, where=where)
