"""Inputs of the cases: the graphs of the settings, random questions, parts of a pool of questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from gpu_rag.bench.case import Config
from gpu_rag.bench.graphs import graph_of
from gpu_rag.errors import UsageError
from gpu_rag.graph.csr import transpose
from gpu_rag.graph.memory import free_bytes
from gpu_rag.graph.ragged import part_of
from gpu_rag.types import CSR, Ragged

Rows = TypeVar("Rows", torch.Tensor, Ragged)


def seeded(config: Config) -> torch.Generator:
    """A generator that starts from the seed of the settings."""
    return torch.Generator().manual_seed(config.seed)


def measured_graphs(config: Config) -> Iterator[tuple[str, CSR]]:
    """(kind, adjacency) of the index, if one is given, and of the generated graphs. Raises BadInput, MissingLayer."""
    if config.index is not None:
        from gpu_rag.index.index import Index

        graph = Index.open(str(config.index)).graph
        yield "index", graph.pull if graph.symmetric else transpose(graph.pull)
    for n in config.sizes if config.generated else ():
        for kind in config.graphs:
            yield kind, graph_of(kind, n, config.seed)


def linked_nodes(csr: CSR) -> torch.Tensor:
    """i64, on the CPU: the nodes that have edges."""
    return csr.indptr.diff().nonzero()[:, 0].cpu()


def drawn(values: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Some of the values at random, in this shape."""
    return values[torch.randint(len(values), shape, generator=generator)]


def unit_rows(n: int, dims: int, generator: torch.Generator) -> torch.Tensor:
    """f32[n, dims], rows of length 1 in random directions."""
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


def moved(lists: Ragged, device: torch.device) -> Ragged:
    """The same lists on a device."""
    return Ragged(lists.values.to(device), lists.offsets.to(device))


def lists_in(result: Any) -> list[list[int]]:
    """Lists as Python lists; a peer's result is one already."""
    if not isinstance(result, Ragged):
        return list(result)
    return [values.tolist() for values in result.values.cpu().split(result.offsets.diff().tolist())]


def check_memory(what: str, needed: int, config: Config) -> None:
    """Raises UsageError where the inputs of a case do not fit on the device. what: such as "the vectors: 10"."""
    free = free_bytes(torch.device(config.device))
    if needed > free:
        given, expected = f"{what}: {needed / 1e9:.1f} GB", f"at most {free / 1e9:.1f} GB"
        raise UsageError("the input does not fit", given=given, expected=expected)
