"""Every setting, checked once. Strongest first: --set, flags, profile, manifest, defaults.

A profile is a TOML file with the sections below; `[method.NAME]` sections hold a method's own parameters, which
the method checks. A name that does not exist is an error that lists those that do, never dropped.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.settings import alignment as settings_alignment
from gpu_rag.settings import cluster as settings_scale
from gpu_rag.settings import evaluation as settings_eval
from gpu_rag.settings import graph as settings_graph
from gpu_rag.settings import hops as settings_hops
from gpu_rag.settings import serve as settings_serve
from gpu_rag.settings import vllm as settings_vllm
from gpu_rag.settings.alignment import AlignmentSettings
from gpu_rag.settings.check import checked, shortened, unknown_name
from gpu_rag.settings.cluster import ScaleSettings
from gpu_rag.settings.evaluation import EvalSettings
from gpu_rag.settings.graph import GraphSettings
from gpu_rag.settings.hops import HopSettings
from gpu_rag.settings.ranges import COSINE, COUNT, NATURAL, SEED, SHARE, Allowed, Range, check_filled
from gpu_rag.settings.serve import ServeSettings
from gpu_rag.settings.vllm import VllmSettings


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

    def __post_init__(self) -> None:
        check_filled(self, "embedder", "llm")


@dataclass(frozen=True)
class IndexSettings:
    """How a corpus becomes an index.

    chunk_words, overlap_words: passages of long documents. extractor: patterns | llm | import.
    extract_nodes: false: the texts of nodes of knowledge bases are passages from which nothing is extracted.
    min_yield: least share of passages that must give an entity; below it the LLM extraction fails.
    synonym_threshold, synonym_k: near-equal entity names by cosine. block: rows of one unit of resumable work.
    """

    chunk_words: int = 300
    overlap_words: int = 50
    max_document_chars: int = 10_000_000
    extractor: str = "patterns"
    extract_nodes: bool = True
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
    scale: ScaleSettings = field(default_factory=ScaleSettings)
    method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_ALLOWED: dict[str, dict[str, Allowed]] = {
    "models": {
        "decider": ("auto", "llm", "similarity"),
        "threads": Range(1, 1024),  # more than any machine has: a slip, not a wish
        "max_batch": COUNT,
        "vector_cache_gib": NATURAL,
    },
    "index": {
        "chunk_words": Range(8),
        "overlap_words": NATURAL,
        "max_document_chars": COUNT,
        "extractor": ("patterns", "llm", "import"),
        "min_yield": SHARE,
        "extract_tokens": COUNT,
        "synonym_threshold": COSINE,
        "synonym_k": NATURAL,
        "bm25_k1": NATURAL,
        "bm25_b": SHARE,
        "block": Range(8),
    },
    "runtime": {
        "driver": ("rounds", "streaming"),
        "max_live": COUNT,
        "low_water": COUNT,
        "seed": SEED,
        "max_calls": NATURAL,
        "max_tokens": NATURAL,
        "max_seconds": NATURAL,
    },
    "reader": {"passages": COUNT, "max_tokens": COUNT},
    "alignment": settings_alignment.ALLOWED,
    "hops": settings_hops.ALLOWED,
    "vllm": settings_vllm.ALLOWED,
    "graph": settings_graph.ALLOWED,
    "eval": settings_eval.ALLOWED,
    "serve": settings_serve.ALLOWED,
    "scale": settings_scale.ALLOWED,
}


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
    return UsageError(f"[{name}] is a section", given=shortened(given), expected="name = value lines")


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from nested sections. Raises UsageError naming the section or the name that does not exist."""
    sections = typing.get_type_hints(Settings)
    del sections["method"]
    built: dict[str, Any] = {}
    for name, section in values.items():
        if name != "method" and name not in sections:
            raise unknown_name("section", name, [*sections, "method"])
        if not isinstance(section, Mapping):
            raise _no_section(name, section)
        for inner, values_of in section.items() if name == "method" else ():
            if not isinstance(values_of, Mapping):
                raise _no_section(f"method.{inner}", values_of)
        built[name] = dict(section) if name == "method" else checked(sections[name], section, name, _ALLOWED[name])
    return Settings(**built)


def as_plain(settings: Any) -> dict[str, Any]:
    """The settings as nested plain values, for manifests and hashes."""
    return dataclasses.asdict(settings)
