"""The two interfaces of an engine, and the keys under which replies are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gpu_rag.errors import ModelError, RequestFailed, UsageError
from gpu_rag.models.fingerprint import text_hash
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

OnReply = Callable[[int, "Reply | RequestFailed"], None]
# JSON on one line: a small model that may choose white space writes nothing else. Separators are as in json.dumps
# and of the prompts' examples: a model that must write "[" where it would write " [" closes the list and replies
# nothing.
JSON_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ApiKeys = str | Mapping[str, str] | None  # one key for all model servers, or keys by address


class Model(Protocol):
    """A language model behind either interface.

    name: the spec of `load_llm`; content_hash: sha256 of what determines its replies; context_tokens: the most tokens
    of system, prompt and reply together, without the chat template's own; capable: whether the model may extract and
    judge, or only do routine work.
    """

    name: str
    content_hash: str
    context_tokens: int
    capable: bool

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`; a cautious estimate if the engine's tokenizer is not available."""
        ...

    def close(self) -> None:
        """Give up open requests and free all memory. The engine is not used afterwards."""
        ...


def fits(llm: Model, system: str, text: str, max_tokens: int) -> bool:
    """Whether the system part, the user text and room for the reply fit in the model's context."""
    room = llm.context_tokens - max_tokens
    # A token has at least one byte, so a short text needs no tokenizer.
    if len(system.encode("utf-8", "replace")) + len(text.encode("utf-8", "replace")) <= room:
        return True
    return llm.count_tokens(system) + llm.count_tokens(text) <= room


class LLM(Model, Protocol):
    """An engine that answers requests."""

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order; a failed request has its RequestFailed in that position.

        on_reply(i, reply) is called in the calling thread when each request finishes, in any order.
        Raises ModelError only when the whole engine cannot continue.
        """
        ...


@runtime_checkable
class StreamingLLM(Model, Protocol):
    """Asynchronous interface of an engine: requests go in while others run, replies come out as they finish.

    One thread at a time uses it. A key is the caller's number for a request, unique among the open ones. `poll` returns
    every submitted key exactly once, unless the engine dies or is closed first. Engines offer this interface besides
    `LLM.complete`; `service.as_streaming` adds it to one that does not.
    """

    def submit(self, key: int, request: Request) -> None:
        """Hand over a request; never waits for the engine. Raises UsageError for an open key."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[int, Reply | RequestFailed]]:
        """Finished requests, as (key, reply). Waits up to `timeout_s` for the first; [] when none came or none is open.

        Raises ModelError when the engine is dead and all earlier replies were returned.
        """
        ...

    def abort(self, key: int) -> None:
        """Give up a request. Ignores a key that is not open.

        `poll` still returns the key once: with its reply if that was finished or cannot be stopped any more, else with
        a RequestFailed that says it was aborted.
        """
        ...

    @property
    def n_open(self) -> int:
        """Number of keys that were submitted and not yet returned by `poll`."""
        ...


@dataclass
class ServerAccount:
    """Work of one server, or of one engine outside this process, since it was opened.

    requests: replies that it gave. busy_s: seconds with a request there; queue_s: total seconds that requests waited
    for a place there. failures: tries without a reply, or deaths of an engine; retries: tries after a failed one.
    preemptions: how often a request gave its place to others; None if the server does not report it. estimated: replies
    whose tokens the server did not count; other_model: replies in the name of another model than requested.
    """

    name: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    busy_s: float = 0.0
    queue_s: float = 0.0
    failures: int = 0
    retries: int = 0
    preemptions: int | None = None
    estimated: int = 0
    other_model: int = 0

    def add_reply(self, reply: Reply) -> None:
        """Add the costs of one reply."""
        self.prompt_tokens += reply.n_prompt
        self.cached_tokens += reply.n_cached
        self.generated_tokens += reply.n_generated
        self.estimated += reply.estimated


def complete_each(llm: LLM, requests: Sequence[Request], on_reply: OnReply) -> None:
    """`llm.complete`, with on_reply(i, reply) once for each request, also by an engine that only returns its replies.
    Raises ModelError for other than one reply per request."""
    given = set[int]()

    def give(i: int, reply: Reply | RequestFailed) -> None:
        given.add(i)
        on_reply(i, reply)

    replies = llm.complete(requests, give)
    if len(given) < len(requests) != len(replies):
        do = "return one reply for each request, in order"
        raise ModelError("the engine left requests without a reply", given=f"{len(replies)} of {len(requests)}", do=do)
    for i, reply in enumerate(replies):
        if i not in given:
            on_reply(i, reply)


def in_order(
    n: int, finished: Iterable[tuple[int, Reply | RequestFailed]], on_reply: OnReply | None
) -> list[Reply | RequestFailed]:
    """The n replies in order of their numbers, from (number, reply) in order of completion."""
    replies: list[Reply | RequestFailed | None] = [None] * n
    for i, reply in finished:
        replies[i] = reply
        if on_reply is not None:
            on_reply(i, reply)
    return [reply for reply in replies if reply is not None]


def ranked(
    options: Sequence[str],
    scores: Sequence[float],
    n_prompt: int,
    n_cached: int,
    n_generated: int = 0,
    estimated: bool = False,
) -> Reply:
    """Reply to a Rank: the option with the highest score, ties to the first."""
    best = max(range(len(scores)), key=scores.__getitem__)
    return Reply(options[best], "rank", n_prompt, n_cached, n_generated, tuple(scores), estimated=estimated)


def on_growth(
    decoded: Callable[[Sequence[int]], str], on_text: Callable[[str], None]
) -> Callable[[Sequence[int]], None]:
    """Callback for the token ids of a reply so far, which calls `Request.on_text`.

    A character of several tokens waits until it is complete.
    """

    def grown(ids: Sequence[int]) -> None:
        text = decoded(ids)
        if not text.endswith("\ufffd"):
            on_text(text)

    return grown


def check_key(key: int, *open_keys: Container[int]) -> None:
    """Raise UsageError for a key that is open, as `StreamingLLM.submit` does."""
    if any(key in keys for keys in open_keys):
        raise UsageError("the request cannot be taken", given=f"key {key}", expected="a key that is not open")


def aborted() -> RequestFailed:
    """Reply to an aborted request."""
    return RequestFailed("the request was aborted")


def estimate_tokens(text: str) -> int:
    """Cautious estimate of the tokens of `text` without a tokenizer: a third of its UTF-8 bytes, rounded up.

    English has about four bytes a token, so this is high for prose; strings of digits and symbols can have more tokens.
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // 3)


def constraint_record(constraint: JsonSchema | Choice | Rank | None) -> dict[str, Any] | None:
    """Constraint as JSON."""
    match constraint:
        case None:
            return None
        case JsonSchema(schema):
            return {"json_schema": schema}
        case Choice(options):
            return {"choice": list(options)}
        case Rank(options):
            return {"rank": list(options)}


def request_key(request: Request) -> str:
    """sha256 over system, prompt, constraint, max_tokens, temperature, seed and attempt.

    The seed counts only at a temperature above 0, because a greedy reply does not depend on it.
    """
    return text_hash(
        request.system,
        request.prompt,
        constraint_record(request.constraint),
        request.max_tokens,
        float(request.temperature),
        request.seed if request.temperature > 0 else 0,
        request.attempt,
    )


def reply_key(llm: LLM, request: Request) -> str:
    """`request_key` combined with the content hash of the model."""
    return text_hash(llm.content_hash, request_key(request))


def reply_record(reply: Reply) -> dict[str, Any]:
    """Reply as JSON, without `from_cache`; floats survive a round trip exactly."""
    record: dict[str, Any] = {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "n_prompt": reply.n_prompt,
        "n_cached": reply.n_cached,
        "n_generated": reply.n_generated,
    }
    if reply.scores:
        record["scores"] = list(reply.scores)
    if reply.estimated:
        record["estimated"] = True
    return record


def reply_from_record(record: dict[str, Any], *, from_cache: bool = False) -> Reply:
    """Reply that `reply_record` wrote. Raises KeyError, TypeError or ValueError for anything else."""
    return Reply(
        text=str(record["text"]),
        finish_reason=str(record["finish_reason"]),
        n_prompt=int(record["n_prompt"]),
        n_cached=int(record["n_cached"]),
        n_generated=int(record["n_generated"]),
        scores=tuple(float(s) for s in record.get("scores", ())),
        estimated=bool(record.get("estimated", False)),
        from_cache=from_cache,
    )


def sampling_seed(seed: int, attempt: int) -> int:
    """63 bits from a request's seed and attempt, so that every request draws its own numbers in any batch."""
    digest = hashlib.blake2b(f"{seed}/{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
