"""Pseudo-questions of every vertex: incoming ones that it answers, outgoing ones that it raises."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.index import tables
from gpu_rag.index.database import Database, database
from gpu_rag.index.names import normalised, rows_of
from gpu_rag.index.stage import stage, where_capable
from gpu_rag.index.stages.requests import WINDOW, decided
from gpu_rag.index.tables import unchanged_rows
from gpu_rag.index.work import Sources, Work
from gpu_rag.index.workers import Shared
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.stages.templates import (
    TEMPLATES_VERSION,
    Triple,
    answered_questions,
    raised_questions,
    states_type,
    types_of_triples,
    usable_types,
)
from gpu_rag.methods.hoprag.stages.vertices import kept_vertices, vertex_folders, vertex_parts
from gpu_rag.methods.hoprag.tables import QUESTIONS, questions_file, read_questions
from gpu_rag.models.ask import Ask, read_prompt
from gpu_rag.settings import Settings
from gpu_rag.text.keywords import names
from gpu_rag.text.normalise import normalise_name

MOST = 12  # questions per reply; at least 2 and 4, as in HopRAG
_PRONOUN = re.compile(r"\b(he|him|his|she|her|hers|it|its|they|them|their|theirs)\b", re.IGNORECASE)
_LISTS = pa.list_(pa.string())
_TRIPLES = pa.list_(_LISTS)
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
            yield side, _each_once(lists)
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
            writers[side].add([pc.list_parent_indices(lists).to_numpy() + done[side], lists.flatten()])
            done[side] += len(lists)
            counts[f"hop_{side}_questions"] += len(lists.flatten())
    return dict(counts)


def _each_once(lists: Iterable[Iterable[str]]) -> pa.ListArray:
    """The lists with each text once, sorted, with single spaces, and without empty texts."""
    rows = [sorted({line for text in texts if (line := " ".join(text.split()))}) for texts in lists]
    return pa.array(rows, _LISTS)


_TYPED = pa.schema([("key", pa.string()), ("kind", pa.string())])
_COUNTED = "CREATE TABLE counted AS SELECT key, kind, count(*) AS n FROM typed GROUP BY key, kind"
_TYPES = "CREATE TABLE types AS SELECT key, arg_min(kind, row(-n, kind)) AS kind FROM counted GROUP BY key"
_OF_ASKED = "SELECT types.key, types.kind FROM types SEMI JOIN asked USING (key)"
_ASKED_KINDS = "SELECT key FROM asked SEMI JOIN types ON asked.key = types.kind"
_COUNTED_KINDS = "SELECT DISTINCT kind FROM counted SEMI JOIN asked USING (key)"


def by_templates(work: Work, counts: Counter[str]) -> Iterator[tuple[str, pa.ListArray]]:
    """(side, questions of the next vertices) from the triples of each vertex. The type of a name is its commonest in
    the corpus, ties in alphabetical order.

    Vertices of passages that an earlier run had keep their questions, unless a type of their names may have changed.
    """
    folder, first = work.stage_folders["extraction"], 0
    path = folder / "extractions.parquet"
    passage, parts = vertex_parts(*vertex_folders(work))
    earlier = _earlier(work)
    is_new, vertex_before = earlier.passages < 0, earlier.vertices
    with database(work) as db, Shared(answered_lists, work.settings, work) as answered:
        db.create("typed", _TYPED)
        db.create("asked", _TYPED)
        for batch in tables.read_batches(path, tables.EXTRACTIONS, ("triples",)):
            db.add("typed", _typed(_types_of_batch(batch["triples"])))
        db.add("typed", _typed(_types_of_profiles(folder)))
        db.run(_COUNTED, "DROP TABLE typed", _TYPES)
        changed = _changed_names(db, earlier.typed)
        for batch in tables.read_batches(path, tables.EXTRACTIONS, ("entities", "triples")):
            rows = slice(first, first + batch.num_rows)
            begin, end = np.searchsorted(passage, [rows.start, rows.stop]).tolist()
            owner = passage[begin:end] - first
            for side in SIDES:
                chosen = is_new[rows] | (_are_named(batch["entities"], changed) if side == "out" else False)
                given = batch.filter(pa.array(chosen)).select(["entities", "triples"])
                given = pa.table(given.columns, ["names", "triples"])
                if end - begin > batch.num_rows and len(given):
                    texts, starts = [text for _, text in parts(begin, end)], np.searchsorted(owner, range(len(batch)))
                    ends = [*starts[1:].tolist(), len(texts)]
                    of_each = [texts[a:b] for a, b, c in zip(starts.tolist(), ends, chosen.tolist()) if c]
                    given = _by_vertex(given, of_each)
                if side == "in":
                    triples = given["triples"].combine_chunks().cast(_TRIPLES)
                    made = answered(pa.record_batch([triples], ["triples"]))["questions"]
                else:
                    made = _each_once(raised_batch(given, *_types_of_names(db, given)).to_pylist())
                before = np.where(chosen[owner], -1, vertex_before[begin:end])
                work.report.reused += int((before >= 0).sum())
                yield side, _placed(made, earlier.questions[side], before)
            first += batch.num_rows
            work.progress.advance(2 * (end - begin))


def answered_lists(vertices: pa.RecordBatch) -> pa.RecordBatch:
    """The rule of incoming questions for workers, each question once in a list."""
    lists = answered_batch(pa.Table.from_batches([vertices])).to_pylist()
    return pa.record_batch([_each_once(lists)], ["questions"])


def _types_of_names(db: Database, given: pa.Table) -> tuple[dict[str, str], set[str]]:
    """(the type of each name of these vertices, those that are the type of another name), all normalised."""
    keys = {normalise_name(name) for name in pc.unique(given["names"].combine_chunks().flatten()).to_pylist()}
    db.add("asked", pa.table({"key": sorted(keys), "kind": sorted(keys)}, _TYPED))
    types = dict(row for part in db.batches(_OF_ASKED) for row in zip(*(c.to_pylist() for c in part.columns)))
    kinds = {key for part in db.batches(_ASKED_KINDS) for key in part["key"].to_pylist()}
    db.run("DELETE FROM asked")
    return types, kinds


def _placed(made: pa.ListArray, earlier: pa.ListArray, rows: np.ndarray) -> pa.ListArray:
    """The earlier lists of these rows, and the made ones in place of -1."""
    known = rows >= 0
    order = np.empty(len(rows), np.int64)
    order[~known], order[known] = np.arange(len(made)), len(made) + np.arange(known.sum())
    return pa.concat_arrays([made, earlier.take(pa.array(rows[known]))]).take(pa.array(order))


def _typed(pairs: Iterable[tuple[str, str]]) -> pa.Table:
    return pa.Table.from_pylist([{"key": key, "kind": kind} for key, kind in pairs], _TYPED)


def _types_of_batch(triples: pa.ListArray) -> Iterator[tuple[str, str]]:
    """(name, type) pairs that triples state."""
    parts = triples.flatten().flatten()
    labels = parts.take(pa.array(np.arange(1, len(parts), 3)))
    stating = pa.array([label for label in pc.unique(labels).to_pylist() if states_type(label)], parts.type)
    rows = 3 * np.flatnonzero(pc.is_in(labels, value_set=stating))
    return types_of_triples(zip(*(parts.take(pa.array(rows + k)).to_pylist() for k in range(3))))


def _types_of_profiles(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, type) pairs that an extractor wrote."""
    for batch in tables.read_batches(folder / "profiles.parquet", tables.PROFILES, ("name", "types")):
        typed = batch.filter(pc.greater(pc.list_value_length(batch["types"]), 0))
        rows = zip(typed["name"].to_pylist(), typed["types"].to_pylist())
        yield from usable_types((name, words) for name, types in rows for words in types)


@dataclass(frozen=True)
class _Earlier:
    """An earlier run. passages, vertices: the earlier row of each passage, i64[P], and vertex, i64[V], -1 for new ones;
    questions: the earlier lists by side; typed: (name, type) pairs that passages state which came or left."""

    passages: np.ndarray
    vertices: np.ndarray
    questions: dict[str, pa.ListArray]
    typed: set[tuple[str, str]]


def _earlier(work: Work) -> _Earlier:
    """The earlier run. Where there is none, or it has more than 2 GiB of text, all is new."""
    now, before, none = work.stage_folders, work.previous_inputs, pa.array([], _LISTS)
    n_passages, n_vertices = (
        tables.n_rows(now[stage] / file)
        for stage, file in (("passages", "passages.parquet"), ("hop_vertices", "vertices.parquet"))
    )
    nothing = _Earlier(np.full(n_passages, -1), np.full(n_vertices, -1), dict.fromkeys(SIDES, none), set())
    if not work.previous or not before:
        return nothing
    stored = {side: read_questions(work.previous, side) for side in SIDES}
    folders = [folders["extraction"] for folders in (now, before)]
    new, old = (
        tables.read_table(folder / "extractions.parquet", tables.EXTRACTIONS, ["entities", "triples"])
        for folder in folders
    )
    if any(column.num_chunks != 1 for table in (new, old, *stored.values()) for column in table.columns):
        return nothing
    path, path_before = (of["passages"] / "passages.parquet" for of in (now, before))
    also, columns = zip(new.columns, old.columns), ("id", "title", "text")
    passages = unchanged_rows(path, path_before, tables.PASSAGES, columns, also)
    vertices = kept_vertices(now, before, passages)
    passages[vertex_parts(*vertex_folders(work))[0][vertices < 0]] = -1
    left = np.ones(len(old), bool)
    left[passages[passages >= 0]] = False
    typed, typed_before = (Counter(_types_of_profiles(folder)) for folder in folders)
    pairs = {*(typed - typed_before), *(typed_before - typed)}
    for table, changed in ((new, passages < 0), (old, left)):
        pairs.update(_types_of_batch(table["triples"].filter(pa.array(changed)).combine_chunks()))
    n_before = tables.n_rows(before["hop_vertices"] / "vertices.parquet")
    lists = {}
    for side, table in stored.items():
        ends = np.searchsorted(table["vertex"].to_numpy(), np.arange(n_before + 1)).astype(np.int32)
        lists[side] = pa.ListArray.from_arrays(pa.array(ends), table["text"].chunk(0))
    return _Earlier(passages, vertices, lists, pairs)


def _changed_names(db: Database, typed: set[tuple[str, str]]) -> pa.LargeStringArray:
    """Normalised names whose type may have changed, or that may have become or been a type: those of the pairs, and all
    types that are stated of them."""
    keys = sorted({key for key, _ in typed})
    db.add("asked", pa.table({"key": keys, "kind": keys}, _TYPED))
    kinds = [kind for part in db.batches(_COUNTED_KINDS) for kind in part["kind"].to_pylist()]
    db.run("DELETE FROM asked")
    return pa.array({*keys, *kinds, *(kind for _, kind in typed)}, pa.large_string())


def _are_named(names: pa.ListArray, keys: pa.LargeStringArray) -> np.ndarray:
    """Whether each list has a name whose normal form is one of the keys: bool[n]."""
    of_key = rows_of(normalised(names.flatten()), keys) >= 0
    return np.bincount(pc.list_parent_indices(names).to_numpy()[of_key], minlength=len(names)) > 0


def _by_vertex(given: pa.Table, texts: Sequence[Sequence[str]]) -> pa.Table:
    """The names and triples of each vertex, from those of each passage. texts: texts of the vertices of each
    passage."""
    rows = zip(given["names"].to_pylist(), given["triples"].to_pylist(), texts)
    parts = [part for names, triples, own in rows for part in _by_sentence(names, triples, own)]
    names, triples = zip(*parts)
    return pa.table({"names": pa.array(names, _LISTS), "triples": pa.array(triples, _TRIPLES)})


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
