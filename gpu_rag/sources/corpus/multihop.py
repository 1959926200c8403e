"""Rows of HotpotQA, 2WikiMultiHopQA and MuSiQue: a question with its contexts.

| | contexts | joined by | supporting contexts |
|---|---|---|---|
| HotpotQA | context: [[title, [sentence, ...]], ...] | "" | titles in supporting_facts |
| 2Wiki | the same, and `evidences` | " " | titles in supporting_facts |
| MuSiQue | paragraphs: [{title, paragraph_text, is_supporting}, ...] | | is_supporting, in the order of the hops |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_rag.sources.rows import (
    Limits,
    RowError,
    clean_string,
    document_text,
    kind,
    optional_string,
    passage_id,
    string_list,
)

_TWO_WIKI_KEYS = ("evidences", "evidences_id", "entity_ids", "answer_id")


@dataclass(frozen=True)
class Context:
    """One context paragraph of a question. problem: the reason why it cannot be used, or ""."""

    title: str
    text: str
    problem: str = ""

    @property
    def id(self) -> str:
        """Passage id that this paragraph has in every file."""
        return passage_id(f"{self.title}\n{self.text}")


def is_multihop(row: dict[str, Any]) -> bool:
    """Whether a row has one of the three formats."""
    return "question" in row and (isinstance(row.get("paragraphs"), list) or isinstance(row.get("context"), list))


def contexts_of(row: dict[str, Any], limits: Limits) -> list[Context]:
    """Contexts of a row, in order, one for each element."""
    joint = " " if any(key in row for key in _TWO_WIKI_KEYS) else ""
    contexts = []
    for item in row["paragraphs"] if isinstance(row.get("paragraphs"), list) else row["context"]:
        try:
            title, text = _paragraph(item) if isinstance(row.get("paragraphs"), list) else _sentences(item, joint)
            contexts.append(Context(title, document_text(text, limits)))
        except RowError as error:
            contexts.append(Context("", "", str(error)))
    return contexts


def _sentences(item: object, joint: str) -> tuple[str, str]:
    if not (isinstance(item, list) and len(item) == 2):
        raise RowError(f"a context is {kind(item)}; expected [title, [sentence, ...]]")
    return clean_string(item[0], "a context title"), joint.join(string_list(item[1], "a context"))


def _paragraph(item: object) -> tuple[str, Any]:
    if not isinstance(item, dict):
        raise RowError(f"a paragraph is {kind(item)}; expected an object")
    return optional_string(item, "title"), item["paragraph_text"] if "paragraph_text" in item else item.get("text")


def gold_of(row: dict[str, Any], contexts: list[Context]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """(gold ids, entries for meta): ids of the supporting contexts, each once; for MuSiQue in the order of its hops.

    If a supporting title is not among the contexts, gold ids are empty and meta["gold_missing"] lists it, because
    recall over a part of the gold would be wrong.
    """
    if isinstance(row.get("paragraphs"), list):
        return _gold_by_mark(row, contexts)
    return _gold_by_title(row, contexts)


def _gold_by_title(row: dict[str, Any], contexts: list[Context]) -> tuple[tuple[str, ...], dict[str, Any]]:
    facts = row.get("supporting_facts") or []
    if not (isinstance(facts, list) and all(isinstance(f, list) and f and isinstance(f[0], str) for f in facts)):
        raise RowError("supporting_facts is not a list of [title, sentence]")
    usable = [context for context in contexts if not context.problem]
    first = {context.title: context.id for context in reversed(usable)}
    titles = list(dict.fromkeys(fact[0] for fact in facts))
    meta: dict[str, Any] = {"supporting_facts": facts}
    if titles:
        meta["hops"] = len(titles)
    missing = [title for title in titles if title not in first]
    if missing:
        return (), {**meta, "gold_missing": missing}
    return tuple(dict.fromkeys(first[title] for title in titles)), meta


def _gold_by_mark(row: dict[str, Any], contexts: list[Context]) -> tuple[tuple[str, ...], dict[str, Any]]:
    paragraphs = row["paragraphs"]
    by_number: dict[Any, Context] = {}
    supporting: list[Context] = []
    for position, (paragraph, context) in enumerate(zip(paragraphs, contexts)):
        if not isinstance(paragraph, dict):
            continue
        number = paragraph.get("idx", position)
        if isinstance(number, int):
            by_number.setdefault(number, context)
        if paragraph.get("is_supporting") is True:
            supporting.append(context)
    hops = _hops(row.get("question_decomposition"), by_number)
    meta: dict[str, Any] = {"hops": len(hops) or len(supporting)} if hops or supporting else {}
    if hops:
        meta["decomposition"] = [{**hop, "gold_id": context.id if context else None} for hop, context in hops]
    # in the order of the hops, then marked contexts of no hop
    gold = [context for _, context in hops if context is not None] + supporting
    if any(context.problem for context in gold):
        return (), {**meta, "gold_missing": [context.problem for context in gold if context.problem]}
    return tuple(dict.fromkeys(context.id for context in gold)), meta


def _hops(steps: object, by_number: dict[Any, Context]) -> list[tuple[dict[str, Any], Context | None]]:
    """MuSiQue's sub-questions, each with its supporting context."""
    if steps is None:
        return []
    if not (isinstance(steps, list) and all(isinstance(step, dict) for step in steps)):
        raise RowError("question_decomposition is not a list of objects")
    hops = []
    for step in steps:
        number = step.get("paragraph_support_idx")
        context = by_number.get(number) if isinstance(number, int) else None
        hops.append(({key: step[key] for key in ("question", "answer") if key in step}, context))
    return hops
