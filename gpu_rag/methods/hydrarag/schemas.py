"""What HydraRAG's JSON schemas are made of, and where its prompts lie."""

from __future__ import annotations

from typing import Any

PROMPTS = "gpu_rag.methods.hydrarag.prompts"
MOST_STEPS = 9  # entities of a chain
NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 200}
SENTENCE: dict[str, Any] = {**NAME, "maxLength": 500}


def json_object(**properties: Any) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def json_list(items: dict[str, Any], most: int, least: int = 0) -> dict[str, Any]:
    """A list of `least` to `most` items."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


CHAIN = {"entities": json_list(NAME, MOST_STEPS, 1), "relations": json_list(NAME, MOST_STEPS - 1)}
