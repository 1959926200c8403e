"""Pseudo-questions of every vertex: in-coming ones that it answers, out-coming ones that it raises."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.requests import ask, text_requests
from gpu_rag.index.work import Models, Sources, Work
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
from gpu_rag.settings import Settings
from gpu_rag.text.keywords import names
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of

LEAST = {"in": 2, "out": 4}  # questions a request, as in HopRAG
MOST = 12
_PRONOUN = re.compile(r"\b(he|him|his|she|her|hers|it|its|they|them|their|theirs)\b", re.IGNORECASE)
Questions = dict[str, list[list[str]]]  # by side ("in", "out"), a list of texts a vertex


_TEXTS = {"type": "array", "items": {"type": "string", "maxLength": 300}}
SCHEMAS = {
    side: canonical_schema(object_of({"questions": {**_TEXTS, "minItems": n, "maxItems": MOST}}))
    for side, n in LEAST.items()
}


def _prompt(side: str) -> Prompt:
    """What is asked about each vertex: the "in" or the "out" questions."""
    return Prompt.read("gpu_rag.methods.hoprag.prompts", f"hop_{side}")


def by_llm(work: Work, titles: Sequence[str], texts: Sequence[str]) -> tuple[Questions, dict[str, int]]:
    """Two requests a vertex; and how many replies were ok, malformed, truncated or failed, how many questions dropped.

    A question that `is_question` refuses is dropped. A vertex whose reply cannot be read after one repair try has no
    questions of that side. Raises GpuRagError when fewer replies than `index.min_yield` could be read.
    """
    questions: Questions = {side: [] for side in LEAST}
    statuses: Counter[str] = Counter()
    n_written = n_kept = 0
    seed, tokens = work.settings.runtime.seed, work.settings.section(HopSettings).tokens
    for side, lists in questions.items():
        asks = text_requests(_prompt(side), titles, texts, schema=SCHEMAS[side], max_tokens=tokens, seed=seed)
        for reply in ask(work, asks, f"hop_{side}"):
            statuses[reply if isinstance(reply, str) else "ok"] += 1
            written = [] if isinstance(reply, str) else reply["questions"]
            lists.append([text for text in written if is_question(text)])
            n_written, n_kept = n_written + len(written), n_kept + len(lists[-1])
    total, floor = sum(statuses.values()), work.settings.index.min_yield
    if statuses["ok"] < floor * total:
        raise GpuRagError(
            "the model wrote questions for too few passages",
            given=f"{statuses['ok']} of {total} replies ({dict(statuses)})",
            expected=f"at least {floor:.0%}",
            do="use a stronger model, --set hops.simulate=templates, or lower index.min_yield; replies are kept",
        )
    counts = {f"hop_replies_{status}": n for status, n in sorted(statuses.items())}
    return questions, counts | {"hop_questions_dropped": n_written - n_kept}


def is_question(text: str) -> bool:
    """Whether a written question can join passages: it ends in a question mark, and a pronoun is not all that it names.

    "What was her place of birth?" is like the same question about anybody, so its edge would say nothing.

    >>> is_question("Where was Joan Clarke born?"), is_question("Where was she born?"), is_question("She was born.")
    (True, False, False)
    """
    return text.rstrip().endswith("?") and (not _PRONOUN.search(text) or bool(names(text)))


Found = tuple[list[str], list[Triple]]  # names and triples of a vertex


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """Who writes the questions, and what they are asked."""
    if settings.section(HopSettings).simulate == "auto":
        raise UsageError("hops.simulate is not settled", given="auto", expected="llm | templates")
    if settings.section(HopSettings).simulate == "templates":
        return {"simulate": "templates", "templates": TEMPLATES_VERSION}
    prompts = {side: _prompt(side).digest for side in LEAST}
    asked = {"schemas": SCHEMAS, "max_tokens": settings.section(HopSettings).tokens, "seed": settings.runtime.seed}
    return {"simulate": "llm", "prompts": prompts, **asked}


def _settled(settings: Settings, models: Models) -> Settings:
    """hops.simulate = auto as what it becomes: llm where there is a capable LLM, else templates."""
    if settings.section(HopSettings).simulate != "auto":
        return settings
    capable = settings.models.llm != "none" and models.llm().capable
    return settings.changed("hops", simulate="llm" if capable else "templates")


@stage(
    "hop_questions",
    needs=("passages", "extraction", "hop_vertices"),
    version=2,
    retry=("hop_replies_failed",),
    params=_params,
    roles=lambda settings: ("llm",) if settings.section(HopSettings).simulate == "llm" else (),
    settled=_settled,
    by_capability=lambda settings: settings.section(HopSettings).simulate == "auto",
)
def questions_stage(work: Work) -> dict[str, int]:
    """Tables `in_questions` and `out_questions`, sorted by (vertex, text), each text once a vertex.

    Raises GpuRagError when an LLM's yield is too low.
    """
    vertices = read_vertices(work)
    titles, texts = vertex_parts(work.stage_folders["passages"], vertices)
    work.progress.start("hop_questions", 2 * len(texts), "question lists")
    if work.settings.section(HopSettings).simulate == "llm":
        questions, counts = by_llm(work, titles, texts)
    else:
        questions, counts = by_templates(work, vertices, texts), {}
    for side, lists in questions.items():
        distinct = [sorted({" ".join(text.split()) for text in found} - {""}) for found in lists]
        rows = [(v, text) for v, found in enumerate(distinct) for text in found]
        columns = {"vertex": [v for v, _ in rows], "text": [text for _, text in rows]}
        n = tables.write_table(work.out / f"{side}_questions.parquet", QUESTIONS, columns)
        counts[f"hop_{side}_questions"] = n
    return counts


def by_templates(work: Work, vertices: pa.Table, texts: Sequence[str]) -> Questions:
    """Questions from the triples of each vertex, with the types that the whole corpus knows of a name."""
    folder = work.stage_folders["extraction"]
    table = tables.read_table(folder / "extractions.parquet", tables.EXTRACTIONS)
    triples: list[list[Triple]] = [[(s, r, o) for s, r, o in row] for row in table["triples"].to_pylist()]
    profiles = tables.read_table(folder / "profiles.parquet", tables.PROFILES)
    written = zip(profiles["name"].to_pylist(), profiles["types"].to_pylist())
    known = ((name, words) for name, of in written for words in of)  # that an extractor wrote down
    types = type_words((t for row in triples for t in row), known)
    kinds = frozenset(types.values())
    rows = list(zip(table["entities"].to_pylist(), triples))
    questions: Questions = {"in": [], "out": []}
    for found, held in _by_vertex(rows, vertices["passage"].to_pylist(), texts):
        questions["in"].append(answered_questions(held))
        questions["out"].append(raised_questions(found, held, types, kinds))
        work.progress.advance(2)
    return questions


def _by_vertex(rows: Sequence[Found], passages: Sequence[int], texts: Sequence[str]) -> Iterator[Found]:
    """What each vertex holds of its passage; passages: i32[V], ascending."""
    for passage, vertices in groupby(range(len(passages)), passages.__getitem__):
        yield from _by_sentence(*rows[passage], [texts[vertex] for vertex in vertices])


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
