"""Passages -> entities and triples, by one of three extractors: patterns, an LLM, or ready results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.coreference import coreference_params, resolved_texts
from gpu_rag.index.stages.passages import are_of_nodes, content_hash
from gpu_rag.index.stages.rejected import Rejects
from gpu_rag.index.stages.requests import ask, text_requests
from gpu_rag.index.work import Sources, Work
from gpu_rag.settings import Settings
from gpu_rag.sources.corpus.openie import OpenIERow, read_openie
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.rules.extraction import extract_patterns
from gpu_rag.text.rules.extraction.relations import ALSO_CALLED
from gpu_rag.types import Extraction, Profile, Reject, Request

Row = tuple[Extraction, str]  # what was found, and its status
_NOTHING = Extraction((), ())

# Small models repeat a fact or a name until they are stopped: bounds that end such a reply as valid JSON, within
# `index.extract_tokens`, keep what it said before.
_MOST = 30
_NAME = {"type": "string", "maxLength": 200}

_ENTITY = object_of(
    {
        "name": _NAME,
        "aliases": {"type": "array", "items": _NAME, "maxItems": 8},
        "types": {"type": "array", "items": {"type": "string", "maxLength": 60}, "maxItems": 4},
        "description": {"type": "string", "maxLength": 300},
    }
)
_TRIPLE = {"type": "array", "items": _NAME, "minItems": 3, "maxItems": 3}
SCHEMA = canonical_schema(
    object_of(
        {
            "entities": {"type": "array", "items": _ENTITY, "maxItems": _MOST},
            "triples": {"type": "array", "items": _TRIPLE, "maxItems": _MOST},
        }
    )
)


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The extractor, and what it reads beside the passages."""
    extractor = settings.index.extractor
    params: dict[str, Any] = {"extractor": extractor, **coreference_params(settings)}
    if not settings.index.extract_nodes and sources.of_kind("skb"):
        params["extract_nodes"] = False
    if extractor == "import":
        if not sources.openie:
            what, do = "extractor import needs results to import", "or name another: --set index.extractor=patterns"
            raise UsageError(what, given="none", expected="--openie FILE, as when the index was made", do=do)
        params["openie"] = content_hash(sources.openie)
    if extractor == "llm":
        prompt = Prompt.read("gpu_rag.index.stages.prompts", "extract")
        params["prompt"] = [prompt.system, prompt.render(title="", text="")]
        params["schema"], params["max_tokens"] = SCHEMA, settings.index.extract_tokens
    return params


@stage(
    "extraction",
    needs=("passages",),
    version=3,
    retry=("extraction_failed", "coref_failed"),
    params=_params,
    roles=lambda settings: ("llm",) if "llm" in (settings.index.extractor, settings.index.coref) else (),
    size="extracted",
)
def extraction_stage(work: Work) -> dict[str, int]:
    """Table `extractions`, one row a passage, with a status: ok, empty, truncated, malformed, failed or absent.

    Or skipped: the text of a node of a knowledge base where `index.extract_nodes` is false. Table `profiles`: aliases,
    types and descriptions of its entities, where they are known.

    Raises GpuRagError when an LLM's yield is below `index.min_yield`.
    """
    passages = tables.read_table(work.stage_folders["passages"] / "passages.parquet", tables.PASSAGES)
    n_passages = passages.num_rows
    chosen = np.arange(n_passages)
    if not work.settings.index.extract_nodes:
        chosen = np.flatnonzero(~are_of_nodes(work.stage_folders["passages"], passages["doc_id"]))
        passages = passages.take(pa.array(chosen))
    texts, coref = resolved_texts(work, passages["title"].to_pylist(), passages["text"].to_pylist())
    passages = passages.set_column(passages.schema.get_field_index("text"), "text", pa.array(texts, pa.string()))
    work.progress.start("extraction", passages.num_rows, "passages")
    extractor = {"patterns": by_patterns, "llm": by_llm, "import": by_import}[work.settings.index.extractor]
    found_of = dict(zip(chosen.tolist(), extractor(work, passages), strict=True))
    rows = [found_of.get(row, (_NOTHING, "skipped")) for row in range(n_passages)]
    columns = {
        "passage": list(range(len(rows))),
        "entities": [list(found.entities) for found, _ in rows],
        "triples": [[list(triple) for triple in found.triples] for found, _ in rows],
        "status": [status for _, status in rows],
    }
    tables.write_table(work.out / "extractions.parquet", tables.EXTRACTIONS, columns)
    tables.write_rows(work.out / "profiles.parquet", tables.PROFILES, _profile_rows(rows))
    statuses = sorted(Counter(status for _, status in rows).items())
    counts = {**coref, **{f"extraction_{status}": n for status, n in statuses}}
    if work.settings.index.extractor == "import":
        counts = {"rejects": (work.out / "rejects.jsonl").read_bytes().count(b"\n"), **counts}
    return counts


def _profile_rows(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for passage, (found, _) in enumerate(rows):
        for profile in found.profiles:
            if profile.aliases or profile.types or profile.description:
                yield {"passage": passage, **vars(profile)}


def _status(found: Extraction) -> str:
    return "ok" if found.entities else "empty"


def by_patterns(work: Work, passages: pa.Table) -> list[Row]:
    """Our own open information extraction for English, no model. "X, also called Y" makes Y an alias of X."""
    rows: list[Row] = []
    for title, text in zip(passages["title"].to_pylist(), passages["text"].to_pylist()):
        found = extract_patterns(title, text)
        aliases: dict[str, list[str]] = {}
        for subject, label, name in found.triples:
            if label == ALSO_CALLED:
                aliases.setdefault(subject, []).append(name)
        found = replace(found, profiles=tuple(Profile(name, tuple(also)) for name, also in aliases.items()))
        rows.append((found, _status(found)))
        work.progress.advance(1)
    return rows


# --- ready results ---------------------------------------------------------------------------------


def by_import(work: Work, passages: pa.Table) -> list[Row]:
    """Ready OpenIE results, matched by passage id or document id; rows that match nothing become rejects.

    A document of several passages: each name and triple goes to the passages that hold it verbatim, else to the first.
    """
    ids, doc_ids = passages["id"].to_pylist(), passages["doc_id"].to_pylist()
    texts = [f"{title}\n{text}" for title, text in zip(passages["title"].to_pylist(), passages["text"].to_pylist())]
    rows_of: dict[str, list[int]] = {}
    for row, (passage, document) in enumerate(zip(ids, doc_ids)):
        rows_of.setdefault(document, []).append(row)
        if passage != document:
            rows_of[passage] = [row]
    for members in rows_of.values():
        members.sort(key=lambda row: passages["start"][row].as_py())
    found: dict[int, Extraction] = {}
    with Rejects(work, work.sources.openie) as rejects:
        for item in _openie(work, rows_of):
            if isinstance(item, Reject):
                rejects.add(item)
                continue
            for row, part in _distribute(item, rows_of[item.id], texts):
                found[row] = _joined(found.get(row), part)
            work.progress.advance(1)
    return [(found[row], _status(found[row])) if row in found else (_NOTHING, "absent") for row in range(len(ids))]


def _openie(work: Work, rows_of: dict[str, list[int]]) -> Iterator[OpenIERow | Reject]:
    among = "" if work.settings.index.extract_nodes else ", texts of nodes left out (index.extract_nodes is false)"
    for path in work.sources.openie:
        for item in read_openie(path):
            if isinstance(item, OpenIERow) and item.id not in rows_of:
                yield Reject(str(path), 0, f"openie: no passage has this id{among}", item.id)
            else:
                yield item


def _distribute(item: OpenIERow, rows: list[int], texts: Sequence[str]) -> Iterator[tuple[int, Extraction]]:
    entities: dict[int, list[str]] = {row: [] for row in rows}
    triples: dict[int, list[tuple[str, str, str]]] = {row: [] for row in rows}
    for name in item.entities:
        for row in [row for row in rows if name in texts[row]] or rows[:1]:
            entities[row].append(name)
    for triple in item.triples:
        for row in [row for row in rows if triple[0] in texts[row] and triple[2] in texts[row]] or rows[:1]:
            triples[row].append(triple)
    for row in rows:
        yield row, Extraction(tuple(entities[row]), tuple(triples[row]))


def _joined(old: Extraction | None, new: Extraction) -> Extraction:
    if old is None:
        return new
    return Extraction(
        tuple(dict.fromkeys(old.entities + new.entities)), tuple(dict.fromkeys(old.triples + new.triples))
    )


# --- by an LLM -------------------------------------------------------------------------------------


def by_llm(work: Work, passages: pa.Table) -> list[Row]:
    """One schema-constrained request a passage, one repair try for a reply that cannot be read.

    Every finished reply is in the durable cache: a run after a killed one reuses it.
    """
    titles, texts = passages["title"].to_pylist(), passages["text"].to_pylist()
    rows = [_row(said) for said in ask(work, extraction_requests(titles, texts, work.settings), "extraction")]
    _check_yield(rows, work.settings.index.min_yield)
    return rows


def extraction_requests(titles: Sequence[str], texts: Sequence[str], settings: Settings) -> list[Request]:
    """The request to an LLM about each passage."""
    prompt, tokens = Prompt.read("gpu_rag.index.stages.prompts", "extract"), settings.index.extract_tokens
    return text_requests(prompt, titles, texts, schema=SCHEMA, max_tokens=tokens, seed=settings.runtime.seed)


def _row(said: dict[str, Any] | str) -> Row:
    """The extraction in a reply, and its status."""
    if isinstance(said, str):
        return _NOTHING, said
    profiles = tuple(
        Profile(e["name"], tuple(e["aliases"]), tuple(e["types"]), e["description"]) for e in said["entities"]
    )
    triples = tuple((s, r, o) for s, r, o in said["triples"])
    found = Extraction(tuple(profile.name for profile in profiles), triples, profiles)
    return found, _status(found)


def _check_yield(rows: list[Row], floor: float) -> None:
    n_ok = sum(status == "ok" for _, status in rows)
    if rows and n_ok < floor * len(rows):
        statuses = dict(Counter(status for _, status in rows))
        raise GpuRagError(
            "the extraction found entities in too few passages",
            given=f"{n_ok} of {len(rows)} ({statuses})",
            expected=f"at least {floor:.0%}",
            do="use a stronger model, --set index.extractor=patterns, or lower index.min_yield; replies are kept",
        )
