"""A filter of documents by their metadata: one line of comparisons, compiled to a mask over the documents.

expression = and ("or" and)*      and = not ("and" not)*      not = "not" not | "(" expression ")" | test
test       = column ("=" | "!=" | "<" | "<=" | ">" | ">=") value
           | column ["not"] "in" "(" value ("," value)* ")"
           | column "is" ["not"] "missing"
column     = a name, or any text in `backticks`;  value = a number, "text", 'text', true or false

Keywords may be in any case; column names are case-sensitive. In quotes, a backslash escapes a quote or a backslash.
Text is compared by code points, so ISO dates compare as dates.

Missing values behave as in SQL: a comparison with one is neither true nor false, and so is its `not`; `and` and `or`
follow three-valued logic, and only true is kept. So documents without a year match neither `year = 2020` nor `not year
= 2020`; `year is missing` finds them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import UsageError
from gpu_rag.index.metadata import TYPE_NAMES
from gpu_rag.types import Scalar

EXAMPLE = 'such as year >= 2020 and lang in ("de", "fr")'
MAX_CHARS, MAX_DEPTH = 10_000, 100
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<quoted>`[^`]+`)
    |(?P<sign><=|>=|!=|=|<|>|\(|\)|,)|(?P<word>[^\W\d][\w.-]*)|(?P<end>\Z))""",
    re.VERBOSE | re.DOTALL,
)
_DAY_FIRST = r"^\d{1,2}[./]\d{1,2}[./]\d{4}$"  # or month first; as texts these are in no order of time
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_WORDS = ("and", "or", "not", "in", "is", "missing", "true", "false")
Mask: TypeAlias = pa.Array  # an array of booleans, null where neither true nor false


def matching(where: str, metadata: pa.Table | None) -> np.ndarray:
    """bool[n documents]: whether each one is kept. metadata: `Index.metadata`.

    Raises UsageError: a syntax error with its position, an unknown column with the known ones, a value that does not
    fit the type of its column, an index without metadata.
    """
    if len(where) > MAX_CHARS:
        raise UsageError("the filter is too long", given=f"{len(where)} characters", expected=f"at most {MAX_CHARS}")
    if metadata is None:
        do = "metadata are the other columns of .jsonl, .csv and .parquet: build with --fresh to read them"
        raise UsageError("the documents of this index have no metadata to filter by", given=f"--where {where}", do=do)
    parser = _Parser(where, metadata)
    mask = parser.either(0)
    if parser.kind != "end":
        raise parser.error("expected and, or, or the end")
    return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), bool)


class _Parser:
    """Recursive parser of a filter; each test becomes a mask at once. kind, word: kind and word of the next token."""

    def __init__(self, where: str, metadata: pa.Table):
        self._where, self._metadata = where, metadata
        self._next = 0
        self.advance()

    def advance(self) -> str:
        """Advance to the next token. Returns the text of the previous one."""
        before = getattr(self, "word", "")
        token = _TOKEN.match(self._where, self._next)
        if token is None:
            self.at = len(self._where) - len(self._where[self._next :].lstrip())
            self.kind, self.word = "", self._where[self.at : self.at + 20]
            raise self.error("this cannot be read")
        self.kind = str(token.lastgroup)
        self.at, self.word, self._next = token.start(self.kind), token[self.kind], token.end()
        return before

    def error(self, what: str) -> UsageError:
        """A syntax error at the next token."""
        here = f"{self.word!r} at character {self.at + 1}" if self.kind != "end" else "its end"
        return UsageError(f"the filter cannot be read: {what}", given=f"{here} of {self._where}", expected=EXAMPLE)

    def _is(self, word: str) -> bool:
        return self.kind in ("word", "sign") and self.word.casefold() == word

    def _take(self, word: str) -> bool:
        is_next = self._is(word)
        if is_next:
            self.advance()
        return is_next

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self.error(f"expected {word}")

    def either(self, depth: int) -> Mask:
        """Parse tests joined by `or`."""
        masks = [self._both(depth)]
        while self._take("or"):
            masks.append(self._both(depth))
        return reduce(pc.or_kleene, masks)

    def _both(self, depth: int) -> Mask:
        masks = [self._one(depth)]
        while self._take("and"):
            masks.append(self._one(depth))
        return reduce(pc.and_kleene, masks)

    def _one(self, depth: int) -> Mask:
        if depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} parentheses and nots within each other")
        if self._take("not"):
            return pc.invert(self._one(depth + 1))
        if self._take("("):
            mask = self.either(depth + 1)
            self._expect(")")
            return mask
        return self._test()

    def _test(self) -> Mask:
        name, column = self._column()
        if self._take("is"):
            negated = self._take("not")
            self._expect("missing")
            return pc.is_valid(column) if negated else pc.is_null(column)
        if (negated := self._take("not")) and not self._is("in"):
            raise self.error("expected in")
        if self._take("in"):
            mask = self._among(name, column)
            return pc.invert(mask) if negated else mask
        if self.kind != "sign" or self.word not in _COMPARE:
            raise self.error("expected a comparison (= != < <= > >=), in, or is missing")
        sign = self.advance()
        return self._compared(name, column, sign, self._value())

    def _among(self, name: str, column: pa.Array) -> Mask:
        self._expect("(")
        masks = [self._compared(name, column, "=", self._value())]
        while self._take(","):
            masks.append(self._compared(name, column, "=", self._value()))
        self._expect(")")
        return reduce(pc.or_kleene, masks)

    def _column(self) -> tuple[str, pa.Array]:
        if self.kind not in ("word", "quoted") or (self.kind == "word" and self.word.casefold() in _WORDS):
            raise self.error("expected the name of a column")
        names, name = self._metadata.column_names, self.word.strip("`")
        if name not in names:
            near = difflib.get_close_matches(name.casefold(), [known.casefold() for known in names], 1)
            meant = next((known for known in names if near and known.casefold() == near[0]), None)
            do = f"did you mean {_written(meant)}?" if meant else None
            shown = ", ".join(map(_written, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
            raise UsageError("no such column of metadata", given=name[:80], expected=shown, do=do)
        self.advance()
        return name, self._metadata[name].combine_chunks()

    def _value(self) -> Scalar:
        kind, word = self.kind, self.word
        if kind == "number":
            self.advance()
            is_whole = len(word) <= 20 and not re.search(r"[.eE]", word)  # more digits are beyond 64 bits
            return int(word) if is_whole else float(word)
        if kind == "text":
            self.advance()
            return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL)
        if kind == "word" and word.casefold() in ("true", "false"):
            self.advance()
            return word.casefold() == "true"
        raise self.error("expected a number, a text in quotes, true or false")

    def _compared(self, name: str, column: pa.Array, sign: str, value: Scalar) -> Mask:
        kind, name = TYPE_NAMES[column.type], _written(name)
        given = "boolean" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"
        if given != kind:
            what = f"{name} is compared with {'a ' if given != 'text' else ''}{given}"
            expected = {"text": f'{name} {sign} "{value}"', "number": "a number", "boolean": "true or false"}[kind]
            order = 'it holds text, which is compared character by character: "5" comes after "30"'
            do = order if kind == "text" and sign not in ("=", "!=") else None
            raise UsageError(what, given=f"{name} {sign} {value!r}", expected=f"{kind}: {expected}", do=do)
        if kind == "boolean" and sign not in ("=", "!="):
            raise UsageError("true and false have no order", given=f"{name} {sign} {value!r}", expected="= or !=")
        if kind == "text" and sign not in ("=", "!=") and pc.any(pc.match_substring_regex(column, _DAY_FIRST)).as_py():
            do = "write them in this form in the file, and index it again"
            raise UsageError(
                f"{name} has dates that have no order", given=f"{name} {sign} {value!r}", expected="YYYY-MM-DD", do=do
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            value = float(value)
        if isinstance(value, int) and pa.types.is_integer(column.type):
            return _COMPARE[sign](column, pa.scalar(value, pa.int64()))
        if kind == "number":
            return _COMPARE[sign](column.cast(pa.float64(), safe=False), pa.scalar(float(value), pa.float64()))
        return _COMPARE[sign](column, pa.scalar(value, column.type))


def _written(name: str) -> str:
    """The name of a column as a filter writes it."""
    token = _TOKEN.fullmatch(name)
    return name if token and token["word"] and name.casefold() not in _WORDS else f"`{name}`"
