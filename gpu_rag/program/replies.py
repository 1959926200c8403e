"""Requests to a language model from within a program. A reply is parsed leniently, with one repair, and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu_rag.models.llm.interface import fits
from gpu_rag.program.embed import check_texts
from gpu_rag.program.run import Run
from gpu_rag.program.steps import llm
from gpu_rag.runtime.trace import Slot
from gpu_rag.text.lenient import EXACT, LENIENT, Read, read_reply, repairs
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Choice, JsonSchema, Malformed, Reply, Request


@dataclass(frozen=True)
class Form:
    """The form of a reply.

    name: name of the decision, in the counts. rewrite: rewrites a reply; if only the new text can be parsed, it counts
    as lenient. on_text: called with the text so far of a plain reply; objects are not streamed.
    """

    name: str
    constraint: JsonSchema | Choice | None
    max_tokens: int
    temperature: float = 0.0
    rewrite: Callable[[str], str] | None = None
    on_text: Callable[[str], None] | None = None


async def reply_to(run: Run, prompt: Prompt, text: str, form: Form) -> tuple[Read | Malformed, Reply]:
    """The content of a reply, or Malformed after one repair with a larger budget; and the reply that was parsed.

    Raises RequestFailed when the request failed, UsageError if no language model is configured.
    """
    slot, models, constraint, max_tokens = run.ctx.slot, run.models, form.constraint, form.max_tokens
    on_text = form.on_text if constraint is None else None
    run.ctx.usage.replies_read += 1
    request = Request(prompt.system, text, constraint, max_tokens, form.temperature, on_text=on_text)
    reply = await sent(run, request, slot)
    read = _read(reply, constraint, form.rewrite)
    if isinstance(read, Read):
        if read.how != EXACT:
            count(run, form.name, read.how)
        return read, reply
    note_malformed(run, form.name, reply)
    tries = repairs(text, max_tokens, read)
    text, max_tokens = next((pair for pair in tries if fits(models.language_model, prompt.system, *pair)), tries[-1])
    # A text is malformed only if it is empty, so nothing is streamed twice.
    reply = await sent(run, replace(request, prompt=text, max_tokens=max_tokens, attempt=1), slot)
    read = _read(reply, constraint, form.rewrite)
    if isinstance(read, Read):
        count(run, form.name, "repaired")
        return read, reply
    note_malformed(run, form.name, reply)
    return read, reply


def _read(
    reply: Reply, constraint: JsonSchema | Choice | None, rewrite: Callable[[str], str] | None
) -> Read | Malformed:
    read = read_reply(reply, constraint)
    exact = isinstance(read, Read) and read.how == EXACT
    if exact or rewrite is None or (text := rewrite(reply.text)) == reply.text:
        return read
    reread = read_reply(replace(reply, text=text), constraint)
    return Read(reread.value, LENIENT) if isinstance(reread, Read) else read


async def sent(run: Run, request: Request, slot: Slot | None = None) -> Reply:
    """The reply to a request, with the seed of a slot. A repair uses the slot of its first try."""
    check_texts([request.system, request.prompt])
    _ = run.models.language_model  # raises if there is none
    seed = run.ctx.request_seed(run.ctx.slot if slot is None else slot, request.attempt)
    return await llm(replace(request, seed=seed))


def count(run: Run, name: str, kind: str) -> None:
    """Count a reply that was not in the form asked for. kind: one of `types.FALLBACKS`."""
    fallbacks, key = run.ctx.usage.fallbacks, f"{name}/{kind}"
    fallbacks[key] = fallbacks.get(key, 0) + 1


def note_malformed(run: Run, name: str, reply: Reply) -> None:
    """Count and note a reply that could not be parsed."""
    run.ctx.usage.malformed += 1
    run.note(f"{name}/malformed", 0, (), reply)
