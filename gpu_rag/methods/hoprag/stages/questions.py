"""Pseudo-questions of every vertex: in-coming ones that it answers, out-coming ones that it raises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpu_rag.errors import UsageError
from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Models, Sources, Work
from gpu_rag.methods.hoprag.stages.simulation import Questions, by_llm, simulation_params
from gpu_rag.methods.hoprag.stages.templates import (
    TEMPLATES_VERSION,
    Triple,
    answered_questions,
    raised_questions,
    type_words,
)
from gpu_rag.methods.hoprag.stages.vertices import read_vertices, vertex_parts
from gpu_rag.methods.hoprag.tables import QUESTIONS
from gpu_rag.settings import Settings

Found = tuple[list[str], list[Triple]]  # names and triples of a vertex


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """Who writes the questions, and what they are asked."""
    if settings.hops.simulate == "auto":
        raise UsageError("hops.simulate is not settled", given="auto", expected="llm | templates")
    by = simulation_params(settings) if settings.hops.simulate == "llm" else {"templates": TEMPLATES_VERSION}
    return {"simulate": settings.hops.simulate, **by}


def _settled(settings: Settings, models: Models) -> Settings:
    """hops.simulate = auto as what it becomes: llm where there is a capable LLM, else templates."""
    if settings.hops.simulate != "auto":
        return settings
    capable = settings.models.llm != "none" and models.llm().capable
    return settings.changed("hops", simulate="llm" if capable else "templates")


@stage(
    "hop_questions",
    needs=("passages", "extraction", "hop_vertices"),
    version=2,
    retry=("hop_replies_failed",),
    params=_params,
    roles=lambda settings: ("llm",) if settings.hops.simulate == "llm" else (),
    settled=_settled,
    by_capability=lambda settings: settings.hops.simulate == "auto",
)
def questions_stage(work: Work) -> dict[str, int]:
    """Tables `in_questions` and `out_questions`, sorted by (vertex, text), each text once a vertex.

    Raises GpuRagError when an LLM's yield is too low.
    """
    vertices = read_vertices(work)
    titles, texts = vertex_parts(work.stage_folders["passages"], vertices)
    work.progress.start("hop_questions", 2 * len(texts), "question lists")
    if work.settings.hops.simulate == "llm":
        questions, counts = by_llm(work, titles, texts)
    else:
        questions, counts = by_templates(work, vertices, texts), {}
    for side, lists in questions.items():
        rows = [(v, text) for v, found in enumerate(lists) for text in _distinct(found)]
        columns = {"vertex": [v for v, _ in rows], "text": [text for _, text in rows]}
        n = tables.write_table(work.out / f"{side}_questions.parquet", QUESTIONS, columns)
        counts[f"hop_{side}_questions"] = n
    return counts


def _distinct(texts: Sequence[str]) -> list[str]:
    return sorted({" ".join(text.split()) for text in texts} - {""})


def by_templates(work: Work, vertices: pa.Table, texts: Sequence[str]) -> Questions:
    """Questions from the triples of each vertex, with the types that the whole corpus knows of a name."""
    folder = work.stage_folders["extraction"]
    table = tables.read_table(folder / "extractions.parquet", tables.EXTRACTIONS)
    triples = [[_triple(t) for t in row] for row in table["triples"].to_pylist()]
    types = type_words((t for row in triples for t in row), _known_types(folder))
    kinds = frozenset(types.values())
    rows = list(zip(table["entities"].to_pylist(), triples))
    questions: Questions = {"in": [], "out": []}
    for names, held in _by_vertex(rows, vertices["passage"].to_pylist(), texts):
        questions["in"].append(answered_questions(held))
        questions["out"].append(raised_questions(names, held, types, kinds))
        work.progress.advance(2)
    return questions


def _triple(parts: Sequence[str]) -> Triple:
    subject, relation, object_ = parts
    return subject, relation, object_


def _known_types(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, type) pairs that an extractor wrote down."""
    profiles = tables.read_table(folder / "profiles.parquet", tables.PROFILES)
    for name, types in zip(profiles["name"].to_pylist(), profiles["types"].to_pylist()):
        for words in types:
            yield name, words


def _by_vertex(rows: Sequence[Found], passages: Sequence[int], texts: Sequence[str]) -> Iterator[Found]:
    """What each vertex holds of its passage; passages: i32[V], ascending."""
    start = 0
    while start < len(passages):
        stop = start + 1
        while stop < len(passages) and passages[stop] == passages[start]:
            stop += 1
        names, triples = rows[passages[start]]
        yield from _by_sentence(names, triples, texts[start:stop])
        start = stop


def _by_sentence(names: list[str], triples: list[Triple], texts: Sequence[str]) -> list[Found]:
    """Each name and triple to the sentences that hold it verbatim.

    A triple: where both ends stand, else where its object stands ("He was born in Tamsin"); what stands nowhere belongs
    to the first sentence.
    """
    if len(texts) == 1:
        return [(names, triples)]
    parts: list[Found] = [([], []) for _ in texts]
    for name in names:
        for row in [row for row, text in enumerate(texts) if name in text] or [0]:
            parts[row][0].append(name)
    for triple in triples:
        both = [row for row, text in enumerate(texts) if triple[0] in text and triple[2] in text]
        for row in both or [row for row, text in enumerate(texts) if triple[2] in text] or [0]:
            parts[row][1].append(triple)
    return parts
