"""Parsing of files that need a library, in a separate process: a hostile file costs only one Reject."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

from gpu_rag.errors import MissingBackend
from gpu_rag.machine import start_module
from gpu_rag.sources.corpus import scan
from gpu_rag.sources.rows import REASON_CHARS, Limits, RowError, clean_string, document_text, metadata_of, one_line
from gpu_rag.types import Scalar

# ending: (file and function that read it, libraries that they need). Documents depend on the first library.
_PAGES = ("selectolax", "webencodings")
_SHEETS = ("python_calamine",)
_READERS: dict[str, tuple[str, tuple[str, ...]]] = {
    ".pdf": ("pdf.read_pdf", ("pypdfium2",)),
    ".html": ("html.read_html", _PAGES),
    ".htm": ("html.read_html", _PAGES),
    ".docx": ("office.read_docx", ()),
    ".pptx": ("office.read_pptx", ()),
    ".odt": ("office.read_odt", ()),
    ".odp": ("office.read_odt", ()),
    ".rtf": ("office.read_rtf", ("striprtf",)),
    ".xlsx": ("sheet.read_sheet", _SHEETS),
    ".xls": ("sheet.read_sheet", _SHEETS),
    ".ods": ("sheet.read_sheet", _SHEETS),
    ".eml": ("mail.read_eml", _PAGES),
    ".mbox": ("mail.read_eml", _PAGES),  # one of its mails, see `mailbox`
    ".msg": ("mail.read_msg", ("olefile", *_PAGES)),
    ".epub": ("epub.read_epub", _PAGES),
}
PARSED_SUFFIXES = tuple(_READERS)
SHEET_SUFFIXES = tuple(ending for ending, (_, libraries) in _READERS.items() if libraries == _SHEETS)
INSTALL = "pip install 'gpu-rag[documents]'"


@dataclass(frozen=True)
class Parsed:
    """Contents of one file. title: "" if it has none; pages, metadata, headings: see `Document`; problems: one sentence
    for each part of the file that could not be read and is not in `text`."""

    title: str
    text: str
    pages: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    metadata: dict[str, Scalar] = field(default_factory=dict)
    headings: tuple[tuple[int, str], ...] = ()


def is_parsed(name: str) -> bool:
    """Whether files of this name are parsed here."""
    return _suffix(name) in _READERS


def require_reader(name: str) -> None:
    """Raise MissingBackend, which names the extra, if a library for this type of file is not installed."""
    for library in _READERS[_suffix(name)][1]:
        if not _is_installed(library):
            what = f"reading {_suffix(name)} files needs the documents extra"
            raise MissingBackend(what, given=f"no {library}", do=INSTALL)


def missing_reader(name: str) -> str:
    """Install command for this type of file, or "" if nothing is missing."""
    libraries = _READERS[_suffix(name)][1] if is_parsed(name) else ()
    return "" if all(map(_is_installed, libraries)) else INSTALL


def versions_for(names: Iterable[str]) -> dict[str, str]:
    """{library: its version, or "absent"} for the libraries that files of these names need."""
    needed = {library for name in names if is_parsed(name) for library in _READERS[_suffix(name)][1][:1]}
    if "pypdfium2" in needed and scan.can_read():
        needed.add(scan.LIBRARY)
    return {lib: importlib.metadata.version(lib) if _is_installed(lib) else "absent" for lib in sorted(needed)}


def _suffix(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot >= 0 else ""


def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


_CLOCK_FACTOR = 4
_GRACE_S = 10


class Parser:
    """One worker process, started for the first file, used for all later ones, and replaced when it dies.

    Use it in `with closing(...)`: leaving the block ends the process.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def parse(self, path: Path) -> Parsed:
        """Contents of one file of PARSED_SUFFIXES. Raises RowError with the reason for any failure.

        The same file gives the same result, whichever files were parsed before it.
        """
        request = {"path": os.fspath(path), "reader": _READERS[_suffix(path.name)][0], "limits": asdict(self._limits)}
        try:
            answer = self._exchange(self._running(), json.dumps(request).encode() + b"\n")
        except BaseException:
            self.close()  # a late reply must not be read as the answer to the next request
            raise
        if answer["last"]:
            self.close()
        reply = answer["reply"]
        if "error" in reply:
            raise RowError(one_line(reply["error"]))
        text, title = document_text(reply["text"], self._limits), clean_string(reply["title"], "title")
        problems, metadata = tuple(map(one_line, reply["problems"])), metadata_of(reply["metadata"], ())
        headings = tuple((offset, clean_string(words, "a heading")) for offset, words in reply["headings"])
        return Parsed(title, text, tuple(reply["pages"]), problems, metadata, headings)

    def parse_html(self, data: bytes) -> Parsed:
        """Contents of an HTML page in memory. Raises RowError."""
        with TemporaryDirectory(prefix="gpu-rag-web-") as folder:
            file = Path(folder) / "page.html"
            file.write_bytes(data)
            return self.parse(file)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            try:
                pipe = subprocess.PIPE
                self._process = start_module(
                    "gpu_rag.sources.corpus.parse_worker", stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
                )
            except OSError as error:
                raise RowError(f"the process that parses files cannot be started: {error.strerror}") from error
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes) -> dict[str, Any]:
        """Send a request and wait for its reply line. Raises RowError when none comes, or it is too long."""
        if process.stdin is None or process.stdout is None:
            raise RowError("the process that parses files has no pipe")
        limits, seconds = self._limits, _CLOCK_FACTOR * self._limits.max_parse_s
        # A character takes up to 12 bytes in ASCII JSON, and may be in a heading too; a page has an offset, and may
        # have a problem.
        limit = 24 * limits.max_document_chars + (32 + 12 * REASON_CHARS) * limits.max_pages + (1 << 20)
        reply, ocr_until = b"\n", math.inf
        while reply == b"\n":  # an empty line means that OCR of a page begins, which has time of its own
            now = time.monotonic()
            if not request:
                ocr_until = min(ocr_until, now + limits.max_ocr_s)
            until = min(now + seconds, ocr_until)
            clock = Timer(until - now, process.kill)
            clock.start()
            try:
                process.stdin.write(request)
                process.stdin.flush()
                reply = process.stdout.readline(limit + 1)
            except BrokenPipeError:
                reply = b""
            finally:
                clock.cancel()
            request = b""
        if len(reply) > limit:
            raise RowError("the parser gave more than the limits allow")
        if not reply.endswith(b"\n"):
            if time.monotonic() < until:
                raise RowError(_how_it_ended(process, limits))
            if until == ocr_until:
                raise RowError(f"OCR of its pages takes more than max_ocr_s = {limits.max_ocr_s} s")
            raise RowError(f"parsing it takes more than {_CLOCK_FACTOR} * max_parse_s = {seconds} s")
        try:
            contents: dict[str, Any] = json.loads(reply)
        except ValueError as error:
            raise RowError("the parser did not answer in JSON") from error
        return contents


def _how_it_ended(process: subprocess.Popen[bytes], limits: Limits) -> str:
    """Reason why a worker died, in words."""
    try:
        status = process.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        return "the parser closed its pipe"
    if status == -signal.SIGXCPU:
        return f"parsing it takes more than max_parse_s = {limits.max_parse_s} s of processor time"
    if status < 0:
        return f"parsing it ended the parser with signal {-status}"
    return f"parsing it ended the parser with status {status}"
