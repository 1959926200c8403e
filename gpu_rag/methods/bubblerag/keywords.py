"""Step 2 of BubbleRAG: what to look for in the graph.

By the model where it is capable and decides (`decider llm`): it lists the concepts that a question names or implies;
rewrites those that say too little by themselves, bound to the others (`specialise`); and, with the passages of the
pre-retrieval in view, words them as the graph may (`relax`). A reply that cannot be used leaves the step out.
Else, or where it lists nothing, by rules: the names in the question, extended to entities of the graph whose names
hold them, and beside them
- with `specialise` the sub-questions of the question's plan (`text.decompose`): one that needs no other answer is a
  BOUND keyword, one that does is OPEN: what it asks about is not known yet. Without a plan the question itself;
- without it the content words of the question, each bound to nothing (CONCEPT).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_rag.methods.bubblerag.batched import Params
from gpu_rag.models.budget import reply_tokens
from gpu_rag.program.ask import ask
from gpu_rag.program.run import Run
from gpu_rag.text.keywords import keywords, names
from gpu_rag.text.mentions import mentioned_names
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.rules.decomposition import plan_by_rules

PROMPTS = "gpu_rag.methods.bubblerag.prompts"
NAME, BOUND, OPEN, CONCEPT = "name", "bound", "open", "concept"
MOST = 12
MOST_LISTED = 8  # by a model
NOTED = {"specialise": "specialised", "relax": "relaxed"}
_REFERENCE = re.compile(r"#\d{1,3}(?!\w)")
_TEXT = {"type": "string", "minLength": 1, "maxLength": 200}
LISTED = canonical_schema(object_of({"keywords": {"type": "array", "items": _TEXT, "maxItems": MOST_LISTED}}))
_CHANGE = object_of({"number": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED}, "keyword": _TEXT})
REWRITTEN = canonical_schema(object_of({"changes": {"type": "array", "maxItems": MOST_LISTED, "items": _CHANGE}}))


@dataclass(frozen=True)
class Keyword:
    """What to look for. kind: a NAME, a sub-question that is BOUND or OPEN, or any CONCEPT."""

    text: str
    kind: str = CONCEPT


def numbered(keywords: Sequence[Keyword]) -> str:
    """Keywords as a prompt lists them, from 1."""
    return "\n".join(f"{i}. {keyword.text}" for i, keyword in enumerate(keywords, 1))


async def find_keywords(run: Run, question: str, passages: Sequence[str], params: Params) -> list[Keyword]:
    """The keywords of a question, at most MOST, noted in the trace with who found them."""
    found, index = [], run.index
    if run.model_decides:
        prompt, room = Prompt.read(PROMPTS, "keywords"), reply_tokens(run.models.language_model, LISTED)
        fields, name = {"question": question}, "bubblerag_keywords"
        reply = await ask(run, prompt, fields, schema=LISTED, max_tokens=room, name=name)
        found = _once(Keyword(" ".join(text.split())) for text in reply["keywords"]) if isinstance(reply, dict) else []
    if found and params.specialise:
        found = await _rewritten(run, "specialise", question, found)
    if found and params.relax:
        found = await _rewritten(run, "relax", question, found, evidence=list(passages), slot="passages")
    by = "model" if found else "rules"
    named = [] if found else [index.entity_names[row] for row in mentioned_names(question, index.entity_rows)]
    found = found or by_rules(question, named, specialise=params.specialise)
    run.note(f"keywords/{by}", 0, tuple(f"{k.kind}: {k.text}" for k in found))
    return found


async def _rewritten(run: Run, step: str, question: str, found: list[Keyword], **shown: Any) -> list[Keyword]:
    """The keywords with the changes that the model makes; as they were where its reply cannot be read."""
    prompt, room = Prompt.read(PROMPTS, step), reply_tokens(run.models.language_model, REWRITTEN)
    fields = {"question": question, "keywords": numbered(found)}
    reply = await ask(run, prompt, fields, schema=REWRITTEN, max_tokens=room, name=f"bubblerag_{step}", **shown)
    if not isinstance(reply, dict):
        return found
    changed = list(found)
    for change in reply["changes"]:
        text = " ".join(change["keyword"].split())
        if change["number"] <= len(found) and text:
            changed[change["number"] - 1] = replace(found[change["number"] - 1], text=text)
    changes = (f"{old.text} -> {new.text}" for old, new in zip(found, changed) if old != new)
    run.note(NOTED[step], len(found), tuple(changes))
    return _once(changed)


def by_rules(question: str, entities: Sequence[str], *, specialise: bool) -> list[Keyword]:
    """The keywords of a question without a model; entities: the written names of those that it names.

    >>> [k.text for k in by_rules("Where was the director of Jaws born?", ["Jaws"], specialise=True)]
    ['Jaws', 'Who is the director of Jaws?', 'Where was born?']
    """
    found = [Keyword(name, NAME) for name in _names(question, entities)]
    if specialise:
        for step in plan_by_rules(question).steps:
            text = " ".join(_REFERENCE.sub("", step.question).split())
            found.append(Keyword(text, OPEN if step.depends_on else BOUND))
    else:
        named = {normalise_name(k.text) for k in found}
        words = sorted(keywords(question), key=lambda word: (question.casefold().find(word), word))
        found += [Keyword(word) for word in words if not any(word in name for name in named)]
    return _once(found) or [Keyword(question, BOUND)]


def _names(question: str, entities: Sequence[str]) -> list[str]:
    """The names, longest first, without those inside others; an entity whose name holds one of them stands for it."""
    spoken = names(question)
    written = {name: name for name in spoken}
    for entity in entities:
        key = normalise_name(entity)
        if any(name in key for name in spoken):
            written[key] = entity
    kept: list[str] = []
    for key in sorted(written, key=lambda key: (-len(key), key)):
        if not any(key in longer for longer in kept):
            kept.append(key)
    return [written[key] for key in kept]


def _once(found: Any) -> list[Keyword]:
    """Each text at its first place, at most MOST."""
    first: dict[str, Keyword] = {}
    for keyword in found:
        if keyword.text:
            first.setdefault(keyword.text, keyword)
    return list(first.values())[:MOST]
