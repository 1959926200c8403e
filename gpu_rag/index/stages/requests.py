"""Requests of stages to a language model: many under one schema each, one repair try, costs counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from gpu_rag.errors import RequestFailed
from gpu_rag.index.work import Work
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import parse_json
from gpu_rag.types import JsonSchema, Malformed, Reply, Request

WINDOW = 8192  # items whose requests go out together: an engine drains only between windows
UNREAD = ("malformed", "truncated")  # worth a second try; a request that failed is sent again by the next run


def windows(n: int) -> Iterator[slice]:
    """The slices of n items whose requests are given to `ask` together."""
    return (slice(start, min(n, start + WINDOW)) for start in range(0, n, WINDOW))


def text_requests(
    prompt: Prompt, titles: Sequence[str], texts: Sequence[str], *, schema: str, max_tokens: int, seed: int
) -> list[Request]:
    """The same question about each titled text, to be replied under one JSON Schema (canonical text).

    prompt: with the slots `title` and `text`. Raises ValueError where titles and texts differ in number.
    """
    constraint = JsonSchema(schema)
    return [
        Request(prompt.system, prompt.render(title=title, text=text), constraint, max_tokens=max_tokens, seed=seed)
        for title, text in zip(titles, texts, strict=True)
    ]


def ask(work: Work, requests: Sequence[Request]) -> list[dict[str, Any] | str]:
    """For each request the object that was replied, or why there is none: malformed | truncated | failed.

    Every request has a JsonSchema. A reply that cannot be read is requested once more, a little warmer. Finished
    replies are in the durable cache: a run after a killed one reuses them. A reply that stays unread counts as a
    failure of the stage.
    """
    found = [_read(work, request, reply) for request, reply in zip(requests, _complete(work, requests))]
    again = [i for i, value in enumerate(found) if value in UNREAD]
    retries = [replace(requests[i], attempt=1, temperature=0.3) for i in again]
    for i, request, reply in zip(again, retries, _complete(work, retries, again=True)):
        second = _read(work, request, reply)
        if isinstance(second, dict):
            found[i] = second
    work.report.failures += sum(isinstance(value, str) for value in found)
    return found


def _complete(work: Work, requests: Sequence[Request], again: bool = False) -> list[Reply | RequestFailed]:
    llm = work.models.llm()  # loading it is not asking it
    started = perf_counter()
    replies = llm.complete(requests, lambda _, reply: work.progress.advance(*_progress(reply, again)))
    work.report.llm_s += perf_counter() - started
    return replies


def _progress(reply: Reply | RequestFailed, again: bool) -> tuple[int, int]:
    """(requests, tokens) that one reply adds to the progress bar; a repair is no further request."""
    return int(not again), reply.n_prompt + reply.n_generated if isinstance(reply, Reply) else 0


def _read(work: Work, request: Request, reply: Reply | RequestFailed) -> dict[str, Any] | str:
    if isinstance(reply, RequestFailed):
        return "failed"
    report = work.report
    report.llm_calls += not reply.from_cache
    report.prompt_tokens += reply.n_prompt
    report.cached_tokens += reply.n_cached
    report.generated_tokens += reply.n_generated
    assert isinstance(request.constraint, JsonSchema)
    parsed = parse_json(reply.text, request.constraint.schema)
    if isinstance(parsed, Malformed):
        return "truncated" if reply.finish_reason == "length" else "malformed"
    return parsed
