"""Tasks on a Ray cluster, each on a node of its own if there are enough."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_rag.cluster.worker import TRIES, call, check
from gpu_rag.errors import GpuRagError, UsageError, needing

CONNECT_S = 10.0


def run(target: str, documents: Sequence[Mapping[str, Any]], place: str, on_done: Callable[[], None]) -> None:
    """See `run_tasks`. place: an address that `ray.init` takes. Each task asks for as many GPUs as the node with fewest
    has, nodes without GPUs left out."""
    with needing("ray is not installed", "pip install 'gpu-rag[ray]'"):
        import ray
    try:
        host, _, port = place.removeprefix("ray://").rpartition(":")
        if host:  # ray.init waits for minutes if nobody listens
            socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(address=place, log_to_driver=False, include_dashboard=False if place == "local" else None)
    except (OSError, ValueError, RuntimeError) as error:
        given, do = f"{place}: {error}", "start it: ray start --head; then name HOST:PORT"
        raise UsageError("the Ray cluster cannot be reached", given=given, do=do) from error
    try:
        gpus = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
        task = ray.remote(
            max_retries=TRIES - 1, num_cpus=1, num_gpus=min(filter(None, gpus), default=0), scheduling_strategy="SPREAD"
        )(call)
        open_tasks = [task.remote(target, json.dumps(document)) for document in documents]
        while open_tasks:
            (ended,), open_tasks = ray.wait(open_tasks)
            check(ray.get(ended))
            on_done()
    except ray.exceptions.RayError as error:
        do = "run the same command again: it continues where it stopped"
        raise GpuRagError("a task failed on the Ray cluster", given=error, do=do) from error
    finally:
        ray.shutdown()
