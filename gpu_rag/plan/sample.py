"""A sample of what is to be indexed: passages drawn from the whole corpus, and the first triples of each source."""

from __future__ import annotations

import gzip
import random
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rag.index.stages.passages import Row, no_passage, read_passages
from gpu_rag.index.work import NamedSource, Progress, Sources
from gpu_rag.settings import Settings
from gpu_rag.sources.json_rows import has_suffix
from gpu_rag.sources.knowledge_base import skb_files
from gpu_rag.sources.knowledge_base.stark import NEEDED, TYPES, stark_edges
from gpu_rag.sources.rows import Limits, RowError
from gpu_rag.types import Reject

T = TypeVar("T")


class Draw(Generic[T]):
    """n items of a stream of unknown length, each as likely as any other (Vitter 1985, algorithm R)."""

    def __init__(self, n: int, seed: int):
        self.items: list[T] = []
        self._n, self._seen, self._random = n, 0, random.Random(seed)

    def add(self, item: T) -> None:
        """The next item of the stream."""
        self._seen += 1
        if len(self.items) < self._n:
            self.items.append(item)
        elif (place := self._random.randrange(self._seen)) < self._n:
            self.items[place] = item

    def shuffled(self) -> list[T]:
        """The items drawn, in random order, so that each part of the list is a sample too."""
        return random.Random(0).sample(self.items, len(self.items))


# --- passages --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampled:
    """One passage of a sample: its document's row and its own, and the source and node that the document is of."""

    document: Row
    passage: Row
    source: str = ""
    node: str = ""


@dataclass(frozen=True)
class Passages:
    """Passages that are extracted from, and others (texts of nodes with `index.extract_nodes` false)."""

    extracted: Sequence[Sampled] = ()
    others: Sequence[Sampled] = ()

    def rows(self) -> list[Sampled]:
        """All of them."""
        return [*self.extracted, *self.others]

    def half(self) -> Passages:
        """The first half of both."""
        return Passages(*(part[: (len(part) + 1) // 2] for part in (self.extracted, self.others)))

    def part(self, number: int, size: int) -> Passages:
        """Part `number` of both, of `size` rows each."""
        rows = slice(number * size, (number + 1) * size)
        return Passages(self.extracted[rows], self.others[rows])


@dataclass
class CorpusCount:
    """Counts of a corpus. characters: of all passages, overlaps counted twice. s: seconds to read and cut it.

    extracted: passages that are extracted from.
    """

    documents: int = 0
    passages: int = 0
    characters: int = 0
    extracted: int = 0
    rejects: int = 0
    s: float = 0.0
    sample: Passages = field(default_factory=Passages)


def count_corpus(sources: Sources, settings: Settings, n: int, progress: Progress) -> CorpusCount:
    """Reads all of the corpus as the build will, and draws n passages; of both kinds as far as there are some.

    Raises BadInput where there is no passage, but for a knowledge base without documents.
    """
    started, seed = time.perf_counter(), settings.runtime.seed
    draws: dict[bool, Draw[Sampled]] = {extracted: Draw(n, seed) for extracted in (True, False)}
    count, first = CorpusCount(), None
    progress.start("reading", None, "documents")
    for found in read_passages(sources, settings):
        if isinstance(found, Reject):
            count.rejects, first = count.rejects + 1, first or found
            continue
        count.documents += 1
        extracted = settings.index.extract_nodes or not found.node
        for passage in found.passages:
            count.passages += 1
            count.characters += len(passage["text"])
            count.extracted += extracted
            draws[extracted].add(Sampled(found.document, passage, found.source, found.node))
        progress.advance(1)
    if not count.passages and (sources.corpus or not sources.named):
        raise no_passage(count.rejects, first)
    progress.finish("reading", skipped=False)
    chosen, others = draws[True].shuffled(), draws[False].shuffled()
    chosen = chosen[: max(n - len(others), (n + 1) // 2)]
    count.sample = Passages(chosen, others[: n - len(chosen)])
    count.s = time.perf_counter() - started
    return count


# --- triples ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceSample:
    """A source cut short. times: how many times as many triples the whole has, by bytes where rows are not counted.

    Nodes of a knowledge base of nodes and edges are all there, so that its edges have their ends.
    """

    source: NamedSource
    times: float


def sample_sources(sources: Sequence[NamedSource], folder: Path, n: int) -> list[SourceSample]:
    """The first n rows of triples of each source, below `folder`. A file that breaks off is cut where it does."""
    found = []
    for number, source in enumerate(sources):
        out = folder / str(number)
        out.mkdir(parents=True)
        path, times = _skb(source.path, out, n) if source.kind == "skb" else _file(source.path, out, n)
        found.append(SourceSample(NamedSource(source.name, source.kind, path), times))
    return found


def _file(path: Path, out: Path, n: int) -> tuple[Path, float]:
    target = out / (path.name[: -len(".gz")] if has_suffix(path, (".gz",)) else path.name)
    return target, (_table if has_suffix(path, (".parquet",)) else _lines)(path, target, n)


def _skb(path: Path, out: Path, n: int) -> tuple[Path, float]:
    files, folder = skb_files(path), out / path.resolve().name
    folder.mkdir()
    if files.stark:
        return folder, _arrays(path, folder, n)
    (folder / files.nodes.name).symlink_to(files.nodes.resolve())
    return folder, _file(files.edges, folder, n)[1]


def _lines(path: Path, out: Path, n: int) -> float:
    """The first n lines, unpacked; `times` by the part of the file, packed as it is, that was read."""
    packed = path.suffix.lower() == ".gz"
    with path.open("rb") as file, out.open("wb") as target:
        stream = gzip.GzipFile(fileobj=file) if packed else file
        with suppress(OSError, EOFError, zlib.error):  # the build says what is wrong with the file
            target.writelines(line for _ in range(n) if (line := stream.readline(1 << 20)))
        at = file.tell()
    return max(path.stat().st_size / max(at, 1), 1.0)


def _table(path: Path, out: Path, n: int) -> float:
    try:
        with pq.ParquetFile(path) as file:
            rows, batch = file.metadata.num_rows, next(file.iter_batches(batch_size=n), None)
    except (pa.ArrowException, OSError):
        rows, batch = 0, None
    if batch is None:
        out.symlink_to(path.resolve())
        return 1.0
    pq.write_table(pa.Table.from_batches([batch]), out)
    return float(rows / max(batch.num_rows, 1))


def _arrays(path: Path, out: Path, n: int) -> float:
    for name in (*NEEDED, *TYPES):
        if (path / name).exists():
            (out / name).symlink_to((path / name).resolve())
    try:
        edges = stark_edges(path, Limits())
    except RowError:
        return 1.0
    for name, array in ((NEEDED[1], edges.ends[:, :n]), (NEEDED[2], edges.kinds[:n])):
        (out / name).unlink()
        np.save(out / name, np.ascontiguousarray(array), allow_pickle=False)
    return len(edges.kinds) / max(min(n, len(edges.kinds)), 1)
