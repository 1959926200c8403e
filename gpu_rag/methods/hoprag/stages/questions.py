"""Pseudo-questions of every vertex: incoming ones that it answers, outgoing ones that it raises."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.index import tables
from gpu_rag.index.database import database
from gpu_rag.index.stage import stage, where_capable
from gpu_rag.index.stages.requests import WINDOW, decided
from gpu_rag.index.work import Sources, Work
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.stages.templates import (
    TEMPLATES_VERSION,
    Triple,
    answered_questions,
    raised_questions,
    types_of_triples,
    usable_types,
)
from gpu_rag.methods.hoprag.stages.vertices import vertex_folders, vertex_parts
from gpu_rag.methods.hoprag.tables import QUESTIONS, questions_file
from gpu_rag.models.ask import Ask, read_prompt
from gpu_rag.settings import Settings
from gpu_rag.text.keywords import names
from gpu_rag.text.normalise import normalise_name

MOST = 12  # questions per reply; at least 2 and 4, as in HopRAG
_PRONOUN = re.compile(r"\b(he|him|his|she|her|hers|it|its|they|them|their|theirs)\b", re.IGNORECASE)
_LISTS = pa.list_(pa.string())
Text = Annotated[str, Meta(max_length=300)]


class InQuestions(Struct, frozen=True):
    """Questions that a passage answers."""

    questions: Annotated[tuple[Text, ...], Meta(min_length=2, max_length=MOST)]


class OutQuestions(Struct, frozen=True):
    """Questions that a passage raises."""

    questions: Annotated[tuple[Text, ...], Meta(min_length=4, max_length=MOST)]


def answered_batch(vertices: pa.Table) -> pa.ListArray:
    """The incoming questions of vertices with `triples`, one list per vertex."""
    return pa.array([answered_questions(map(tuple, triples)) for triples in vertices["triples"].to_pylist()], _LISTS)


def raised_batch(vertices: pa.Table, types: Mapping[str, str], kinds: Container[str]) -> pa.ListArray:
    """The outgoing questions of vertices with `names` and `triples`. types: types of normalised names; kinds: the names
    that are the type of another."""
    rows = zip(vertices["names"].to_pylist(), vertices["triples"].to_pylist())
    return pa.array([raised_questions(names, map(tuple, triples), types, kinds) for names, triples in rows], _LISTS)


PROMPTS = "gpu_rag.methods.hoprag.prompts"
IN: Ask[InQuestions] = Ask("hop_in", InQuestions, rule=answered_batch, prompt=f"{PROMPTS}:hop_in")
OUT: Ask[OutQuestions] = Ask("hop_out", OutQuestions, rule=raised_batch, prompt=f"{PROMPTS}:hop_out")
SIDES: dict[str, Ask[Any]] = {"in": IN, "out": OUT}


def by_llm(work: Work, counts: Counter[str]) -> Iterator[tuple[str, pa.ListArray]]:
    """(side, questions of the next vertices) from two requests per vertex. counts: gets the replies by status (ok,
    malformed, truncated, failed) and the dropped questions.

    A question that `is_question` refuses is dropped. A vertex whose reply cannot be read after one repair has no
    questions of that side. Raises GpuRagError when the share of readable replies is below `index.min_yield`.
    """
    counts["hop_questions_dropped"] = 0
    statuses: Counter[str] = Counter()
    tokens = work.settings.section(HopSettings).tokens
    passage, parts = vertex_parts(*vertex_folders(work))
    for side, ask in SIDES.items():
        shown = (part for first in range(0, len(passage), WINDOW) for part in parts(first, first + WINDOW))
        replies = decided(work, ask, ({"title": title, "text": text, "max_tokens": tokens} for title, text in shown))
        while window := list(islice(replies, WINDOW)):
            statuses.update(reply if isinstance(reply, str) else "ok" for reply in window)
            written = [() if isinstance(reply, str) else reply.questions for reply in window]
            lists = [list(filter(is_question, texts)) for texts in written]
            counts["hop_questions_dropped"] += sum(map(len, written)) - sum(map(len, lists))
            yield side, pa.array(lists, _LISTS)
    total, floor = statuses.total(), work.settings.index.min_yield
    if statuses["ok"] < floor * total:
        raise GpuRagError(
            "the model wrote questions for too few passages",
            given=f"{statuses['ok']} of {total} replies ({dict(statuses)})",
            expected=f"at least {floor:.0%}",
            do="use a stronger model, --set hops.simulate=templates, or lower index.min_yield; replies are kept",
        )
    counts.update({f"hop_replies_{status}": n for status, n in statuses.items()})


def is_question(text: str) -> bool:
    """Whether a written question can join passages: it ends in a question mark, and refers to more than a pronoun.

    "What was her place of birth?" resembles the same question about any person, so its edge would be meaningless.

    >>> is_question("Where was Joan Clarke born?"), is_question("Where was she born?"), is_question("She was born.")
    (True, False, False)
    """
    return text.rstrip().endswith("?") and (not _PRONOUN.search(text) or bool(names(text)))


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The author of the questions, and the inputs they depend on."""
    if settings.section(HopSettings).simulate == "auto":
        raise UsageError("hops.simulate is not settled", given="auto", expected="llm | templates")
    if settings.section(HopSettings).simulate == "templates":
        return {"simulate": "templates", "templates": TEMPLATES_VERSION}
    prompts = {side: read_prompt(f"{PROMPTS}:hop_{side}").digest for side in SIDES}
    schemas = {side: ask.schema_text({}) for side, ask in SIDES.items()}
    request = {"schemas": schemas, "max_tokens": settings.section(HopSettings).tokens, "seed": settings.runtime.seed}
    return {"simulate": "llm", "prompts": prompts, **request}


@stage(
    "hop_questions",
    needs=("passages", "extraction", "hop_vertices"),
    version=4,
    retry=("hop_replies_failed",),
    params=_params,
    roles=lambda settings: ("llm",) if settings.section(HopSettings).simulate == "llm" else (),
    settled=where_capable(HopSettings, "hops", "simulate", "templates"),
    by_capability=lambda settings: settings.section(HopSettings).simulate == "auto",
)
def questions_stage(work: Work) -> dict[str, int]:
    """Write the tables `in_questions` and `out_questions`, sorted by (vertex, text), each text once per vertex.

    Raises GpuRagError when an LLM's yield is too low.
    """
    n_vertices = tables.n_rows(work.stage_folders["hop_vertices"] / "vertices.parquet")
    work.progress.start("hop_questions", 2 * n_vertices, "question lists")
    author = by_llm if work.settings.section(HopSettings).simulate == "llm" else by_templates
    counts, done = Counter({f"hop_{side}_questions": 0 for side in SIDES}), Counter[str]()
    with ExitStack() as stack:
        writers = {
            side: stack.enter_context(tables.TableWriter(questions_file(work.out, side), QUESTIONS)) for side in SIDES
        }
        for side, lists in author(work, counts):
            rows = pa.array([_each_once(texts) for texts in lists.to_pylist()], _LISTS)
            writers[side].add([pc.list_parent_indices(rows).to_numpy() + done[side], rows.flatten()])
            done[side] += len(lists)
            counts[f"hop_{side}_questions"] += len(rows.flatten())
    return dict(counts)


def _each_once(texts: Sequence[str]) -> list[str]:
    return sorted({line for text in texts if (line := " ".join(text.split()))})


_TYPED = pa.schema([("key", pa.string()), ("kind", pa.string())])
_COUNTED = "CREATE TABLE counted AS SELECT key, kind, count(*) AS n FROM typed GROUP BY key, kind"
_TYPES = "CREATE TABLE types AS SELECT key, arg_min(kind, row(-n, kind)) AS kind FROM counted GROUP BY key"
_OF_ASKED = "SELECT types.key, types.kind FROM types SEMI JOIN asked USING (key)"
_ASKED_KINDS = "SELECT key FROM asked SEMI JOIN types ON asked.key = types.kind"


def by_templates(work: Work, counts: Counter[str]) -> Iterator[tuple[str, pa.ListArray]]:
    """(side, questions of the next vertices) from the triples of each vertex. The type of a name is its commonest in
    the corpus, ties in alphabetical order."""
    path, first = work.stage_folders["extraction"] / "extractions.parquet", 0
    passage, parts = vertex_parts(*vertex_folders(work))
    with database(work) as db:
        db.create("typed", _TYPED)
        db.create("asked", _TYPED)
        for typed in _typed(path):
            db.add("typed", pa.Table.from_pylist([{"key": key, "kind": kind} for key, kind in typed], _TYPED))
        db.run(_COUNTED, "DROP TABLE typed", _TYPES)
        for batch in tables.read_batches(path, tables.EXTRACTIONS, ("entities", "triples")):
            begin, end = np.searchsorted(passage, [first, first + batch.num_rows]).tolist()
            given = pa.table([batch["entities"], batch["triples"]], ["names", "triples"])
            if end - begin > batch.num_rows:
                texts = [text for _, text in parts(begin, end)]
                starts = np.searchsorted(passage[begin:end], np.arange(first, first + batch.num_rows + 1)).tolist()
                given = _by_vertex(given, [texts[a:b] for a, b in zip(starts, starts[1:])])
            first += batch.num_rows
            keys = {normalise_name(name) for name in pc.unique(given["names"].combine_chunks().flatten()).to_pylist()}
            db.add("asked", pa.table({"key": sorted(keys), "kind": sorted(keys)}, _TYPED))
            types = dict(row for part in db.batches(_OF_ASKED) for row in zip(*(c.to_pylist() for c in part.columns)))
            kinds = {key for part in db.batches(_ASKED_KINDS) for key in part["key"].to_pylist()}
            db.run("DELETE FROM asked")
            work.progress.advance(2 * given.num_rows)
            yield "in", answered_batch(given)
            yield "out", raised_batch(given, types, kinds)


def _typed(path: Path) -> Iterator[Iterable[tuple[str, str]]]:
    """(name, type) pairs that triples and extractors state, by batch."""
    for batch in tables.read_batches(path, tables.EXTRACTIONS, ("triples",)):
        yield types_of_triples(triple for triples in batch["triples"].to_pylist() for triple in triples)
    profiles = path.with_name("profiles.parquet")
    for batch in tables.read_batches(profiles, tables.PROFILES, ("name", "types")):
        rows = zip(batch["name"].to_pylist(), batch["types"].to_pylist())
        yield usable_types((name, words) for name, types in rows for words in types)


def _by_vertex(given: pa.Table, texts: Sequence[Sequence[str]]) -> pa.Table:
    """The names and triples of each vertex, from those of each passage. texts: texts of the vertices of each
    passage."""
    rows = zip(given["names"].to_pylist(), given["triples"].to_pylist(), texts)
    parts = [part for names, triples, own in rows for part in _by_sentence(names, triples, own)]
    names, triples = zip(*parts)
    return pa.table({"names": pa.array(names, _LISTS), "triples": pa.array(triples, pa.list_(_LISTS))})


def _by_sentence(names: list[str], triples: list[Triple], texts: Sequence[str]) -> list[tuple[list[str], list[Triple]]]:
    """Assign each name and triple to the sentences that contain it verbatim.

    A triple goes to the sentences with both its ends, else to those with its object ("He was born in Tamsin"). A name
    or triple found nowhere goes to the first sentence.
    """
    if len(texts) == 1:
        return [(names, triples)]
    parts: list[tuple[list[str], list[Triple]]] = [([], []) for _ in texts]
    for name in names:
        for row in [row for row, text in enumerate(texts) if name in text] or [0]:
            parts[row][0].append(name)
    for triple in triples:
        both = [row for row, text in enumerate(texts) if triple[0] in text and triple[2] in text]
        for row in both or [row for row, text in enumerate(texts) if triple[2] in text] or [0]:
            parts[row][1].append(triple)
    return parts
