"""Parsing .pdf and .html files in a process of their own, so that a hostile file costs one Reject and no more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any

from gpu_rag.sources.corpus.parsed import Parsed, kind_of
from gpu_rag.sources.rows import REASON_CHARS, Limits, RowError, clean_string, document_text, one_line

_CLOCK_FACTOR = 4
_GRACE_S = 10


class Parser:
    """One worker process, started for the first file, used for all that follow, and replaced when it dies.

    Use it in a `with` block: leaving the block ends the process.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Parser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def parse(self, path: Path) -> Parsed:
        """The contents of one .pdf, .html or .htm file. Raises RowError with the reason, whatever the file does.

        The same file gives the same result, whichever files were parsed before it.
        """
        request = {"path": os.fspath(path), "kind": kind_of(path.name), "limits": asdict(self._limits)}
        try:
            answer = self._exchange(self._running(), json.dumps(request).encode() + b"\n")
        except BaseException:
            self.close()  # its late reply must not be read as that to the next request
            raise
        if answer["last"]:
            self.close()
        reply = answer["reply"]
        if "error" in reply:
            raise RowError(one_line(reply["error"]))
        return _checked(reply, self._limits)

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
                self._process = _started()
            except OSError as error:
                raise RowError(f"the process that parses files cannot be started: {error.strerror}") from error
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes) -> dict[str, Any]:
        """Send a request, wait for the line that answers it. Raises RowError when none comes, or no end of it."""
        if process.stdin is None or process.stdout is None:
            raise RowError("the process that parses files has no pipe")
        limits, seconds = self._limits, _CLOCK_FACTOR * self._limits.max_parse_s
        # A character takes up to 12 bytes in ASCII JSON; a page has an offset, and may have a problem.
        most = 12 * limits.max_document_chars + (32 + 12 * REASON_CHARS) * limits.max_pages + (1 << 20)
        clock, until = Timer(seconds, process.kill), time.monotonic() + seconds
        clock.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            reply = process.stdout.readline(most + 1)
        except BrokenPipeError:
            reply = b""
        finally:
            clock.cancel()
        if len(reply) > most:
            raise RowError("the parser gave more than the limits allow")
        if not reply.endswith(b"\n"):
            late = f"parsing it takes more than {_CLOCK_FACTOR} * max_parse_s = {seconds} s"
            raise RowError(late if time.monotonic() >= until else _how_it_ended(process, limits))
        try:
            found: dict[str, Any] = json.loads(reply)
        except ValueError as error:
            raise RowError("the parser did not answer in JSON") from error
        return found


def _started() -> subprocess.Popen[bytes]:
    """The worker, with this interpreter and this import path, whatever the working directory holds."""
    root = os.fspath(Path(__file__).resolve().parents[2])
    places = dict.fromkeys([*filter(None, sys.path), root])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-P", "-m", "gpu_rag.sources.corpus.parse_worker"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )


def _how_it_ended(process: subprocess.Popen[bytes], limits: Limits) -> str:
    """Why a worker died, in words."""
    try:
        status = process.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        return "the parser closed its pipe"
    if status == -signal.SIGXCPU:
        return f"parsing it takes more than max_parse_s = {limits.max_parse_s} s of processor time"
    if status < 0:
        return f"parsing it ended the parser with signal {-status}"
    return f"parsing it ended the parser with status {status}"


def _checked(reply: dict[str, Any], limits: Limits) -> Parsed:
    """The reply as a Parsed whose text a document can have."""
    text = document_text(reply["text"], limits)
    title = clean_string(reply["title"], "title")
    return Parsed(title, text, tuple(reply["pages"]), tuple(map(one_line, reply["problems"])))
