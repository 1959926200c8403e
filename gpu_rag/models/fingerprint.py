"""Identity of a model: a hash of its folder's content, independent of its name and location."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_rag.errors import ModelError

HASHED_SUFFIXES = frozenset({".safetensors", ".bin", ".json", ".txt", ".model", ".jinja"})
# The library that saved a configuration writes these: two conversions of one model differ in them.
VOLATILE_KEYS = frozenset({"transformers_version", "_name_or_path", "_model_name_or_path", "name_or_path"})

_known: dict[tuple[tuple[str, int, int], ...], str] = {}


def identity(model: Mapping[str, Any]) -> dict[str, Any]:
    """Model as `ModelSet.describe` returns it, without its location: a served model keeps its id, not its address."""
    name = str(model["name"])
    return {**model, "name": f"server#{name.partition('#')[2]}" if name.startswith(("http://", "https://")) else name}


def folder_hash(folder: Path, version: int, settings: object = None, *, need_weights: bool = True) -> str:
    """sha256 over weights, tokenizer and settings of the model in `folder`, in hexadecimal.

    folder: files ending in .safetensors, .bin, .json, .txt, .model or .jinja count, by relative path; the names and
    versions that a saving library adds to JSON files do not. version: integer of the code that runs the model.
    settings: any JSON value that changes the output (pooling, truncation). need_weights: False for an engine that makes
    up weights. The result is kept for the process until a file's size or time changes. Raises ModelError if there are
    no weights.
    """
    files = sorted(p for p in folder.rglob("*") if p.suffix in HASHED_SUFFIXES and p.is_file())
    if need_weights and not any(p.suffix in (".safetensors", ".bin") for p in files):
        raise ModelError("no model weights in the folder", given=folder, expected="a .safetensors file")
    suffix = json.dumps([version, settings], sort_keys=True)
    key = ((suffix, 0, 0), *((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files))
    if key not in _known:
        total = hashlib.sha256(suffix.encode())
        for path in files:
            total.update(f"{path.relative_to(folder).as_posix()}\0{_file_hash(path)}\0".encode())
        _known[key] = total.hexdigest()
    return _known[key]


def text_hash(*parts: Any) -> str:
    """sha256 in hexadecimal of `parts` as canonical JSON."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 in hexadecimal of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_hash(path: Path) -> str:
    if path.suffix != ".json" or path.name == "tokenizer.json":
        return file_sha256(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return file_sha256(path)
    if isinstance(content, dict):
        content = {k: v for k, v in content.items() if k not in VOLATILE_KEYS}
    return text_hash(content)
