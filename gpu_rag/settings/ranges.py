"""What a parameter may be: a range of numbers, or a word of a few. Every error of one names it, and says its range."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass

from gpu_rag.errors import UsageError

MOST_INTEGER = 2**31 - 1  # counts are i32 in graph ops and model engines
MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`; `above`: without low itself; `below`: without high itself."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` is in the range; NaN is in none."""
        low = self.low < value if self.above else self.low <= value
        return low and (value < self.high if self.below else value <= self.high)

    def of(self, name: str) -> str:
        """In words, of the parameter `name`: ">= 1" or "0 <= damping < 1"."""
        low, high = ("<", ">") if self.above else ("<=", ">="), "<" if self.below else "<="
        if math.isinf(self.high):
            return f"{low[1]} {self.low}"
        if math.isinf(self.low):
            return f"{high} {self.high}"
        return f"{self.low} {low[0]} {name} {high} {self.high}"


COUNT = Range(1)
NATURAL = Range(0)  # also a weight that is not negative
SEED = Range(0, MOST_SEED)
SHARE = Range(0, 1)
COSINE = Range(-1, 1)
COSINE_DISTANCE = Range(0, 2)
DAMPING = Range(0, 1, below=True)
TOLERANCE = Range(1e-12, 1)  # what the proofs of PageRank's error reach in f64
RANK_CONSTANT = Range(-1, above=True)  # 1 / (constant + rank) with ranks from 1

Allowed = Range | tuple[str, ...]

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class OutOfRange(UsageError):
    """A parameter is not what it may be. name: of the parameter; it is in the message as `shown`."""

    def __init__(self, name: str, value: object, allowed: Allowed, *, shown: str = "", do: str | None = None):
        self.name, self.value, self.allowed = name, value, allowed
        where = shown or name
        if isinstance(allowed, Range):
            what, expected = f"{where} is out of range", allowed.of(name)
        else:
            what, expected = f"{where} has no such value", " | ".join(allowed)
        super().__init__(what, given=shortened(value), expected=expected, do=do)


def check_value(name: str, value: object, allowed: Allowed) -> None:
    """Raises OutOfRange unless `value` is a number of the range or one of the words; None is not checked."""
    if value is None:
        return
    fits = allowed.holds(value) if isinstance(allowed, Range) else value in allowed  # type: ignore[arg-type]
    if not fits:
        raise OutOfRange(name, value, allowed)


def check_fields(values: object, **allowed: Allowed) -> None:
    """check_value of each attribute of `values` that is named, in that order.

    Example: check_fields(params, damping=DAMPING, order=("distance", "cosine")).
    """
    for name, of in allowed.items():
        check_value(name, getattr(values, name), of)


def check_filled(values: object, *names: str) -> None:
    """Raises OutOfRange where a text among the named attributes is empty: as a path it would be the working folder."""
    for name in names:
        if not getattr(values, name).strip():
            raise OutOfRange(name, getattr(values, name), ("a name or a path",))


def shortened(value: object) -> str:
    """`value` for a message: numbers as they are, texts in quotes, long ones with their middle left out."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a whole number of {value.bit_length()} bits"  # int to str refuses above 4,300 digits
    return _SHORT.repr(value)
