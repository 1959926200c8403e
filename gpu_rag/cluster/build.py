"""How a worker loads its model: from the same settings, by the same code as in one process."""

from __future__ import annotations

from pathlib import Path

from gpu_rag.cluster.worker import Loaded
from gpu_rag.models.embed.interface import Embedder
from gpu_rag.models.packaged import packaged_llm_folder, set_cache_dir
from gpu_rag.models.set import plain_embedder, plain_llm
from gpu_rag.models.stored import model_folder
from gpu_rag.settings import ModelSettings
from gpu_rag.settings.sections import VllmSettings

TOKENIZER_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja"})
LARGEST_FILE = 64 * 2**20
WINDOW = 64  # requests that an engine without batches of its own is given at once


def build_embedder(settings: ModelSettings, device: str, cache: str) -> Embedder:
    """The embedder that `settings` name. cache: where the packaged models of this node are kept."""
    set_cache_dir(cache)
    return plain_embedder(settings, device)


def build_llm(settings: ModelSettings, vllm: VllmSettings, device: str, cache: str) -> Loaded:
    """The language model that `settings` name, with its tokenizer's files and how much it takes at once."""
    set_cache_dir(cache)
    spec = settings.llm
    llm = plain_llm(settings, vllm, device)
    if spec.startswith("replay:"):
        return Loaded(llm, WINDOW)
    if spec.startswith("vllm:"):
        from gpu_rag.models.llm.vllm_engine import window

        folder = model_folder(spec.removeprefix("vllm:"))
        return Loaded(llm, window(vllm, device.partition(":")[0]), tokenizer_files(folder))
    folder = packaged_llm_folder() if spec == "smollm2" else Path(spec)
    return Loaded(llm, 2 * settings.max_batch, tokenizer_files(folder))


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The files in a model folder that make up its tokenizer, and what it is found by: all but the weights."""
    files = (path for path in sorted(folder.iterdir()) if path.suffix in TOKENIZER_SUFFIXES and path.is_file())
    return {path.name: path.read_bytes() for path in files if path.stat().st_size <= LARGEST_FILE}
