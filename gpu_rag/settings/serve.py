"""Settings of the HTTP server: the section `[serve]`."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.settings.ranges import COUNT, NATURAL, Allowed, Range


@dataclass(frozen=True)
class ServeSettings:
    """What clients may ask of `gpu-rag serve`, and how long. They change no answer, so they are in no hash.

    max_queue: questions that may wait beyond the `runtime.max_live` that run; more are refused with status 429.
    max_questions: of one request. max_passages: that one retrieval may ask for. max_body_kib, max_question_chars: size
    of a request and of a question in it. max_connections: open at once. question_seconds: time from the arrival of a
    question until it fails; 0 is no limit. client_seconds: how long a client may take to send a request, to take a
    piece of a response, or 64 KiB of one that waits for it. grace_seconds: for the questions in flight when the server
    is stopped. revive_seconds: pause before models that died are opened again, doubled up to a minute; 0: never.
    hosts: names beside the address bound that a Host header may give. params: parameters that a request may set, such
    as "ppr.damping" or "ppr.*". warm: ask each method a question before the first client can.
    """

    max_queue: int = 1024
    max_questions: int = 256
    max_passages: int = 100
    max_body_kib: int = 1024
    max_question_chars: int = 4000
    max_connections: int = 1024
    question_seconds: float = 300.0
    client_seconds: float = 30.0
    grace_seconds: float = 10.0
    revive_seconds: float = 5.0
    hosts: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    warm: bool = True


ALLOWED: dict[str, Allowed] = {
    "max_queue": NATURAL,
    "max_questions": COUNT,
    "max_passages": COUNT,
    "max_body_kib": COUNT,
    "max_question_chars": COUNT,
    "max_connections": COUNT,
    "question_seconds": NATURAL,
    "client_seconds": Range(0.1),
    "grace_seconds": NATURAL,
    "revive_seconds": NATURAL,
}
