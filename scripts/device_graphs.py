"""Graphs made on a device from seeds, and the bytes that an op must move: the pure parts of scripts/device_check.py."""

from __future__ import annotations

import torch

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR, Ragged

QUADRANTS = (0.57, 0.19, 0.19)  # of R-MAT (Chakrabarti, Zhan and Faloutsos, 2004)


def generator(seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def rmat(n: int, m: int, seed: int, device: torch.device) -> CSR:
    """m edges drawn with the skew of R-MAT, undirected."""
    return csr_from_edges(*rmat_edges(n, m, seed, device), n)


def rmat_edges(n: int, m: int, seed: int, device: torch.device, part: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ends i64[m] of edges of R-MAT; an end of n or more is taken modulo n, names are shuffled, alike for all parts."""
    g, (a, b, c) = generator(seed * 1_000_003 + part, device), QUADRANTS
    src, dst = (torch.zeros(m, dtype=torch.int64, device=device) for _ in range(2))
    for _ in range(max(1, (n - 1).bit_length())):
        u = torch.rand(m, generator=g, device=device)
        src = 2 * src + (u >= a + b)
        dst = 2 * dst + (((u >= a) & (u < a + b)) | (u >= a + b + c))
    names = torch.randperm(n, generator=generator(seed, device), device=device)
    return names[src % n], names[dst % n]


def uniform(n: int, m: int, seed: int, device: torch.device) -> CSR:
    """m edges between any nodes, undirected."""
    src, dst = torch.randint(n, (2, m), generator=generator(seed, device), device=device)
    return csr_from_edges(src, dst, n)


def bipartite(n: int, m: int, seed: int, device: torch.device) -> CSR:
    """Nodes [entities | passages], one passage for five entities; m mentions, entities by a power law; undirected."""
    g, passages = generator(seed, device), max(1, n // 6)
    entities = n - passages
    drawn = torch.rand(m, generator=g, device=device, dtype=torch.float64)
    entity = (entities * drawn ** (1 / 0.3)).long().clamp_max(entities - 1)
    return csr_from_edges(entity, entities + torch.randint(passages, (m,), generator=g, device=device), n)


GRAPHS = {"rmat": rmat, "uniform": uniform, "bipartite": bipartite}


def blocks(count: int, n: int, m: int, seed: int, device: torch.device) -> CSR:
    """`count` uniform graphs of n nodes and m edges side by side: no edge leaves its block."""
    g = generator(seed, device)
    first = torch.arange(count, device=device).repeat_interleave(m) * n
    src, dst = (first + torch.randint(n, (count * m,), generator=g, device=device) for _ in range(2))
    return csr_from_edges(src, dst, count * n)


def unit_rows(n: int, dims: int, seed: int, device: torch.device) -> torch.Tensor:
    """f16[n, dims], rows of length 1."""
    rows = torch.randn(n, dims, generator=generator(seed, device), device=device)
    return torch.nn.functional.normalize(rows, dim=1).half()


def random_lists(batch: int, size: int, n: int, seed: int, device: torch.device) -> Ragged:
    """`batch` lists of up to `size` numbers below n, ascending, each once."""
    drawn = torch.randint(n, (batch, size), generator=generator(seed, device), device=device)
    keys = torch.unique(drawn + torch.arange(batch, device=device)[:, None] * n)
    offsets = torch.searchsorted(keys, torch.arange(batch + 1, device=device) * n)
    return Ragged((keys % n).int(), offsets)


def spmm_bytes(n: int, m: int, width: int, state: int, source: int) -> int:
    """Row pointers and columns, x and the teleport read, y written: each once. state, source: bytes of an element."""
    return 8 * (n + 1) + 4 * m + n * width * (2 * state + source)


def step_bytes(n: int, m: int, width: int, state: int) -> int:
    """Row pointers and columns; x and y read, y written; degree, inverse and place of the restart: each once."""
    return 8 * (n + 1) + 4 * m + 12 * n + 3 * n * width * state


def hop_bytes(n: int, m: int, words: int) -> int:
    """Row pointers and columns, front and seen read, fresh and seen written: each once."""
    return 8 * (n + 1) + 4 * m + 32 * words * n


def relax_bytes(n: int, m: int, groups: int, rounds: int) -> int:
    """In each round: row pointers, columns and costs, the state read once and written once."""
    return rounds * (8 * (n + 1) + 4 * m + 8 * n + 16 * groups * n)


def gather_bytes(batch: int, total: int, dims: int, k: int) -> int:
    """Every candidate's row in f16 and its number, the queries, and the k best."""
    return total * (2 * dims + 4) + 8 * (batch + 1) + 2 * batch * dims + 8 * batch * k


def join_flop(n_left: int, n_right: int, dims: int, words: int) -> int:
    """Multiplications and additions of all dot products and overlaps."""
    return 2 * n_left * n_right * (dims + words)
