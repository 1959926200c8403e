"""A reason before the verdict: with `models.reason` every model reply to a step of a question begins with a reason.

An object gets a first property `reason`. A choice or a text becomes an object of a reason and the reply. Writing the
reason first tends to improve decisions, but takes time; the tokens of reasons are counted separately. A reply whose
object already begins with reasoning is left unchanged.
"""

from __future__ import annotations

import json
from typing import Any

from gpu_rag.program.models import Models
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.types import Choice, JsonSchema

REASON_TOKENS = 96
REASONS = ("reason", "evidence")  # properties that are reasoning, if a schema begins with one
REASON = {"type": "string", "maxLength": 400}
_REPLY = "reply"
OBJECT_FORM = 'Begin the JSON object with "reason": one or two short sentences that lead to the rest.'
REPLY_FORM = 'Reply as JSON: {"reason": one or two short sentences that lead to the reply, "reply": the reply}'


def reason_room(models: Models) -> int:
    """Tokens for a reason and for the words that ask for it; 0 without `models.reason`."""
    return REASON_TOKENS + models.language_model.count_tokens(f"\n{REPLY_FORM}") if models.reason else 0


def reasoned(
    models: Models, text: str, constraint: JsonSchema | Choice | None, max_tokens: int
) -> tuple[str, JsonSchema | Choice | None, int]:
    """The request (user text, constraint, max_tokens), extended to ask for a reason first."""
    if isinstance(constraint, JsonSchema):
        form, properties = OBJECT_FORM, json.loads(constraint.schema)["properties"]
        if _reasoning(properties):
            return text, constraint, max_tokens
    else:
        wanted = {"enum": list(constraint.options)} if isinstance(constraint, Choice) else {"type": "string"}
        form, properties = REPLY_FORM, {_REPLY: wanted}
    schema = canonical_schema(object_of({"reason": REASON, **properties}))
    return f"{text}\n{form}", JsonSchema(schema), max_tokens + REASON_TOKENS


def split_reason(value: Any, asked: JsonSchema | Choice | None) -> tuple[str, Any]:
    """The reason in a parsed reply, and the value under the step's own constraint."""
    if not isinstance(asked, JsonSchema):
        return value["reason"], value[_REPLY].strip()
    own = _reasoning(json.loads(asked.schema)["properties"])
    return str(value[own] if own else value.pop("reason")), value


def _reasoning(properties: dict[str, Any]) -> str | None:
    """The name of the first property if it is reasoning, else None."""
    first = next(iter(properties))
    return first if first in REASONS else None
