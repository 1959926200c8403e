"""The kernels as cases of scripts/device_check.py: inputs from seeds, what is exact, one question alone, peers."""

from __future__ import annotations

from collections.abc import Callable

import device_graphs as made
import numpy as np
import torch
from device_case import Case, Outputs, neighbours, some
from device_pagerank import spmm, step
from gpu_rag_kernels import bubble as bubble_loops
from gpu_rag_kernels import ego as ego_loops
from gpu_rag_kernels import frontier as frontier_loops
from gpu_rag_kernels import join as join_loops

from gpu_rag.types import CSR, Ragged


def hop(csr: CSR, words: int, seed: int, *, kind: str) -> Case:
    device, g = csr.indptr.device, made.generator(seed, csr.indptr.device)

    def bits() -> torch.Tensor:
        return torch.randint(-(2**63), 2**63 - 1, (csr.n, words), generator=g, device=device)

    front, seen = bits() & bits() & bits(), bits()

    def error(found: Outputs) -> tuple[float, float]:
        wrong = 0
        for row in some(csr.n, device).tolist():
            word = np.bitwise_or.reduce(front[neighbours(csr, row)].cpu().numpy(), axis=0)
            wrong += int((found[0][row].cpu().numpy() != (word & ~seen[row].cpu().numpy())).sum())
        return float(wrong), 0.0

    def run(which: str, f: torch.Tensor = front, s: torch.Tensor = seen) -> Outputs:
        return ego_loops.msbfs_or(csr, f, s, implementation=which)

    return Case(
        "msbfs_or", {"n": csr.n, "m": csr.m, "words": words, "graph": kind}, run, error,
        lambda i: run(i, front[:, -1:].contiguous(), seen[:, -1:].contiguous()),
        lambda all_: tuple(a[:, -1:] for a in all_), True, made.hop_bytes(csr.n, csr.m, words),
    )  # fmt: skip


def relax(count: int, n: int, m: int, groups: int, seed: int, device: torch.device) -> Case:
    csr = made.blocks(count, n, m, seed, device)
    g = made.generator(seed + 1, device)
    cost = torch.randint(1, 1 << 14, (csr.n,), generator=g, device=device)
    state = torch.full((groups, csr.n), bubble_loops.UNREACHED, device=device)
    start = torch.randint(n, (groups, count), generator=g, device=device) + torch.arange(count, device=device) * n
    state.scatter_(1, start, start)
    rows = torch.repeat_interleave(torch.arange(csr.n, device=device), csr.indptr.diff())

    def offers(held: torch.Tensor) -> torch.Tensor:
        near = held[:, csr.indices.long()]
        paid = ((near >> 32) + cost[rows] << 32) | csr.indices
        offer = torch.where(near == bubble_loops.UNREACHED, near, paid)
        return held.scatter_reduce(1, rows.expand(groups, -1), offer, "amin")

    rounds, now = 1, state
    while not torch.equal(after := offers(now), now):
        rounds, now = rounds + 1, after

    def error(found: Outputs) -> tuple[float, float]:
        """How many elements are not the fixpoint that plain rounds come to."""
        return float((found[0] != now).sum()), 0.0

    low, high = int(csr.indptr[-1 - n]), int(csr.indptr[-1])
    last = CSR(csr.indptr[-1 - n :] - low, (csr.indices[low:high] - (csr.n - n)).contiguous())

    def moved(a: torch.Tensor, by: int) -> torch.Tensor:
        return torch.where(a == bubble_loops.UNREACHED, a, a + by)

    own = moved(state[:, -n:], n - csr.n).contiguous()
    return Case(
        "minplus_relax", {"blocks": count, "n": n, "entries": csr.m, "groups": groups, "rounds": rounds},
        lambda i: (bubble_loops.minplus_relax(csr, cost, state, implementation=i),), error,
        lambda i: (bubble_loops.minplus_relax(last, cost[-n:].contiguous(), own, implementation=i),),
        lambda all_: (moved(all_[0][:, -n:], n - csr.n),), True,
        made.relax_bytes(csr.n, csr.m, groups, rounds),
    )  # fmt: skip


def gather(batch: int, size: int, n: int, dims: int, k: int, seed: int, device: torch.device) -> Case:
    queries, vectors = made.unit_rows(batch, dims, seed, device), made.unit_rows(n, dims, seed + 1, device)
    lists = made.random_lists(batch, size, n, seed + 2, device)

    def run(which: str, q: torch.Tensor = queries, rows: Ragged = lists) -> Outputs:
        best = frontier_loops.ragged_gather_dot_topk(q, vectors, rows, k, implementation=which)
        return best.ids, best.scores

    def error(found: Outputs) -> tuple[float, float]:
        worst = 0.0
        for b in some(batch, device).tolist():
            rows = lists.values[int(lists.offsets[b]) : int(lists.offsets[b + 1])].long()
            exact = (vectors[rows].double() @ queries[b].double()).topk(min(k, len(rows))).values
            worst = max(worst, float((found[1][b, : len(exact)].double() - exact).abs().max()))
        return worst, 1e-5

    first = int(lists.offsets[-2])
    last = Ragged(lists.values[first:], lists.offsets[-2:] - first)
    return Case(
        "ragged_gather_dot_topk", {"batch": batch, "list": size, "dims": dims, "k": k}, run, error,
        lambda i: run(i, queries[-1:], last), lambda all_: tuple(a[-1:] for a in all_), False,
        made.gather_bytes(batch, lists.values.shape[0], dims, k),
    )  # fmt: skip


def join(n: int, dims: int, words: int, seed: int, device: torch.device) -> Case:
    sides = []
    for s in (seed, seed + 1):
        head = torch.rand(n, words, generator=made.generator(s, device), device=device) < 4 / max(words, 1)
        sides.append(join_loops.Side(made.unit_rows(n, dims, s, device), head.half(), head.sum(1).int() + 3))
    left, right = sides

    def run(which: str, mine: join_loops.Side = left) -> Outputs:
        found = join_loops.join_top1(mine, right, implementation=which)
        return found.best, found.second, found.index

    def error(found: Outputs) -> tuple[float, float]:
        rows = some(n, device)
        shared = left.head[rows].double() @ right.head.double().T
        union = (left.size[rows, None] + right.size[None, :] - shared).clamp_min(1)
        exact = (shared / union + left.vectors[rows].double() @ right.vectors.double().T) / 2
        strips = [part.topk(min(2, part.shape[1]), 1).values for part in exact.split(join_loops.STRIP, 1)]
        off = max(
            float((found[r][rows, s].double() - top[:, r]).abs().max())
            for s, top in enumerate(strips) for r in range(top.shape[1])
        )  # fmt: skip
        named = exact.gather(1, found[2][rows].long()) - found[0][rows].double()
        return max(off, float(named.abs().max())), join_loops.error_of(dims)

    return Case(
        "join_top1", {"n": n, "dims": dims, "words": words}, run, error,
        lambda i: run(i, left.rows(n - 1, n)), lambda all_: tuple(a[-1:] for a in all_), False,
        flop=made.join_flop(n, n, dims, words),
    )  # fmt: skip


def cases(op: str, device: torch.device) -> list[Callable[[], Case]]:
    """The cases of an op at full size, each made when it is called. 10^6 and 10^8 edges are drawn."""
    small, large = (100_000, 1_000_000), (10_000_000, 100_000_000)

    def on(kind: str, size: tuple[int, int]) -> CSR:
        return made.GRAPHS[kind](*size, 7, device)

    sizes = [("rmat", small, 256), ("uniform", small, 256), ("bipartite", small, 256), ("rmat", large, 64)]
    if op == "ppr_spmm":
        return [lambda c=c: spmm(on(*c[:2]), c[2], 1, kind=c[0]) for c in sizes]  # type: ignore[misc]
    if op in ("ppr_step", "ppr_step_fp16"):
        fp16 = op == "ppr_step_fp16"
        return [lambda c=c: step(on(*c[:2]), c[2], 1, fp16=fp16, kind=c[0]) for c in sizes]  # type: ignore[misc]
    if op == "msbfs_or":
        return [lambda c=c: hop(on(*c[:2]), c[2], 1, kind=c[0]) for c in (("rmat", small, 4), ("rmat", large, 1))]  # type: ignore[misc]
    if op == "minplus_relax":
        return [lambda: relax(256, 1000, 5000, 4, 1, device)]
    if op == "ragged_gather_dot_topk":
        return [lambda: gather(1000, 400, 100_000, 768, 20, 1, device)]
    return [lambda: join(32_768, 768, 1024, 1, device)]


def tiny(op: str, device: torch.device) -> Case:
    """The smallest case of an op that has hubs, several lists and blocks: for tests and for compute-sanitizer."""
    csr = made.rmat(40, 90, 3, device)
    if op == "ppr_spmm":
        return spmm(csr, 3, 1, kind="rmat")
    if op in ("ppr_step", "ppr_step_fp16"):
        return step(csr, 3, 1, fp16=op == "ppr_step_fp16", kind="rmat")
    if op == "msbfs_or":
        return hop(csr, 2, 1, kind="rmat")
    if op == "minplus_relax":
        return relax(3, 12, 20, 2, 1, device)
    if op == "ragged_gather_dot_topk":
        return gather(4, 9, 30, 20, 3, 1, device)
    return join(70, 20, 5, 1, device)


OPS = (
    "ppr_spmm", "ppr_step", "ppr_step_fp16", "msbfs_or", "minplus_relax", "ragged_gather_dot_topk", "join_top1",
)  # fmt: skip
