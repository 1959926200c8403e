"""Imitations of model servers: the request forms that they understand, and their errors, by which a client can fail.

The answers are written by hand after the servers' code and reports, not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Answer = tuple[int, Any]  # status, JSON or bytes
PAGE = b"<html><head><title>Maintenance</title></head><body>We will be back soon.</body></html>"


def _error(message: str, code: int, kind: str = "api_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


@dataclass(frozen=True)
class Persona:
    """A kind of server. card: its entry in GET /models, beside the id; forms: the request forms that it understands;
    unknown: its answer to another form, None to ignore the form.

    busy, failed: its answers when overloaded, and after an internal error; broken: an error with status 200 instead of
    a completion; counts: whether it counts tokens; model_name: the model in its replies, "" for the requested name;
    n_loading: number of requests that it answers with 503 while its model loads.
    """

    card: Mapping[str, Any] = field(default_factory=dict)
    forms: tuple[str, ...] = ("json_schema", "json_object", "structured_outputs", "logprobs")
    unknown: Answer | None = None
    busy: Answer = (429, {"error": "busy"})
    failed: Answer = (500, {"error": "failed"})
    broken: Any = None
    counts: bool = True
    model_name: str = ""
    n_loading: int = 0

    def accept(self, body: dict[str, Any]) -> tuple[dict[str, Any], Answer | None]:
        """Body without the ignored forms, and None; or the body and the refusal of a form."""
        wanted = body.get("response_format", {}).get("type", "")
        strange = [name for name in ("structured_outputs", "logprobs") if body.get(name) and name not in self.forms]
        strange += ["response_format"] if wanted and wanted not in self.forms else []
        if strange and self.unknown is not None:
            return body, self.unknown
        return {name: value for name, value in body.items() if name not in strange}, None

    def styled(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Completion in the style of this server."""
        answer = {**answer, "model": self.model_name or answer["model"]}
        return answer if self.counts else {name: value for name, value in answer.items() if name != "usage"}


PERSONAS: dict[str, Persona] = {
    "vllm": Persona(
        card={"max_model_len": 32768, "owned_by": "vllm", "root": "/models/misbehaving-7B"},
        busy=(503, _error("The engine is paused", 503, "ServiceUnavailableError")),
        failed=(500, _error("EngineCore encountered an issue", 500, "InternalServerError")),
        broken={"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "abort"}]},
    ),
    "ollama": Persona(
        card={"owned_by": "library"},
        forms=("json_schema", "json_object"),
        busy=(503, _error("server busy, please try again.  maximum pending requests exceeded", 503)),
        failed=(500, _error("llama runner process has terminated", 500)),
        broken={"error": {"message": "unexpected EOF", "type": "api_error"}},
    ),
    "llama.cpp": Persona(
        card={"owned_by": "llamacpp", "meta": {"n_ctx_train": 32768}},
        forms=("json_schema", "json_object", "logprobs"),
        busy=(503, _error("Loading model", 503, "unavailable_error")),
        failed=(500, _error("decode: failed to find a memory slot", 500, "server_error")),
        broken={"error": {"code": 500, "message": "slot is not available", "type": "server_error"}},
        model_name="/models/misbehaving-7b.Q4_K_M.gguf",
        n_loading=3,
    ),
    "lmstudio": Persona(
        card={"owned_by": "organization_owner"},
        forms=("json_schema",),
        unknown=(400, {"error": "'response_format.type' must be 'json_schema' or 'text'; unsupported parameter"}),
        failed=(500, {"error": "The model has crashed without additional information. (Exit code: 6)"}),
        broken={"error": "Channel Error"},
    ),
    "tgi": Persona(
        card={"owned_by": "misbehaving-7B"},
        forms=("json_schema",),
        unknown=(422, {"error": "Input validation error: `top_n_tokens` must be <= 5", "error_type": "validation"}),
        busy=(429, {"error": "Model is overloaded", "error_type": "overloaded"}),
        failed=(424, {"error": "Request failed during generation: Server error", "error_type": "generation"}),
        broken={"error": "Incomplete generation", "error_type": "incomplete_generation"},
    ),
    "proxy": Persona(
        busy=(429, PAGE),
        failed=(502, b"<html><h1>502 Bad Gateway</h1></html>"),
        broken=PAGE,
        counts=False,
    ),
}
