"""The worker's side of a task.

usage: python -m gpu_rag.cluster.worker PARENT TARGET    Reads a document from stdin, writes its result to stdout.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

from gpu_rag import errors
from gpu_rag.machine import prepare_environment
from gpu_rag.models.llm.own_server import end_with_parent

TRIES = 4  # maximum starts of one task, if its workers die


def call(target: str, document: str) -> str:
    """Run a task. Returns a JSON object: a GpuRagError that it raised; else an empty one. Other errors are raised."""
    prepare_environment()
    module, _, name = target.partition(":")
    try:
        getattr(importlib.import_module(module), name)(json.loads(document))
    except errors.GpuRagError as error:
        given = (None if value is None else str(value) for value in (error.given, error.expected, error.do))
        return json.dumps({"kind": type(error).__name__, "what": error.what, "given": [*given]})
    return "{}"


def check(result: str) -> None:
    """Raise the error in a result of `call`. Raises ValueError if the text is not a result."""
    content: dict[str, Any] = json.loads(result)
    if content:
        given, expected, do = content["given"]
        raise getattr(errors, content["kind"])(content["what"], given=given, expected=expected, do=do)


def main(parent: int, target: str) -> None:
    """Run the task on stdin. Libraries that print write to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    end_with_parent(signal.SIGTERM)
    if os.getppid() == parent:
        with os.fdopen(os.dup(1), "w", encoding="utf-8") as result:
            os.dup2(2, 1)
            result.write(call(target, sys.stdin.read()))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
