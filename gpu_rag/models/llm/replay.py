"""An engine that repeats recorded replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput, RequestFailed
from gpu_rag.models.fingerprint import file_sha256, text_hash
from gpu_rag.models.llm.interface import OnReply, estimate_tokens, in_order, reply_from_record, request_key
from gpu_rag.types import Reply, Request

CONTEXT_TOKENS = 8192


class ReplayLLM:
    """An engine that repeats the replies of a file; a request that was not recorded is a RequestFailed.

    The file has one JSON object per line: {"key", "system", "prompt", "constraint", "reply"} for a reply (the last line
    of a key wins), {"model": {"name", "context_tokens", "capable"}} for the recorded model, {"tokens", "of"} for the
    token count of a text, so that prompts are packed as in the recording. Keys are `request_key`. Without a model line
    the context is 8192 tokens and the model capable; without token counts they are estimated.
    """

    def __init__(self, path: Path, *, capable: bool | None = None, context_tokens: int | None = None):
        """Read `path`. Raises BadInput naming a line that cannot be read."""
        self.path = Path(path)
        self._replies: dict[str, Reply] = {}
        self._tokens: dict[str, int] = {}
        model: dict[str, Any] = {}
        for number, row in _rows(self.path):
            try:
                if "key" in row:
                    self._replies[row["key"]] = reply_from_record(row["reply"])
                elif "of" in row:
                    self._tokens[row["of"]] = int(row["tokens"])
                else:
                    model = dict(row["model"])
            except (KeyError, TypeError, ValueError) as error:
                raise _bad_line(self.path, number, repr(error)) from error
        self.name = str(model.get("name", f"replay:{self.path.name}"))
        self.content_hash = text_hash("replay", file_sha256(self.path))
        self.context_tokens = context_tokens or int(model.get("context_tokens", CONTEXT_TOKENS))
        self.capable = bool(model.get("capable", True)) if capable is None else capable

    def count_tokens(self, text: str) -> int:
        """Recorded count, or an estimate for a text without one."""
        return self._tokens.get(text_hash(text), estimate_tokens(text))

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """Recorded replies, in order."""
        return in_order(len(requests), enumerate(map(self._reply, requests)), on_reply)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _reply(self, request: Request) -> Reply | RequestFailed:
        key = request_key(request)
        if key in self._replies:
            return self._replies[key]
        given = f"key {key[:12]}, attempt {request.attempt}, prompt {request.prompt[:80]!r}"
        return RequestFailed("the request is not on record", given=given, expected=f"one of those in {self.path}")


def _rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("the recording cannot be read", given=f"{path}: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise _bad_line(path, number, str(error)) from error
        if not isinstance(row, dict):
            raise _bad_line(path, number, "not an object")
        rows.append((number, row))
    return rows


def _bad_line(path: Path, number: int, why: str) -> BadInput:
    return BadInput("a recording has a line that cannot be read", given=f"{path}:{number}: {why}", expected="one reply")
