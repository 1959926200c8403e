"""Declared settings: a frozen dataclass states type, range, help and default of each; see `gpu_rag.settings`.

msgspec converts the types; its ranges are checked when an instance is made.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from gpu_rag.errors import UsageError
from gpu_rag.settings.ranges import MAX_INTEGER, MAX_SEED, Allowed, OutOfRange, Range, check_value, shortened

T = TypeVar("T")
SECTIONS: dict[str, Callable[[], type[Declared]]] = {}  # {name: function that returns the class}
FINDERS: list[Callable[[], object]] = []  # called for an unknown section: each may add to SECTIONS
_WORDS = {bool: "true | false", int: "a whole number", float: "a number", str: "text"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting as its class declares it. allowed: its range or words; None if its type says everything."""

    name: str
    type: Any
    allowed: Allowed | None
    default: Any
    help: str

    @property
    def shown(self) -> str:
        """Default as text; "" for None and ()."""
        text = "" if self.default in (None, ()) else str(self.default)
        return text.lower() if isinstance(self.default, bool) else text

    @property
    def remedy(self) -> str:
        """Last part of every error about it."""
        return f"or leave it out: the default is {self.shown}" if self.shown else "or leave it out"


@cache
def declared(cls: type) -> dict[str, Setting]:
    """Settings of a dataclass by name, in order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: _setting(f, hints[f.name]) for f in dataclasses.fields(cls)}


def _setting(field: dataclasses.Field[Any], hint: Any) -> Setting:
    kind, *parts = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    allowed: Allowed | None = next((part for part in parts if isinstance(part, Meta)), None)
    text = next((part for part in parts if isinstance(part, str)), "")
    if typing.get_origin(kind) is Literal:
        kind, allowed = str, typing.get_args(kind)
    return Setting(field.name, kind, allowed, field.default, text)


@dataclasses.dataclass(frozen=True)
class Declared:
    """Base of settings: every instance is within its ranges, however it was made."""

    def __post_init__(self) -> None:
        for setting in declared(type(self)).values():  # type: ignore[arg-type]
            if setting.allowed is not None:
                check_value(setting.name, getattr(self, setting.name), setting.allowed)


def is_section(name: str) -> bool:
    """Whether a section of this name exists, in this package or in an installed extension."""
    if name not in SECTIONS:
        for find in FINDERS:
            find()
    return name in SECTIONS


def section_class(name: str) -> type[Declared]:
    """Class of a section that exists."""
    return SECTIONS[name]()


def fixed(cls: type) -> dict[str, Any]:
    """Constants of a settings class, by name: former settings that are fixed now."""
    return {name: getattr(cls, name) for name in typing.get_type_hints(cls) if name not in declared(cls)}


def unknown_name(what: str, name: str, known: Sequence[str]) -> UsageError:
    """Error for an unknown name, with the nearest known one."""
    bare = str(name).strip()
    near = difflib.get_close_matches(bare.lower(), known, n=1)
    hint = f"did you mean {near[0]}?" if near else None
    given = name if bare and bare == name else repr(name)
    return UsageError(f"unknown {what}", given=given, expected=" | ".join(known) or "no setting", do=hint)


def checked(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make an instance of the dataclass `cls` from `values`. Raises UsageError or OutOfRange naming the setting.

    where: the section, such as "index" or "method.NAME". Whole numbers are accepted for floats, lists for tuples.
    """
    known, clean = declared(cls), {}  # type: ignore[arg-type]
    for name, value in values.items():
        if name in known:
            clean[name] = _converted(f"setting {where}.{name}", value, known[name])
        elif name in fixed(cls):
            what, given = f"setting {where}.{name} is fixed now", shortened(value)
            raise UsageError(what, given=given, expected=fixed(cls)[name], do="leave it out")
        else:
            raise unknown_name(f"setting in [{where}]", name, list(known))
    try:
        made = cls(**clean)
        for name, value in clean.items():
            if isinstance(value, (int, float)):
                check_value(name, value, Range(high=MAX_SEED if name == "seed" else MAX_INTEGER))
        return made
    except OutOfRange as error:
        shown, do = f"setting {where}.{error.name}", known[error.name].remedy
        raise OutOfRange(error.name, error.value, error.allowed, shown=shown, do=do) from error


def _converted(what: str, value: Any, setting: Setting) -> Any:
    """Value converted to the type of the setting. Raises UsageError."""
    if setting.type is float and type(value) is int and abs(value) > MAX_SEED:
        return value  # no float holds it: its range rejects it
    try:
        result = msgspec.convert(value, setting.type)
    except msgspec.ValidationError as error:
        given, expected = shortened(value), type_in_words(setting.type)
        raise UsageError(f"{what} has the wrong type", given=given, expected=expected, do=setting.remedy) from error
    if isinstance(result, float) and not math.isfinite(result):
        raise UsageError(f"{what} is not a finite number", given=value, expected="a finite number", do=setting.remedy)
    return result


def type_in_words(kind: Any) -> str:
    """Type for people: "a whole number", "true | false"."""
    if typing.get_origin(kind) is tuple:
        return f"a list, each item {type_in_words(typing.get_args(kind)[0])}"
    known = [part for part in typing.get_args(kind) if part is not types.NoneType] or [kind]
    return " | ".join(_WORDS[part] for part in known)
