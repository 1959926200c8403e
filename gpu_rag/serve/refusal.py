"""A refused request: its HTTP status, and the error that its client reads."""

from __future__ import annotations

from typing import Any

from gpu_rag.errors import GpuRagError, MissingLayer, ModelError, UsageError

_KINDS = {400: "BadInput", 404: "NotFound", 429: "Overloaded", 503: "Unavailable"}
_OPENAI_KINDS = {401: "authentication_error", 429: "rate_limit_error"}
_OPENAI_PATHS = ("/v1/chat/", "/v1/models", "/v1/embeddings", "/v1/responses")
_STATUS = ((MissingLayer, 409), (UsageError, 400), (ModelError, 503), (GpuRagError, 500))


class ClientGone(Exception):
    """The client closed its connection before the response was complete, or does not read it."""


class Refusal(GpuRagError):
    """A request that is refused with an HTTP status. kind: the value of `error.type` for the client."""

    def __init__(self, status: int, what: str, *, kind: str = "", headers: dict[str, str] | None = None, **parts: Any):
        super().__init__(what, **parts)
        self.status, self.headers, self.kind = status, headers or {}, kind or _KINDS.get(status, "Refused")


def refusal_of(error: Exception) -> Refusal:
    """The refusal for an error: 409 for a missing stage, 400 for a client's mistake, 503 for models that are down, 500
    for other errors. Of a bug only the type is shown."""
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, GpuRagError):
        return Refusal(500, "internal error", kind=type(error).__name__)
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    refusal = Refusal(status, error.what, kind=type(error).__name__)
    refusal.args = error.args
    return refusal


def check_answered(row: dict[str, Any]) -> None:
    """Raise Refusal (503 for a dead model, else 500) for a failed row, since clients of OpenAI's protocol look for
    failures only in the status."""
    if row["status"] == "failed":
        status = 503 if row["error"]["type"] == "ModelError" else 500
        raise Refusal(status, row["error"]["message"], kind=row["error"]["type"])


def error_body(error: Refusal, path: str) -> dict[str, Any]:
    """{"error": {"type", "message"}}; on the paths of OpenAI's protocol in the form that its clients read."""
    if not path.startswith(_OPENAI_PATHS):
        return {"error": {"type": error.kind, "message": str(error)}}
    usual = "invalid_request_error" if 400 <= error.status < 500 else "server_error"
    kind = _OPENAI_KINDS.get(error.status, usual)
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.kind}}
