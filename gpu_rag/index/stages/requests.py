"""Requests of stages to a language model: many under one schema each, replies read as in programs, costs counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import Any

from gpu_rag.errors import RequestFailed
from gpu_rag.index.work import Work
from gpu_rag.models.llm.interface import LLM, StreamingLLM, fits
from gpu_rag.text.lenient import CUT_OFF, EXACT, Read, read_reply, repairs
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import JsonSchema, Malformed, Reply, Request

WINDOW = 8192  # requests that are open or wait for an earlier one: bounds memory
POLL_S = 1.0
REPAIR_TEMPERATURE = 0.3  # a little warmer: the same words again would be as bad

Said = dict[str, Any] | str
Outcome = Reply | RequestFailed


def text_requests(
    prompt: Prompt, titles: Iterable[str], texts: Iterable[str], *, schema: str, max_tokens: int, seed: int
) -> list[Request]:
    """The same question about each titled text, to be replied under one JSON Schema (canonical text).

    prompt: with the slots `title` and `text`. Raises ValueError where titles and texts differ in number.
    """
    constraint = JsonSchema(schema)
    return [
        Request(prompt.system, prompt.render(title=title, text=text), constraint, max_tokens=max_tokens, seed=seed)
        for title, text in zip(titles, texts, strict=True)
    ]


def ask(work: Work, requests: Iterable[Request], step: str) -> Iterator[Said]:
    """For each request, in order, the object that was replied, or why there is none: malformed | truncated | failed.

    Every request has a JsonSchema. A reply is read leniently, see `text.lenient`; one that cannot be read is requested
    once more, with what was wrong, more room, and a little warmer. An engine that takes requests while others run gets
    them so, repairs mixed in; any other gets windows of `WINDOW`. Finished replies are in the durable cache: a run
    after a killed one reuses them. A reply that stays unread counts as a failure of the stage. step: in the counts.
    """
    llm = work.models.llm()  # loading it is not asking it
    requests = (_within(llm, request) for request in requests)
    found = _in_windows(work, llm, requests, step)
    if isinstance(llm, StreamingLLM) and isinstance(
        getattr(llm, "llm", llm), StreamingLLM
    ):  # behind a cache, its engine
        found = _streamed(work, llm, requests, step)
    for said in found:
        work.report.failures += isinstance(said, str)
        yield said


def _within(llm: LLM | StreamingLLM, request: Request) -> Request:
    """The request, its limit lowered to what a short context leaves beside the prompt, at most to a quarter."""
    if fits(llm, request.system, request.prompt, request.max_tokens):
        return request
    room = llm.context_tokens - llm.count_tokens(request.system) - llm.count_tokens(request.prompt)
    return replace(request, max_tokens=max(room, request.max_tokens // 4))


def _in_windows(work: Work, llm: LLM, requests: Iterator[Request], step: str) -> Iterator[Said]:
    while window := list(islice(requests, WINDOW)):
        found = [_read(work, request, reply, step) for request, reply in zip(window, _complete(work, llm, window))]
        again = {i: _repair(llm, window[i], said) for i, said in enumerate(found) if isinstance(said, Malformed)}
        for (i, request), reply in zip(again.items(), _complete(work, llm, list(again.values()))):
            found[i] = _second(found[i], _read(work, request, reply, step))
        yield from (_settled(work, said, step) for said in found)


def _complete(work: Work, llm: LLM, requests: Sequence[Request]) -> list[Outcome]:
    started = perf_counter()
    replies = llm.complete(requests, lambda i, reply: _advance(work, requests[i], reply))
    work.report.llm_s += perf_counter() - started
    return replies


def _streamed(work: Work, llm: StreamingLLM, requests: Iterator[Request], step: str) -> Iterator[Said]:
    running: dict[int, Request] = {}
    first: dict[int, Malformed] = {}  # what a repair under way is for
    done: dict[int, Said] = {}
    n_sent = n_given = 0
    started = perf_counter()
    while True:
        for request in islice(requests, WINDOW - len(running) - len(done)):
            llm.submit(n_sent, request)
            running[n_sent] = request
            n_sent += 1
        if not running:
            break
        for i, reply in llm.poll(POLL_S):
            request = running.pop(i)
            _advance(work, request, reply)
            said = _read(work, request, reply, step)
            if isinstance(said, Malformed) and i not in first:
                first[i], running[i] = said, _repair(llm, request, said)
                llm.submit(i, running[i])
            else:
                done[i] = _settled(work, _second(first.pop(i), said) if i in first else said, step)
        while n_given in done:
            yield done.pop(n_given)
            n_given += 1
    work.report.llm_s += perf_counter() - started


def _advance(work: Work, request: Request, reply: Outcome) -> None:
    """A repair is no further unit of the progress bar."""
    tokens = reply.n_prompt + reply.n_generated if isinstance(reply, Reply) else 0
    work.progress.advance(int(request.attempt == 0), tokens)


def _repair(llm: LLM | StreamingLLM, request: Request, malformed: Malformed) -> Request:
    ways = repairs(request.prompt, request.max_tokens, malformed)
    prompt, max_tokens = next((way for way in ways if fits(llm, request.system, *way)), ways[-1])
    return replace(request, prompt=prompt, max_tokens=max_tokens, attempt=1, temperature=REPAIR_TEMPERATURE)


def _read(work: Work, request: Request, reply: Outcome, step: str) -> Said | Malformed:
    """What one reply says, its costs booked."""
    report = work.report
    report.replies_read += request.attempt == 0
    if isinstance(reply, RequestFailed):
        return "failed"
    report.llm_calls += not reply.from_cache
    report.prompt_tokens += reply.n_prompt
    report.cached_tokens += reply.n_cached
    report.generated_tokens += reply.n_generated
    found = read_reply(reply, request.constraint)
    if not isinstance(found, Read):
        return found
    if request.attempt or found.how != EXACT:
        report.count(step, "repaired" if request.attempt else found.how)
    said: dict[str, Any] = found.value
    return said


def _second(first: Said | Malformed, second: Said | Malformed) -> Said | Malformed:
    """What two tries gave: the second where it can be read, else what was wrong with the first."""
    return second if isinstance(second, dict) else first


def _settled(work: Work, said: Said | Malformed, step: str) -> Said:
    if not isinstance(said, Malformed):
        return said
    work.report.count(step, "rule")
    return "truncated" if said.reason.startswith(CUT_OFF) else "malformed"
