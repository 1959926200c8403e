"""Models on this disk: find the folder of a model, and download models from Hugging Face repositories."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_rag.errors import ModelError, StorageError, UsageError, needing
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.packaged import cache_dir, packaged_llm_folder

# Files to download: weights as plain numbers, and their descriptions. No code, and nothing that is unpickled.
FETCHED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def fetched_folder(name: str) -> Path:
    """The folder where `gpu-rag models fetch` puts a repository: a--b in the cache folder for "a/b"."""
    return cache_dir() / "models" / name.replace("/", "--")


def is_repository(name: str) -> bool:
    """Whether `name` has the form of a Hugging Face repository, OWNER/NAME."""
    return _REPOSITORY.fullmatch(name) is not None


def model_folder(name: str) -> Path:
    """The folder of a model. Downloads nothing.

    name: a folder, smollm2 (the packaged weights, converted on first use), or a repository that was fetched or is in
    this user's Hugging Face cache. Raises UsageError if there is no such model, and the errors of
    `packaged_llm_folder`.
    """
    if name == "smollm2":
        return packaged_llm_folder()
    for folder in (Path(name), fetched_folder(name)):
        if (folder / "config.json").is_file():
            return folder
    cached = _cached_snapshot(name) if is_repository(name) else None
    if cached is None:
        do = f"gpu-rag models fetch {name}" if is_repository(name) else None
        raise UsageError(
            "no such model on this disk", given=name or "nothing", expected="a folder with config.json", do=do
        )
    return cached


def _cached_snapshot(name: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:  # without the library, its cache is empty
        return None
    path = try_to_load_from_cache(name, "config.json")
    return Path(path).parent if isinstance(path, str) else None


def describe_folder(folder: Path) -> dict[str, Any]:
    """{"folder", "files": [{"path", "bytes"}], "bytes", "sha256"} of a model folder; sha256 is its `folder_hash`.

    Raises UsageError if the folder has no model.
    """
    if not (folder / "config.json").is_file():
        raise UsageError("not a model folder", given=folder, expected="config.json in it, or a new folder")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [{"path": path.relative_to(folder).as_posix(), "bytes": path.stat().st_size} for path in paths]
    total = sum(path.stat().st_size for path in paths)
    return {"folder": str(folder), "files": files, "bytes": total, "sha256": folder_hash(folder, 0)}


def fetch(name: str, out: Path, say: Callable[[str], None]) -> None:
    """Download the model of the Hugging Face repository `name` into the new folder `out`, whole or not at all.

    Downloads weights in safetensors, configuration and tokenizer; never code. An interrupted download continues from
    `out`.partial. say(line) is called before the download, with its size. Raises UsageError (no such repository, or no
    safetensors in it), ModelError (network errors), StorageError, MissingBackend.
    """
    if not is_repository(name):
        raise UsageError("not the name of a repository", given=name, expected="OWNER/NAME")
    with needing("fetching needs huggingface_hub", "pip install 'gpu-rag[cpu]'"):
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
    # error class of the HTTP library in use; it also covers refused connections
    no_network: Any = HfHubHTTPError.__mro__[1]
    partial = out.with_name(f"{out.name}.partial")
    try:
        info = HfApi().model_info(name, files_metadata=True)
        suffixes = {pattern.removeprefix("*") for pattern in FETCHED}
        wanted = [file for file in info.siblings or () if Path(file.rfilename).suffix in suffixes]
        if not any(file.rfilename.endswith(".safetensors") for file in wanted):
            raise UsageError("the repository has no weights as safetensors", given=name)
        size = sum(file.size or 0 for file in wanted)
        say(f"{name}, revision {info.sha}: {len(wanted)} files, {size / 2**20:,.1f} MiB, into {out}")
        partial.mkdir(parents=True, exist_ok=True)
        snapshot_download(name, revision=info.sha, local_dir=partial, allow_patterns=list(FETCHED))
        shutil.rmtree(partial / ".cache", ignore_errors=True)  # the library's own records
        partial.rename(out)
    except RepositoryNotFoundError as error:
        raise UsageError("no such repository, or a closed one", given=name) from error
    except no_network as error:
        do = "go online, or copy the model folder here"
        raise ModelError("the repository cannot be reached", given=f"{name}: {_first_line(error)}", do=do) from error
    except OSError as error:
        raise StorageError("the model could not be written", given=f"{partial}: {error}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
