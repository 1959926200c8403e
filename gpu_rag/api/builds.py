"""Builds of indexes, and the prediction of their cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from gpu_rag.api.arguments import (
    PathLike,
    SettingsLike,
    checked_count,
    checked_key,
    checked_names,
    checked_path,
    checked_paths,
    checked_settings,
    checked_text,
)
from gpu_rag.api.corpus import corpus_files
from gpu_rag.api.indexes import Index
from gpu_rag.api.parts import REPLIES, pool, pooled_folder
from gpu_rag.api.standing import Standing, with_others
from gpu_rag.cluster import run_tasks
from gpu_rag.errors import UsageError
from gpu_rag.index.build import build_index, built_stages, guard_folder
from gpu_rag.index.folder import EDITS, storage_errors, writing
from gpu_rag.index.manifest import mend_manifest
from gpu_rag.index.recorded import Record, record_of, recorded_sources, removed_from
from gpu_rag.index.saved_settings import check_same_models, saved_settings, settings_to_save
from gpu_rag.index.stage import Stage, settle
from gpu_rag.index.work import Progress, Silent, Sources
from gpu_rag.index.workers import embedding_workers, n_workers
from gpu_rag.methods.registry import DEFAULT, all_stages, stages_for
from gpu_rag.models.llm.cache import add_replies, mend_replies
from gpu_rag.models.llm.interface import LLM, ApiKeys
from gpu_rag.models.packaged import cache_dir, set_cache_dir
from gpu_rag.models.set import ModelSet
from gpu_rag.plan.compare import INDEX_KEYS, compared_build, planned_seconds, read_plan
from gpu_rag.plan.index_plan import plan_index
from gpu_rag.plan.trial import PLANNED, BuildJob
from gpu_rag.settings import Settings, changed_settings, make_settings, merge
from gpu_rag.sources.corpus import sorted_paths
from gpu_rag.sources.corpus.folder import is_index
from gpu_rag.sources.named import all_sources, named_source


class Building(TypedDict, total=False):
    """The keyword arguments of `build`."""

    methods: str | Sequence[str] | None
    openie: PathLike | Sequence[PathLike]
    kg: PathLike | Sequence[PathLike]
    skb: PathLike | Sequence[PathLike]
    sources: Sequence[str]
    settings: SettingsLike
    strict: bool
    fresh: bool
    forget_replies: bool
    retry_unread: bool
    llm: str | LLM | None
    embedder: str | None
    api_key: ApiKeys


def build(
    corpus: Any = (),
    out: PathLike = "",
    *,
    shards: int | None = None,
    on: str = "",
    progress: Progress | None = None,
    **keywords: Unpack[Building],
) -> Index:
    """Index a corpus into the folder `out`, with the stages that `methods` need. An interrupted build is resumed.

    corpus: a path (str or Path), a list of Path, a list of texts (str, or dict with text and maybe id, title and
    metadata), or a table with a column text: a pandas DataFrame, a pyarrow.Table, or a Dataset or IterableDataset of
    Hugging Face, which is read row by row. It may be () if there is a knowledge base.
    If an index in `out` has this corpus already, its other sources, such as added ones, stay in it.
    methods: by default the default method; none for a knowledge base alone, whose tables are always built. Stages of an
    existing index are kept and brought up to date.
    openie: ready extraction results; they switch the extractor to `import`. kg: files of triples; skb: folders of nodes
    and edges; sources: "NAME=kg|documents|web:PATH".
    settings, llm, embedder, api_key: see `Index`. Given settings override those saved in an index in `out`.
    strict: stop at the first bad row. fresh: build everything again, with cached replies; forget_replies: also without
    them; retry_unread: ask models again where a reply could not be read, also in finished stages.
    shards: number of processes that run the models, each on a part of the corpus; the index is the same. on:
    "ray:ADDRESS" runs these processes on the nodes of a Ray cluster, which must see the same paths.

    Returns the index; its `report` describes each stage. Raises UsageError and BadInput, IndexLocked, StorageError,
    IndexMismatch (other models than the existing index has, without fresh).
    """
    target, n_shards = checked_path("out", out), checked_count("shards", shards)
    if n_shards is not None:
        _build_shards(corpus, target, n_shards, checked_text("on", on), progress or Silent(), **keywords)
    elif on:
        raise UsageError("on is for shards", given=on, expected="a number of shards too")
    return run_build(corpus, target, progress=progress, **keywords)


def run_build(
    corpus: Any,
    target: Path,
    *,
    progress: Progress | None,
    used_replies: set[str] | None = None,
    parts: Sequence[Path] = (),
    **keywords: Unpack[Building],
) -> Index:
    """`build`, also of ready Sources.

    used_replies: a set that gets the keys of all replies that the index needs; stages that ask a model are then made
    again, from kept replies. parts: indexes that are merged; their stages are made too, by the same models.
    """
    if not (keywords.get("fresh") or keywords.get("forget_replies")):
        mend_manifest(target)
    replies = target / REPLIES
    if replies.is_file() and not keywords.get("forget_replies"):
        with writing(target):  # before a model opens the file
            mend_replies(replies)
    standing = None if isinstance(corpus, Sources) else Standing.read(target)
    with _job(corpus, target, parts=parts, **keywords) as job:
        plan = read_plan(target / "plan.json", INDEX_KEYS)
        if progress is not None:
            progress.begin(planned_seconds(plan, job))
        if used_replies is not None:
            job.models.note_replies(used_replies)
        report = build_index(
            target,
            job.stages,
            job.settings,
            job.sources,
            job.models,
            saved_settings=settings_to_save(job.settings),
            progress=progress,
            fresh=job.fresh,
            forget_replies=job.forget_replies,
            retry_unread=job.retry_unread,
            use_replies=used_replies is not None,
            drop_others=isinstance(corpus, Sources),
        )
    if standing is not None:
        standing.warn_of_lost(target, job.sources)
    comparison, remark = compared_build(plan, report)
    index = Index.open(target)
    index.report = replace(report, plan=comparison, notes=(*job.notes, *([remark] if remark else ())))
    return index


def _build_shards(corpus: Any, out: Path, n: int, on: str, progress: Progress, **keywords: Unpack[Building]) -> None:
    """Run the models on n parts of the corpus, each in a task of its own; pool replies and vectors for `out`."""
    if keywords.get("fresh") or keywords.get("forget_replies"):
        raise UsageError("shards continue an existing folder", given="fresh", expected="a new folder, or no fresh")
    guard_folder(out)
    with _job(corpus, out, **keywords) as job:
        inputs, settings = job.sources, settle(job.stages, job.settings, job.models)
        stages = asked_by_part(job.stages, settings)
    if not stages:
        return
    is_object = callable(getattr(keywords.get("llm"), "complete", None))
    if is_object or (job.settings.models.llm.startswith("vllm:") and not on):
        do = "start a server, and name it: http://HOST:PORT/v1#MODEL"
        raise UsageError("the language model serves one process, and shards are several", do=do)
    documents = replace(inputs, named=inputs.of_kind("documents"))
    workers = 1 if on else max(1, n_workers(job.settings) // n)  # Ray places a task a core
    shared = {
        "stages": stages,
        "settings": changed_settings(job.settings.changed("index", workers=workers)),
        "sources": msgspec.to_builtins(record_of(documents)),
        "strict": inputs.strict,
        "retry_unread": bool(keywords.get("retry_unread")),
        "replies": str((out / REPLIES).absolute()),
        "api_key": checked_key(keywords.get("api_key")),
        "cache": str(cache_dir().absolute()),
    }
    folders = [(out / "work" / "shards" / f"{number}-of-{n}").absolute() for number in range(n)]
    tasks = [{**shared, "folder": str(folder), "part": [number, n]} for number, folder in enumerate(folders)]
    progress.start("shards", n, "shards")
    run_tasks(f"{__name__}:build_shard", tasks, on, lambda: progress.advance(1))
    progress.finish("shards", skipped=False)
    pool(folders, out)


def build_shard(task: Mapping[str, Any]) -> None:
    """Run a task of `_build_shards`: build the stages that ask models, and their inputs, for one part of the corpus."""
    set_cache_dir(task["cache"])
    folder, kept = Path(task["folder"]), Path(task["replies"])
    sources = recorded_sources(msgspec.convert(task["sources"], Record), None)
    sources = replace(sources, strict=task["strict"], part=tuple(task["part"]))
    settings = make_settings(task["settings"]).changed(
        "index", min_yield=0.0
    )  # the whole corpus is checked, not a part
    if kept.is_file():
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        add_replies(folder / REPLIES, [kept])
    given: dict[str, Any] = {name: task[name] for name in ("api_key", "retry_unread")}
    workers = embedding_workers(settings)
    models = ModelSet(settings.models, folder / REPLIES, vllm=settings.vllm, workers=workers, **given)
    with closing(models):
        stages = [all_stages()[name] for name in task["stages"]]
        build_index(folder, stages, settings, sources, models, retry_unread=task["retry_unread"])


def asked_by_part(stages: Sequence[Stage], settings: Settings) -> list[str]:
    """Names of the stages that ask models about one passage or text at a time, and of their inputs, in building order.

    Stages of knowledge bases, stages whose requests depend on the whole corpus, and all stages that need one of these
    are omitted.
    """
    separable: dict[str, Stage] = {}
    for stage in stages:
        asks_about_all = "llm" in stage.roles(settings) and stage.size not in ("passages", "extracted")
        if not asks_about_all and not stage.name.startswith("kb") and {*stage.needs} <= separable.keys():
            separable[stage.name] = stage
    wanted: set[str] = set()
    for stage in reversed(separable.values()):
        if stage.roles(settings) or stage.name in wanted:
            wanted |= {stage.name, *stage.needs}
    return [name for name in separable if name in wanted]


def plan_build(
    corpus: Any = (),
    out: PathLike = "",
    *,
    n_sample: int | None = None,
    progress: Progress | None = None,
    **keywords: Unpack[Building],
) -> dict[str, Any]:
    """The cost of `build` with the same arguments, predicted from a sample of n_sample passages that is really indexed.

    The plan is also written into the folder `out`; a later build reports how accurate it was.
    """
    n_sample = checked_count("n_sample", n_sample)
    with _job(corpus, checked_path("out", out), changed=PLANNED, **keywords) as job:
        return plan_index(job, n_sample=n_sample, progress=progress)


@contextmanager
def _job(
    corpus: Any,
    out: Path,
    *,
    changed: dict[str, Any] | None = None,
    parts: Sequence[Path] = (),
    methods: str | Sequence[str] | None = None,
    openie: PathLike | Sequence[PathLike] = (),
    kg: PathLike | Sequence[PathLike] = (),
    skb: PathLike | Sequence[PathLike] = (),
    sources: Sequence[str] = (),
    settings: SettingsLike = None,
    strict: bool = False,
    fresh: bool = False,
    forget_replies: bool = False,
    retry_unread: bool = False,
    llm: str | LLM | None = None,
    embedder: str | None = None,
    api_key: ApiKeys = None,
) -> Iterator[BuildJob]:
    """A build with these arguments; its models are open inside the block. changed: settings of [models] that override
    all others. parts: see `run_build`."""
    fresh = fresh or forget_replies
    if openie and not isinstance(settings, Settings):
        settings = merge({"index": {"extractor": "import"}}, settings or {})
    chosen, model = checked_settings(settings, saved_settings(out, fresh), llm=llm, embedder=embedder)
    if openie and chosen.index.extractor != "import":
        raise UsageError(
            "--openie is not read by this extractor", given=f"index.extractor={chosen.index.extractor}",
            expected="import", do="leave one of the two out",
        )  # fmt: skip
    given: dict[str, Any] = {"openie": openie, "kg": kg, "skb": skb, "sources": sources, "strict": strict}
    inputs, notes = (corpus, ()) if isinstance(corpus, Sources) else with_others(sources_of(corpus, out, **given), out)
    usual = (DEFAULT,) if inputs.corpus or not inputs.named else ()  # with a knowledge base alone, none
    names = usual if methods is None else checked_names(methods)
    earlier = [] if fresh else [out, *parts]
    stages = stages_for(names, inputs, [name for folder in earlier for name in built_stages(folder)])
    chosen = chosen.changed("models", **changed) if changed else chosen
    models = ModelSet(
        chosen.models,
        out / REPLIES,
        llm=model,
        api_key=checked_key(api_key),
        vllm=chosen.vllm,
        retry_unread=retry_unread,
        pooled=pooled_folder(out),
        workers=1 if changed else embedding_workers(chosen),  # a plan measures the rates of one
    )
    with closing(models):
        for folder in earlier:
            check_same_models(folder, stages, chosen, models)
        yield BuildJob(out, stages, chosen, inputs, models, fresh, forget_replies, retry_unread, notes)


def sources_of(
    corpus: Any,
    out: Path,
    *,
    openie: PathLike | Sequence[PathLike] = (),
    kg: PathLike | Sequence[PathLike] = (),
    skb: PathLike | Sequence[PathLike] = (),
    sources: Sequence[str] = (),
    strict: bool = False,
) -> Sources:
    """The sources for `build`, in the form that stages take. Raises BadInput, and UsageError for wrong names."""
    named = all_sources(checked_paths("kg", kg), checked_paths("skb", skb), [named_source(text) for text in sources])
    files = corpus_files(corpus, out)
    if not files and not named:
        raise UsageError("there is nothing to index", given="none", expected="CORPUS, --kg, --skb or --source")
    for path in files:
        if is_index(path):
            do = "name the folder of the documents; --out names the index"
            raise UsageError("an index is not a corpus", given=path, expected="files or a folder of documents", do=do)
    triples = checked_paths("openie", openie)
    for path in triples:
        if not path.is_file():
            raise UsageError("no such file of --openie", given=path, expected="a file of entities and triples")
    documents = tuple(source.path for source in named if source.kind == "documents")
    # sorted, so that command line order does not change the digest
    return Sources(
        sorted_paths((*files, *documents)), sorted_paths(triples), strict, out / EDITS, named, removed_from(out)
    )
