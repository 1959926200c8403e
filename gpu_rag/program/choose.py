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

import numpy as np

from gpu_rag.errors import ContextOverflow, GpuRagError, UsageError
from gpu_rag.program.ask import check_texts, packed, repair, request
from gpu_rag.program.run import Run
from gpu_rag.program.steps import similarity
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, parse_json
from gpu_rag.types import Choice, JsonSchema, Malformed, Rank, Reply

SLOT = "options"
NONE_LABEL = "none"
NONE_TEXT = "none of these"
ONE_FORM = "Reply with the label of the best option, and nothing else."
LIST_FORM = 'Reply as JSON: {{"chosen": [labels, best first]}}, {least} to {most} labels.'
_LABEL_TOKENS = 8
_NOTE_CHARS = 120


@dataclass(frozen=True)
class Decision:
    """What is to be decided. scores: one for each option in place of the cosine, or None."""

    name: str
    prompt: Prompt
    fields: Mapping[str, str]
    options: Sequence[str]
    query: str
    k: int
    allow_none: bool
    threshold: float
    scores: Sequence[float] | None = None


async def choose(
    run: Run,
    prompt: Prompt,
    fields: Mapping[str, str],
    options: Sequence[str],
    *,
    query: str,
    k: int = 1,
    allow_none: bool = False,
    threshold: float | None = None,
    scores: Sequence[float] | None = None,
    name: str = "choose",
) -> list[int]:
    """Positions of the best options, best first: 1 to k, or 0 to k with `allow_none`. See the module for the rules.

    prompt: says what makes an option good; its slot `{{options}}` is filled here, the others by `fields`.
    query: what similarity compares the options with; scores: one for each option in place of that cosine;
    threshold: the least score with `allow_none`. Only options that fit the context can be chosen by an LLM.
    """
    if k < 1:
        raise UsageError("a choice takes at least one option", given=f"k={k}", expected=">= 1")
    wanted, given = set(prompt.fields), {*fields, SLOT}
    if wanted != given or SLOT in fields:
        raise UsageError(
            f"the fields do not fit the prompt {prompt.name} of a choice",
            given=sorted(fields),
            expected=f"{sorted(wanted - {SLOT})}, and a slot {{{{{SLOT}}}}} in the prompt",
        )
    if scores is not None and (len(scores) != len(options) or not np.isfinite(scores).all()):
        raise UsageError("a choice needs one finite score for each option", given=list(scores)[:8])
    check_texts([query, *options])
    if threshold is None:
        threshold = run.models.threshold
    decision = Decision(name, prompt, fields, tuple(options), query, k, allow_none, threshold, scores)
    return await _decide(run, decision)


async def _decide(run: Run, decision: Decision) -> list[int]:
    """Positions of the chosen options, best first: 1 to k of them, or 0 to k with `allow_none`."""
    options = decision.options
    if not options:
        return []
    if len(options) == 1 and not decision.allow_none:
        return _noted(run, decision, "only", [0])
    if run.models.decides_by == "similarity":
        return _noted(run, decision, "similarity", await _by_similarity(decision))
    if not run.models.language_model.capable:
        chosen, reply = await _by_rank(run, decision)
        return _noted(run, decision, "rank", chosen, reply)
    picked = await _by_labels(run, decision)
    if picked is None:
        return _noted(run, decision, "fallback", await _by_similarity(decision))
    return _noted(run, decision, "llm", *picked)


def _noted(run: Run, decision: Decision, how: str, chosen: list[int], reply: Reply | None = None) -> list[int]:
    texts = tuple(decision.options[i][:_NOTE_CHARS] for i in chosen)
    run.note(f"{decision.name}/{how}", len(decision.options), texts, reply)
    return chosen


def best(scores: Sequence[float] | np.ndarray, k: int, least: float | None = None) -> list[int]:
    """Positions of the k best scores, ties to the earlier; with `least` only scores of at least that."""
    order = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))[:k]
    return order if least is None else [i for i in order if scores[i] >= least]


async def _by_similarity(decision: Decision) -> list[int]:
    scores: Sequence[float] | np.ndarray | None = decision.scores
    if scores is None:
        scores = await similarity((decision.query, tuple(decision.options)))
    return best(scores, decision.k, decision.threshold if decision.allow_none else None)


async def _by_rank(run: Run, decision: Decision) -> tuple[list[int], Reply]:
    longest = max(run.models.language_model.count_tokens(option) for option in decision.options)
    listed = [f"- {' '.join(option.split())}" for option in decision.options]
    text, n_shown = _shown(run, decision, listed, "", max(longest, 1))
    options = list(decision.options[:n_shown]) + ([NONE_TEXT] if decision.allow_none else [])
    reply = await request(run, decision.prompt.system, text, Rank(tuple(options)), max_tokens=1)
    if len(reply.scores) != len(options):
        raise GpuRagError("the model did not score the options", given=len(reply.scores), expected=len(options))
    chosen = best(reply.scores[:n_shown], decision.k)
    if decision.allow_none:
        chosen = [i for i in chosen if reply.scores[i] > reply.scores[-1]]
    return chosen, reply


async def _by_labels(run: Run, decision: Decision) -> tuple[list[int], Reply] | None:
    """What a capable model chose and its reply, or None after two replies that could not be read."""
    labels = option_labels(len(decision.options))
    k, single = min(decision.k, len(labels)), decision.k == 1
    max_tokens = _LABEL_TOKENS * (1 if single else k + 4)
    form = ONE_FORM if single else LIST_FORM.format(least=0 if decision.allow_none else 1, most=k)
    if single and decision.allow_none:
        form = f"{NONE_LABEL}. {NONE_TEXT}\n{form}"
    listed = [f"{label}. {' '.join(option.split())}" for label, option in zip(labels, decision.options)]
    text, n_shown = _shown(run, decision, listed, form, max_tokens)
    labels = labels[:n_shown]
    slot = run.ctx.slot
    if single:
        constraint: Choice | JsonSchema = Choice((*labels, NONE_LABEL) if decision.allow_none else tuple(labels))
    else:
        constraint = JsonSchema(_labels_schema(labels, min(k, n_shown), 0 if decision.allow_none else 1))
    for attempt in (0, 1):
        reply = await request(
            run, decision.prompt.system, text, constraint, max_tokens=max_tokens, slot=slot, attempt=attempt
        )
        chosen = _read(reply.text, constraint, labels)
        if not isinstance(chosen, Malformed):
            return chosen, reply
        text = repair(run, decision.name, decision.prompt, text, reply, chosen, max_tokens)
    return None


def _shown(run: Run, decision: Decision, listed: list[str], form: str, max_tokens: int) -> tuple[str, int]:
    """The user text with the options that fit, and how many those are."""
    text, n_shown, _ = packed(
        run, decision.prompt, decision.fields, SLOT, listed, max_tokens=max_tokens, separator="\n", ending=form
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
