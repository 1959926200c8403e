"""Settings of models on the workers of a Ray cluster: the section `[scale]`."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.settings.ranges import COUNT, NATURAL, Allowed


@dataclass(frozen=True)
class ScaleSettings:
    """Where models run when one machine is too small. They change no vector and no request, so they are in no hash.

    address: none (models run in this process) | local (a Ray of this machine, started and ended with the command) |
    auto (the cluster that this machine belongs to) | HOST:PORT of its head node. embed_workers, llm_workers: processes
    that each hold the model; 0 leaves that model in this process. embed_cpus, llm_cpus, embed_gpus, llm_gpus: what a
    worker reserves, parts of a GPU too; without a GPU it runs on the CPU. embed_batch: texts that a worker is given at
    once. llm_window: requests that a worker holds; 0: twice what its engine runs together. restarts: how often a worker
    that died is started again. start_seconds: time for the first worker to be ready, loading the model included.
    """

    address: str = "none"
    embed_workers: int = 1
    llm_workers: int = 1
    embed_cpus: float = 1.0
    llm_cpus: float = 1.0
    embed_gpus: float = 0.0
    llm_gpus: float = 0.0
    embed_batch: int = 256
    llm_window: int = 0
    restarts: int = 4
    start_seconds: float = 900.0


ALLOWED: dict[str, Allowed] = {
    "embed_workers": NATURAL,
    "llm_workers": NATURAL,
    "embed_cpus": NATURAL,
    "llm_cpus": NATURAL,
    "embed_gpus": NATURAL,
    "llm_gpus": NATURAL,
    "embed_batch": COUNT,
    "llm_window": NATURAL,
    "restarts": NATURAL,
    "start_seconds": COUNT,
}
