"""Text for a terminal: what documents, models and arguments say is shown, never obeyed; styles where it has them; a
stderr that may go away."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

# escapes, and characters that change the direction of what stands around them or begin lines; not tab and line feed
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with every character that a terminal would obey written as an escape.

    >>> print(visible("a\x1b[2Jb\u202ec"))
    a\x1b[2Jb\u202ec
    """
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def has_styles() -> bool:
    """Whether stdout is a terminal that shows styles, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "", "dumb")


def show(text: str | Text) -> None:
    """Print a result: styled text with its styles."""
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
        """Write the bytes, or drop all from now on: a remark that nobody reads ends no work."""
        try:
            return super().write(data)
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return len(data)


def keep_stderr() -> None:
    """Make stderr of this process outlive its reader.

    Standard streams that were closed (`2>&-`) are opened to nothing first: else the next file that is opened, of the
    index perhaps, takes the number, and what libraries print to stderr goes into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is not sys.__stderr__:
        return  # a stream that a caller in this process set stays as it is
    encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
    remarks: Any = _Remarks(2, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(remarks, encoding, errors="backslashreplace", write_through=True)
