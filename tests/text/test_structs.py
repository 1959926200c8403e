"""JSON Schemas of typed replies whose options and sizes are known per question alone."""

import json
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gpu_rag.text.structs import schema_of, schema_with


class Item(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=9)]
    kinds: tuple[str, ...]
    way: Literal["up", "down"] = "up"


class Found(Struct):
    items: Annotated[tuple[Item, ...], Meta(min_length=1)]
    kind: str


def test_options_and_sizes_stand_wherever_the_field_stands() -> None:
    schema = json.loads(schema_with(Found, {"kinds": ["b", "a"], "kind": ["x"]}, {"items": 2, "name": 30, "kinds": 4}))
    items = schema["properties"]["items"]
    inner = items["items"]["properties"]
    assert (items["minItems"], items["maxItems"]) == (1, 2)
    assert inner["name"] == {"type": "string", "minLength": 1, "maxLength": 30}
    assert inner["kinds"] == {"type": "array", "items": {"enum": ["b", "a"]}, "maxItems": 4}
    assert inner["way"] == {"enum": ["up", "down"]} and schema["properties"]["kind"] == {"enum": ["x"]}


def test_without_any_it_is_the_schema_of_the_type() -> None:
    assert schema_with(Found, {}, {}) == schema_of(Found)
    assert schema_with(Item, {"way": ["down"]}, {}) != schema_of(Item)
