"""Process that parses files that need a library or unpacking: one JSON line in and one out for each file.

A request is {path, reader, limits}; a reply {last, reply: {title, text, pages, problems, metadata} or {error}}; last:
the process ends after it. An empty line before the reply says that OCR of a page begins. All is ASCII, because paths
and reasons may hold text that UTF-8 cannot. The process keeps itself within the limits of each request; `parser`
notices if it is killed all the same.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import resource
import stat
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from gpu_rag.sources.corpus import scan
from gpu_rag.sources.rows import Limits, RowError

# A process that has grown this much is replaced, so that an earlier file does not affect the result of a later one.
_GROWN_BYTES = 128 << 20
_OCR_FACTOR = 4  # times max_parse_bytes: RapidOCR needs 1.5 GiB of address space (0.9 GB of memory) for a page


def main() -> None:
    """Answer requests from standard input until it ends."""
    # Only replies may reach the pipe.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    born = _address_space()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        limits = Limits(**request["limits"])
        scan.begin_page = partial(_renew, limits, replies)
        reply, last = answer(Path(request["path"]), request["reader"], limits)
        last = last or _address_space() - born > _GROWN_BYTES
        replies.write(b'{"last": %s, "reply": %s}\n' % (b"true" if last else b"false", reply))
        replies.flush()
        if last:
            return


def answer(path: Path, reader: str, limits: Limits) -> tuple[bytes, bool]:
    """(reply for one file as JSON, whether this process must end). Leaves the limits set."""
    module, _, function = reader.partition(".")
    read = getattr(importlib.import_module(f"gpu_rag.sources.corpus.{module}"), function)
    try:
        hold_to(limits)
        parsed = read(_contents(path, limits), limits)
        return json.dumps(asdict(parsed)).encode(), False
    except RowError as error:
        return json.dumps({"error": str(error)}).encode(), False
    except MemoryError:
        reason = f"parsing it needs more memory than max_parse_bytes = {limits.max_parse_bytes}"
        return json.dumps({"error": reason}).encode(), True


def hold_to(limits: Limits) -> None:
    """Limit the further resources of this process: address space, and processor seconds (then SIGXCPU ends it)."""
    _set_soft(resource.RLIMIT_AS, _address_space() + limits.max_parse_bytes)
    _set_soft(resource.RLIMIT_CPU, math.ceil(time.process_time()) + limits.max_parse_s)


def _renew(limits: Limits, replies: BinaryIO) -> None:
    """Give OCR of a page the time of a whole file, and memory for its models. An empty line restarts the clock of
    `parser`."""
    replies.write(b"\n")
    replies.flush()
    hold_to(replace(limits, max_parse_bytes=_OCR_FACTOR * limits.max_parse_bytes))


def _set_soft(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _address_space() -> int:
    """Bytes of address space in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def _contents(path: Path, limits: Limits) -> bytes:
    """Bytes of a regular file. Raises RowError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RowError("not a regular file")
        if status.st_size > limits.max_file_bytes:
            raise RowError(f"the file has {status.st_size} bytes, more than max_file_bytes = {limits.max_file_bytes}")
        with path.open("rb") as stream:
            data = stream.read(limits.max_file_bytes + 1)
    except OSError as error:
        raise RowError(f"the file cannot be read: {error.strerror}") from error
    if not data:
        raise RowError("the file is empty")
    return data


if __name__ == "__main__":
    main()
