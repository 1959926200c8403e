"""The command `gpu-rag index`: build an index folder from a corpus."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.options import (
    add_count,
    add_limits,
    add_list,
    add_progress,
    add_settings,
    api_key,
    exit_status,
    names,
    say,
    settings_of,
    table,
)
from gpu_rag.cli.plan_view import add_plan, check_plan, comparison, index_plan_text
from gpu_rag.cli.progress import Bars
from gpu_rag.cli.terminal import on_one_line
from gpu_rag.methods.registry import DEFAULT
from gpu_rag.report.accounts import fallbacks_line, server_lines, servers_document
from gpu_rag.runtime.accounts import add_fallbacks, fallbacks_by_step

if TYPE_CHECKING:
    from gpu_rag import Index
    from gpu_rag.index.build import BuildReport
    from gpu_rag.index.manifest import StageRecord
    from gpu_rag.types import Reject

HELP = "Index a corpus or a knowledge base into a folder; running it again continues where it stopped."
EXAMPLE = "gpu-rag index corpus.jsonl --out my-index"

COUNTS = ("documents", "passages", "entities", "relations", "mentions", "rejects")
MAX_KINDS = 8
FAILED = ("failed", "malformed", "truncated")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    formats = (
        "folder or .zip of files: text, .pdf, .html, office files, mails, .epub, .csv, .jsonl, .parquet, HotpotQA ..."
    )
    parser.add_argument("corpus", nargs="*", type=Path, metavar="CORPUS", help=formats)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to create, or index to update")
    add_list(parser, "--openie", "FILE", "triples: jsonl of {id, entities, triples}, or HippoRAG json")
    add_list(parser, "--kg", "FILE", "knowledge graph: triples as .tsv or .parquet, or RDF in any form")
    add_list(parser, "--skb", "DIR", "semi-structured knowledge base: a folder of nodes and edges")
    words = "a source with a name; KIND is kg (file or folder), documents or web (a snapshot)"
    add_list(parser, "--source", "NAME=KIND:PATH", words, dest="sources", type=str)
    words = f"also build what these methods, or all, need ({DEFAULT}; without a corpus the knowledge base alone)"
    parser.add_argument("--for", dest="methods", metavar="METHOD,...", help=words)
    words = "columns of tables, such as title=name,text=description (id, title, text; without: all are the text)"
    parser.add_argument("--columns", metavar="ROLE=COLUMN,...", help=words)
    parser.add_argument("--strict", action="store_true", help="stop at the first bad row, with status 2")
    parser.add_argument("--fresh", action="store_true", help="build from nothing, with the model replies that are kept")
    words = "build from nothing, and ask models everything again"
    parser.add_argument("--forget-replies", action="store_true", help=words)
    words = "ask models again where a reply could not be read"
    parser.add_argument("--retry-unread", action="store_true", help=words)
    add_count(parser, "--shards", "shards", "let N processes make what models make of parts of the corpus")
    words = "run the shards on a Ray cluster, whose nodes see the same paths"
    parser.add_argument("--on", default="", metavar="ray:ADDRESS", help=words)
    add_plan(parser)
    add_limits(parser, "0")
    add_progress(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Build, or plan, and report."""
    from gpu_rag import build, plan_build
    from gpu_rag.index.manifest import mend_manifest
    from gpu_rag.index.saved_settings import saved_settings

    check_plan(options)
    fresh = options.fresh or options.forget_replies
    if not (fresh or options.plan):
        mend_manifest(options.out)  # before its settings are read
    given_columns = {} if options.columns is None else {"columns": options.columns}
    flags = {"index": given_columns | ({"extractor": "import"} if options.openie else {})}
    settings = settings_of(options, saved_settings(options.out, fresh), flags)
    _say_unread(options)
    keys = ("openie", "kg", "skb", "sources", "strict", "forget_replies", "retry_unread")
    given = {key: getattr(options, key) for key in keys}
    methods = None if options.methods is None else names(options.methods)
    given |= {"methods": methods, "fresh": fresh, "settings": settings, "api_key": api_key(settings)}
    if options.plan:
        with Bars(options.json_progress) as bars:
            plan = plan_build(options.corpus, options.out, n_sample=options.plan_sample, progress=bars, **given)
        _say_columns(options, settings.index.columns)
        return 0, plan, index_plan_text(plan)
    before = _built(options, fresh)
    _say_extractor(before, settings.index.extractor)
    with Bars(options.json_progress) as bars:
        index = build(options.corpus, options.out, shards=options.shards, on=options.on, progress=bars, **given)
    report = index.report
    assert report is not None
    if gone := sorted(set(before) - set(report.manifest.stages)):
        why = "dropped, because they were damaged or their inputs changed"
        say(f"gpu-rag: {why}: {', '.join(gone)}; --for METHOD builds them again")
    _say_columns(options, settings.index.columns)
    return report_build(options, index)


def report_build(options: argparse.Namespace, index: Index) -> tuple[int, dict[str, Any], str]:
    """The exit status, the --json document and the text of a build."""
    report = index.report
    assert report is not None
    say(*report.notes)
    document = build_document(report)
    # from the manifest: failures of an earlier run are still in the index
    text = _summary(document) + _languages(document, index) + _rejects(document, index)
    return build_status(options, report, document), document, "\n".join((text, *removed_line(report.out)))


def removed_line(out: Path) -> list[str]:
    """A line about removed documents and files, which no build reads again."""
    from gpu_rag.index.recorded import removed_from

    n = len(removed_from(out))
    return [f"{n:,} removed documents or files stay out; gpu-rag add {out} FILE brings one back"] if n else []


def kinds_of_rejects(rejects: Iterable[Reject]) -> list[str]:
    """A line for each of the most frequent kinds of rejects, with examples, and one for the other kinds."""
    from gpu_rag.report.runs import reject_kinds

    kinds = reject_kinds(rejects)
    shown = [(n, f"{kind}: {', '.join(places)}{', ...' * (n > len(places))}") for kind, n, places in kinds]
    lines = [f"{n:>9,}  {on_one_line(text)}" for n, text in shown]
    if len(lines) > MAX_KINDS:
        n = sum(n for _, n, _ in kinds[MAX_KINDS:])
        lines[MAX_KINDS:] = [f"{n:>9,}  for {len(kinds) - MAX_KINDS:,} other reasons"]
    return lines


def _rejects(document: dict[str, Any], index: Index) -> str:
    """Rejects by kind, with examples, and the share of files that gave a document; "" without rejects."""
    from gpu_rag.index.stages.rejected import read_rejects
    from gpu_rag.index.tables import DOCUMENTS, read_batches

    if not document["rejects"]:
        return ""
    taken: set[str] = set()
    if (record := index.manifest.stages.get("passages")) is not None:
        for batch in read_batches(index.path / record.folder / "documents.parquet", DOCUMENTS, ["file"]):
            taken.update(batch["file"].unique().to_pylist())
    path = index.path / "rejects.jsonl"
    files = taken | {reject.file for reject in read_rejects(path)}
    head = f"rejects: {document['rejects']:,}; {len(taken):,} of {len(files):,} files taken; all with reasons in "
    return "\n".join(["", f"{head}{path}", *kinds_of_rejects(read_rejects(path))])


def _languages(document: dict[str, Any], index: Index) -> str:
    """The number of documents that are not English, and the effect of that; "" if all are."""
    counts = sorted(document.get("other_languages", {}).items(), key=lambda item: -item[1])
    if not counts:
        return ""
    shown = ", ".join(f"{n:,} {code}" for code, n in counts)
    line = f"{sum(n for _, n in counts):,} of {document['documents']:,} documents are not English ({shown})"
    if (record := index.manifest.stages.get("extraction")) is None or record.params["extractor"] != "patterns":
        return f"\n{line}"
    cost = "no facts were extracted from them; words find them, and vectors of --set models.embedder=e5"
    return f"\n{line}: {cost}. A language model extracts from all: --set index.extractor=llm"


def _say_unread(options: argparse.Namespace) -> None:
    """Name the files that no installed library can read. Raises UsageError for --columns that no table has."""
    from gpu_rag.api.builds import sources_of
    from gpu_rag.api.standing import with_others
    from gpu_rag.sources.columns import columns_of
    from gpu_rag.sources.corpus import check_named, unread
    from gpu_rag.sources.named import named_source

    if options.columns:
        given = {key: getattr(options, key) for key in ("openie", "kg", "skb", "sources")}
        sources, _ = with_others(sources_of(options.corpus, options.out, **given), options.out)
        check_named(sources.corpus, columns_of(options.columns))
    named = (source.path for source in map(named_source, options.sources) if source.kind in ("documents", "web"))
    for line in unread([*options.corpus, *named]):
        say(f"gpu-rag: {line}; each such file is a reject")


def _say_columns(options: argparse.Namespace, columns: str) -> None:
    """Name the tables without a column `text`, and columns that are not searched."""
    from gpu_rag.sources.columns import columns_of
    from gpu_rag.sources.corpus import guessed
    from gpu_rag.sources.rows import Limits

    say(*(f"gpu-rag: {line}" for line in guessed(options.corpus, Limits(columns=columns_of(columns)))))


def _built(options: argparse.Namespace, fresh: bool) -> dict[str, StageRecord]:
    """The stages of the index that the build keeps."""
    from gpu_rag.index.manifest import Manifest

    if fresh:
        return {}
    return Manifest.read(options.out).stages if (options.out / "manifest.json").is_file() else {}


def _say_extractor(before: dict[str, StageRecord], extractor: str) -> None:
    """Warn if another extractor makes the entities again, for example when --openie was forgotten."""
    used = before["extraction"].params.get("extractor") if "extraction" in before else None
    if used not in (None, extractor):
        again = "--openie FILE" if used == "import" else f"--set index.extractor={used}"
        change = f"made by the extractor {used}, now {extractor} makes them again, with all that depends on them"
        say(f"gpu-rag: entities of this index were {change}; {again} keeps them")


def build_status(options: argparse.Namespace, report: BuildReport, document: dict[str, Any]) -> int:
    n_failures = sum(document["extraction"].get(status, 0) for status in FAILED)
    n_extracted, n_read = document["passages"] - document["extraction"].get("skipped", 0), document["replies_read"]
    counts = (item for record in report.manifest.stages.values() for item in record.counts.items())
    lost = {name: n for name, n in counts if name.endswith("_failed") and name != "extraction_failed" and n}
    shown = f"requests to the model failed ({', '.join(f'{name} {n:,}' for name, n in lost.items())})"
    losses = [(n_failures, n_extracted, f"{n_failures} extractions failed"), (sum(lost.values()), n_read, shown)]
    return exit_status(options, losses, [(document["fallbacks"], n_read)])


def build_document(report: BuildReport) -> dict[str, Any]:
    """The --json document of a build."""
    from gpu_rag.methods.registry import hooks

    document: dict[str, Any] = {name: report.count(name) for name in COUNTS}
    counts = [(stage, name, n) for stage, record in report.manifest.stages.items() for name, n in record.counts.items()]
    of_extraction = ((name, n) for _, name, n in counts if name.startswith("extraction_"))
    document["extraction"] = {name.removeprefix("extraction_"): n for name, n in of_extraction}
    of_languages = {name.removeprefix("language_"): n for _, name, n in counts if name.startswith("language_")}
    document.update({"other_languages": of_languages} if of_languages else {})
    document["stages"] = {name: vars(stage) for name, stage in report.stages.items()}
    fallbacks: dict[str, int] = {}
    for stage in report.stages.values():
        add_fallbacks(fallbacks, stage.fallbacks)
    document["replies_read"] = sum(stage.replies_read for stage in report.stages.values())
    document["fallbacks"] = fallbacks_by_step(fallbacks)
    document["wall_s"], document["out"] = report.wall_s, str(report.out)
    document.update(servers_document(report.servers, report.wall_s))
    if "kb" in report.manifest.stages:
        of_kb = ((name, n) for stage, name, n in counts if stage.startswith("kb") and name != "rejects")
        document["kb"] = {name.removeprefix("kb_"): n for name, n in of_kb}
    for module in hooks("report"):
        document.update(module.figures(report))
    document.update({"plan": report.plan} if report.plan else {})
    return document


def _summary(document: dict[str, Any]) -> str:
    from gpu_rag.methods.registry import hooks, made_for
    from gpu_rag.report.runs import stage_table

    counts = ", ".join(f"{document[name]:,} {name}" for name in COUNTS)
    extraction = ", ".join(f"{n:,} {name}" for name, n in document["extraction"].items())
    lines = [
        table(*stage_table(document)),
        counts,
        *([f"extraction: {extraction}"] if extraction else []),
        *([fallbacks_line(document["fallbacks"], document["replies_read"])] if document["replies_read"] else []),
        *server_lines(document),
        f"index: {document['out']} ({document['wall_s']:.1f} s)",
    ]
    if "kb" in document:
        shown = ("nodes", "edges", "relations", "types", "links")
        lines.insert(-1, "knowledge base: " + ", ".join(f"{document['kb'][name]:,} {name}" for name in shown))
        if "kb_name_vectors" not in document["stages"] and not document["passages"]:
            able = " or ".join(f"--for {name}" for kind in ("skb", "kg") for name in made_for(kind))
            lines.append(f"no method can search this yet: run again with {able}")
    lines[-1:-1] = [line for module in hooks("report") for line in module.summary(document)]
    if "plan" in document:
        lines.append(f"\n{comparison(document['plan'])}")
    return "\n".join(lines)
