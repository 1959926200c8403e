"""A request that is not served: its HTTP status, and the error as its client reads it."""

from __future__ import annotations

from typing import Any

from gpu_rag.errors import GpuRagError, MissingLayer, ModelError, UsageError


class Refusal(GpuRagError):
    """A request that is refused with an HTTP status. kind: what the client reads as `error.type`."""

    def __init__(self, status: int, what: str, *, kind: str = "", headers: dict[str, str] | None = None, **parts: Any):
        super().__init__(what, **parts)
        self.status, self.headers = status, headers or {}
        self.kind = kind or {400: "BadInput", 404: "NotFound", 429: "Overloaded", 503: "Unavailable"}.get(
            status, "Refused"
        )


def refusal_of(error: GpuRagError) -> Refusal:
    """The refusal that an error of the engine is: 409 for a layer that is missing, 400 for what a client got wrong, 503
    for models that are down, else 500."""
    if isinstance(error, Refusal):
        return error
    status = 500
    for kind, code in ((MissingLayer, 409), (UsageError, 400), (ModelError, 503)):
        if isinstance(error, kind):
            status = code
            break
    found = Refusal(status, error.what, kind=type(error).__name__)
    found.args = error.args
    return found


def error_body(error: Refusal) -> dict[str, Any]:
    """{"error": {"type", "message"}}."""
    return {"error": {"type": error.kind, "message": str(error)}}


def openai_error_body(error: Refusal) -> dict[str, Any]:
    """The same in the shape that OpenAI's clients read."""
    kind = "invalid_request_error" if 400 <= error.status < 500 else "server_error"
    if error.status == 401:
        kind = "authentication_error"
    elif error.status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.kind}}
