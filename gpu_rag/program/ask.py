"""`ask` a language model, and `embed` texts: what a program says to models about one question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.models.llm.interface import fits
from gpu_rag.program.pack import SEPARATOR, overflow, pack
from gpu_rag.program.reason import reason_room, reasoned, split_reason
from gpu_rag.program.run import Run
from gpu_rag.program.steps import embed_texts, llm
from gpu_rag.runtime.trace import Slot
from gpu_rag.text.lenient import EXACT, LENIENT, Read, read_reply, repairs
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Choice, JsonSchema, Malformed, Rank, Reply, Request


async def ask(
    run: Run,
    prompt: Prompt,
    fields: Mapping[str, str],
    *,
    schema: str | None,
    max_tokens: int,
    evidence: Sequence[str] | None = None,
    slot: str = "evidence",
    name: str = "ask",
    on_text: Callable[[str], None] | None = None,
) -> str | dict[str, Any] | Malformed:
    """The reply to `prompt`: its text, or the JSON object where `schema` (canonical JSON Schema text) is given.

    evidence: texts, best first, that the packer puts into `{{slot}}` as far as they fit. A reply is read leniently, see
    `text.lenient`; one that cannot be read gets one repair try, then Malformed is returned, or "" where no schema is
    given. Each is counted. name: in the trace and the counts. on_text: as of a `Request`, of plain text alone: an
    object, and a reply that begins with a reason, are not handed on in pieces.
    Raises ContextOverflow when the prompt does not fit, RequestFailed when the request failed.
    """
    if evidence is not None:
        text, _, _ = packed(run, prompt, fields, slot, evidence, max_tokens=max_tokens)
    else:
        text, model, room = prompt.render(**fields), run.models.language_model, max_tokens + reason_room(run.models)
        if not fits(model, prompt.system, text, room):
            n_tokens = model.count_tokens(prompt.system) + model.count_tokens(text)
            raise overflow(model, prompt, n_tokens, room)
    return await ask_text(run, prompt, text, schema=schema, max_tokens=max_tokens, name=name, on_text=on_text)


async def ask_text(
    run: Run,
    prompt: Prompt,
    text: str,
    *,
    schema: str | None,
    max_tokens: int,
    name: str = "ask",
    on_text: Callable[[str], None] | None = None,
) -> str | dict[str, Any] | Malformed:
    """`ask` with a user text that is rendered already (by `packed`, when a program must know what was shown)."""
    constraint = None if schema is None else JsonSchema(schema)
    found, reply = await reply_of(run, prompt, text, constraint, max_tokens=max_tokens, name=name, on_text=on_text)
    if isinstance(found, Read):
        run.note(name, 0, (), reply)
        return found.value  # type: ignore[no-any-return]
    count(run, name, "rule")
    return found if schema is not None else ""


async def reply_of(
    run: Run,
    prompt: Prompt,
    text: str,
    constraint: JsonSchema | Choice | None,
    *,
    max_tokens: int,
    name: str,
    rewrite: Callable[[str], str] | None = None,
    on_text: Callable[[str], None] | None = None,
) -> tuple[Read | Malformed, Reply]:
    """What a reply says, or Malformed after one repair try with a larger budget; and the reply that was read.

    rewrite: what else a reply that cannot be read may have meant, to be read as lenient.
    """
    at, models = run.ctx.slot, run.models
    asked = constraint
    if models.reason:
        text, constraint, max_tokens = reasoned(models, text, constraint, max_tokens)
    heard = on_text if constraint is None else None
    run.ctx.usage.replies_read += 1
    reply = await request(run, prompt.system, text, constraint, max_tokens=max_tokens, slot=at, on_text=heard)
    found = _read(reply, constraint, rewrite)
    if isinstance(found, Read):
        if found.how != EXACT:
            count(run, name, found.how)
        return _without_reason(run, found, asked), reply
    note_malformed(run, name, reply)
    ways = repairs(text, max_tokens, found)
    text, max_tokens = next((way for way in ways if fits(models.language_model, prompt.system, *way)), ways[-1])
    # Text is malformed only where nothing was said, so that nothing is said twice.
    reply = await request(
        run, prompt.system, text, constraint, max_tokens=max_tokens, slot=at, attempt=1, on_text=heard
    )
    found = _read(reply, constraint, rewrite)
    if isinstance(found, Read):
        count(run, name, "repaired")
        return _without_reason(run, found, asked), reply
    note_malformed(run, name, reply)
    return found, reply


def _read(
    reply: Reply, constraint: JsonSchema | Choice | None, rewrite: Callable[[str], str] | None
) -> Read | Malformed:
    found = read_reply(reply, constraint)
    exact = isinstance(found, Read) and found.how == EXACT
    if exact or rewrite is None or (text := rewrite(reply.text)) == reply.text:
        return found
    meant = read_reply(replace(reply, text=text), constraint)
    return Read(meant.value, LENIENT) if isinstance(meant, Read) else found


def _without_reason(run: Run, found: Read, asked: JsonSchema | Choice | None) -> Read:
    """What a reply says under the constraint that the step has; its reason is counted and left out."""
    if not run.models.reason:
        return found
    reason, value = split_reason(found.value, asked)
    run.ctx.usage.reason_tokens += run.models.language_model.count_tokens(reason)
    return Read(value, found.how)


def count(run: Run, name: str, kind: str) -> None:
    """Count a reply that was not in the form asked for: one of `types.FALLBACKS`."""
    fallbacks, key = run.ctx.usage.fallbacks, f"{name}/{kind}"
    fallbacks[key] = fallbacks.get(key, 0) + 1


async def embed(texts: Sequence[str]) -> np.ndarray:
    """f32[n, D], row i the unit vector of texts[i]."""
    check_texts(texts)
    return await embed_texts(tuple(texts))


def packed(
    run: Run,
    prompt: Prompt,
    fields: Mapping[str, str],
    slot: str,
    evidence: Sequence[str],
    *,
    max_tokens: int,
    separator: str = SEPARATOR,
    ending: str = "",
) -> tuple[str, int, int]:
    """THE packer for the model of this run, see `pack`; what was cut is added to the question's costs."""
    found = pack(
        prompt,
        fields,
        slot,
        evidence,
        llm=run.models.language_model,
        max_tokens=max_tokens + reason_room(run.models),
        separator=separator,
        ending=ending,
    )
    run.ctx.usage.cut += found[2]
    return found


async def request(
    run: Run,
    system: str,
    text: str,
    constraint: JsonSchema | Choice | Rank | None,
    *,
    max_tokens: int,
    slot: Slot | None = None,
    attempt: int = 0,
    on_text: Callable[[str], None] | None = None,
) -> Reply:
    """One model request, without packing, parsing or note. slot: that of the first try, for a repair's seed."""
    check_texts([system, text])
    models = run.models
    _ = models.language_model  # refused here where there is none
    seed = run.ctx.request_seed(run.ctx.slot if slot is None else slot, attempt)
    return await llm(Request(system, text, constraint, max_tokens, models.temperature, seed, attempt, on_text))


def note_malformed(run: Run, name: str, reply: Reply) -> None:
    """Count and note a reply that could not be read."""
    run.ctx.usage.malformed += 1
    run.note(f"{name}/malformed", 0, (), reply)


def check_texts(texts: Sequence[str]) -> None:
    """Refuse here what a tokenizer would choke on later, with the whole batch."""
    for text in texts:
        if not isinstance(text, str):
            raise UsageError("a model reads text", given=type(text).__name__, expected="str")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadInput(
                "a text is not valid Unicode", given=ascii(text[:40]), do="remove lone surrogates"
            ) from error
