"""Files to lines and to whole texts, in bounded memory; what cannot be read becomes a Reject."""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpu_rag.sources.rows import Limits, RowError, decode_utf8, shown
from gpu_rag.types import Reject

_SKIP_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Line:
    """One line, 1-based, without its line end."""

    number: int
    text: str


def read_lines(path: Path, limits: Limits) -> Iterator[Line | Reject]:
    """The lines of a UTF-8 file, gzip when the name ends in .gz; blank lines are left out.

    A line that is too long or not UTF-8 is a Reject and reading goes on; a file that cannot be read further (broken
    gzip, a disk error, UTF-16) is a Reject after the lines before it. Memory: one line.
    """
    number = 0
    try:
        with open_binary(path) as stream:
            while True:
                data = _next_line(stream, limits.max_line_bytes)
                if data == b"":
                    return
                number += 1
                if data is None:
                    reason = f"the line is longer than max_line_bytes = {limits.max_line_bytes}"
                    yield Reject(shown(path), number, reason)
                    continue
                if number == 1 and data.startswith((b"\xff\xfe", b"\xfe\xff")):
                    yield Reject(shown(path), 0, "not UTF-8: the byte order mark is that of UTF-16 or UTF-32")
                    return
                if not data.isspace():
                    yield decoded(path, number, data)
    except (OSError, EOFError, zlib.error, RowError) as error:
        yield Reject(shown(path), number + 1 if number else 0, read_problem(error))


def read_whole(path: Path, limit: int, limit_name: str) -> str:
    """The text of a UTF-8 file, gzip when the name ends in .gz. Raises RowError with the reason."""
    parts: list[bytes] = []
    size = 0
    try:
        with open_binary(path) as stream:
            while chunk := stream.read(_SKIP_BYTES):
                size += len(chunk)
                if size > limit:
                    raise RowError(f"the file has more than {limit_name} = {limit} bytes")
                parts.append(chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise RowError(read_problem(error)) from error
    return decode_utf8(b"".join(parts))


def open_binary(path: Path) -> BinaryIO:
    """The bytes of a regular file, unpacked when the name ends in .gz. Raises OSError or RowError."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device would block
        raise RowError("not a regular file")
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    stream = path.open("rb")
    if stream.peek(2)[:2] == _GZIP_MAGIC:
        stream.close()
        raise RowError("the file is gzip data, but its name does not end in .gz")
    return stream


def read_problem(error: Exception) -> str:
    """Why reading stopped, in words."""
    if isinstance(error, RowError):
        return str(error)
    if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile)):
        return f"the gzip data is broken or cut off: {error}"
    return f"the file cannot be read: {getattr(error, 'strerror', None) or error}"


def _next_line(stream: BinaryIO, limit: int) -> bytes | None:
    """The next line with its end; b"" at the end of the file; None for one longer than `limit`, which is skipped."""
    data = stream.readline(limit + 1)
    if len(data) <= limit or data.endswith(b"\n"):
        return data
    while True:
        rest = stream.readline(_SKIP_BYTES)
        if not rest or rest.endswith(b"\n"):
            return None


def decoded(path: Path, number: int, data: bytes) -> Line | Reject:
    """Line `number` of its bytes; a Reject where they are not UTF-8."""
    body = data.rstrip(b"\r\n")
    try:
        if number == 1:
            return Line(number, decode_utf8(body))
        return Line(number, body.decode("utf-8"))
    except RowError as error:
        return Reject(shown(path), number, str(error))
    except UnicodeDecodeError as error:
        return Reject(shown(path), number, f"not UTF-8: byte 0x{body[error.start]:02x} at offset {error.start}")
