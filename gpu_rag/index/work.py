"""The models, sources, progress and folders that a build gives to its stages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import xxhash

from gpu_rag.index.folder import storage_errors, write_atomic
from gpu_rag.settings import Settings

if TYPE_CHECKING:
    from gpu_rag.models.embed.interface import Embedder
    from gpu_rag.models.llm.interface import LLM

_SUM = 16  # bytes of the checksum of a block


class Models(Protocol):
    """The models of a build, loaded on first use: a resumed build loads only what it needs."""

    def embedder(self) -> Embedder:
        """The embedding model."""

    def llm(self) -> LLM:
        """The language model, behind the index's reply cache."""

    def is_capable(self) -> bool:
        """Whether there is a language model that may decide; it is not loaded to find out."""

    def describe(self, role: str) -> dict[str, Any]:
        """{"name", "content_hash", ...} of a role ("embedder" or "llm")."""


class Progress(Protocol):
    """The reports of how far a build is."""

    def start(self, stage: str, total: int | None, unit: str) -> None:
        """A stage begins, or learns its total."""
        return None

    def advance(self, n: int, tokens: int = 0) -> None:
        """n more units are done, with this many LLM tokens."""
        return None

    def finish(self, stage: str, skipped: bool) -> None:
        """A stage is done, or was up to date."""
        return None


class Silent(Progress):
    """Progress that says nothing."""


@dataclass(frozen=True)
class NamedSource:
    """One source of a knowledge base. kind: kg (a file of triples), skb (a folder), documents or web (as a corpus).

    most: the triples that are read of it, from its beginning.
    """

    name: str
    kind: str
    path: Path
    most: int = sys.maxsize


@dataclass(frozen=True)
class Sources:
    """The inputs of a build: corpus files or folders, ready OpenIE results; strict stops at the first bad row.

    edits: the folder of edits by hand, which may be missing. named: sources of a knowledge base, by name;
    the paths of those of kind documents are in `corpus` too.
    """

    corpus: tuple[Path, ...] = ()
    openie: tuple[Path, ...] = ()
    strict: bool = False
    edits: Path | None = None
    named: tuple[NamedSource, ...] = ()

    def of_kind(self, *kinds: str) -> tuple[NamedSource, ...]:
        """The named sources of these kinds."""
        return tuple(source for source in self.named if source.kind in kinds)


@dataclass
class StageReport:
    """The costs of one stage in this run. `skipped`: it was up to date; `reused`: rows taken over from its last state;
    `llm_s`: seconds with a request open, so that the LLM was idle for s - llm_s; `graph_ops`: what ran each op;
    `replies_read`, `fallbacks`: as in `types.Usage`."""

    s: float = 0.0
    llm_s: float = 0.0
    llm_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    failures: int = 0
    reused: int = 0
    skipped: bool = False
    peak_memory_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    graph_ops: dict[str, str] = field(default_factory=dict)
    replies_read: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)

    def count(self, step: str, kind: str) -> None:
        """Count a reply that was not in the form asked for: one of `types.FALLBACKS`."""
        key = f"{step}/{kind}"
        self.fallbacks[key] = self.fallbacks.get(key, 0) + 1


@dataclass
class Work:
    """The inputs and outputs of a running stage: its output folder, the finished stages before it, settings and models.

    previous: what an earlier run of this stage, of the same version, left for other inputs; None where there is none.
    A stage may take over what still holds, as long as its output does not depend on it.
    """

    out: Path
    partial: Path
    stage_folders: Mapping[str, Path]
    settings: Settings
    sources: Sources
    models: Models
    progress: Progress
    report: StageReport
    previous: Path | None = None

    def array_block(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array of one block: from disk if an earlier run finished it, else made and stored durably.

        The file begins with a checksum: a damaged block is made anew.
        """
        path = self.partial / f"block-{name}.npy"
        kept = path.read_bytes() if path.is_file() else b""
        if kept and kept[:_SUM] == xxhash.xxh3_128_digest(kept[_SUM:]):
            return np.load(BytesIO(kept[_SUM:]), allow_pickle=False)
        array, buffer = make(), BytesIO()
        np.save(buffer, array, allow_pickle=False)
        with storage_errors(path):
            self.partial.mkdir(parents=True, exist_ok=True)
        write_atomic(path, xxhash.xxh3_128_digest(buffer.getvalue()) + buffer.getvalue())
        return array
