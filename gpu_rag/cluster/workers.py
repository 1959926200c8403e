"""The workers of one run: the models on workers, opened on first use and closed together."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from gpu_rag.cluster.models import RayEmbedder, RayLLM
from gpu_rag.cluster.pool import Plan, Pool
from gpu_rag.cluster.ray import check_installed
from gpu_rag.cluster.worker import EmbedWorker, LLMWorker, build_embedder, build_llm
from gpu_rag.errors import UsageError
from gpu_rag.models.packaged import cache_dir
from gpu_rag.settings import ModelSettings
from gpu_rag.settings.sections import ScaleSettings, VllmSettings

ADDRESSES = "none | local | auto | HOST:PORT"
_HEAD = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")


class RayWorkers:
    """Models on workers, as `models.set.Workers`. A role with 0 workers is None and stays in this process."""

    def __init__(self, scale: ScaleSettings, models: ModelSettings, vllm: VllmSettings):
        """Check the settings. Ray is not used before a model is requested. Raises UsageError, MissingBackend."""
        check_scale(scale, models)
        self._scale, self._models, self._vllm = scale, models, vllm
        self._pools: dict[str, Pool] = {}

    def embedder(self) -> RayEmbedder | None:
        """The embedder. Raises the errors of starting its workers."""
        pool = self._pool("embedder", "embed", partial(build_embedder, self._models), EmbedWorker)
        return RayEmbedder(pool, self._scale.embed_batch) if pool is not None else None

    def llm(self) -> RayLLM | None:
        """The language model. Raises the errors of starting its workers."""
        pool = self._pool("llm", "llm", partial(build_llm, self._models, self._vllm), LLMWorker)
        return RayLLM(pool) if pool is not None else None

    def _pool(self, role: str, prefix: str, build: Callable[..., Any], actor: Any) -> Pool | None:
        """The workers of a role, with the settings `scale.PREFIX_workers` and so on; None without workers."""
        n_workers, cpus, gpus = (getattr(self._scale, f"{prefix}_{name}") for name in ("workers", "cpus", "gpus"))
        if n_workers and role not in self._pools:
            build = partial(build, _device(prefix, self._models.device, gpus), str(cache_dir()))
            self._pools[role] = Pool(self._scale, Plan(role, actor, build, n_workers, cpus, gpus))
        return self._pools.get(role)

    def describe(self) -> dict[str, Any]:
        """{role: `Pool.describe`} of the roles that were used."""
        return {role: pool.describe() for role, pool in self._pools.items()}

    def close(self) -> None:
        """End all workers, and a local Ray with its last user."""
        with ExitStack() as stack:  # a pool that cannot be closed does not keep others open
            for pool in self._pools.values():
                stack.callback(pool.close)


def check_scale(scale: ScaleSettings, models: ModelSettings) -> None:
    """Raise UsageError for settings that contradict each other, MissingBackend without ray."""
    if scale.address not in ("local", "auto") and not _HEAD.fullmatch(scale.address):
        raise UsageError("not the address of a Ray cluster", given=f"scale.address={scale.address}", expected=ADDRESSES)
    if not scale.embed_workers and not scale.llm_workers:
        do = "set one of them, or scale.address=none"
        raise UsageError("a cluster without workers", given="scale.embed_workers=0, scale.llm_workers=0", do=do)
    if scale.llm_workers and models.llm.startswith(("http://", "https://")):
        do = "a model server has its own: --set scale.llm_workers=0"
        raise UsageError("a model server is not put on workers", given=f"models.llm={models.llm}", do=do)
    if scale.embed_workers:
        _device("embed", models.device, scale.embed_gpus)
    if scale.llm_workers:
        _device("llm", models.device, scale.llm_gpus)
    check_installed()


def _device(role: str, wanted: str, gpus: float) -> str:
    """The device of a worker: the GPUs that it reserves, else the CPU. Raises UsageError."""
    if (wanted == "cpu" and gpus) or (wanted.startswith("cuda") and not gpus):
        given = f"models.device={wanted}, scale.{role}_gpus={gpus:g}"
        do = "leave models.device at auto, or change the other"
        raise UsageError("a worker computes on the GPUs that it reserves", given=given, do=do)
    return "cuda" if gpus else "cpu"
