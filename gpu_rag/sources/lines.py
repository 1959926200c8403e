"""Lines of files, one by one or in blocks, and texts of whole files; parts that cannot be read become Rejects."""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from gpu_rag.sources.rows import Limits, RowError, check_unpacked, decode_utf8, shown
from gpu_rag.types import Reject

_READ_BYTES = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
BLOCK_BYTES = 4 << 20
BLOCK_LINES = 1 << 16  # with very short lines, 4 MiB could be millions of rejects at once
_BLANKS = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))


@dataclass(frozen=True)
class Line:
    """One line, numbered from 1, without its line end."""

    number: int
    text: str


@dataclass(frozen=True)
class LineBlock:
    """Lines of a file that are not blank.

    data: the bytes of all of them; start, end: i64[n], bounds of each line in it, without its line end; number: i64[n],
    from 1; alone: bool[n], lines that must be read one by one: the first of the file, and lines that may not be UTF-8
    or hold NUL. rejects: lines that are too long, ascending.
    """

    path: Path
    data: bytes
    start: np.ndarray
    end: np.ndarray
    number: np.ndarray
    alone: np.ndarray
    rejects: list[Reject]

    def line(self, row: int) -> Line | Reject:
        """One line, as `read_lines` yields it."""
        return _decoded(self.path, int(self.number[row]), self.data[self.start[row] : self.end[row]])


def read_lines(path: Path, limits: Limits) -> Iterator[Line | Reject]:
    """Lines of a UTF-8 file, gzip if the name ends in .gz; blank lines are left out.

    A line that is too long or not UTF-8 is a Reject and reading continues; if a file cannot be read further (broken
    gzip, a disk error, UTF-16), a Reject follows the lines before it. Memory: a few lines.
    """
    for block in read_line_blocks(path, limits, _READ_BYTES):
        if isinstance(block, Reject):
            yield block
        else:
            yield from merge(map(block.line, range(len(block.start))), block.rejects, key=_number)


def _number(line: Line | Reject) -> int:
    return line.number if isinstance(line, Line) else line.line


def read_line_blocks(
    path: Path, limits: Limits, block_bytes: int = BLOCK_BYTES, block_lines: int = BLOCK_LINES
) -> Iterator[LineBlock | Reject]:
    """Lines of `read_lines`, many at a time, with Rejects between and after them.

    Memory: about 4 blocks for any file; a longer line is in memory whole, up to its limit.
    """
    number = 0
    try:
        with open_binary(path) as stream:
            for whole, error in _whole_lines(stream, block_bytes, limits.max_line_bytes):
                for data in _cut(whole, block_lines):
                    block = _block(path, data, number, limits.max_line_bytes)
                    if block is None:
                        yield Reject(shown(path), 0, "not UTF-8: the byte order mark of UTF-16 or UTF-32")
                        return
                    number += data.count(b"\n") + (not data.endswith(b"\n"))
                    yield block
                if error is not None:
                    raise error
    except (OSError, EOFError, zlib.error, RowError) as error:
        yield Reject(shown(path), number + 1 if number else 0, read_problem(error))


def _whole_lines(stream: BinaryIO, size: int, limit: int) -> Iterator[tuple[bytes, Exception | None]]:
    """(bytes of whole lines, None), and at the end the error that stopped reading. A line over `limit` is cut, but
    stays over it."""
    partial = bytearray()
    while True:
        chunk, error = _read(stream, size)
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield bytes(partial) + chunk[:cut], None
            partial = bytearray(chunk[cut:])
        elif len(partial) <= limit:
            partial += chunk
        if error is not None or not chunk:
            yield (b"", error) if error is not None else (bytes(partial), None)  # text without a line end is lost
            return


def _cut(data: bytes, lines: int) -> Iterator[bytes]:
    """Whole lines, at most `lines` at a time; nothing for empty data."""
    if data.count(b"\n") <= lines:
        yield from (data,) if data else ()
        return
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)[lines - 1 :: lines] + 1
    for start, end in zip([0, *ends.tolist()], [*ends.tolist(), len(data)]):
        if end > start:
            yield data[start:end]


def _read(stream: BinaryIO, size: int) -> tuple[bytes, Exception | None]:
    """About `size` bytes, fewer at the end, and the error that stopped reading: bytes read before it are not lost."""
    parts: list[bytes] = []
    n = 0
    try:
        while n < size and (part := stream.read1(size - n)):  # type: ignore[attr-defined]
            parts.append(part)
            n += len(part)
    except (OSError, EOFError, zlib.error) as error:
        return b"".join(parts), error
    return b"".join(parts), None


def _block(path: Path, data: bytes, before: int, limit: int) -> LineBlock | None:
    """Lines of `data`, whose first line has number before + 1; None if the file begins like UTF-16."""
    octets = np.frombuffer(data, np.uint8)
    end = np.flatnonzero(octets == 10)
    if not data.endswith(b"\n"):
        end = np.append(end, len(octets))
    start = np.append(0, end[:-1] + 1)
    number = before + 1 + np.arange(len(end))
    long = end - start > limit
    if not before and not long[0] and data.startswith(_UTF16_MARKS):
        return None
    reason = f"the line is longer than max_line_bytes = {limit}"
    rejects = [Reject(shown(path), int(line), reason) for line in number[long]]
    end = _without_returns(data, octets, start, end)
    rows = np.flatnonzero(~long & (end > start))
    blank = [row for row in rows[_BLANKS[octets[start[rows]]]].tolist() if data[start[row] : end[row]].isspace()]
    rows = np.setdiff1d(rows, blank, assume_unique=True) if blank else rows
    start, end, number = start[rows], end[rows], number[rows]
    return LineBlock(path, data, start, end, number, _alone(data, octets, start, end, number), rejects)


def _without_returns(data: bytes, octets: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Ends of lines without their trailing carriage returns."""
    rows = np.flatnonzero((end > start) & (octets[end - 1] == 13))
    end = end.copy()
    end[rows] -= 1
    for row in rows[(end[rows] > start[rows]) & (octets[end[rows] - 1] == 13)].tolist():  # several: rare, or hostile
        end[row] = start[row] + len(data[start[row] : end[row]].rstrip(b"\r"))
    return end


def _alone(data: bytes, octets: np.ndarray, start: np.ndarray, end: np.ndarray, number: np.ndarray) -> np.ndarray:
    alone = number == 1
    if b"\0" in data:
        alone |= count_between(octets == 0, start, end) > 0
    try:
        pa.scalar(data, pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        alone |= count_between(octets >= 0x80, start, end) > 0
    return alone


def count_between(mask: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """i64[n]: number of True positions of a byte mask in each range."""
    places = np.flatnonzero(mask)
    counts: np.ndarray = np.searchsorted(places, end) - np.searchsorted(places, start)
    return counts


def cut_out(data: bytes, bounds: np.ndarray, columns: tuple[int, ...]) -> list[pa.LargeStringArray]:
    """Parts of valid UTF-8 as columns. bounds: i64[n, k], ascending row by row; part c ends where c + 1 begins."""
    n, k = bounds.shape
    offsets = np.append(bounds.ravel(), bounds[-1, -1] if n else 0).astype(np.int64)
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), n * k, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    first = np.arange(n, dtype=np.int64) * k
    return [_as_text(whole.take(pa.array(first + column))) for column in columns]


def _as_text(array: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Bytes known to be UTF-8 as text, without a check."""
    return pa.Array.from_buffers(pa.large_string(), len(array), array.buffers(), offset=array.offset)


# --- whole files ---------------------------------------------------------------------------------------


def read_whole(path: Path, limit: int, limit_name: str, decode: Callable[[bytes], str] = decode_utf8) -> str:
    """Text of a file (UTF-8, or by `decode`), gzip if the name ends in .gz. Raises RowError."""
    parts: list[bytes] = []
    size = 0
    try:
        with open_binary(path) as stream:
            while chunk := stream.read(_READ_BYTES):
                size += len(chunk)
                if size > limit:
                    raise RowError(f"the file has more than {limit_name} = {limit} bytes")
                check_unpacked(path.stat().st_size, size)
                parts.append(chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise RowError(read_problem(error)) from error
    return decode(b"".join(parts))


def open_binary(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes, unpacked if the name ends in .gz. Raises OSError or RowError."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device would block
        raise RowError("not a regular file")
    if not status.st_size:  # also true of files in /proc, and reading some of them blocks
        return BytesIO()
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    stream = path.open("rb")
    if stream.peek(2)[:2] == _GZIP_MAGIC:
        stream.close()
        raise RowError("the file is gzip data, but its name does not end in .gz")
    return stream


def read_problem(error: Exception) -> str:
    """Reason why reading stopped, in words."""
    if isinstance(error, RowError):
        return str(error)
    if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile)):
        return f"the gzip data is broken or cut off: {error}"
    return f"the file cannot be read: {getattr(error, 'strerror', None) or error}"


def _decoded(path: Path, number: int, data: bytes) -> Line | Reject:
    """Line `number` from its bytes; a Reject if they are not UTF-8."""
    body = data.rstrip(b"\r\n")
    try:
        if number == 1:
            return Line(number, decode_utf8(body))
        return Line(number, body.decode("utf-8"))
    except RowError as error:
        return Reject(shown(path), number, str(error))
    except UnicodeDecodeError as error:
        return Reject(shown(path), number, f"not UTF-8: byte 0x{body[error.start]:02x} at offset {error.start}")
