"""The first triples of the sources of a knowledge base as sources of their own, and how many there are in all."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rag.index.work import NamedSource
from gpu_rag.sources.json_rows import has_suffix
from gpu_rag.sources.knowledge_base import skb_files
from gpu_rag.sources.knowledge_base.stark import NEEDED, TYPES, stark_edges
from gpu_rag.sources.rows import Limits, RowError


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
    name = path.name[: -len(".gz")] if has_suffix(path, (".gz",)) else path.name
    return out / name, (_table if has_suffix(path, (".parquet",)) else _lines)(path, out / name, n)


def _skb(path: Path, out: Path, n: int) -> tuple[Path, float]:
    files, folder = skb_files(path), out / path.resolve().name
    folder.mkdir()
    if files.stark:
        return folder, _arrays(path, folder, n)
    (folder / files.nodes.name).symlink_to(files.nodes.resolve())
    return folder, _file(files.edges, folder, n)[1]


def _lines(path: Path, out: Path, n: int) -> float:
    """The first n lines, unpacked; by what part of the file, packed as it is, was read."""
    with path.open("rb") as raw, out.open("wb") as file:
        packed = path.suffix.lower() == ".gz"
        read = _copy(gzip.GzipFile(fileobj=raw) if packed else raw, file, n)  # type: ignore[arg-type]
        size = path.stat().st_size
        at = raw.tell() if packed else read
        rest = 1.0 if raw.read(1) == b"" and not packed else size / max(at, 1)
    return max(rest, 1.0)


def _copy(stream: BinaryIO, file: BinaryIO, n: int) -> int:
    read = 0
    try:
        for _ in range(n):
            line = stream.readline(1 << 20)
            if not line:
                break
            file.write(line)
            read += len(line)
    except (OSError, EOFError, zlib.error):  # the build says what is wrong with the file
        pass
    return read


def _table(path: Path, out: Path, n: int) -> float:
    try:
        with pq.ParquetFile(path) as file:
            rows = file.metadata.num_rows
            batch = next(file.iter_batches(batch_size=n), None)
    except (pa.ArrowException, OSError):
        out.symlink_to(path.resolve())
        return 1.0
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
