"""Token budget of a reply: the longest text that its schema allows, in tokens of the model."""

from __future__ import annotations

import json
from typing import Any
from weakref import WeakKeyDictionary

from gpu_rag.models.llm.interface import Model

PROSE = 600  # characters: a text with this limit or more is prose and fills it; a name rarely takes a quarter
_TEXT = "Marta Orlo-Stroud of Tamsin, an engineer who built the Halden Bridge over the Ves at Kerling in 1931; "
_SPARE = 16  # tokens of a code fence around the reply
_counted: WeakKeyDictionary[Model, dict[str, int]] = WeakKeyDictionary()


def reply_tokens(llm: Model, schema: str) -> int:
    """Token limit of a reply under a JSON Schema: the tokens of a reply with full lists and long names.

    At most half of the context, because the prompt must fit too. Counted by the model's tokenizer, once for each
    longest reply. schema: canonical JSON Schema text, with `maxItems` and `maxLength` everywhere.
    """
    known, text = _counted.setdefault(llm, {}), json.dumps(longest(json.loads(schema)))
    if text not in known:
        known[text] = llm.count_tokens(text)
    return min(known[text] + _SPARE, llm.context_tokens // 2)


def longest(shape: dict[str, Any]) -> Any:
    """Longest plausible value under a JSON Schema."""
    if "enum" in shape:
        return max(shape["enum"], key=len)
    match shape["type"]:
        case "object":
            return {name: longest(inner) for name, inner in shape["properties"].items()}
        case "array":
            return [longest(shape["items"])] * shape["maxItems"]
        case "string":
            limit: int = shape["maxLength"]
            return (_TEXT * limit)[: limit if limit >= PROSE else limit // 4]
        case "integer":
            return shape.get("maximum", 99)
        case kind:
            return {"number": 0.95, "boolean": False}[kind]
