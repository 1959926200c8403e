"""Tasks in processes of this machine or on a Ray cluster.

A task is the name of a function and a JSON document; a worker with this package can run it. Texts, vectors and models
are not sent: tasks read and write folders. A worker that dies is started again, and the files that its task wrote are
kept. Only this folder imports ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_rag.errors import UsageError

RAY = "ray:"


def run_tasks(
    target: str, documents: Sequence[Mapping[str, Any]], on: str = "", on_done: Callable[[], None] = lambda: None
) -> None:
    """Run target(document) for each document, in any order; on_done() is called after each.

    target: "module:function". on: "" for processes of this machine, at most one a core at a time; "ray:ADDRESS" for a
    cluster.

    Raises the first error of a task, GpuRagError for a task whose worker died too often, UsageError for another `on`,
    MissingBackend without ray.
    """
    if not on:
        from gpu_rag.cluster.processes import run
    elif on.startswith(RAY) and on != RAY:
        from gpu_rag.cluster.on_ray import run
    else:
        raise UsageError("no such cluster", given=on, expected="ray:HOST:PORT, ray:auto or ray:local")
    run(target, documents, on.removeprefix(RAY), on_done)
