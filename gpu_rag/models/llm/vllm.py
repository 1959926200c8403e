"""vLLM servers for a model folder, started here: one per GPU or group of GPUs, or on the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.llm.capability import is_capable, parameters_in_name, stored_parameters
from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.models.llm.http_wire import Style
from gpu_rag.models.llm.own_server import OwnServer
from gpu_rag.settings.sections import VllmSettings
from gpu_rag.text.strict_json import JsonError, loads

CODE_VERSION = 3
COMMAND = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
INSTALL_LINE = "pip install 'gpu-rag[gpu]', or on a CPU scripts/install_vllm.sh VENV"
SERVED = "model"  # model id at our own servers
CPU_CACHE_GIB = 1.0
MAX_NUM_SEQS = {"cpu": 32, "cuda": 256}
# Prompts share whole blocks: with vLLM's default of 128 tokens on a CPU, short heads would not be shared.
CPU_BLOCK_TOKENS = 32
TIMEOUT_S = 3600.0  # time limit of a request, which may wait in the server
# JSON on one line, by the library of the transformers engine; thinking is switched off.
STYLE = Style(one_line=True, thinks=True, quiet=True)
_OURS = {"model", "trust_remote_code", "host", "port", "uds", "api_key", "served_model_name"}
_EXAMPLE = '{"quantization": "fp8"}'


class VllmLLM(HttpLLM):
    """Replies of a model folder through vLLM servers, which are started here and stopped with `close`.

    They are used like any other model server, see `HttpLLM`; the folder's tokenizer counts tokens. A server that dies
    is restarted. `content_hash` covers the folder and the type of the weights.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "",
        device: str = "cpu",
        threads: int = 1,
        capable: bool | None = None,
        settings: VllmSettings | None = None,
        command: Sequence[str] = COMMAND,
    ):
        """Start the servers and wait until they answer; downloads nothing and runs no code of the folder.

        device: cpu; or cuda for one server per GPU that this process sees (or per `tensor_parallel` of them), also for
        cuda:N, which then names the GPU of other work. threads: threads of a server on a CPU. command: the program of a
        server. Raises MissingBackend (no vllm), UsageError, ModelError (a server does not start).
        """
        chosen, kind = settings or VllmSettings(), device.partition(":")[0]
        gpus = places(chosen, kind)
        words = options(folder, chosen, kind)
        if command is COMMAND and importlib.util.find_spec("vllm") is None:
            raise MissingBackend("this model needs vllm", given="no module vllm", do=INSTALL_LINE)
        is_dummy = chosen.load_format == "dummy"
        about = {"engine": "vllm", "dtype": chosen.dtype, "random_weights": [chosen.seed] if is_dummy else []}
        content_hash = folder_hash(folder, CODE_VERSION, about, need_weights=not is_dummy)
        n_parameters = parameters_in_name(folder.name) or stored_parameters(folder)
        servers = [
            OwnServer(f"vLLM server {n}", [*command, *words], environment(chosen, kind, threads, own), "VLLM_API_KEY")
            for n, own in enumerate(gpus, 1)
        ]
        super().__init__(
            servers,
            SERVED,
            max_connections=window(chosen, kind),
            timeout_s=TIMEOUT_S,
            capable=is_capable(folder.name, n_parameters) if capable is None else capable,
            style=STYLE,
            tokenizer=str(folder),
        )
        self.name, self.content_hash = name or str(folder), content_hash


def window(settings: VllmSettings, device: str) -> int:
    """Number of requests that a server gets at once: twice as many as it runs, so that others wait for a place."""
    return 2 * (settings.max_num_seqs or MAX_NUM_SEQS[device])


def places(settings: VllmSettings, device: str) -> list[str]:
    """GPUs of each server, as CUDA_VISIBLE_DEVICES names them; "" for a server that sees what this process sees.

    Raises UsageError for too many servers.
    """
    seen = visible_gpus() if device != "cpu" else []
    group_size = settings.tensor_parallel
    n = settings.engines or max(1, len(seen) // group_size)
    if n == 1 or device == "cpu":
        return [""] * n
    if n * group_size > len(seen):
        given = f"vllm.engines={n} with vllm.tensor_parallel={group_size}"
        raise UsageError("too few GPUs for the servers", given=given, expected=f"at most {len(seen)} GPUs in all")
    return [",".join(seen[i * group_size : (i + 1) * group_size]) for i in range(n)]


def visible_gpus() -> list[str]:
    """GPUs that this process sees, by number or as CUDA_VISIBLE_DEVICES names them. Does not initialise CUDA."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return [str(i) for i, _ in enumerate(line for line in listed.stdout.splitlines() if line.startswith("GPU "))]


def runs_eagerly(settings: VllmSettings, device: str) -> bool:
    """Whether the model runs without compiled graphs."""
    return device == "cpu" if settings.enforce_eager is None else settings.enforce_eager


def environment(settings: VllmSettings, device: str, threads: int, gpus: str = "") -> dict[str, str]:
    """Additional environment variables of a server; those set in this process win. gpus: see `places`."""
    chosen = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads compete with others for their core
        "OMP_NUM_THREADS": str(threads),
    }
    if device == "cpu" and runs_eagerly(settings, device):
        # the sampler would compile a small function, which takes 20 s and a C++ compiler
        chosen["TORCHDYNAMO_DISABLE"] = "1"
    if sleeps(settings):
        chosen["VLLM_SERVER_DEV_MODE"] = "1"  # required to make the server sleep
    kept = {name: os.environ.get(name, value) for name, value in chosen.items()}
    return kept | ({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})


def sleeps(settings: VllmSettings) -> bool:
    """Whether the servers can free the memory of their GPUs for a while."""
    return bool(more_options(settings.arguments).get("enable_sleep_mode"))


def options(folder: Path, settings: VllmSettings, device: str) -> list[str]:
    """Arguments of a server's command line. device: cpu | cuda."""
    cache_gib = settings.kv_cache_gib or (CPU_CACHE_GIB if device == "cpu" else 0.0)
    chosen: dict[str, Any] = {
        "model": str(folder),
        "served_model_name": SERVED,
        "generation_config": "vllm",  # else the model's own sampling defaults change replies
        "tensor_parallel_size": settings.tensor_parallel,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "max_num_seqs": settings.max_num_seqs or MAX_NUM_SEQS[device],
        "dtype": settings.dtype,
        "seed": settings.seed,
        "load_format": settings.load_format,
        "enforce_eager": runs_eagerly(settings, device),
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
        "disable_uvicorn_access_log": True,
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
    }
    if settings.max_model_len:
        chosen["max_model_len"] = settings.max_model_len
    if cache_gib:
        chosen["kv_cache_memory_bytes"] = int(cache_gib * 2**30)
    if device == "cpu":
        chosen["block_size"] = CPU_BLOCK_TOKENS
    chosen |= more_options(settings.arguments)
    return [word for name, value in chosen.items() for word in _words(name, value)]


def more_options(text: str) -> dict[str, Any]:
    """JSON object of `vllm.arguments`. Raises UsageError for anything else, and for options that are set here."""
    try:
        given = loads(text) if text else {}
    except JsonError as error:
        raise UsageError("vllm.arguments is not JSON", given=f"{text[:80]!r}: {error}", expected=_EXAMPLE) from error
    if not isinstance(given, dict):
        raise UsageError("vllm.arguments is not a JSON object", given=text[:80], expected=_EXAMPLE)
    if ours := sorted(name for name in given if name.replace("-", "_") in _OURS):
        raise UsageError("this option of vLLM is not for vllm.arguments", given=", ".join(ours), expected=_EXAMPLE)
    return given


def _words(name: str, value: Any) -> list[str]:
    """Arguments of an option: a flag for True, its negation for False, several values for a list."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    return [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
