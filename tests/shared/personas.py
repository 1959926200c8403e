"""Kinds of model servers, written by hand after the servers' code and reports, not recorded."""

from typing import Any

from gpu_rag.models.misbehave.persona import Persona

PAGE = b"<html><head><title>Maintenance</title></head><body>We will be back soon.</body></html>"


def _error(message: str, code: int, kind: str = "api_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


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
