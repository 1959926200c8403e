"""Graphs from a seed: power-law, uniform, and passages with their entities."""

from __future__ import annotations

import torch

from gpu_rag.errors import UsageError
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR

EDGES = 5  # undirected edges drawn for each node of a power-law or uniform graph
QUADRANTS = (0.57, 0.19, 0.19)  # of R-MAT: the chances of (0, 0), (0, 1) and (1, 0); the rest is (1, 1)
ENTITIES = 5  # entities for each passage
MENTIONS = 20  # mentions drawn for each passage
SKEW = 0.7  # the chance of the entity of rank r falls as r^-SKEW


def power_law(n: int, seed: int) -> CSR:
    """R-MAT (Chakrabarti, Zhan and Faloutsos, 2004): every bit of an edge's ends falls into one of four quadrants.

    Edges whose ends are not below n are drawn again; nodes are then renamed at random, so that ids say nothing.
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


def uniform(n: int, seed: int) -> CSR:
    """Both ends of every edge are any nodes. Undirected, without weights."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(n, (2, n * EDGES), generator=generator)
    return csr_from_edges(src, dst, n)


def bipartite(n: int, seed: int) -> CSR:
    """Nodes [entities | passages], an edge for each mention: every entity in some passage, the rest by popularity."""
    generator = torch.Generator().manual_seed(seed)
    n_passages = max(1, n // (ENTITIES + 1))
    n_entities = n - n_passages
    drawn = torch.rand(n_passages * MENTIONS, generator=generator, dtype=torch.float64)
    rank = (n_entities * drawn ** (1 / (1 - SKEW))).long().clamp_max(n_entities - 1)
    entity = torch.cat([torch.arange(n_entities), torch.randperm(n_entities, generator=generator)[rank]])
    first = torch.randint(n_passages, (n_entities,), generator=generator)
    passage = torch.cat([first, torch.arange(n_passages).repeat_interleave(MENTIONS)])
    return csr_from_edges(entity, passage + n_entities, n)


GRAPHS = {"power-law": power_law, "uniform": uniform, "bipartite": bipartite}


def graph_of(kind: str, n: int, seed: int) -> CSR:
    """The graph of a kind; the same bits for the same seed. Raises UsageError."""
    if kind not in GRAPHS:
        raise UsageError("unknown graph", given=kind, expected=" | ".join(GRAPHS))
    return GRAPHS[kind](n, seed)


def csr_on(csr: CSR, device: torch.device) -> CSR:
    """The same matrix on a device."""
    weight = None if csr.weight is None else csr.weight.to(device)
    return CSR(csr.indptr.to(device), csr.indices.to(device), weight)
