"""Query simulation by a language model: what a vertex answers, and what it raises and cannot answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpu_rag.errors import GpuRagError
from gpu_rag.index.stages.requests import ask, text_requests, windows
from gpu_rag.index.work import Work
from gpu_rag.settings import Settings
from gpu_rag.text.names import names
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, json_object
from gpu_rag.types import Request

LEAST = {"in": 2, "out": 4}  # questions a request, as in HopRAG
MOST = 12
_PRONOUN = re.compile(r"\b(he|him|his|she|her|hers|it|its|they|them|their|theirs)\b", re.IGNORECASE)
Questions = dict[str, list[list[str]]]  # by side ("in", "out"), a list of texts a vertex


def _schema(side: str) -> str:
    questions = {
        "type": "array",
        "items": {"type": "string", "maxLength": 300},
        "minItems": LEAST[side],
        "maxItems": MOST,
    }
    return canonical_schema(json_object(questions=questions))


SCHEMAS = {side: _schema(side) for side in LEAST}


def simulation_params(settings: Settings) -> dict[str, Any]:
    """What the replies depend on, beside the vertices and the model."""
    prompts = {side: Prompt.read("gpu_rag.methods.hoprag.prompts", f"hop_{side}").digest for side in LEAST}
    return {"prompts": prompts, "schemas": SCHEMAS, "max_tokens": settings.hops.tokens, "seed": settings.runtime.seed}


def simulation_requests(side: str, titles: Sequence[str], texts: Sequence[str], settings: Settings) -> list[Request]:
    """What is asked about each vertex: the "in" or the "out" questions."""
    prompt, tokens = Prompt.read("gpu_rag.methods.hoprag.prompts", f"hop_{side}"), settings.hops.tokens
    return text_requests(prompt, titles, texts, schema=SCHEMAS[side], max_tokens=tokens, seed=settings.runtime.seed)


def by_llm(work: Work, titles: Sequence[str], texts: Sequence[str]) -> tuple[Questions, dict[str, int]]:
    """Two requests a vertex; and how many replies were ok, malformed, truncated or failed, how many questions dropped.

    A question that `is_question` refuses is dropped. A vertex whose reply cannot be read after one repair try has no
    questions of that side. Raises GpuRagError when fewer replies than `index.min_yield` could be read.
    """
    questions: Questions = {side: [] for side in LEAST}
    statuses: Counter[str] = Counter()
    n_written = n_kept = 0
    for block in windows(len(texts)):
        for side, lists in questions.items():
            replies = ask(work, simulation_requests(side, titles[block], texts[block], work.settings))
            statuses.update(reply if isinstance(reply, str) else "ok" for reply in replies)
            written = [[] if isinstance(reply, str) else reply["questions"] for reply in replies]
            kept = [[text for text in texts_of if is_question(text)] for texts_of in written]
            n_written, n_kept = n_written + sum(map(len, written)), n_kept + sum(map(len, kept))
            lists.extend(kept)
    _check_yield(statuses, work.settings.index.min_yield)
    counts = {f"hop_replies_{status}": n for status, n in sorted(statuses.items())}
    return questions, counts | {"hop_questions_dropped": n_written - n_kept}


def is_question(text: str) -> bool:
    """Whether a written question can join passages: it ends in a question mark, and a pronoun is not all that it names.

    "What was her place of birth?" is like the same question about anybody, so its edge would say nothing.

    >>> is_question("Where was Joan Clarke born?"), is_question("Where was she born?"), is_question("She was born.")
    (True, False, False)
    """
    return text.rstrip().endswith("?") and (not _PRONOUN.search(text) or bool(names(text)))


def _check_yield(statuses: Counter[str], floor: float) -> None:
    total = sum(statuses.values())
    if total and statuses["ok"] < floor * total:
        raise GpuRagError(
            "the model wrote questions for too few passages",
            given=f"{statuses['ok']} of {total} replies ({dict(statuses)})",
            expected=f"at least {floor:.0%}",
            do="use a stronger model, --set hops.simulate=templates, or lower index.min_yield; replies are kept",
        )
