"""Decisions of methods that are not values yet: `ask` a prompt for text or an object, `choose` among options.

These go when the last method states its decisions as `models.ask.Ask` and `Choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_rag.models.ask import Choose, Packed, shown
from gpu_rag.models.llm.interface import fits
from gpu_rag.models.pack import SEPARATOR, overflow
from gpu_rag.program.decide import decide
from gpu_rag.program.reason import reason_room
from gpu_rag.program.replies import Form, count, reply_to
from gpu_rag.program.run import Run
from gpu_rag.text.lenient import Read
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import JsonSchema, Malformed


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
) -> str | dict[str, Any] | Malformed:
    """The reply to a prompt: its text, or the JSON object where `schema` is given; Malformed or "" after two tries.

    evidence: texts, best first, that the packer puts into `{{slot}}` as far as they fit.
    """
    if evidence is not None:
        text, _, _ = packed(run, prompt, fields, slot, evidence, max_tokens=max_tokens)
    else:
        text, model, room = prompt.render(**fields), run.models.language_model, max_tokens + reason_room(run.models)
        if not fits(model, prompt.system, text, room):
            n_tokens = model.count_tokens(prompt.system) + model.count_tokens(text)
            raise overflow(model, prompt, n_tokens, room)
    return await ask_text(run, prompt, text, schema=schema, max_tokens=max_tokens, name=name)


async def ask_text(
    run: Run, prompt: Prompt, text: str, *, schema: str | None, max_tokens: int, name: str = "ask"
) -> str | dict[str, Any] | Malformed:
    """`ask` with a user text that is rendered already."""
    constraint = None if schema is None else JsonSchema(schema)
    read, reply = await reply_to(run, prompt, text, Form(name, constraint, max_tokens, run.models.temperature))
    if isinstance(read, Read):
        run.note(name, 0, (), reply)
        return read.value  # type: ignore[no-any-return]
    count(run, name, "rule")
    return read if schema is not None else ""


def packed(
    run: Run,
    prompt: Prompt,
    fields: Mapping[str, str],
    slot: str,
    evidence: Sequence[str],
    *,
    max_tokens: int,
    separator: str = SEPARATOR,
) -> tuple[str, int, int]:
    """The user text with as many texts as fit, their number, and the tokens that were cut."""
    slots: dict[str, str | Packed] = {**fields, slot: Packed(evidence, separator=separator)}
    rendered = shown(run.models.language_model, prompt, slots, max_tokens + reason_room(run.models))
    run.ctx.usage.cut += rendered.n_cut
    return rendered.text, len(rendered.positions), rendered.n_cut


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
    helps: Callable[..., bool] | None = None,
) -> list[int]:
    """Positions of the best options, best first: 1 to k, or 0 to k with `allow_none`."""
    decision = Choose(name, lambda: prompt, lambda: fields, none=allow_none, k=k, threshold=threshold, helps=helps)
    return await decide(run, decision, options=options, query=query, scores=scores)
