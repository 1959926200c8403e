"""Decisions of stages by a language model: many requests of one Ask, with lenient reading and counted costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import TypeVar

import msgspec

from gpu_rag.errors import RequestFailed
from gpu_rag.index.work import Work
from gpu_rag.models.ask import Ask, Fields
from gpu_rag.models.llm.interface import LLM, StreamingLLM, fits
from gpu_rag.text.lenient import CUT_OFF, EXACT, repairs
from gpu_rag.types import Malformed, Reply, Request

WINDOW = 8192  # requests that are open or wait for an earlier one: bounds memory
POLL_S = 1.0
REPAIR_TEMPERATURE = 0.3  # slightly warmer, because the same words would fail again

R = TypeVar("R", bound=msgspec.Struct)
Outcome = Reply | RequestFailed


@dataclass(frozen=True)
class _Sent:
    """A request, and the fields that it was made from."""

    request: Request
    fields: Fields


def decided(work: Work, ask: Ask[R], rows: Iterable[Fields]) -> Iterator[R | str]:
    """Model's reply to each decision, in order, or the reason why there is none: malformed | truncated | failed.

    A reply is read leniently, see `text.lenient`. A reply that cannot be read is requested once more, with the reason,
    more room and a higher temperature. A streaming engine gets requests while others run, repairs mixed in; any other
    engine gets windows of `WINDOW`. Finished replies are in the durable cache: a run after a killed one reuses them. A
    reply that stays unreadable counts as a failure of the stage, under the name of the Ask.
    """
    llm, seed = work.models.llm(), work.settings.runtime.seed  # loading is not part of llm_s
    sent = (_Sent(_within(llm, ask.request(fields, llm, seed)), fields) for fields in rows)
    replies = _in_windows(work, llm, sent, ask)
    if isinstance(llm, StreamingLLM) and isinstance(
        getattr(llm, "llm", llm), StreamingLLM
    ):  # behind a cache, its engine decides
        replies = _streamed(work, llm, sent, ask)
    for reply in replies:
        work.report.failures += isinstance(reply, str)
        yield reply


def _within(llm: LLM | StreamingLLM, request: Request) -> Request:
    """Request whose token limit is lowered to the room after the prompt in a short context, at least to a quarter."""
    if fits(llm, request.system, request.prompt, request.max_tokens):
        return request
    room = llm.context_tokens - llm.count_tokens(request.system) - llm.count_tokens(request.prompt)
    return replace(request, max_tokens=max(room, request.max_tokens // 4))


def _in_windows(work: Work, llm: LLM, sent: Iterator[_Sent], ask: Ask[R]) -> Iterator[R | str]:
    while window := list(islice(sent, WINDOW)):
        replies = _complete(work, llm, [item.request for item in window])
        read = [_read(work, item, reply, ask) for item, reply in zip(window, replies)]
        again = {i: _repair(llm, window[i], reply) for i, reply in enumerate(read) if isinstance(reply, Malformed)}
        for (i, item), reply in zip(again.items(), _complete(work, llm, [item.request for item in again.values()])):
            read[i] = _second(read[i], _read(work, item, reply, ask))
        yield from (_settled(work, reply, ask) for reply in read)


def _complete(work: Work, llm: LLM, requests: Sequence[Request]) -> list[Outcome]:
    started = perf_counter()
    replies = llm.complete(requests, lambda i, reply: _advance(work, requests[i], reply))
    work.report.llm_s += perf_counter() - started
    return replies


def _streamed(work: Work, llm: StreamingLLM, sent: Iterator[_Sent], ask: Ask[R]) -> Iterator[R | str]:
    running: dict[int, _Sent] = {}
    first: dict[int, Malformed] = {}  # first replies whose repair is under way
    done: dict[int, R | str] = {}
    n_sent = n_given = 0
    started = perf_counter()
    while True:
        for item in islice(sent, WINDOW - len(running) - len(done)):
            llm.submit(n_sent, item.request)
            running[n_sent] = item
            n_sent += 1
        if not running:
            break
        for i, outcome in llm.poll(POLL_S):
            item = running.pop(i)
            _advance(work, item.request, outcome)
            reply = _read(work, item, outcome, ask)
            if isinstance(reply, Malformed) and i not in first:
                first[i], running[i] = reply, _repair(llm, item, reply)
                llm.submit(i, running[i].request)
            else:
                done[i] = _settled(work, _second(first.pop(i), reply) if i in first else reply, ask)
        while n_given in done:
            yield done.pop(n_given)
            n_given += 1
    work.report.llm_s += perf_counter() - started


def _advance(work: Work, request: Request, reply: Outcome) -> None:
    """Advance the progress bar; a repair is not a new unit."""
    tokens = reply.n_prompt + reply.n_generated if isinstance(reply, Reply) else 0
    work.progress.advance(int(request.attempt == 0), tokens)


def _repair(llm: LLM | StreamingLLM, item: _Sent, malformed: Malformed) -> _Sent:
    choices = repairs(item.request.prompt, item.request.max_tokens, malformed)
    prompt, max_tokens = next((choice for choice in choices if fits(llm, item.request.system, *choice)), choices[-1])
    request = replace(item.request, prompt=prompt, max_tokens=max_tokens, attempt=1, temperature=REPAIR_TEMPERATURE)
    return replace(item, request=request)


def _read(work: Work, item: _Sent, outcome: Outcome, ask: Ask[R]) -> R | str | Malformed:
    """Reply as its type, with its costs counted; "failed" if none came."""
    report, attempt = work.report, item.request.attempt
    report.replies_read += attempt == 0
    if isinstance(outcome, RequestFailed):
        return "failed"
    report.llm_calls += not outcome.from_cache
    report.prompt_tokens += outcome.n_prompt
    report.cached_tokens += outcome.n_cached
    report.generated_tokens += outcome.n_generated
    reply, how = ask.read(outcome, item.fields)
    if not isinstance(reply, Malformed) and (attempt or how != EXACT):
        report.count(ask.name, "repaired" if attempt else how)
    return reply


def _second(first: R | str | Malformed, second: R | str | Malformed) -> R | str | Malformed:
    """Result of two tries: the second if it could be read, else the fault of the first."""
    return first if isinstance(second, (str, Malformed)) else second


def _settled(work: Work, reply: R | str | Malformed, ask: Ask[R]) -> R | str:
    if not isinstance(reply, Malformed):
        return reply
    work.report.count(ask.name, "rule")
    return "truncated" if reply.reason.startswith(CUT_OFF) else "malformed"
