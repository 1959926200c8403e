"""A model server that misbehaves on purpose: OpenAI chat completions with faulty replies and connections.

The fault of a request is a hash of the seed, its body and how often that body was sent. So the order of arrival does
not matter, and the same run gets the same faults. Good replies come from `replies.well_formed`.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from gpu_rag.errors import BadInput
from gpu_rag.models.misbehave.replies import completion, reasons, spoil, well_formed

MODEL = "misbehaving-7B"
CONTENT = ("cut", "cut_silently", "empty", "fenced", "chatty", "wrong_id", "wrong_type", "megabyte", "whitespace")
ENVELOPE = ("thinking", "not_json", "no_choices", "error_200")
TRANSPORT = ("429", "500", "reset", "slow", "half_closed")
FAULTS = (*CONTENT, *ENVELOPE, *TRANSPORT)
NAMED = ("dripping",)  # used only if named: each takes a client's whole timeout
SLOW_S = 0.3
DRIP_S = 1.0  # between bytes
Answer = tuple[int, Any]  # status, JSON or bytes


@dataclass(frozen=True)
class Manners:
    """Configuration of the faults. share: share of the requests, in [0, 1]; faults: chosen evenly; thinks: every reply
    thinks."""

    seed: int = 0
    share: float = 0.3
    faults: tuple[str, ...] = FAULTS
    thinks: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise BadInput("not a share", given=self.share, expected="0 to 1")
        if unknown := set(self.faults) - {*FAULTS, *NAMED}:
            raise BadInput("no such fault", given=", ".join(sorted(unknown)), expected=", ".join((*FAULTS, *NAMED)))

    def fault(self, body: bytes, attempt: int) -> str:
        """Fault of attempt number `attempt` (from 0) at a request, or ""."""
        draw = int.from_bytes(blake2b(b"%d/%d/" % (self.seed, attempt) + body, digest_size=8).digest(), "big")
        if not self.faults or (draw >> 32) / 2**32 >= self.share:
            return ""
        return self.faults[(draw & 0xFFFFFFFF) % len(self.faults)]


@dataclass
class MisbehavingServer:
    """A server that listens on `url` until `close`. done: number of times each fault ("" for none) was used; card: its
    model in GET /models; answers: statuses and contents by fault. A subclass is another kind of server."""

    card: ClassVar[Mapping[str, Any]] = {"max_model_len": 32768}
    answers: ClassVar[Mapping[str, Answer]] = {
        "429": (429, {"error": "busy"}),
        "500": (500, {"error": "failed"}),
        "error_200": (200, {"error": {"message": "out of memory"}}),
    }
    manners: Manners = field(default_factory=Manners)
    host: str = "127.0.0.1"
    port: int = 0
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Counter[bytes] = Counter()
        self._httpd = _Server(self)
        self.url = f"http://{self.host}:{self._httpd.server_address[1]}/v1"
        serve = threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        serve.start()

    def close(self) -> None:
        """Stop listening; open connections are dropped."""
        self._httpd.shutdown()
        self._httpd.server_close()

    def accept(self, body: dict[str, Any]) -> tuple[dict[str, Any], Answer | None]:
        """The body as this server understands it, and None; or the body and a refusal."""
        return body, None

    def next_fault(self, body: bytes) -> str:
        """Fault of a request that has just arrived."""
        key = blake2b(body, digest_size=16).digest()
        with self._lock:
            fault = self.manners.fault(body, self._seen[key])
            self._seen[key] += 1
            self.done[fault] += 1
        return fault

    def reply_to(self, body: dict[str, Any], raw: bytes) -> dict[str, Any]:
        """A well-formed chat completion."""
        return completion(body, well_formed(body))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, owner: MisbehavingServer):
        self.owner = owner
        super().__init__((owner.host, owner.port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server.owner
        card = {"id": MODEL, "object": "model", **server.card}
        self._send(200, json.dumps({"object": "list", "data": [card]}).encode())

    def do_POST(self) -> None:
        server = self.server.owner
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body, refusal = server.accept(json.loads(raw))
        if refusal is not None:
            return self._answer(*refusal)
        fault = server.next_fault(raw)
        if fault in TRANSPORT and fault != "slow" and fault != "half_closed":
            return self._refuse(fault)
        if fault == "slow":
            time.sleep(SLOW_S)
        answer = server.reply_to(body, raw)
        if server.manners.thinks or fault == "thinking":
            answer = reasons(body, answer, always=fault == "thinking")
        if fault == "not_json":
            return self._send(200, b"<html>It works!</html>")
        if fault == "error_200":
            return self._answer(*server.answers[fault])
        if fault in (*CONTENT, "no_choices"):
            answer = spoil(answer, fault)
        if fault == "dripping":
            return self._drip(json.dumps(answer).encode())
        self._send(200, json.dumps(answer).encode(), half=fault == "half_closed")

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, content if isinstance(content, bytes) else json.dumps(content).encode(), headers)

    def _refuse(self, fault: str) -> None:
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        self._answer(*self.server.owner.answers[fault], {"Retry-After": "0"} if fault == "429" else {})

    def _drip(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for byte in body:
            self.wfile.write(bytes([byte]))
            time.sleep(DRIP_S)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, half: bool = False) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if half else body)
        self.close_connection = half

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the counts record all faults."""
