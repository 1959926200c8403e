"""Ranges of numbers as msgspec declares them, and the one error for a value out of its range."""

from __future__ import annotations

import reprlib
from typing import Any

from msgspec import Meta

from gpu_rag.errors import UsageError

MAX_INTEGER = 2**31 - 1  # counts are i32 in graph ops and model engines
MAX_SEED = 2**63 - 1


def Range(low: float | None = None, high: float | None = None, above: bool = False, below: bool = False) -> Meta:
    """Numbers from `low` to `high`. above: `low` itself is excluded; below: `high` itself is excluded."""
    ends: dict[str, Any] = {"gt" if above else "ge": low, "lt" if below else "le": high}
    return Meta(**ends)


COUNT = Range(1)
NATURAL = Range(0)  # also for weights that are not negative
SEED = Range(0, MAX_SEED)
SHARE = Range(0, 1)
COSINE = Range(-1, 1)
COSINE_DISTANCE = Range(0, 2)
DAMPING = Range(0, 1, below=True)

Allowed = Meta | tuple[str, ...]  # a range, or the words of a choice

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class OutOfRange(UsageError):
    """A parameter has a value that is not allowed. name: the parameter, shown in the message as `shown`."""

    def __init__(self, name: str, value: object, allowed: Allowed, *, shown: str = "", do: str | None = None):
        self.name, self.value, self.allowed = name, value, allowed
        problem = "is out of range" if isinstance(allowed, Meta) else "has no such value"
        super().__init__(f"{shown or name} {problem}", given=shortened(value), expected=in_words(name, allowed), do=do)


def in_words(name: str, allowed: Allowed) -> str:
    """Allowed values of the parameter `name`: ">= 1", "0 <= damping < 1" or "auto | llm"."""
    if not isinstance(allowed, Meta):
        return " | ".join(allowed)
    low, high = allowed.ge if allowed.gt is None else allowed.gt, allowed.le if allowed.lt is None else allowed.lt
    low_sign, high_sign = "=" if allowed.gt is None else "", "=" if allowed.lt is None else ""
    if high is None:
        return f">{low_sign} {low}"
    if low is None:
        return f"<{high_sign} {high}"
    return f"{low} <{low_sign} {name} <{high_sign} {high}"


def fits(allowed: Allowed, value: Any) -> bool:
    """Whether a number is in a range, or a word is among the words. NaN is in no range."""
    if isinstance(allowed, tuple):
        return value in allowed
    low, high = allowed.ge, allowed.le
    at_least = value >= low if low is not None else allowed.gt is None or value > allowed.gt
    return at_least and (value <= high if high is not None else allowed.lt is None or value < allowed.lt)


def check_value(name: str, value: object, allowed: Allowed) -> None:
    """Raise OutOfRange unless `value` is in the range or one of the words. None is not checked."""
    if value is not None and not fits(allowed, value):
        raise OutOfRange(name, value, allowed)


def check_filled(values: object, *names: str) -> None:
    """Raise OutOfRange if a named attribute is an empty text: as a path it would be the working folder."""
    for name in names:
        if not getattr(values, name).strip():
            raise OutOfRange(name, getattr(values, name), ("a name or a path",))


def shortened(value: object) -> str:
    """`value` for a message: numbers unchanged, texts in quotes, long ones with the middle left out."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a whole number of {value.bit_length()} bits"  # int to str fails above 4,300 digits
    return _SHORT.repr(value)
