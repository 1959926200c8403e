"""Inputs of the cases: graphs, random questions, and parts of a question pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from gpu_rag.bench.case import Config
from gpu_rag.errors import UsageError
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.memory import free_bytes
from gpu_rag.graph.ragged import part_of
from gpu_rag.types import CSR, Ragged

Rows = TypeVar("Rows", torch.Tensor, Ragged)


def seeded(config: Config) -> torch.Generator:
    """A generator seeded from the settings."""
    return torch.Generator().manual_seed(config.seed)


def measured_graphs(config: Config) -> Iterator[tuple[str, CSR]]:
    """(kind, adjacency) of the generated graphs."""
    for n in config.sizes:
        yield POWER_LAW, power_law(n, config.seed)


def linked_nodes(csr: CSR) -> torch.Tensor:
    """The nodes with edges: i64, on the CPU."""
    return csr.indptr.diff().nonzero()[:, 0].cpu()


def drawn(values: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A random sample of the values (with repeats) in this shape."""
    return values[torch.randint(len(values), shape, generator=generator)]


def unit_rows(n: int, dims: int, generator: torch.Generator) -> torch.Tensor:
    """Random rows of length 1: f32[n, dims]."""
    return torch.nn.functional.normalize(torch.randn(n, dims, generator=generator))


def lists_of(rows: torch.Tensor, device: torch.device) -> Ragged:
    """The rows of a matrix as lists of equal length, on a device."""
    count, width = rows.shape
    return Ragged(rows.flatten().to(device), torch.arange(count + 1, device=device) * width)


def part(rows: Rows, start: int, count: int) -> Rows:
    """Rows or lists start..start+count."""
    if not isinstance(rows, Ragged):
        return rows[start : start + count]
    return part_of(rows, start, start + count)


def lists_in(result: Any) -> list[list[int]]:
    """Lists as Python lists; a peer's result already has this form."""
    if not isinstance(result, Ragged):
        return list(result)
    return [values.tolist() for values in result.values.cpu().split(result.offsets.diff().tolist())]


def check_memory(what: str, needed: int, config: Config) -> None:
    """Raise UsageError if the inputs of a case do not fit on the device. what: such as "the vectors: 10"."""
    free = free_bytes(torch.device(config.device))
    if needed > free:
        given, expected = f"{what}: {needed / 1e9:.1f} GB", f"at most {free / 1e9:.1f} GB"
        raise UsageError("the input does not fit", given=given, expected=expected)


POWER_LAW = "power-law"  # the kind of generated graphs
EDGES = 5  # undirected edges drawn for each of their nodes
QUADRANTS = (0.57, 0.19, 0.19)  # R-MAT probabilities of (0, 0), (0, 1) and (1, 0); the rest is (1, 1)


def power_law(n: int, seed: int) -> CSR:
    """R-MAT (Chakrabarti, Zhan and Faloutsos, 2004): every bit of an edge's ends falls into one of four quadrants.

    Edges with an end >= n are drawn again. Nodes are then renamed at random, so that ids carry no information.
    Undirected, without weights; some nodes are isolated, as in real graphs.
    """
    generator = torch.Generator().manual_seed(seed)
    bits = max(1, (n - 1).bit_length())
    a, b, c = QUADRANTS
    kept, missing = [], n * EDGES
    while missing > 0:
        src = torch.zeros(missing, dtype=torch.int64)
        dst = torch.zeros(missing, dtype=torch.int64)
        for _ in range(bits):
            u = torch.rand(missing, generator=generator)
            src = 2 * src + (u >= a + b)
            dst = 2 * dst + (((u >= a) & (u < a + b)) | (u >= a + b + c))
        inside = (src < n) & (dst < n)
        kept.append(torch.stack([src[inside], dst[inside]]))
        missing -= int(inside.sum())
    names = torch.randperm(n, generator=generator)
    src, dst = names[torch.cat(kept, 1)]
    return csr_from_edges(src, dst, n)


def csr_on(csr: CSR, device: torch.device) -> CSR:
    """The same matrix on a device."""
    weight = None if csr.weight is None else csr.weight.to(device)
    return CSR(csr.indptr.to(device), csr.indices.to(device), weight)
