"""A kind of model server: the request forms that it understands, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Answer = tuple[int, Any]  # status, JSON or bytes


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
