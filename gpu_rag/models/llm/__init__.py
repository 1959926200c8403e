"""Requests to replies. `load_llm` picks an engine by its spec; every engine keeps to the `LLM` protocol."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from gpu_rag.errors import UsageError
from gpu_rag.models.llm.interface import LLM

SPECS = "smollm2, a model folder, vllm:FOLDER_OR_NAME, http://HOST:PORT/v1#MODEL or replay:FILE.jsonl"


def load_llm(spec: str, *, device: str = "cpu", threads: int = 1, capable: bool | None = None, **options: Any) -> LLM:
    """The engine that `spec` names.

    "smollm2": the packaged model (converted to a folder on first use); a model folder; "vllm:" before either, or before
    the name of a model that `gpu-rag models fetch` or the Hugging Face cache keeps: the same through vLLM; "http://HOST:PORT/v1#MODEL":
    an OpenAI-compatible server (without #MODEL the only model it serves); "replay:FILE.jsonl": recorded replies.
    device, threads: for models in this process. capable: whether the model may extract and judge; None lets its size
    decide. options: keyword arguments of the engine's class (TransformersLLM.load, VllmLLM.load, HttpLLM, ReplayLLM).
    Raises UsageError (unknown spec or option), MissingBackend, ModelError.
    """
    if spec.startswith(("http://", "https://")):
        from gpu_rag.models.llm.http import HttpLLM

        url, _, model = spec.partition("#")
        _check_options(HttpLLM, options, spec)
        return HttpLLM(url, model, capable=capable, **options)
    if spec.startswith("replay:"):
        from gpu_rag.models.llm.replay import ReplayLLM

        _check_options(ReplayLLM, options, spec)
        return ReplayLLM(Path(spec.removeprefix("replay:")), capable=capable, **options)
    if spec.startswith("vllm:"):
        from gpu_rag.models.llm.vllm import VllmLLM
        from gpu_rag.models.stored import model_folder

        _check_options(VllmLLM.load, options, spec)
        folder = model_folder(spec.removeprefix("vllm:"))
        return VllmLLM.load(folder, name=spec, device=device, threads=threads, capable=capable, **options)
    if spec != "smollm2" and not Path(spec).is_dir():
        raise UsageError("no such language model", given=spec, expected=SPECS)
    from gpu_rag.models.llm.transformers import TransformersLLM

    _check_options(TransformersLLM.load, options, spec)
    if spec == "smollm2":
        from gpu_rag.models.packaged import packaged_llm_folder

        folder = packaged_llm_folder()
    else:
        folder = Path(spec)
    return TransformersLLM.load(folder, name=spec, device=device, threads=threads, capable=capable, **options)


def _check_options(target: Any, options: dict[str, Any], spec: str) -> None:
    known = set(inspect.signature(target).parameters) - {"self", "cls"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(f"unknown options of {spec}", given=", ".join(unknown), expected=", ".join(sorted(known)))
