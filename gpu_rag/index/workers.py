"""A rule of a stage in several processes: parts of a batch go out, and their results come back in order.

usage: python -m gpu_rag.index.workers MODULE:RULE OPTIONS    Arrow streams on stdin and stdout, a batch for each part.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import Any

import pyarrow as pa

from gpu_rag.errors import GpuRagError
from gpu_rag.index.work import Work
from gpu_rag.machine import MAX_CORES, start_module, usable_cores
from gpu_rag.settings import Settings

Rule = Callable[..., pa.RecordBatch]
TEXTS = pa.schema([("text", pa.string())])  # of a rule that reads texts

START_S = 3.0  # work of this process before others are started: one takes about a second to start
PARTS = 4  # parts for each process: none of them waits long for the slowest one
MIN_ROWS, MAX_ROWS, PART_BYTES = 32, 512, 1 << 20  # of a part
STOP_S = 5.0  # for a process that failed to end by itself
_log = logging.getLogger(__name__)


def n_workers(settings: Settings) -> int:
    """The number of workers of a build: `index.workers`; if it is 0, the cores that this process may use, at most
    16."""
    return settings.index.workers or min(usable_cores(), MAX_CORES)


def embedding_workers(settings: Settings) -> int:
    """The number of threads that embed texts, each with `models.threads` of torch."""
    return max(1, n_workers(settings) // settings.models.model_threads)


class Shared:
    """A rule that several processes share. Its result for a row depends on this row alone, so neither the number of
    processes nor the parts change it.

    This process works alone for START_S; small corpora start no others. A thread for each process sends it one part at
    a time. Leaving the block ends the processes.
    """

    def __init__(self, rule: Rule, settings: Settings, work: Work | None = None, **options: Any):
        """rule: a function of a module, from a record batch and `options`, which JSON can hold, to a record batch with
        a row for each row, always of one schema. work: counts the seconds that this process spends in the rule."""
        self._rule, self._options, self._work = rule, options, work
        self._n, self._used_s = n_workers(settings), 0.0
        self._free, self._processes = SimpleQueue[_Process](), list[_Process]()
        self._threads = ThreadPoolExecutor(self._n, "worker")

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        if self._work is not None:
            self._work.shared_s += self._used_s
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.close()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rule's result for all rows, in order. Raises GpuRagError if a process fails."""
        n_rows = min(max(-(-len(batch) // (self._n * PARTS)), MIN_ROWS), MAX_ROWS)
        n_rows = min(n_rows, max(1, len(batch) * PART_BYTES // max(batch.nbytes, 1)))
        parts = [batch.slice(first, n_rows) for first in range(0, len(batch), n_rows)] or [batch]
        made = list[pa.RecordBatch]()
        while parts[len(made) :] and (self._n == 1 or self._used_s < START_S or not len(batch)):
            started = time.perf_counter()
            made.append(self._rule(parts[len(made)], **self._options))
            self._used_s += time.perf_counter() - started
        if rest := parts[len(made) :]:
            while len(self._processes) < min(self._n, len(rest)):
                self._processes.append(_Process(self._rule, self._options))
                self._free.put(self._processes[-1])
            made += self._threads.map(self._of_part, rest)
        return pa.concat_batches(made)

    def _of_part(self, part: pa.RecordBatch) -> pa.RecordBatch:
        process = self._free.get()
        try:
            return process.result(part)
        finally:
            self._free.put(process)


class _Process:
    """A process that runs a rule. It has this interpreter and this import path."""

    def __init__(self, rule: Rule, options: dict[str, Any]):
        words = [f"{rule.__module__}:{rule.__qualname__}", json.dumps(options)]
        pipe = subprocess.PIPE
        try:
            self._errors = TemporaryFile()  # noqa: SIM115, read if the process fails
            self._process = start_module(__name__, *words, stdin=pipe, stdout=pipe, stderr=self._errors)
        except OSError as error:
            raise GpuRagError("a worker cannot be started", given=error.strerror, do=_FEWER) from error
        self._sent: Any = None
        self._made: Any = None

    def result(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """The rule's result for a part."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        try:
            self._sent = self._sent or pa.ipc.new_stream(stdin, part.schema)
            self._sent.write_batch(part)
            stdin.flush()
            self._made = self._made or pa.ipc.open_stream(stdout)
            return self._made.read_next_batch()
        except (OSError, ValueError, StopIteration) as error:  # of a closed pipe
            raise self._failed() from error

    def _failed(self) -> GpuRagError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()
        self._errors.seek(0)
        written, status = self._errors.read().decode("utf-8", "replace").strip(), self._process.returncode
        if status < 0:
            return GpuRagError("a worker was ended", given=f"signal {-status}", do=_FEWER)
        _log.error("gpu-rag: a worker failed:\n%s", written)
        return GpuRagError("a worker failed", given=written.rpartition("\n")[2][:300])

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close its pipes."""
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):  # what was not sent
                assert file is not None
                file.close()


_FEWER = "where memory is short: --set index.workers=1; run the same command again, finished stages are kept"


def main(rule: str, options: str) -> None:
    """Run a rule on the batches of stdin. What libraries print goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module, _, name = rule.partition(":")
    make, given, made = getattr(importlib.import_module(module), name), json.loads(options), None
    source = os.fdopen(0, "rb")
    if source.peek(1):
        for part in pa.ipc.open_stream(source):
            result = make(part, **given)
            made = made or pa.ipc.new_stream(sink, result.schema)
            made.write_batch(result)
            sink.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
