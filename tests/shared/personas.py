"""Kinds of model servers, written by hand after the servers' code and reports, not recorded."""

from typing import Any

from gpu_rag.models.misbehave import Answer, MisbehavingServer


class Persona(MisbehavingServer):
    """A kind of server. forms: the request forms that it understands; unknown: its answer to another form, None to
    ignore the form; counts: whether it counts tokens; model_name: the model in its replies, "" for the requested name;
    n_loading: number of requests that it answers with its "429" while its model loads."""

    forms: tuple[str, ...] = ("json_schema", "json_object", "structured_outputs", "logprobs")
    unknown: Answer | None = None
    counts = True
    model_name = ""
    n_loading = 0

    def accept(self, body: dict[str, Any]) -> tuple[dict[str, Any], Answer | None]:
        with self._lock:
            if self.n_loading > 0:
                self.n_loading -= 1
                return body, self.answers["429"]
        wanted = body.get("response_format", {}).get("type", "")
        strange = [name for name in ("structured_outputs", "logprobs") if body.get(name) and name not in self.forms]
        strange += ["response_format"] if wanted and wanted not in self.forms else []
        if strange and self.unknown is not None:
            return body, self.unknown
        return {name: value for name, value in body.items() if name not in strange}, None

    def reply_to(self, body: dict[str, Any], raw: bytes) -> dict[str, Any]:
        reply = super().reply_to(body, raw)
        reply["model"] = self.model_name or reply["model"]
        return reply if self.counts else {name: value for name, value in reply.items() if name != "usage"}


PAGE = b"<html><head><title>Maintenance</title></head><body>We will be back soon.</body></html>"


def _error(message: str, code: int, kind: str = "api_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


def kind(busy: Answer = (429, {"error": "busy"}), *, failed: Answer, broken: Any, **more: Any) -> type[Persona]:
    """A kind by its answers when overloaded, after an internal error, and with status 200 instead of a completion."""
    return type("Kind", (Persona,), {"answers": {"429": busy, "500": failed, "error_200": (200, broken)}, **more})


PERSONAS: dict[str, type[Persona]] = {
    "vllm": kind(
        card={"max_model_len": 32768, "owned_by": "vllm", "root": "/models/misbehaving-7B"},
        busy=(503, _error("The engine is paused", 503, "ServiceUnavailableError")),
        failed=(500, _error("EngineCore encountered an issue", 500, "InternalServerError")),
        broken={"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "abort"}]},
    ),
    "ollama": kind(
        card={"owned_by": "library"},
        forms=("json_schema", "json_object"),
        busy=(503, _error("server busy, please try again.  maximum pending requests exceeded", 503)),
        failed=(500, _error("llama runner process has terminated", 500)),
        broken={"error": {"message": "unexpected EOF", "type": "api_error"}},
    ),
    "llama.cpp": kind(
        card={"owned_by": "llamacpp", "meta": {"n_ctx_train": 32768}},
        forms=("json_schema", "json_object", "logprobs"),
        busy=(503, _error("Loading model", 503, "unavailable_error")),
        failed=(500, _error("decode: failed to find a memory slot", 500, "server_error")),
        broken={"error": {"code": 500, "message": "slot is not available", "type": "server_error"}},
        model_name="/models/misbehaving-7b.Q4_K_M.gguf",
        n_loading=3,
    ),
    "lmstudio": kind(
        card={"owned_by": "organization_owner"},
        forms=("json_schema",),
        unknown=(400, {"error": "'response_format.type' must be 'json_schema' or 'text'; unsupported parameter"}),
        failed=(500, {"error": "The model has crashed without additional information. (Exit code: 6)"}),
        broken={"error": "Channel Error"},
    ),
    "tgi": kind(
        card={"owned_by": "misbehaving-7B"},
        forms=("json_schema",),
        unknown=(422, {"error": "Input validation error: `top_n_tokens` must be <= 5", "error_type": "validation"}),
        busy=(429, {"error": "Model is overloaded", "error_type": "overloaded"}),
        failed=(424, {"error": "Request failed during generation: Server error", "error_type": "generation"}),
        broken={"error": "Incomplete generation", "error_type": "incomplete_generation"},
    ),
    "proxy": kind(
        card={}, busy=(429, PAGE), failed=(502, b"<html><h1>502 Bad Gateway</h1></html>"), broken=PAGE, counts=False
    ),
}
