"""A choice by a language model: options in, positions out, best first.

by_labels   a constrained choice of labels ("A".."Z", or zero-padded numbers beyond 26 options). k = 1 is a Choice,
            k > 1 a JSON list of labels, best first.
by_rank     for models that are not capable: the options are scored as continuations by mean log-probability per token,
            best k first. If an empty choice is allowed, only options that score above "none of these" are taken.

The prompt says what makes an option good. This module writes the list of options and the form of the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from string import ascii_uppercase

import numpy as np

from gpu_rag.errors import ContextOverflow
from gpu_rag.models.ask import OPTIONS, Options, Packed, shown
from gpu_rag.models.pack import pack
from gpu_rag.program.replies import Form, note_malformed, reply_to, sent
from gpu_rag.program.run import Run
from gpu_rag.text.lenient import Read, read_reply
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

NONE_LABEL = "none"
NONE_TEXT = "none of these"
ONE_FORM = "Reply with the label of the best option, and nothing else."
LIST_FORM = "Reply as JSON with the labels of {least} to {most} options, the best first, as in {example}"
_LABEL_TOKENS = 8
ROOM = 128  # tokens that packed texts leave free

Slots = Mapping[str, str]


def best(scores: Sequence[float] | np.ndarray, k: int, threshold: float | None = None) -> list[int]:
    """Positions of the k best scores, ties to the earlier; only scores >= `threshold`, if given."""
    order = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))[:k]
    return order if threshold is None else [i for i in order if scores[i] >= threshold]


def shuffled(run: Run, name: str, first: str, n: int) -> list[int]:
    """The positions of n options in a random order, the same in every run. first: the text of the first one: each
    choice has an order of its own, so an option that is offered twice is not first in both."""
    order = list(range(n))
    Random(f"{run.ctx.question.id}|{name}|{first}").shuffle(order)
    return order


def whole(run: Run, prompt: Prompt, slots: Mapping[str, str | Packed], options: Options) -> Slots | None:
    """The slots; a packed slot has only texts that fit as a whole with the options, since half a text cannot be
    judged.

    None if not even one text fits.
    """
    plain = {name: value for name, value in slots.items() if isinstance(value, str)}
    others, room = {**plain, OPTIONS: "\n".join(options.texts)}, ROOM
    for name, value in slots.items():
        if not isinstance(value, str):
            _, n_kept, n_cut = pack(prompt, others, name, value.texts, llm=run.models.language_model, max_tokens=room)
            run.ctx.usage.cut += n_cut
            texts = value.texts[: n_kept - 1 if n_cut else n_kept]
            if not texts:
                return None
            plain[name] = value.separator.join(texts)
    return plain


async def by_rank(run: Run, prompt: Prompt, slots: Slots, options: Options) -> tuple[list[int], Reply] | None:
    """The options that a model scores best, and its reply; None if its engine gives no scores."""
    longest = max(run.models.language_model.count_tokens(text) for text in options.texts)
    listed = [f"- {' '.join(text.split())}" for text in options.texts]
    text, positions = _listed(run, prompt, slots, listed, options.rank, "", max(longest, 1))
    texts = (*(options.texts[i] for i in positions), *([NONE_TEXT] if options.allow_none else []))
    rank = Rank(texts)
    reply = await sent(run, Request(prompt.system, text, rank, 1))
    if not isinstance(read_reply(reply, rank), Read):
        if reply.finish_reason != "unscored":
            note_malformed(run, options.name, reply)
        return None
    run.ctx.usage.replies_read += 1
    chosen = best(reply.scores[: len(positions)], options.k)
    if options.allow_none:
        chosen = [i for i in chosen if reply.scores[i] > reply.scores[-1]]
    return [positions[i] for i in chosen], reply


async def by_labels(run: Run, prompt: Prompt, slots: Slots, options: Options) -> tuple[list[int], Reply] | None:
    """The options that a model names, and its reply; None after two unreadable replies."""
    labels = option_labels(len(options.texts))
    k, single = min(options.k, len(labels)), options.k == 1
    max_tokens = _LABEL_TOKENS * (1 if single else k + 4)
    example = json.dumps({"chosen": labels[1:3][:k] or labels})
    form = ONE_FORM if single else LIST_FORM.format(least=0 if options.allow_none else 1, most=k, example=example)
    if single and options.allow_none:
        form = f"{NONE_LABEL}. {NONE_TEXT}\n{form}"
    listed = [f"{label}. {' '.join(text.split())}" for label, text in zip(labels, options.texts)]
    text, positions = _listed(run, prompt, slots, listed, options.rank, form, max_tokens)
    place = {labels[i]: i for i in positions}
    if single:
        constraint: Choice | JsonSchema = Choice((*place, NONE_LABEL) if options.allow_none else tuple(place))
    else:
        constraint = JsonSchema(_labels_schema(list(place), min(k, len(place)), 0 if options.allow_none else 1))
    rewrite = partial(_labelled, {label: options.texts[i] for label, i in place.items()})
    form_of = Form(options.name, constraint, max_tokens, rewrite=rewrite)
    read, reply = await reply_to(run, prompt, text, form_of)
    if not isinstance(read, Read):
        return None
    named = [read.value] if single else read.value["chosen"]
    return list(dict.fromkeys(place[label] for label in named if label != NONE_LABEL)), reply


def _labelled(options: Mapping[str, str], text: str) -> str:
    """The text of a reply in which written-out options are replaced by their labels."""
    labels: dict[str, str] = {}
    for label, option in options.items():
        words = " ".join(option.split())
        labels.setdefault(words, label)
        labels.setdefault(f"{label}. {words}", label)
    if (bare := text.strip(" \n`\"'.")) in labels:
        return labels[bare]
    # in one pass: an option may be spelled like the label of another
    quoted = {json.dumps(form, ensure_ascii=False): json.dumps(label) for form, label in labels.items()}
    return re.sub("|".join(map(re.escape, quoted)), lambda form: quoted[form[0]], text)


def _listed(
    run: Run, prompt: Prompt, slots: Slots, listed: list[str], rank: Sequence[int] | None, ending: str, max_tokens: int
) -> tuple[str, tuple[int, ...]]:
    """The user text with the options that fit, and their positions."""
    options = Packed(listed, rank, separator="\n", ending=ending)
    rendered = shown(run.models.language_model, prompt, {**slots, OPTIONS: options}, max_tokens)
    run.ctx.usage.cut += rendered.n_cut
    if not rendered.positions:
        raise ContextOverflow("no option fits the prompt", given=prompt.name, do="use a longer context")
    return rendered.text, rendered.positions


def option_labels(n: int) -> list[str]:
    """Labels of equal length, so that none is a prefix of another: letters, or numbers beyond 26."""
    if n <= len(ascii_uppercase):
        return list(ascii_uppercase[:n])
    return [f"{i:0{len(str(n))}d}" for i in range(1, n + 1)]


def _labels_schema(labels: Sequence[str], limit: int, min_items: int) -> str:
    items = {"type": "array", "items": {"enum": list(labels)}, "minItems": min_items, "maxItems": limit}
    return canonical_schema(
        {"type": "object", "properties": {"chosen": items}, "required": ["chosen"], "additionalProperties": False}
    )
