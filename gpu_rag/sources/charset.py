"""Charset of a text file: its byte order mark, else UTF-8 if that fits, else the likeliest other charset."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpu_rag.sources.rows import RowError

MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is a prefix of this one
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SAMPLE_BYTES = 200_000
_SWITCHES_TO_KANJI = re.compile(rb"\x1b\$[@B]")
_SURE = 0.05  # below this confidence, the commonest charset is used
_COMMONEST = "cp1252"
_EAST_ASIAN = ("ja", "ko", "zh")
_DOUBTED, _NEARLY = 0.2, 0.25  # below this confidence, a guess is doubted if another language has this share of it
_MOSTLY = 3  # in older charsets of Japanese and Chinese, more than half of the bytes may look like UTF-8


def mark_of(data: bytes) -> tuple[bytes, str]:
    """(byte order mark at the start of a file, its charset), or (b"", "")."""
    return next(((mark, codec) for mark, codec in MARKS if data.startswith(mark)), (b"", ""))


def charset_of(blocks: Iterable[bytes]) -> str:
    """Python's name of the charset of a file without a byte order mark, given in blocks.

    UTF-8 if, of the non-ASCII bytes, at least 3 times as many are valid UTF-8 as are not: a few bad bytes do not change
    it. ISO-2022-JP if all bytes are ASCII and an escape sequence switches to kanji.
    """
    n_good = n_bad = 0
    sample, codec = bytearray(), "utf-8"
    for block in blocks:
        if block.isascii():
            codec = "iso2022_jp" if _SWITCHES_TO_KANJI.search(block) else codec
            continue
        n_high = int(np.count_nonzero(np.frombuffer(block, np.uint8) >= 0x80))
        n = _n_not_utf8(block)
        n_good, n_bad = n_good + n_high - n, n_bad + n
        if n and len(sample) < SAMPLE_BYTES:
            sample += _telling(block)
    if not n_good and not n_bad:
        return codec
    return "utf-8" if n_good >= _MOSTLY * n_bad else _likeliest(bytes(sample[:SAMPLE_BYTES]))


def decode_text(data: bytes) -> str:
    """Text of a file, without its byte order mark. Raises RowError naming the charset and the first bad byte."""
    mark, codec = mark_of(data)
    codec = codec or _wide(data) or charset_of([data])
    return decoded(data[len(mark) :], codec, len(mark))


def decoded(body: bytes, codec: str, before: int = 0) -> str:
    """`body` decoded by a charset; `before` bytes of its file precede it. Raises RowError: no byte is replaced."""
    try:
        return body.decode(codec)
    except UnicodeDecodeError as error:
        bad = f"byte 0x{body[error.start]:02x} at offset {error.start + before}"
        raise RowError(f"not {codec.upper()}, the charset of the file: {bad}") from error


def _n_not_utf8(block: bytes) -> int:
    """Number of bytes that are not part of valid UTF-8."""
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return len(block.decode("utf-8", "surrogateescape").encode("utf-8", "replace")) - len(
            block.decode("utf-8", "ignore").encode("utf-8")
        )
    return 0


def _wide(data: bytes) -> str:
    """UTF-16 or UTF-32 without a mark, recognised by its zeros; else ""."""
    if b"\x00" not in data[:SAMPLE_BYTES]:
        return ""
    from chardet import detect

    charset = (detect(data[:SAMPLE_BYTES])["encoding"] or "").lower()
    return charset if charset.startswith(("utf-16-", "utf-32-")) else ""


def _likeliest(sample: bytes) -> str:
    """Likeliest charset of lines with non-ASCII characters."""
    guess = _guesses(sample)[0]
    name = guess["encoding"]
    # The bytes of other languages hardly ever make a text of these, which a few kanji are enough to tell.
    if name is None or (guess["confidence"] < _SURE and guess["language"] not in _EAST_ASIAN):
        return _COMMONEST
    codec = codecs.lookup(name).name
    return _COMMONEST if codec in ("iso8859-1", "ascii", "utf-8") else codec


def doubt_of(data: bytes, codec: str) -> str:
    """Another charset that a file read as `codec` may well have, or "".

    Without kana, Japanese in EUC-JP is hardly told from Chinese: both have the same bytes.
    """
    if codec == "utf-8" or data.isascii():
        return ""
    best, *others = [guess for guess in _guesses(_telling(data)) if guess["language"] in _EAST_ASIAN] or [None]
    if best is None or codecs.lookup(best["encoding"]).name != codec or best["confidence"] >= _DOUBTED:
        return ""
    least = _NEARLY * best["confidence"]
    names = (g["encoding"] for g in others if g["language"] != best["language"] and g["confidence"] >= least)
    return next(names, "")


def _telling(block: bytes) -> bytes:
    """Lines with non-ASCII characters."""
    return b"\n".join(line for line in block.split(b"\n") if not line.isascii())


def _guesses(sample: bytes) -> list[Any]:
    """Guesses of chardet for a sample, the likeliest first: encoding, confidence, language."""
    from chardet import EncodingEra, detect_all

    # Without Macintosh and mainframe charsets: they would claim many Windows files.
    return detect_all(sample, encoding_era=EncodingEra.MODERN_WEB | EncodingEra.LEGACY_ISO | EncodingEra.DOS)
