"""How values from --set, a profile or a client become the fields of a settings class: names, types, then ranges."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from gpu_rag.errors import UsageError
from gpu_rag.settings.ranges import MOST_INTEGER, MOST_SEED, Allowed, OutOfRange, Range, check_value, shortened

T = TypeVar("T")
_WORDS = {bool: "true | false", int: "a whole number", float: "a number", str: "text"}


def unknown_name(what: str, name: str, known: Sequence[str]) -> UsageError:
    """The error for a name that does not exist: nearest first."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else None
    return UsageError(f"unknown {what}", given=name, expected=" | ".join(known) or "no setting", do=hint)


def checked(cls: type[T], values: Mapping[str, Any], where: str, allowed: Mapping[str, Allowed] | None = None) -> T:
    """An instance of the dataclass `cls` from `values`. Raises UsageError, or OutOfRange, that names the setting.

    where: the section, such as "index" or "method.ppr". allowed: what its fields may be, by the name of the field,
    beside what the class checks itself. Whole numbers are accepted for floats, lists for tuples.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    clean: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise unknown_name(f"setting in [{where}]", name, list(fields))
        clean[name] = _of_type(f"setting {where}.{name}", value, hints[name], _remedy(fields[name]))
    try:
        for name, range_or_words in (allowed or {}).items():
            check_value(name, clean.get(name), range_or_words)
        made = cls(**clean)
        for name, value in clean.items():
            if isinstance(value, (int, float)):
                check_value(name, value, Range(high=MOST_SEED if name == "seed" else MOST_INTEGER))
        return made
    except OutOfRange as error:
        shown, do = f"setting {where}.{error.name}", _remedy(fields[error.name])
        raise OutOfRange(error.name, error.value, error.allowed, shown=shown, do=do) from error


def _of_type(what: str, value: Any, annotation: Any, remedy: str) -> Any:
    """The value as the type that the annotation names."""
    if not _accepts(annotation, value):
        expected = _in_words(annotation)
        raise UsageError(f"{what} has the wrong type", given=shortened(value), expected=expected, do=remedy)
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{what} is not a finite number", given=value, expected="a finite number", do=remedy)
    if annotation is float and abs(value) <= MOST_SEED:  # a larger whole number is refused by the range
        return float(value)
    return tuple(value) if typing.get_origin(annotation) is tuple else value


def _accepts(annotation: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return any(_accepts(a, value) for a in arguments)
    if origin is tuple:  # of one type: tuple[str, ...]
        return isinstance(value, (list, tuple)) and all(_accepts(arguments[0], item) for item in value)
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _in_words(annotation: Any) -> str:
    if typing.get_origin(annotation) is tuple:
        return f"a list, each of it {_in_words(typing.get_args(annotation)[0])}"
    known = [a for a in typing.get_args(annotation) if a is not types.NoneType] or [annotation]
    return " | ".join(_WORDS[a] for a in known)


def _remedy(field: dataclasses.Field[Any]) -> str:
    if field.default is None or field.default in ("", ()):
        return "or leave it out"
    default = str(field.default).lower() if isinstance(field.default, bool) else field.default
    return f"or leave it out: the default is {default}"
