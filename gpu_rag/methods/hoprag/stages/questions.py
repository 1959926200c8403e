"""Pseudo-questions of every vertex: incoming ones that it answers, outgoing ones that it raises."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.index import tables
from gpu_rag.index.stage import stage, where_capable
from gpu_rag.index.stages.requests import decided
from gpu_rag.index.work import Sources, Work
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.stages.templates import (
    TEMPLATES_VERSION,
    Triple,
    answered_questions,
    raised_questions,
    type_words,
)
from gpu_rag.methods.hoprag.stages.vertices import read_vertices, vertex_parts
from gpu_rag.methods.hoprag.tables import QUESTIONS
from gpu_rag.models.ask import Ask, read_prompt
from gpu_rag.settings import Settings
from gpu_rag.text.keywords import names

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


def raised_batch(vertices: pa.Table, types: Mapping[str, str]) -> pa.ListArray:
    """The outgoing questions of vertices with `names` and `triples`. types: of names, see `type_words`."""
    kinds = frozenset(types.values())
    rows = zip(vertices["names"].to_pylist(), vertices["triples"].to_pylist())
    return pa.array([raised_questions(names, map(tuple, triples), types, kinds) for names, triples in rows], _LISTS)


PROMPTS = "gpu_rag.methods.hoprag.prompts"
IN: Ask[InQuestions] = Ask("hop_in", InQuestions, rule=answered_batch, prompt=f"{PROMPTS}:hop_in")
OUT: Ask[OutQuestions] = Ask("hop_out", OutQuestions, rule=raised_batch, prompt=f"{PROMPTS}:hop_out")
SIDES: dict[str, Ask[Any]] = {"in": IN, "out": OUT}


def by_llm(work: Work, vertices: pa.Table) -> tuple[dict[str, pa.Array], dict[str, int]]:
    """The questions from two requests per vertex, with counts of replies by status (ok, malformed, truncated, failed)
    and of dropped questions.

    A question that `is_question` refuses is dropped. A vertex whose reply cannot be read after one repair has no
    questions of that side. Raises GpuRagError when the share of readable replies is below `index.min_yield`.
    """
    questions: dict[str, pa.Array] = {}
    statuses: Counter[str] = Counter()
    n_dropped, tokens = 0, work.settings.section(HopSettings).tokens
    titles, texts = vertex_parts(work.stage_folders["passages"], vertices)
    for side, ask in SIDES.items():
        fields = ({"title": title, "text": text, "max_tokens": tokens} for title, text in zip(titles, texts))
        lists: list[list[str]] = []
        for reply in decided(work, ask, fields):
            statuses[reply if isinstance(reply, str) else "ok"] += 1
            written = () if isinstance(reply, str) else reply.questions
            lists.append([text for text in written if is_question(text)])
            n_dropped += len(written) - len(lists[-1])
        questions[side] = pa.array(lists, _LISTS)
    total, floor = statuses.total(), work.settings.index.min_yield
    if statuses["ok"] < floor * total:
        raise GpuRagError(
            "the model wrote questions for too few passages",
            given=f"{statuses['ok']} of {total} replies ({dict(statuses)})",
            expected=f"at least {floor:.0%}",
            do="use a stronger model, --set hops.simulate=templates, or lower index.min_yield; replies are kept",
        )
    counts = {f"hop_replies_{status}": n for status, n in sorted(statuses.items())}
    return questions, counts | {"hop_questions_dropped": n_dropped}


def is_question(text: str) -> bool:
    """Whether a written question can join passages: it ends in a question mark, and refers to more than a pronoun.

    "What was her place of birth?" resembles the same question about anybody, so its edge would be meaningless.

    >>> is_question("Where was Joan Clarke born?"), is_question("Where was she born?"), is_question("She was born.")
    (True, False, False)
    """
    return text.rstrip().endswith("?") and (not _PRONOUN.search(text) or bool(names(text)))


Found = tuple[list[str], list[Triple]]  # names and triples of a vertex


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The author of the questions, and the inputs they depend on."""
    if settings.section(HopSettings).simulate == "auto":
        raise UsageError("hops.simulate is not settled", given="auto", expected="llm | templates")
    if settings.section(HopSettings).simulate == "templates":
        return {"simulate": "templates", "templates": TEMPLATES_VERSION}
    prompts = {side: read_prompt(f"{PROMPTS}:hop_{side}").digest for side in SIDES}
    schemas = {side: ask.schema_text({}) for side, ask in SIDES.items()}
    asked = {"schemas": schemas, "max_tokens": settings.section(HopSettings).tokens, "seed": settings.runtime.seed}
    return {"simulate": "llm", "prompts": prompts, **asked}


@stage(
    "hop_questions",
    needs=("passages", "extraction", "hop_vertices"),
    version=2,
    retry=("hop_replies_failed",),
    params=_params,
    roles=lambda settings: ("llm",) if settings.section(HopSettings).simulate == "llm" else (),
    settled=where_capable(HopSettings, "hops", "simulate", "llm", "templates"),
    by_capability=lambda settings: settings.section(HopSettings).simulate == "auto",
)
def questions_stage(work: Work) -> dict[str, int]:
    """Write the tables `in_questions` and `out_questions`, sorted by (vertex, text), each text once per vertex.

    Raises GpuRagError when an LLM's yield is too low.
    """
    vertices = read_vertices(work)
    work.progress.start("hop_questions", 2 * vertices.num_rows, "question lists")
    by = by_llm if work.settings.section(HopSettings).simulate == "llm" else by_templates
    questions, counts = by(work, vertices)
    for side, lists in questions.items():
        rows = sorted(
            {
                (vertex, text)
                for vertex, written in zip(pc.list_parent_indices(lists).to_pylist(), lists.flatten().to_pylist())
                if (text := " ".join(written.split()))
            }
        )
        columns = {"vertex": [v for v, _ in rows], "text": [text for _, text in rows]}
        n = tables.write_table(work.out / f"{side}_questions.parquet", QUESTIONS, columns)
        counts[f"hop_{side}_questions"] = n
    return counts


def by_templates(work: Work, vertices: pa.Table) -> tuple[dict[str, pa.Array], dict[str, int]]:
    """Questions from the triples of each vertex. The types of a name come from the whole corpus."""
    folder = work.stage_folders["extraction"]
    table = tables.read_table(folder / "extractions.parquet", tables.EXTRACTIONS)
    triples: list[list[Triple]] = [[(s, r, o) for s, r, o in row] for row in table["triples"].to_pylist()]
    profiles = tables.read_table(folder / "profiles.parquet", tables.PROFILES)
    written = zip(profiles["name"].to_pylist(), profiles["types"].to_pylist())
    known = ((name, words) for name, of in written for words in of)  # written by an extractor
    types = type_words((t for row in triples for t in row), known)
    rows = list(zip(table["entities"].to_pylist(), triples))
    _, texts = vertex_parts(work.stage_folders["passages"], vertices)
    held = list(_by_vertex(rows, vertices["passage"].to_pylist(), texts))
    given = pa.table(
        {
            "names": pa.array([found for found, _ in held], _LISTS),
            "triples": pa.array([found for _, found in held], pa.list_(_LISTS)),
        }
    )
    work.progress.advance(2 * given.num_rows)
    return {"in": answered_batch(given), "out": raised_batch(given, types)}, {}


def _by_vertex(rows: Sequence[Found], passages: Sequence[int], texts: Sequence[str]) -> Iterator[Found]:
    """The names and triples of each vertex. passages: i32[V], ascending."""
    for passage, vertices in groupby(range(len(passages)), passages.__getitem__):
        yield from _by_sentence(*rows[passage], [texts[vertex] for vertex in vertices])


def _by_sentence(names: list[str], triples: list[Triple], texts: Sequence[str]) -> list[Found]:
    """Assign each name and triple to the sentences that contain it verbatim.

    A triple goes to the sentences with both its ends, else to those with its object ("He was born in Tamsin"). A name
    or triple found nowhere goes to the first sentence.
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
