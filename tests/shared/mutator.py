"""A seeded generator of broken inputs, made from small valid ones."""

import json
import random
import re
from collections.abc import Sequence
from typing import Any

ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**63,
    1.5,
    1e308,
    float("nan"),
    "",
    " ",
    "a\x00b",
    "\ud83d",
    "ﬁ\u0301\U0001f30a",
    "p_" + "0" * 12,
    "x" * 1200,
    [],
    {},
    [[]],
    [None],
    ["a", 1],
    [["a", ["b"]]],
    {"id": 1},
    {"text": "t"},
]
ODD_BYTES = [b"", b"\n", b"\r\n", *b'\x00 \xff \xfe\xff \xef\xbb\xbf " \\ { ] < > &#0;'.split()]
ODD_NUMBERS = [b"0", b"-1", b"9" * 12, b"65535", b"1e999", b"0.0"]
_NUMBER = re.compile(rb"\d+")


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


class Mutator:
    """Everything it draws comes from one seed, so a failing input can be made again."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def raw(self, seed: bytes, others: Sequence[bytes] = ()) -> bytes:
        """`seed` with one to four changes: bytes flipped, put in, taken out, repeated, cut off or spliced from another
        input; numbers replaced."""
        found = bytearray(seed)
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            self._change(found, others)
        return bytes(found)

    def _change(self, raw: bytearray, others: Sequence[bytes]) -> None:
        rand = self.random
        at = rand.randrange(len(raw) + 1)
        end = min(len(raw), at + rand.choice((1, 2, 8, 40)))
        kind = rand.randrange(8)
        if kind == 0 and at < len(raw):
            raw[at] ^= 1 << rand.randrange(8)
        elif kind == 1 and at < len(raw):
            raw[at] = rand.randrange(256)
        elif kind == 2:
            raw[at:at] = rand.choice(ODD_BYTES)
        elif kind == 3:
            del raw[at:end]
        elif kind == 4:
            raw[at:at] = raw[at:end] * rand.choice((1, 2, 20))
        elif kind == 5:
            del raw[at:]
        elif kind == 6:
            other = rand.choice(others) if others else bytes(raw)
            start = rand.randrange(len(other) + 1)
            raw[at:end] = other[start : start + rand.choice((2, 20, 200))]
        elif numbers := list(_NUMBER.finditer(raw)):
            number = rand.choice(numbers)
            raw[number.start() : number.end()] = rand.choice(ODD_NUMBERS)

    def value(self, seed: Any) -> Any:
        """A copy of a JSON value with one to three values replaced, taken out, repeated, renamed or wrapped."""
        found = _copied(seed)
        for _ in range(self.random.choice((1, 1, 2, 3))):
            found = self._changed(found)
        return found

    def _changed(self, value: Any) -> Any:
        rand = self.random
        if isinstance(value, (dict, list)) and value and rand.random() < 0.85:
            key = rand.choice(list(value)) if isinstance(value, dict) else rand.randrange(len(value))
            kind = rand.randrange(8)
            if kind == 0:
                del value[key]
            elif kind == 1 and isinstance(value, list):
                value.insert(key, _copied(value[rand.randrange(len(value))]))
            elif kind == 1 and isinstance(value, dict):
                value[rand.choice(("id", "_id", "text", "question", "context", "zz"))] = value.pop(key)
            else:
                value[key] = self._changed(value[key])
            return value
        return rand.choice((_copied(rand.choice(ODD_VALUES)), [value], {"id": value}, str(value)))

    def dumped(self, value: Any) -> bytes:
        """A JSON value as bytes, also one that strict JSON does not allow."""
        return json.dumps(value, ensure_ascii=self.random.random() < 0.5).encode("utf-8", "surrogatepass")
