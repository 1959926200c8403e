"""Tasks in processes of this machine."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from gpu_rag.cluster.worker import TRIES, check
from gpu_rag.errors import GpuRagError
from gpu_rag.machine import start_module, usable_cores

LOOK_S = 0.05  # between two checks of the processes
STOP_S = 5.0  # for a process to end by itself
_log = logging.getLogger(__name__)


class _Running(NamedTuple):
    """A process, the file of its result, the number of its task, and the number of this try."""

    process: subprocess.Popen[bytes]
    result: IO[bytes]
    task: int
    attempt: int


def run(target: str, documents: Sequence[Mapping[str, Any]], place: str, on_done: Callable[[], None]) -> None:
    """See `run_tasks`. place: not used."""
    waiting = [(task, 1) for task in reversed(range(len(documents)))]
    running, most = list[_Running](), usable_cores()
    try:
        while waiting or running:
            while waiting and len(running) < most:
                running.append(_start(target, documents, *waiting.pop()))
            time.sleep(LOOK_S)
            for ended in [worker for worker in running if worker.process.poll() is not None]:
                running.remove(ended)
                if _is_done(ended):
                    on_done()
                else:
                    waiting.append((ended.task, ended.attempt + 1))
    finally:
        for worker in running:
            worker.process.terminate()
        for worker in running:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(STOP_S)
            worker.process.kill()


def _start(target: str, documents: Sequence[Mapping[str, Any]], task: int, attempt: int) -> _Running:
    result = TemporaryFile()  # noqa: SIM115, read when the process has ended
    words = str(os.getpid()), target
    process = start_module("gpu_rag.cluster.worker", *words, stdin=subprocess.PIPE, stdout=result)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(documents[task]).encode())
    return _Running(process, result, task, attempt)


def _is_done(ended: _Running) -> bool:
    """Whether a task is done; False if its process died. Raises the error of the task."""
    with ended.result as file:
        file.seek(0)
        result = file.read().decode()
    if result and not ended.process.returncode:
        check(result)
        return True
    died = f"task {ended.task + 1}, status {ended.process.returncode}"
    if ended.attempt == TRIES:
        do = "run the same command again: it continues where it stopped"
        raise GpuRagError(f"a worker died {TRIES} times", given=died, do=do)
    _log.warning("gpu-rag: a worker died and is started again: %s", died)
    return False
