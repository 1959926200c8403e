"""THE decider: every choice among candidates is taken here, by a language model or by similarity.

Three ways, one interface: options in, positions out (best first), one note in the trace.
- llm, capable model: a constrained choice of labels ("A".."Z", or zero-padded numbers beyond 26 options). k = 1 is a
  Choice, k > 1 a JSON list of labels, best first. A reply that cannot be read gets one repair try, then the choice
  falls back to similarity; each such reply counts as malformed.
- llm, other models: Rank. The options are scored as continuations by mean log-probability per token, best k first; with
  `allow_none` only those that score above the option "none of these".
- similarity: cosine(query, option), or the scores that the program brought along, best k first (ties: the earlier
  option); with `allow_none` only those of at least `threshold`. It is the documented stand-in of every LLM choice.
The prompt says what makes an option good; the list of options and the form of the reply are written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING

import numpy as np

from gpu_rag.errors import ContextOverflow, GpuRagError, UsageError
from gpu_rag.runtime.call import Call
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, parse_json
from gpu_rag.types import Choice, JsonSchema, Malformed, Rank, Reply

if TYPE_CHECKING:
    from gpu_rag.models.llm import LLM
    from gpu_rag.program.model import ModelVerbs

DECIDERS = ("auto", "llm", "similarity")
SLOT = "options"
NONE_LABEL = "none"
NONE_TEXT = "none of these"
ONE_FORM = "Reply with the label of the best option, and nothing else."
LIST_FORM = 'Reply as JSON: {{"chosen": [labels, best first]}}, {least} to {most} labels.'
_LABEL_TOKENS = 8
_NOTE_CHARS = 120


def resolve_decider(decider: str, llm: LLM | None) -> str:
    """llm | similarity. "auto" is llm where there is a capable model, else similarity."""
    if decider not in DECIDERS:
        raise UsageError("unknown decider", given=decider, expected=" | ".join(DECIDERS))
    if decider == "auto":
        return "llm" if llm is not None and llm.capable else "similarity"
    if decider == "llm" and llm is None:
        raise UsageError("decider llm needs a language model", do="configure one, or use the decider similarity")
    return decider


@dataclass(frozen=True)
class Decision:
    """What is to be decided. similarity: a score for each option in place of the cosine, or None."""

    name: str
    prompt: Prompt
    fields: Mapping[str, str]
    options: Sequence[str]
    query: str
    k: int
    allow_none: bool
    threshold: float
    similarity: Sequence[float] | None = None


async def decide(verbs: ModelVerbs, decision: Decision) -> list[int]:
    """Positions of the chosen options, best first: 1 to k of them, or 0 to k with `allow_none`."""
    options = decision.options
    if not options:
        return []
    if len(options) == 1 and not decision.allow_none:
        return _noted(verbs, decision, "only", [0])
    if verbs.settings.decides_by == "similarity":
        return _noted(verbs, decision, "similarity", await _by_similarity(decision))
    if not verbs.llm.capable:
        chosen, reply = await _by_rank(verbs, decision)
        return _noted(verbs, decision, "rank", chosen, reply)
    picked = await _by_labels(verbs, decision)
    if picked is None:
        return _noted(verbs, decision, "fallback", await _by_similarity(decision))
    return _noted(verbs, decision, "llm", *picked)


def _noted(verbs: ModelVerbs, decision: Decision, how: str, chosen: list[int], reply: Reply | None = None) -> list[int]:
    texts = tuple(decision.options[i][:_NOTE_CHARS] for i in chosen)
    verbs.note(f"{decision.name}/{how}", len(decision.options), texts, reply)
    return chosen


def best(scores: Sequence[float] | np.ndarray, k: int, least: float | None = None) -> list[int]:
    """Positions of the k best scores, ties to the earlier; with `least` only scores of at least that."""
    order = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))[:k]
    return order if least is None else [i for i in order if scores[i] >= least]


async def _by_similarity(decision: Decision) -> list[int]:
    scores = decision.similarity
    if scores is None:
        scores = await Call("similarity", (), (decision.query, tuple(decision.options)))
    return best(scores, decision.k, decision.threshold if decision.allow_none else None)


async def _by_rank(verbs: ModelVerbs, decision: Decision) -> tuple[list[int], Reply]:
    longest = max(verbs.llm.count_tokens(option) for option in decision.options)
    listed = [f"- {' '.join(option.split())}" for option in decision.options]
    text, n_shown = _shown(verbs, decision, listed, "", max(longest, 1))
    options = list(decision.options[:n_shown]) + ([NONE_TEXT] if decision.allow_none else [])
    reply = await verbs.request(decision.prompt.system, text, Rank(tuple(options)), max_tokens=1)
    if len(reply.scores) != len(options):
        raise GpuRagError("the model did not score the options", given=len(reply.scores), expected=len(options))
    chosen = best(reply.scores[:n_shown], decision.k)
    if decision.allow_none:
        chosen = [i for i in chosen if reply.scores[i] > reply.scores[-1]]
    return chosen, reply


async def _by_labels(verbs: ModelVerbs, decision: Decision) -> tuple[list[int], Reply] | None:
    """What a capable model chose and its reply, or None after two replies that could not be read."""
    labels = option_labels(len(decision.options))
    k, single = min(decision.k, len(labels)), decision.k == 1
    max_tokens = _LABEL_TOKENS * (1 if single else k + 4)
    form = ONE_FORM if single else LIST_FORM.format(least=0 if decision.allow_none else 1, most=k)
    if single and decision.allow_none:
        form = f"{NONE_LABEL}. {NONE_TEXT}\n{form}"
    listed = [f"{label}. {' '.join(option.split())}" for label, option in zip(labels, decision.options)]
    text, n_shown = _shown(verbs, decision, listed, form, max_tokens)
    labels = labels[:n_shown]
    slot = verbs.ctx.slot
    if single:
        constraint: Choice | JsonSchema = Choice((*labels, NONE_LABEL) if decision.allow_none else tuple(labels))
    else:
        constraint = JsonSchema(_labels_schema(labels, min(k, n_shown), 0 if decision.allow_none else 1))
    for attempt in (0, 1):
        reply = await verbs.request(
            decision.prompt.system, text, constraint, max_tokens=max_tokens, slot=slot, attempt=attempt
        )
        chosen = _read(reply.text, constraint, labels)
        if not isinstance(chosen, Malformed):
            return chosen, reply
        text = verbs.repair(decision.name, decision.prompt, text, reply, chosen, max_tokens)
    return None


def _shown(verbs: ModelVerbs, decision: Decision, listed: list[str], form: str, max_tokens: int) -> tuple[str, int]:
    """The user text with the options that fit, and how many those are."""
    text, n_shown, _ = verbs.pack(
        decision.prompt, decision.fields, SLOT, listed, max_tokens=max_tokens, separator="\n", ending=form
    )
    if n_shown == 0:
        raise ContextOverflow("no option fits the prompt", given=decision.prompt.name, do="use a longer context")
    return text, n_shown


def option_labels(n: int) -> list[str]:
    """Labels of one length, so that none is the beginning of another: letters, or numbers beyond 26."""
    if n <= len(ascii_uppercase):
        return list(ascii_uppercase[:n])
    return [f"{i:0{len(str(n))}d}" for i in range(1, n + 1)]


def _labels_schema(labels: Sequence[str], most: int, least: int) -> str:
    items = {"type": "array", "items": {"enum": list(labels)}, "minItems": least, "maxItems": most}
    return canonical_schema(
        {"type": "object", "properties": {"chosen": items}, "required": ["chosen"], "additionalProperties": False}
    )


def _read(text: str, constraint: Choice | JsonSchema, labels: Sequence[str]) -> list[int] | Malformed:
    if isinstance(constraint, Choice):
        said = text.strip()
        if said not in constraint.options:
            return Malformed("the reply is none of the labels", text)
        return [] if said == NONE_LABEL else [labels.index(said)]
    parsed = parse_json(text, constraint.schema)
    if isinstance(parsed, Malformed):
        return parsed
    return list(dict.fromkeys(labels.index(label) for label in parsed["chosen"]))
