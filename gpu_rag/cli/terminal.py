"""Output to a terminal: control characters in texts are shown, never obeyed; styles are used if the terminal has them;
the reader of stderr may go away."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from gpu_rag.errors import StorageError

if TYPE_CHECKING:
    from rich.text import Text

# escapes, and characters that change the direction of the text around them or begin lines; not tab and line feed
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with every character that a terminal would obey written as an escape.

    >>> print(visible("a\x1b[2Jb\u202ec"))
    a\x1b[2Jb\u202ec
    """
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def on_one_line(text: str) -> str:
    r"""`visible`, also with line feeds and tabs as escapes: names of files may hold them.

    >>> print(on_one_line("a\nb"))
    a\nb
    """
    return visible(text.replace("\n", r"\n").replace("\t", r"\t"))


def has_styles() -> bool:
    """Whether stdout is a terminal that shows styles, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "", "dumb")


def show(text: str | Text) -> None:
    """Print a result: styled text with its styles. Raises StorageError if the disk is full."""
    try:
        _print(text)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise StorageError("the disk is full", given="stdout", do="free space, or write it elsewhere") from error


def _print(text: str | Text) -> None:
    if isinstance(text, str):
        print(visible(text), flush=True)
        return
    from rich.console import Console

    Console(highlight=False, markup=False, emoji=False).print(text, soft_wrap=True)
    sys.stdout.flush()


class Visible(logging.Formatter):
    """Formatter of log messages: control characters of libraries and model servers are shown as escapes."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, visible."""
        return visible(super().format(record))


class _Remarks(io.FileIO):
    """A stream of bytes to stderr. If its reader is gone or its disk full, the rest is dropped."""

    def write(self, data: Any) -> int:
        """Write the bytes. If that fails, drop all bytes from now on: a remark that nobody reads must end no work."""
        try:
            return super().write(data)
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return len(data)


def keep_stderr() -> None:
    """Make stderr of this process outlive its reader.

    First open closed standard streams (`2>&-`) to nothing. Otherwise the next file that is opened, perhaps one of the
    index, would get their number, and messages of libraries would go into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is not sys.__stderr__:
        return  # keep a stream that a caller in this process has set
    encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
    remarks: Any = _Remarks(2, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(remarks, encoding, errors="backslashreplace", write_through=True)
