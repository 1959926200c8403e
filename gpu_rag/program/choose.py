"""THE decider: every choice among candidates is taken here, by a language model or by similarity.

Three ways, one interface: options in, positions out (best first), one note in the trace.
- llm, capable model: a constrained choice of labels ("A".."Z", or zero-padded numbers beyond 26 options). k = 1 is a
  Choice, k > 1 a JSON list of labels, best first. A reply that cannot be read gets one repair try, then the choice
  falls back to similarity; each is counted.
- llm, other models: Rank. The options are scored as continuations by mean log-probability per token, best k first; with
  `allow_none` only those that score above the option "none of these". Where the engine gives no scores: by labels.
- similarity: cosine(query, option), or the scores that the program brought along, best k first (ties: the earlier
  option); with `allow_none` only those of at least `threshold`. It is the documented stand-in of every LLM choice.
The prompt says what makes an option good; the list of options and the form of the reply are written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from string import ascii_uppercase

import numpy as np

from gpu_rag.errors import ContextOverflow, UsageError
from gpu_rag.program.ask import check_texts, count, note_malformed, packed, reply_of, request
from gpu_rag.program.run import Run
from gpu_rag.program.steps import similarity
from gpu_rag.text.lenient import Read, read_reply
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema
from gpu_rag.types import Choice, JsonSchema, Rank, Reply

SLOT = "options"
NONE_LABEL = "none"
NONE_TEXT = "none of these"
ONE_FORM = "Reply with the label of the best option, and nothing else."
LIST_FORM = "Reply as JSON with the labels of {least} to {most} options, the best first, as in {example}"
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
        ranked = await _by_rank(run, decision)
        if ranked is not None:
            return _noted(run, decision, "rank", *ranked)
    picked = await _by_labels(run, decision)
    if picked is None:
        count(run, decision.name, "rule")
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


async def _by_rank(run: Run, decision: Decision) -> tuple[list[int], Reply] | None:
    """What a model scores best, and its reply; None where its engine gives no scores."""
    longest = max(run.models.language_model.count_tokens(option) for option in decision.options)
    listed = [f"- {' '.join(option.split())}" for option in decision.options]
    text, n_shown = _shown(run, decision, listed, "", max(longest, 1))
    options = list(decision.options[:n_shown]) + ([NONE_TEXT] if decision.allow_none else [])
    rank = Rank(tuple(options))
    reply = await request(run, decision.prompt.system, text, rank, max_tokens=1)
    if not isinstance(read_reply(reply, rank), Read):
        if reply.finish_reason != "unscored":
            note_malformed(run, decision.name, reply)
        return None
    run.ctx.usage.replies_read += 1
    chosen = best(reply.scores[:n_shown], decision.k)
    if decision.allow_none:
        chosen = [i for i in chosen if reply.scores[i] > reply.scores[-1]]
    return chosen, reply


async def _by_labels(run: Run, decision: Decision) -> tuple[list[int], Reply] | None:
    """What a capable model chose and its reply, or None after two replies that could not be read."""
    labels = option_labels(len(decision.options))
    k, single = min(decision.k, len(labels)), decision.k == 1
    max_tokens = _LABEL_TOKENS * (1 if single else k + 4)
    example = json.dumps({"chosen": labels[1:3][:k] or labels})
    form = ONE_FORM if single else LIST_FORM.format(least=0 if decision.allow_none else 1, most=k, example=example)
    if single and decision.allow_none:
        form = f"{NONE_LABEL}. {NONE_TEXT}\n{form}"
    listed = [f"{label}. {' '.join(option.split())}" for label, option in zip(labels, decision.options)]
    text, n_shown = _shown(run, decision, listed, form, max_tokens)
    labels = labels[:n_shown]
    if single:
        constraint: Choice | JsonSchema = Choice((*labels, NONE_LABEL) if decision.allow_none else tuple(labels))
    else:
        constraint = JsonSchema(_labels_schema(labels, min(k, n_shown), 0 if decision.allow_none else 1))
    rewrite = partial(_labelled, dict(zip(labels, decision.options)))
    found, reply = await reply_of(
        run, decision.prompt, text, constraint, max_tokens=max_tokens, name=decision.name, rewrite=rewrite
    )
    if not isinstance(found, Read):
        return None
    said = [found.value] if single else found.value["chosen"]
    return list(dict.fromkeys(labels.index(label) for label in said if label != NONE_LABEL)), reply


def _labelled(options: Mapping[str, str], text: str) -> str:
    """A reply that writes options out, as it writes their labels."""
    for label, option in options.items():
        for form in (" ".join(option.split()), f"{label}. {' '.join(option.split())}"):
            if text.strip(" \n`\"'.") == form:
                return label
            text = text.replace(json.dumps(form, ensure_ascii=False), json.dumps(label))
    return text


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
