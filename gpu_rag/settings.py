"""Every setting, checked once. Strongest first: --set, flags, profile, manifest, defaults.

A profile is a TOML file with the sections below; `[method.NAME]` sections hold a method's own parameters, which
the method checks. A name that does not exist is an error that lists those that do, never dropped.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpu_rag import settings_alignment, settings_eval, settings_graph, settings_hops, settings_serve, settings_vllm
from gpu_rag.errors import BadInput, UsageError
from gpu_rag.settings_alignment import AlignmentSettings
from gpu_rag.settings_eval import EvalSettings
from gpu_rag.settings_graph import GraphSettings
from gpu_rag.settings_hops import HopSettings
from gpu_rag.settings_serve import ServeSettings
from gpu_rag.settings_vllm import VllmSettings

T = TypeVar("T")


@dataclass(frozen=True)
class ModelSettings:
    """Which models run, and where.

    embedder: minilm (packaged) | hash (tests) | a sentence-transformers folder or name.
    llm: smollm2 (packaged) | a model folder | vllm:FOLDER_OR_NAME | http://host:port/v1#model | replay:FILE | none.
    capable: whether the LLM may extract and judge; empty asks the backend.
    decider: who chooses among candidates: auto (llm when capable) | llm | similarity.
    device: auto | cpu | cuda. threads: CPU threads of a model or a graph op. max_batch: requests that the transformers
    backend decodes together. vector_cache_gib: size of the vector cache shared by all indexes; 0 switches it off.
    """

    embedder: str = "minilm"
    llm: str = "smollm2"
    capable: bool | None = None
    decider: str = "auto"
    device: str = "auto"
    threads: int = 1
    max_batch: int = 16
    vector_cache_gib: float = 2.0


@dataclass(frozen=True)
class IndexSettings:
    """How a corpus becomes an index.

    chunk_words, overlap_words: passages of long documents. extractor: patterns | llm | import.
    min_yield: least share of passages that must give an entity; below it the LLM extraction fails.
    synonym_threshold, synonym_k: near-equal entity names by cosine. block: rows of one unit of resumable work.
    """

    chunk_words: int = 300
    overlap_words: int = 50
    max_document_chars: int = 10_000_000
    extractor: str = "patterns"
    min_yield: float = 0.5
    extract_tokens: int = 1024
    synonym_threshold: float = 0.8
    synonym_k: int = 20
    bm25_k1: float = 1.2
    bm25_b: float = 0.75
    block: int = 512


@dataclass(frozen=True)
class RuntimeSettings:
    """How questions run. max_live bounds the open ones; 0 of a budget means no limit (a question).

    driver: rounds (batches of the same calls of all open questions, deterministic) | streaming (LLM requests leave as
    they come). low_water: open LLM requests below which streaming feeds the LLM first; about twice what it decodes at
    once.
    """

    driver: str = "rounds"
    max_live: int = 1024
    low_water: int = 64
    seed: int = 0
    max_calls: int = 0
    max_tokens: int = 0
    max_seconds: float = 0.0


@dataclass(frozen=True)
class ReaderSettings:
    """The shared reader prompt: at most `passages` go in, in rank order; `max_tokens` for the answer."""

    passages: int = 5
    max_tokens: int = 48


@dataclass(frozen=True)
class Settings:
    """All sections. `method` maps a method's name to its own parameters."""

    models: ModelSettings = ModelSettings()
    index: IndexSettings = IndexSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    reader: ReaderSettings = ReaderSettings()
    alignment: AlignmentSettings = field(default_factory=AlignmentSettings)
    hops: HopSettings = field(default_factory=HopSettings)
    vllm: VllmSettings = field(default_factory=VllmSettings)
    graph: GraphSettings = field(default_factory=GraphSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_CHOICES = {
    "index.extractor": ("patterns", "llm", "import"),
    "models.decider": ("auto", "llm", "similarity"),
    "runtime.driver": ("rounds", "streaming"),
    **settings_alignment.CHOICES,
    **settings_graph.CHOICES,
    **settings_hops.CHOICES,
    **settings_vllm.CHOICES,
}
_AT_LEAST = {
    "models.threads": 1,
    "models.max_batch": 1,
    "index.chunk_words": 8,
    "index.overlap_words": 0,
    "index.max_document_chars": 1,
    "index.extract_tokens": 1,
    "index.synonym_k": 0,
    "index.block": 8,
    "runtime.max_live": 1,
    "runtime.low_water": 1,
    "runtime.max_calls": 0,
    "runtime.max_tokens": 0,
    "runtime.max_seconds": 0,
    "reader.passages": 1,
    "reader.max_tokens": 1,
    **settings_alignment.AT_LEAST,
    **settings_eval.AT_LEAST,
    **settings_hops.AT_LEAST,
    **settings_serve.AT_LEAST,
    **settings_vllm.AT_LEAST,
}


def unknown_name(what: str, name: str, known: Sequence[str]) -> UsageError:
    """The error for a name that does not exist: nearest first."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else None
    return UsageError(f"unknown {what}", given=name, expected=" | ".join(known), do=hint)


def _accepts(annotation: Any, value: Any) -> bool:
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        return any(_accepts(a, value) for a in typing.get_args(annotation))
    if annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, (list, tuple))
    return isinstance(value, annotation) if isinstance(annotation, type) else True


def checked(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """An instance of the dataclass `cls` from `values`. Raises UsageError for a wrong name or type.

    Whole numbers are accepted for floats, lists for tuples.
    """
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    clean: dict[str, Any] = {}
    for name, value in values.items():
        if name not in names:
            raise unknown_name(f"setting in [{where}]", name, names)
        hint = hints[name]
        if not _accepts(hint, value):
            raise UsageError(
                f"setting {where}.{name} has the wrong type",
                given=repr(value),
                expected=getattr(hint, "__name__", str(hint)),
            )
        _check_value(f"{where}.{name}", value)
        if hint is float:
            value = float(value)
        clean[name] = tuple(value) if typing.get_origin(hint) is tuple else value
    return cls(**clean)


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"setting {name} is not a finite number", given=value)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise UsageError(f"unknown {name}", given=value, expected=" | ".join(_CHOICES[name]))
    if name in _AT_LEAST and value < _AT_LEAST[name]:
        raise UsageError(f"setting {name} is too small", given=value, expected=f">= {_AT_LEAST[name]}")


def parse_assignment(text: str) -> tuple[str, Any]:
    """One `--set key=value`: the value as TOML, or as a plain string where it is no TOML value."""
    key, sign, raw = text.partition("=")
    if not sign or "." not in key:
        raise UsageError("cannot read --set", given=text, expected="section.name=value, such as index.chunk_words=200")
    try:
        table = tomllib.loads(f"v = {raw}")
    except tomllib.TOMLDecodeError:
        table = {}
    return key.strip(), table["v"] if len(table) == 1 else raw


def read_profile(path: Path) -> dict[str, Any]:
    """The sections of a TOML profile."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        expected = "cpu | gpu | multi-gpu | higra | higra-no-refinement | a .toml file"
        raise BadInput("no such profile", given=path, expected=expected) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput("the profile is not TOML", given=f"{path}: {error}") from error


def merge(*sections: Mapping[str, Any]) -> dict[str, Any]:
    """Later mappings win, section by section."""
    out: dict[str, Any] = {}
    for mapping in sections:
        for key, value in mapping.items():
            old = out.get(key)
            out[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def nested(assignments: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """[("a.b", 1)] -> {"a": {"b": 1}}; of one key given twice the later counts."""
    values = {key for key, value in assignments if not isinstance(value, Mapping)}
    out: dict[str, Any] = {}
    for key, value in assignments:
        path = key.split(".")
        for name in (".".join(path[:i]) for i in range(1, len(path))):
            if name in values:
                raise UsageError("a setting is both a value and a section", given=f"{name} and {key}")
        for part in reversed(path):
            value = {part: value}
        out = merge(out, value)
    return out


def _no_section(name: str, given: Any) -> UsageError:
    return UsageError(f"[{name}] is a section", given=repr(given), expected="name = value lines")


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from nested sections. Raises UsageError naming the section or the name that does not exist."""
    sections: dict[str, type] = {
        "models": ModelSettings,
        "index": IndexSettings,
        "runtime": RuntimeSettings,
        "reader": ReaderSettings,
        "alignment": AlignmentSettings,
        "hops": HopSettings,
        "vllm": VllmSettings,
        "graph": GraphSettings,
        "eval": EvalSettings,
        "serve": ServeSettings,
    }
    built: dict[str, Any] = {}
    for name, section in values.items():
        if name != "method" and name not in sections:
            raise unknown_name("section", name, [*sections, "method"])
        if not isinstance(section, Mapping):
            raise _no_section(name, section)
        for inner, values_of in section.items() if name == "method" else ():
            if not isinstance(values_of, Mapping):
                raise _no_section(f"method.{inner}", values_of)
        built[name] = dict(section) if name == "method" else checked(sections[name], section, name)
    return Settings(**built)


def as_plain(settings: Any) -> dict[str, Any]:
    """The settings as nested plain values, for manifests and hashes."""
    return dataclasses.asdict(settings)
