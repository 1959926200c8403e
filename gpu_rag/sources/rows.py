"""Parts that all readers share: limits, ids, and checks of fields."""

from __future__ import annotations

import hashlib
import math
import os
from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from gpu_rag.text.strict_json import JsonError
from gpu_rag.types import Document, Reject, Scalar

T = TypeVar("T")

MAX_ID_CHARS = 1000
MAX_TITLE_CHARS = 1000  # every passage of a document repeats its title
REASON_CHARS = 300
PART_LINES = 64  # lines of a file that stay in one part
TAKEN = "was already used, with another text, in "  # in the reason of a reject


@dataclass(frozen=True)
class Limits:
    """Limits on data in memory at once; larger data is rejected with a reason.

    max_document_chars: characters of one text; max_line_bytes: bytes of one line of JSON Lines, characters of a row of
    .csv (unpacked); max_json_bytes: bytes of one JSON array file (unpacked), which is read whole.
    The others are for one file that is parsed in a separate process (see `corpus.parser`). max_file_bytes: its size,
    and its unpacked size, also of a .zip; max_pages: its pages; max_parse_bytes: address space of the parsing, besides
    the process itself; max_parse_s: whole seconds of processor time, and 4 times as many on the clock. OCR of a
    page has this time again, and 4 times the bytes; max_ocr_s: seconds on the clock from the first such page to the end
    of the file. A file near max_parse_s or max_ocr_s may pass on one machine only.
    Two fields are no limits: columns, the (role, column) pairs of tables, see `columns`; and part, see `has`.
    """

    max_document_chars: int = 10_000_000
    max_line_bytes: int = 64 << 20
    max_json_bytes: int = 2 << 30
    max_file_bytes: int = 256 << 20
    max_pages: int = 20_000
    max_parse_bytes: int = 1 << 30
    max_parse_s: int = 120
    max_ocr_s: int = 7200
    columns: tuple[tuple[str, str], ...] = ()
    part: tuple[int, int] = (0, 1)

    def check_chars(self, size: int) -> None:
        """Raise RowError for a text of more than max_document_chars characters."""
        if size > self.max_document_chars:
            raise RowError(f"the text has more than max_document_chars = {self.max_document_chars} characters")

    def has(self, name: str, line: int = 0) -> bool:
        """Whether a file, or a line of it, belongs to `part` = (number, n), part `number` of n of the corpus.

        Blocks of PART_LINES lines go to the n parts in turn; the name decides which part gets the first block.
        """
        number, n = self.part
        return n == 1 or (crc32(name.encode("utf-8", "surrogatepass")) + line // PART_LINES) % n == number


LIMITS = Limits()

_TAME_BYTES, _TAME_RATIO = 64 << 20, 200


def check_unpacked(packed: int, unpacked: int) -> None:
    """Raise RowError for data that unpacks to more than 64 MiB and more than 200 times its size: a bomb, not a text."""
    if unpacked > max(_TAME_BYTES, _TAME_RATIO * packed):
        raise RowError(f"it unpacks from {packed} to {unpacked} bytes or more, over {_TAME_RATIO} times as many")


class RowError(ValueError):
    """The reason why one row cannot be used. It becomes a Reject."""


def attempted(path: Path, line: int, make: Callable[..., T], *args: Any) -> T | Reject:
    """Result of make(*args), or a Reject if the row of this line cannot be used."""
    try:
        return make(*args)
    except (RowError, JsonError) as error:
        return Reject(shown(path), line, str(error))


def shown(path: Path) -> str:
    """Path as text that UTF-8 can hold, for any bytes of the file system."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def one_line(reason: object) -> str:
    """Reason as one line of at most 300 characters that UTF-8 can hold."""
    text = " ".join(str(reason).split())[:REASON_CHARS]
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def passage_id(passage: str) -> str:
    """Id of a passage without one: "p_" + the first 12 hexadecimal digits of sha1(title + newline + text)."""
    return "p_" + hashlib.sha1(passage.encode(), usedforsecurity=False).hexdigest()[:12]


def question_id(question: str) -> str:
    """Id of a question without one: "q_" + the first 12 hexadecimal digits of sha1(question)."""
    return "q_" + hashlib.sha1(question.encode(), usedforsecurity=False).hexdigest()[:12]


def decode_utf8(data: bytes) -> str:
    """Text of UTF-8 bytes, without a byte order mark. Raises RowError naming the encoding or the first bad byte."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise RowError("not UTF-8: the byte order mark of UTF-16 or UTF-32")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}") from error


def clean_string(value: object, name: str) -> str:
    """`value` if it is a string that UTF-8 and a table can hold. Raises RowError."""
    if not isinstance(value, str):
        raise RowError(f"{name} is {kind(value)}; expected a string")
    if "\x00" in value:
        raise RowError(f"{name} holds a NUL character")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RowError(f"{name} holds half of a surrogate pair") from error
    return value


def document_text(value: object, limits: Limits, name: str = "text") -> str:
    """`value` if it is a clean string, not only white space, within the limit. Raises RowError."""
    text = clean_string(value, name)
    if not text or text.isspace():
        raise RowError(f"{name} is empty")
    if len(text) > limits.max_document_chars:
        raise RowError(f"{name} has {len(text)} characters, more than max_document_chars = {limits.max_document_chars}")
    return text


def optional_string(row: Mapping[str, Any], key: str) -> str:
    """Value of row[key], or "" if it is missing or null. Raises RowError if it is no string."""
    value = row.get(key)
    return "" if value is None else clean_string(value, key)


def metadata_of(row: Mapping[str, Any], read: Collection[str]) -> dict[str, Scalar]:
    """Scalars of a row outside the columns `read`, by name; those inside an object `metadata` too.

    Decimals become numbers (readers turn dates into ISO text). Left out: null, nested values, numbers beyond 64 bits,
    names and texts of more than 1,000 characters (they are no metadata) or that UTF-8 cannot hold.
    """
    metadata: dict[str, Scalar] = {}
    inner = row.get("metadata")
    for name, value in [*(inner.items() if isinstance(inner, dict) else ()), *row.items()]:
        value = _scalar(value)
        if name not in read and value is not None and _is_short(name) and name:
            metadata[name] = value
    return metadata


def _scalar(value: object) -> Scalar | None:
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str) and _is_short(value) else None


def _is_short(text: str) -> bool:
    try:
        return clean_string(text, "metadata") == text and len(text) <= MAX_ID_CHARS
    except RowError:
        return False


def row_id(row: Mapping[str, Any], *keys: str) -> str | None:
    """First existing value of row[keys], as text (an integer in decimal); None if there is none.

    Raises RowError if it is neither a string nor an integer, or is empty or longer than 1,000 characters.
    """
    key = next((key for key in keys if row.get(key) is not None), None)
    return None if key is None else id_text(row[key], key)


def id_text(value: object, name: str) -> str:
    """Id as text: a clean string of 1 to 1,000 characters, or an integer in decimal. Raises RowError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = clean_string(value, name)
    if not 1 <= len(text) <= MAX_ID_CHARS:
        raise RowError(f"{name} has {len(text)} characters; expected 1 to {MAX_ID_CHARS}")
    return text


def string_list(value: object, name: str, *, ids: bool = False) -> tuple[str, ...]:
    """List of strings, or of ids, as a tuple of texts; null is empty. Raises RowError."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RowError(f"{name} is {kind(value)}; expected a list of {'ids' if ids else 'strings'}")
    return tuple((id_text if ids else clean_string)(item, f"an item of {name}") for item in value)


def kind(value: object) -> str:
    """Type of a JSON value, in words."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    if value is None:
        return "missing or null"
    return names.get(type(value), "an object" if isinstance(value, dict) else type(value).__name__)


class SeenIds:
    """Ids read so far, with a hash of their content, and their place. About 150 bytes an id."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self._content = array("Q")
        self._line = array("Q")
        self._file_of = array("I")
        self._files: list[str] = []

    def claim(self, id: str, content: str, file: str, line: int) -> tuple[bool, str]:
        """Claim `id`. Returns (whether the content is the same, reason); the reason is "" if the id was new."""
        digest = int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "little")
        number = self._number.get(id)
        if number is None:
            self._number[id] = len(self._content)
            if not self._files or self._files[-1] != file:
                self._files.append(file)
            self._content.append(digest)
            self._line.append(line)
            self._file_of.append(len(self._files) - 1)
            return True, ""
        if self._content[number] == digest:
            return True, f"duplicate of {id!r} in {self._place(number)}"
        return False, self.taken(id)

    def taken(self, id: str) -> str:
        """The reason to reject another text with this id; "" if the id is free."""
        number = self._number.get(id)
        return "" if number is None else f"the id {id!r} {TAKEN}{self._place(number)}"

    def _place(self, number: int) -> str:
        return f"{self._files[self._file_of[number]]} line {self._line[number]}"

    def claim_document(self, document: Document) -> tuple[bool, str]:
        """Claim the id of a document; see `claim`. Its content is title and text, where white space does not count."""
        content = "\n".join((document.title, *document.text.split()))
        return self.claim(document.id, content, document.file, document.line)
