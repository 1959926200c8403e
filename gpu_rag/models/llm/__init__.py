"""Engines: requests to replies. `load_llm` picks an engine by its spec; every engine follows the `LLM` protocol."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from gpu_rag.errors import ModelError, UsageError
from gpu_rag.models.llm.interface import LLM

SPECS = "none, smollm2, a model folder, vllm:FOLDER_OR_NAME, http://HOST:PORT/v1#MODEL or replay:FILE.jsonl"
_NEXT_ADDRESS = re.compile(r",\s*(?=https?://)")


def addresses(spec: str) -> tuple[list[str], str]:
    """Addresses and the model of "http://A/v1#MODEL,http://B/v1#MODEL"; "" if no model is named.

    Raises ModelError for different models.
    """
    pairs = [part.partition("#") for part in _NEXT_ADDRESS.split(spec.strip())]
    models = {model: url for url, _, model in pairs if model}
    if len(models) > 1:
        given = ", ".join(f"{url}: {model}" for model, url in models.items())
        raise ModelError("several servers are one engine of one model", given=given, expected="one model id")
    return [url for url, _, _ in pairs], next(iter(models), "")


def load_llm(spec: str, *, device: str = "cpu", threads: int = 1, capable: bool | None = None, **options: Any) -> LLM:
    """Load the engine that `spec` names.

    "smollm2": the packaged model (converted to a folder on first use); a model folder; "vllm:" before one of these, or
    before the name of a model that `gpu-rag models fetch` or the Hugging Face cache keeps: the model on vLLM servers,
    which are started; "http://HOST:PORT/v1#MODEL": an OpenAI-compatible server (without #MODEL the only model it
    serves), several of one model separated by commas; "replay:FILE.jsonl": recorded replies.
    device, threads: for models in this process. capable: whether the model may extract and judge; None decides by its
    size. options: keyword arguments of the engine's class (TransformersLLM, VllmLLM, HttpLLM, ReplayLLM).
    Raises UsageError (unknown spec or option), MissingBackend, ModelError.
    """
    engine: Any
    target: tuple[Any, ...]
    placed: dict[str, Any] = {"name": spec, "device": device, "threads": threads}
    if spec.startswith(("http://", "https://")):
        from gpu_rag.models.llm.http import HttpLLM

        engine, target, placed = HttpLLM, addresses(spec), {}
    elif spec.startswith("replay:"):
        from gpu_rag.models.llm.replay import ReplayLLM

        engine, target, placed = ReplayLLM, (Path(spec.removeprefix("replay:")),), {}
    elif spec.startswith("vllm:"):
        from gpu_rag.models.llm.vllm import VllmLLM
        from gpu_rag.models.stored import model_folder

        engine, target = VllmLLM, (model_folder(spec.removeprefix("vllm:")),)
    elif spec == "smollm2" or Path(spec).is_dir():
        from gpu_rag.models.llm.transformers import TransformersLLM
        from gpu_rag.models.packaged import packaged_llm_folder

        engine, target = TransformersLLM, (packaged_llm_folder() if spec == "smollm2" else Path(spec),)
    else:
        raise UsageError("no such language model", given=spec, expected=SPECS)
    unknown = sorted(options.keys() - inspect.signature(engine).parameters.keys())
    if unknown:
        known = ", ".join(sorted(inspect.signature(engine).parameters))
        raise UsageError(f"unknown options of {spec}", given=", ".join(unknown), expected=known)
    loaded: LLM = engine(*target, capable=capable, **placed, **options)
    return loaded
