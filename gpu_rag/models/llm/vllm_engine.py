"""vLLM's synchronous engine behind four calls: add, step, abort, close. The only module that imports vllm."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_rag.errors import MissingBackend, RequestFailed, UsageError
from gpu_rag.models.device import check_device, use_threads
from gpu_rag.models.llm.constrain import JSON_LAYOUT
from gpu_rag.models.llm.vllm_jobs import Finished, Piece
from gpu_rag.models.llm.vllm_service import EngineDied
from gpu_rag.settings.check import unknown_name
from gpu_rag.settings.sections import VllmSettings
from gpu_rag.text.strict_json import JsonError, loads
from gpu_rag.types import JsonSchema

INSTALL_LINE = "pip install 'gpu-rag[gpu]', or on a CPU scripts/install_vllm.sh VENV"
CPU_CACHE_GIB = 1.0
_ONE_START = threading.Lock()  # the environment is one for all threads, and so is where vLLM registers its counts
_EXAMPLE = '{"quantization": "fp8"}'
MAX_NUM_SEQS = {"cpu": 32, "cuda": 256}
# Prompts share whole blocks: vLLM's 128 tokens on a CPU would share nothing of short heads, and compute them again.
CPU_BLOCK_TOKENS = 32
# How long new requests wait at most while the engine's own process computes.
CHILD_WAIT_S = 0.05
# vLLM raises whatever its own libraries raise.
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def require_vllm() -> None:
    """Raises MissingBackend, with the line that installs it, where vllm cannot be imported."""
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise MissingBackend("this model needs vllm", given=str(error), do=INSTALL_LINE) from error


def set_environment(settings: VllmSettings, device: str, threads: int) -> None:
    """Set what vLLM reads from the environment only; a variable that is set stays, but for the kind of process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if has_child(settings, device) else "0"
    if runs_eagerly(settings, device) and device == "cpu":
        # the sampler would compile a small function, which takes 20 s and a C++ compiler
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    for name, value in {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for results
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads fight with others for their core
        "OMP_NUM_THREADS": str(threads),
    }.items():
        os.environ.setdefault(name, value)


def has_child(settings: VllmSettings, device: str) -> bool:
    """Whether an engine runs in a process of its own: a fault on a GPU would end all work on it in its process."""
    return device != "cpu" if settings.child_process is None else settings.child_process


def places(settings: VllmSettings, device: str) -> list[str]:
    """The GPUs of each engine, as CUDA_VISIBLE_DEVICES names them; "" for an engine that sees what this process sees.

    Raises UsageError for more engines than can be placed.
    """
    seen = visible_gpus() if device != "cpu" else []
    each = settings.tensor_parallel
    n = settings.engines or max(1, len(seen) // each)
    if n == 1:
        return [""]
    if not has_child(settings, device):
        do = "leave vllm.child_process out"
        raise UsageError("several engines need processes of their own", given=f"vllm.engines={n}", do=do)
    if device == "cpu":
        return [""] * n
    if n * each > len(seen):
        given = f"vllm.engines={n} with vllm.tensor_parallel={each}"
        raise UsageError("too few GPUs for the engines", given=given, expected=f"at most {len(seen)} GPUs in all")
    return [",".join(seen[i * each : (i + 1) * each]) for i in range(n)]


def visible_gpus() -> list[str]:
    """The GPUs that this process sees, by number or as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named or [str(i) for i in range(torch.cuda.device_count())]


@contextmanager
def seeing(gpus: str) -> Iterator[None]:
    """Within the block a process that is started sees these GPUs alone; one block at a time. "": as this process."""
    with _ONE_START:
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        try:
            yield
        finally:
            if before is None:
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = before


def runs_eagerly(settings: VllmSettings, device: str) -> bool:
    """Whether the engine compiles no graphs."""
    return device == "cpu" if settings.enforce_eager is None else settings.enforce_eager


def engine_arguments(folder: Path, settings: VllmSettings, device: str) -> dict[str, Any]:
    """The arguments of vLLM's EngineArgs. device: cpu | cuda."""
    cache_gib = settings.kv_cache_gib or (CPU_CACHE_GIB if device == "cpu" else 0.0)
    arguments: dict[str, Any] = {
        "model": str(folder),
        "tensor_parallel_size": settings.tensor_parallel,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "max_num_seqs": settings.max_num_seqs or MAX_NUM_SEQS[device],
        "dtype": settings.dtype,
        "seed": settings.seed,
        "load_format": settings.load_format,
        "enforce_eager": runs_eagerly(settings, device),
        "enable_prefix_caching": True,
        "disable_log_stats": False,  # they count preemptions; vLLM prints them only below its level ERROR
        # JSON on one line, by the library that the transformers backend uses too
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
    }
    if settings.max_model_len:
        arguments["max_model_len"] = settings.max_model_len
    if cache_gib:
        arguments["kv_cache_memory_bytes"] = int(cache_gib * 2**30)
    if device == "cpu":
        arguments["block_size"] = CPU_BLOCK_TOKENS
    return arguments | more_arguments(settings.arguments)


def more_arguments(text: str) -> dict[str, Any]:
    """The object that `vllm.arguments` is. Raises UsageError for anything else, and for the arguments of ours."""
    try:
        found = loads(text) if text else {}
    except JsonError as error:
        raise UsageError("vllm.arguments is no JSON", given=f"{text[:80]!r}: {error}", expected=_EXAMPLE) from error
    if not isinstance(found, dict):
        raise UsageError("vllm.arguments is no JSON object", given=text[:80], expected=_EXAMPLE)
    if ours := sorted({"model", "trust_remote_code"} & found.keys()):
        raise UsageError("this argument of vLLM is not for vllm.arguments", given=", ".join(ours), expected=_EXAMPLE)
    return found


def check_arguments(given: Mapping[str, Any], engine_args: Any) -> None:
    """Raises UsageError, with the nearest name, for an argument that the installed vLLM does not have."""
    known = [field.name for field in dataclasses.fields(engine_args)]
    for name in given:
        if name not in known:
            raise unknown_name("argument of vLLM", name, known)


def window(settings: VllmSettings, device: str) -> int:
    """The number of pieces that the engine is given at once: those that run, and as many that wait for a free place."""
    return 2 * (settings.max_num_seqs or MAX_NUM_SEQS[device])


def with_layout(schema: str) -> str:
    """A JSON schema that says also how its JSON is laid out, as the transformers backend lays it out.

    Raises ValueError for what is no JSON object.
    """
    parsed = json.loads(schema)
    if not isinstance(parsed, dict):
        raise ValueError(f"a JSON schema is an object, not {schema[:80]}")
    return json.dumps({**parsed, "x-guidance": JSON_LAYOUT}, ensure_ascii=False)


def make_scannable() -> None:
    """Let vLLM look through all imported modules, which it does when it starts on a CPU.

    numba's llvmlite has an object that answers any name, `__dict__` too, with a function of a C library; vLLM takes
    that for a dict and stops. An empty one is put in its place.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    functions = getattr(getattr(ffi, "lib", None), "_fntab", None)
    if isinstance(functions, dict):
        functions["__dict__"] = {}


def sampling_arguments(piece: Piece) -> dict[str, Any]:
    """The arguments of vLLM's SamplingParams, but for the constraint."""
    arguments: dict[str, Any] = {
        "max_tokens": piece.max_tokens,
        "temperature": max(0.0, piece.temperature),
        "seed": piece.seed if piece.temperature > 0 else None,
        "detokenize": False,  # done once, at the end, where the reply is read
    }
    if piece.scored:
        arguments["logprob_token_ids"] = list(piece.scored)
    return arguments


class VllmEngine:
    """A running LLMEngine; used by one thread."""

    def __init__(self, folder: Path, settings: VllmSettings, *, device: str, threads: int, gpus: str = ""):
        """Load the model. gpus: see `places`. Raises EngineDied with the reason, MissingBackend, UsageError."""
        set_environment(settings, device, threads)
        require_vllm()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.exceptions import VLLMClientError, VLLMError
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
        from vllm.v1.engine.llm_engine import LLMEngine

        self._sampling: Any = SamplingParams
        self._structured: Any = StructuredOutputsParams
        self._kinds: Any = RequestOutputKind
        self._streamed: dict[int, Callable[[Sequence[int]], None]] = {}  # who is told, by number, while it runs
        self._refusals: Any = (ValueError, VLLMClientError)
        self._failures: Any = (*FAILURES, VLLMError)
        if device == "cpu" and not has_child(settings, device):
            use_threads(check_device(device), threads)
        make_scannable()
        arguments: dict[str, Any] = engine_arguments(folder, settings, device)
        check_arguments(arguments, EngineArgs)
        try:
            with seeing(gpus):
                self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except self._failures as error:
            raise EngineDied(_reason(error)) from error
        config = self._engine.vllm_config
        self.dtype = str(config.model_config.dtype).removeprefix("torch.")
        self.max_model_len = int(config.model_config.max_model_len)
        self._can_sleep, self._sleeps = bool(config.model_config.enable_sleep_mode), False

    @contextmanager
    def _dying(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise EngineDied(_reason(error)) from error

    def add(self, number: int, piece: Piece) -> None:
        """Take a piece; wakes up. Raises RequestFailed where vLLM refuses it."""
        with self._dying():
            self._wake()
            try:
                parameters = self._sampling(
                    **sampling_arguments(piece),
                    structured_outputs=self._constraint(piece),
                    output_kind=self._kinds.CUMULATIVE if piece.on_ids else self._kinds.FINAL_ONLY,
                )
                self._engine.add_request(str(number), {"prompt_token_ids": list(piece.ids)}, parameters)
            except self._refusals as error:
                raise RequestFailed("vLLM refused the request", given=_reason(error)) from error
        if piece.on_ids is not None:
            self._streamed[number] = piece.on_ids

    def step(self) -> list[tuple[int, Finished]]:
        """One iteration of the engine, or a short wait for one of its process; the pieces that finished in it."""
        with self._dying():
            outputs = self._engine.step() if self._has_output() else []
        for output in outputs if self._streamed else ():
            on_ids = self._streamed.get(int(output.request_id))
            if on_ids is not None:
                on_ids(list(output.outputs[0].token_ids))
        done = [(int(output.request_id), _finished(output)) for output in outputs if output.finished]
        for number, _ in done:
            self._streamed.pop(number, None)
        return done

    def _has_output(self) -> bool:
        """Whether step would return: vLLM waits forever for a process of its own that was killed."""
        core = self._engine.engine_core
        arrived = getattr(core, "outputs_queue", None)
        if arrived is None:  # the engine runs in this process
            return True
        core.ensure_alive()
        with arrived.not_empty:
            return bool(arrived.queue) or bool(arrived.not_empty.wait(CHILD_WAIT_S))

    def abort(self, numbers: list[int]) -> None:
        """Forget pieces."""
        for number in numbers:
            self._streamed.pop(number, None)
        with self._dying():
            self._engine.abort_request([str(number) for number in numbers])

    def sleep(self) -> None:
        """Free the memory of the GPU until the next piece, where vLLM was started with enable_sleep_mode."""
        if self._can_sleep and not self._sleeps:
            with self._dying():
                self._engine.sleep(level=1)  # weights to the host's memory, the prefix cache is lost
            self._sleeps = True

    def _wake(self) -> None:
        if self._sleeps:
            import torch

            torch.cuda.empty_cache()  # what others in this process used meanwhile
            self._engine.wake_up()
            self._sleeps = False

    def close(self) -> None:
        """Stop the engine and free its memory, as far as it lets itself be stopped."""
        engine, self._engine = self._engine, None
        with suppress(*self._failures):  # it may be closed because it is dead
            engine.engine_core.shutdown()
        del engine
        gc.collect()

    def _constraint(self, piece: Piece) -> Any:
        if piece.constraint is None:
            return None
        if isinstance(piece.constraint, JsonSchema):
            return self._structured(json=with_layout(piece.constraint.schema))
        return self._structured(choice=list(piece.constraint.options))


def _finished(output: Any) -> Finished:
    made = output.outputs[0]
    scores = {token: float(entry.logprob) for token, entry in made.logprobs[0].items()} if made.logprobs else {}
    found = Finished(tuple(made.token_ids), str(made.finish_reason), int(output.num_cached_tokens or 0), scores)
    stats = output.metrics
    if stats is None:
        return found
    return replace(found, n_preempted=stats.num_preemptions, queued_s=max(0.0, stats.scheduled_ts - stats.queued_ts))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
