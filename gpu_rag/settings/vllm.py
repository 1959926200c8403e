"""Settings of vLLM in process: the section `[vllm]`."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.settings.ranges import COUNT, NATURAL, Allowed, Range


@dataclass(frozen=True)
class VllmSettings:
    """How the engine of `models.llm = "vllm:..."` runs; 0 leaves a choice to the engine or to the device.

    tensor_parallel: GPUs that share the model. max_model_len: prompt and reply together (0: the model's own limit).
    gpu_memory_utilization: share of a GPU's memory for weights and kept keys and values; kv_cache_gib: a size for the
    latter instead (0: on a CPU 1 GiB). max_num_seqs: requests that run together (0: 32 on a CPU, 256 on a GPU).
    dtype: auto | bfloat16 | float16 | float32. seed: of the engine. load_format: auto | safetensors | dummy (random
    weights, for tests). enforce_eager: no compiled graphs; empty means only on a CPU. child_process: the engine in a
    process of its own, which this one survives. restarts: how often a dead engine is built again, before the run ends.
    """

    tensor_parallel: int = 1
    max_model_len: int = 0
    gpu_memory_utilization: float = 0.9
    kv_cache_gib: float = 0.0
    max_num_seqs: int = 0
    dtype: str = "auto"
    seed: int = 0
    load_format: str = "auto"
    enforce_eager: bool | None = None
    child_process: bool = False
    restarts: int = 2


ALLOWED: dict[str, Allowed] = {
    "tensor_parallel": COUNT,
    "max_model_len": NATURAL,
    "gpu_memory_utilization": Range(0.01, 1),
    "kv_cache_gib": NATURAL,
    "max_num_seqs": NATURAL,
    "dtype": ("auto", "bfloat16", "float16", "float32"),
    "seed": Range(0, 2**32 - 1),  # the engine seeds NumPy too
    "load_format": ("auto", "safetensors", "dummy"),
    "restarts": NATURAL,
}
