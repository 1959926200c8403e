"""Models, sources, progress and folders that a build gives to its stages."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import xxhash

from gpu_rag.index.folder import CARRIED, storage_errors, write_atomic
from gpu_rag.settings import Settings

if TYPE_CHECKING:
    from gpu_rag.models.set import ModelSet

_SUM = 16  # bytes of a block's checksum
_MAX_CARRIED = 1 << 30  # bytes of a carried array of any length


class Progress(Protocol):
    """Progress reports of a build. A class that inherits from it need not have all methods."""

    def begin(self, planned: Mapping[str, float | None]) -> None:
        """Report that a build of these stages begins. planned: predicted seconds of each; None: not known."""
        return None

    def start(self, stage: str, total: int | None, unit: str) -> None:
        """Report that a stage begins, or that its total is known."""
        return None

    def advance(self, n: int, tokens: int = 0) -> None:
        """Report n more units, with this number of LLM tokens."""
        return None

    def finish(self, stage: str, skipped: bool) -> None:
        """Report that a stage is done, or was up to date."""
        return None


class Silent(Progress):
    """Progress without output."""


@dataclass(frozen=True)
class NamedSource:
    """One source of a knowledge base. kind: kg (a file of triples), skb (a folder), documents or web (like a corpus).

    most: number of triples to read, from the beginning.
    """

    name: str
    kind: str
    path: Path
    most: int = sys.maxsize


@dataclass(frozen=True)
class HeldSource:
    """A file or folder of the corpus that is not read, because an index holds its documents.

    path: its place, which may be on another machine; passages: the folder of that stage in the index; sha256, readers:
    as in the parameters of that stage.
    """

    path: Path
    passages: Path
    sha256: str
    readers: Mapping[str, str]


@dataclass(frozen=True)
class Sources:
    """Inputs of a build: corpus files or folders, ready OpenIE results. strict: stop at the first bad row.

    edits: folder of manual changes, which may be missing. named: sources of a knowledge base, by name; the paths of
    kind documents are in `corpus` too. removed: hashes of documents and files that stay out, see `index.removed`. held:
    the paths of `corpus` that are not read. part: (number, n), the part of the corpus that a shard reads, see
    `Limits.has`.
    """

    corpus: tuple[Path, ...] = ()
    openie: tuple[Path, ...] = ()
    strict: bool = False
    edits: Path | None = None
    named: tuple[NamedSource, ...] = ()
    removed: frozenset[str] = frozenset()
    held: tuple[HeldSource, ...] = ()
    part: tuple[int, int] = (0, 1)

    def of_kind(self, *kinds: str) -> tuple[NamedSource, ...]:
        """Named sources of these kinds."""
        return tuple(source for source in self.named if source.kind in kinds)

    @property
    def impossible(self) -> frozenset[str]:
        """Stages without a source of their own kind here. Stages that need one of them are not listed."""
        lacking = {"extraction": not self.corpus, "kb": not self.named, "kb_web": not self.of_kind("web")}
        return frozenset(stage for stage, lacks_source in lacking.items() if lacks_source)


@dataclass
class StageReport:
    """Costs of one stage in this run. `skipped`: it was up to date; `reused`: rows taken from its last state; `llm_s`:
    seconds with a request open, so that the LLM was idle for s - llm_s; `graph_ops`: the implementation that ran each
    op; `replies_read`, `fallbacks`: as in `types.Usage`."""

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
        """Count a reply that was not in the requested form. kind: one of `types.FALLBACKS`."""
        key = f"{step}/{kind}"
        self.fallbacks[key] = self.fallbacks.get(key, 0) + 1


@dataclass
class Work:
    """Inputs and outputs of a running stage: its output folder, the finished stages before it, settings and models.

    previous: folder of an earlier run of this stage, of the same version, for other inputs, or None. A stage may
    reuse its valid parts, if the output does not depend on that. previous_inputs: folders of the stages that `previous`
    was made from; empty if one is gone or damaged, or if `previous` had other settings or models. params,
    previous_params: `Stage.params` of this run, and of `previous`. previous_counts: counts of `previous`. shared_s:
    seconds that this process spent in rules that workers may share.
    """

    out: Path
    partial: Path
    stage_folders: Mapping[str, Path]
    settings: Settings
    sources: Sources
    models: ModelSet
    progress: Progress
    report: StageReport
    previous: Path | None = None
    previous_inputs: Mapping[str, Path] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    previous_params: Mapping[str, Any] = field(default_factory=dict)
    previous_counts: Mapping[str, int] = field(default_factory=dict)
    shared_s: float = 0.0

    def array_block(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Array of one block: from disk if an earlier run finished it, else computed and stored durably.

        The file begins with a checksum: a damaged block is computed again.
        """
        path = self.partial / f"block-{name}.npy"
        if kept := _unsealed(path):
            return np.load(kept, allow_pickle=False)
        array, buffer = make(), BytesIO()
        np.save(buffer, array, allow_pickle=False)
        with storage_errors(path):
            self.partial.mkdir(parents=True, exist_ok=True)
        _write_sealed(path, buffer)
        return array

    def carry(self, array: np.ndarray) -> None:
        """Write an array of one axis for the next run of the stage, beside its files and not in the digest."""
        _write_sealed(self.out / CARRIED, BytesIO(zlib.compress(array.tobytes(), 1)))

    def carried(
        self, dtype: type[np.integer[Any]], n: int | None = None, values: range = range(1 << 31)
    ) -> np.ndarray | None:
        """The array that `previous` carried; None if there is none, if it is damaged, or if it does not hold
        n numbers (without n: more than _MAX_CARRIED bytes) that are all in `values`."""
        kept = _unsealed(self.previous / CARRIED) if self.previous else None
        max_bytes = _MAX_CARRIED if n is None else n * np.dtype(dtype).itemsize
        try:
            content = zlib.decompressobj().decompress(kept.read(), max_bytes + 1) if kept else b""
            array = np.frombuffer(content, dtype)
        except (zlib.error, ValueError):  # not of whole numbers
            return None
        is_fit = kept and len(content) <= max_bytes and n in (None, len(array))
        return array if is_fit and ((array >= values.start) & (array < values.stop)).all() else None


def _write_sealed(path: Path, content: BytesIO) -> None:
    write_atomic(path, xxhash.xxh3_128_digest(content.getvalue()) + content.getvalue())


def _unsealed(path: Path) -> BytesIO | None:
    """The content of a file that begins with its checksum; None if it is missing or damaged."""
    kept = path.read_bytes() if path.is_file() else b""
    is_whole = len(kept) > _SUM and kept[:_SUM] == xxhash.xxh3_128_digest(kept[_SUM:])
    return BytesIO(kept[_SUM:]) if is_whole else None
