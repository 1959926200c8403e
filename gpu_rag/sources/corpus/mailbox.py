"""Mails of a .mbox file, one file each."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gpu_rag.sources.rows import RowError

MAILBOX_SUFFIXES = (".mbox",)
# "From ada@example.org Mon Jan  6 09:00:00 2025": a time as of asctime, perhaps without seconds, or with a zone
_FIRST_LINE = re.compile(
    rb"From [^\n]*?\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) +(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2} +"
    rb"\d{1,2}:\d\d(?::\d\d)?(?: +[-+A-Z\d]{1,5})?? +[12]\d{3}\b"
)
_FIRST_BYTES = 256  # of a line: a longer first line is none
_QUOTED = re.compile(rb">+From ")
_PIECE = 1 << 16


def each_mail(mailbox: BinaryIO, target: Path, max_bytes: int) -> Iterator[int]:
    """Write one mail after the other to `target`, and give its number, from 1. Raises RowError, OSError.

    A mail begins with a line "From ADDRESS TIME" at the beginning or after an empty line; ">From" in a mail loses its
    mark. Of a mail above max_bytes, max_bytes + 1 are written. Memory: 64 KiB.
    """
    line, number = mailbox.readline(_PIECE).removeprefix(BOM_UTF8), 0
    while line and not line.strip():
        line = mailbox.readline(_PIECE)
    if not _is_first(line):
        raise RowError('not a .mbox file: its first line is not "From ADDRESS TIME"')
    while line:
        size, is_start, is_empty, number = 0, line.endswith(b"\n"), False, number + 1
        with target.open("wb") as mail:
            while (line := mailbox.readline(_PIECE)) and not (is_empty and _is_first(line)):
                kept = line[1:] if is_start and _QUOTED.match(line) else line
                mail.write(kept[: max(max_bytes + 1 - size, 0)])
                size += len(kept)
                is_empty, is_start = is_start and not line.strip(), line.endswith(b"\n")
        yield number


def _is_first(line: bytes) -> bool:
    return _FIRST_LINE.match(line[:_FIRST_BYTES]) is not None
