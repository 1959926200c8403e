"""Typed replies: the JSON Schema of a msgspec Struct, and a Struct from a model's JSON.

The bounds of a field are part of its type: `Annotated[str, Meta(min_length=1, max_length=200)]`. Properties keep the
order of the fields, because constrained decoding writes them in that order. All are required, and no others are
allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import inspect as types

from gpu_rag.errors import UsageError
from gpu_rag.text.replies import canonical_schema, object_of

S = TypeVar("S", bound=msgspec.Struct)
_BOUNDS = {
    "min_length": ("minLength", "minItems"),
    "max_length": ("maxLength", "maxItems"),
    "ge": ("minimum", ""),
    "le": ("maximum", ""),
}


@cache
def schema_of(struct: type[msgspec.Struct]) -> str:
    """The JSON Schema of a Struct as canonical text. Raises UsageError for a type that a reply cannot have.

    Allowed: strings, integers, numbers, truth values, `Literal` options, tuples of one type, and Structs of these.
    """
    return schema_with(struct, {}, {})


def schema_with(
    struct: type[msgspec.Struct], options: Mapping[str, Sequence[str]], max_sizes: Mapping[str, int]
) -> str:
    """The JSON Schema of a Struct with bounds that are known only for each question.

    options: {text field: its allowed values}; max_sizes: {field: maximum characters, or list items}, at any depth.
    """
    return canonical_schema(_shape(types.type_info(struct), "", _Limits(options, max_sizes)))


def struct_of(struct: type[S], value: dict[str, Any]) -> S:
    """Convert a JSON object to a Struct. Raises msgspec.ValidationError if it is not valid."""
    return msgspec.convert(value, struct)


class _Limits(NamedTuple):
    """The options and maximum sizes for `schema_with`."""

    options: Mapping[str, Sequence[str]]
    max_sizes: Mapping[str, int]


def _shape(kind: types.Type, name: str, limits: _Limits, is_item: bool = False) -> dict[str, Any]:
    """The schema of a type, for the field of this name or for an item in it."""
    limit = None if is_item else limits.max_sizes.get(name)
    match kind:
        case types.StructType():
            hints = get_type_hints(kind.cls)
            return object_of({field.encode_name: _shape_of(field, hints, limits) for field in kind.fields})
        case types.VarTupleType() | types.ListType():
            items = _shape(kind.item_type, name, limits, is_item=True)
            return {"type": "array", "items": items, **_bounds(kind, 1, limit)}
        case types.StrType() | types.LiteralType() if name in limits.options:
            return {"enum": list(limits.options[name])}
        case types.StrType():
            return {"type": "string", **_bounds(kind, 0, limit)}
        case types.IntType():
            return {"type": "integer", **_bounds(kind, 0)}
        case types.FloatType():
            return {"type": "number", **_bounds(kind, 0)}
        case types.BoolType():
            return {"type": "boolean"}
        case types.LiteralType():
            return {"enum": list(kind.values)}
    raise UsageError("a reply cannot have a field of this type", given=type(kind).__name__, expected="see the module")


def _shape_of(field: types.Field, hints: dict[str, Any], limits: _Limits) -> dict[str, Any]:
    """The schema of a field. Options keep the order in the source, which msgspec does not keep."""
    if isinstance(field.type, types.LiteralType) and field.encode_name not in limits.options:
        return {"enum": list(get_args(hints[field.name]))}
    return _shape(field.type, field.encode_name, limits)


def _bounds(kind: types.Type, of_list: int, limit: int | None = None) -> dict[str, Any]:
    """The bounds of a type under their JSON Schema names; `limit` replaces its maximum length."""
    given = {names[of_list]: getattr(kind, field, None) for field, names in _BOUNDS.items()}
    given |= {_BOUNDS["max_length"][of_list]: limit} if limit is not None else {}
    return {name: value for name, value in given.items() if name and value is not None}
