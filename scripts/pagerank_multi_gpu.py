"""PageRank of one large graph over several GPUs or machines, its error checked in f64: one JSON line, by rank 0.

usage: torchrun --nproc-per-node 8 scripts/pagerank_multi_gpu.py --nodes 100000000 --edges 1000000000 --work /scratch
       torchrun --nproc-per-node 8 scripts/pagerank_multi_gpu.py --index INDEX
       OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 scripts/pagerank_multi_gpu.py --nodes 20000 --edges 100000 --cpu

The graph is that of an index, or R-MAT from a seed: rank 0 draws it, in its own memory, and writes it to a folder that
all ranks see (--work, else a temporary folder of one machine), from which each takes its rows. With --spread every rank
draws its part of the edges where its rows shall be, and no rank ever holds the graph. Each question has one seed. It is
solved twice, and the bits of both results are compared; `error` is the largest L1 error of a question, by a residual
that knows nothing of the solver (it counts the f32 rounding of the result, 6e-8, up to 13 times at damping .85).

Exit status: 0 the error is within what --tol and that rounding allow, 1 it is not.

Over gloo on CPUs this has run; on GPUs it has NOT yet run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from device_graphs import rmat, rmat_edges  # noqa: E402

from gpu_rag.graph.csr import degrees  # noqa: E402
from gpu_rag.graph.pagerank import PageRankGraph  # noqa: E402
from gpu_rag.graph.pagerank.sharded import (  # noqa: E402
    IMPLEMENTATIONS,
    Shard,
    pagerank_residual_sharded,
    pagerank_topk_sharded,
    personalized_pagerank_sharded,
    shard_edges,
    shard_graph,
)
from gpu_rag.types import CSR, Ragged  # noqa: E402

CPU = torch.device("cpu")
PATIENCE = timedelta(hours=6)  # with which ranks wait for rank 0 to draw and write a graph: nccl's own is ten minutes


def main() -> int:
    options = parsed()
    device = join(options.cpu)
    began = time.perf_counter()
    shard = spread(options, device) if options.spread else shard_graph(load(options), device=device)
    synchronise(shard)
    loaded = time.perf_counter() - began
    seeds = drawn_seeds(shard, options.questions, options.seed)
    asked: dict[str, Any] = {"damping": options.damping, "tol": options.tol, "block": options.block}
    asked["implementation"] = options.implementation
    times, bits = [], []
    for _ in range(2):
        synchronise(shard)
        began = time.perf_counter()
        rows = personalized_pagerank_sharded(shard, seeds, **asked)
        synchronise(shard)
        times.append(time.perf_counter() - began)
        bits.append(digest(shard, rows))
    error = float(pagerank_residual_sharded(shard, rows, seeds, damping=options.damping).max())
    best = pagerank_topk_sharded(shard, seeds, k=options.k, **asked)
    allowed = (1 + options.damping) * (options.tol + 1e-7) / (1 - options.damping)
    of_ranks = shard.gather(torch.tensor([shard.rows, shard.pull.m], device=shard.device)).T.tolist()
    if shard.rank == 0:
        document = {
            "ok": error <= allowed, "error": error, "allowed": allowed, "tol": options.tol,
            "damping": options.damping, "implementation": options.implementation, "ranks": shard.world,
            "backend": "none" if shard.group is None else dist.get_backend(shard.group), "device": str(shard.device),
            "n": shard.n, "m": shard.entries, "rows": of_ranks[0], "entries": of_ranks[1], "questions": seeds.batch,
            "load_s": loaded, "first_s": times[0], "s": times[1], "run_to_run_equal": bits[0] == bits[1],
            "bits": bits[1], "best": best.ids[0].tolist(),
        }  # fmt: skip
        print(json.dumps(document), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if shard.group is not None:
        dist.destroy_process_group()
    return 0 if error <= allowed else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, help="take the graph of this index")
    parser.add_argument("--nodes", type=int, default=100_000, help="of an R-MAT graph (100000)")
    parser.add_argument("--edges", type=int, default=1_000_000, help="drawn, of an R-MAT graph (1000000)")
    parser.add_argument("--seed", type=int, default=7, help="of the graph and of the questions (7)")
    parser.add_argument("--work", type=Path, help="a folder that all ranks see, for the R-MAT graph")
    parser.add_argument("--spread", action="store_true", help="every rank draws its part of the R-MAT graph")
    parser.add_argument("--questions", type=int, default=64, help="each with one seed (64)")
    parser.add_argument("--k", type=int, default=10, help="best nodes of the first question in the JSON (10)")
    parser.add_argument("--damping", type=float, default=0.85)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--block", type=int, default=64, help="questions alive at once (64)")
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS, default="torch")
    parser.add_argument("--cpu", action="store_true", help="gloo on CPUs rather than nccl on GPUs")
    parser.add_argument("--out", type=Path, help="write the JSON to this file too")
    options = parser.parse_args()
    if not options.cpu and not torch.cuda.is_available():
        parser.error("no CUDA device was found; --cpu runs over gloo")
    return options


def join(cpu: bool) -> torch.device:
    """Joins the process group that torchrun tells of, if any; the device of this rank."""
    device = CPU if cpu else torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if not cpu:
        torch.cuda.set_device(device)  # before the group, whose barriers work on the current device
    if "RANK" in os.environ:
        backend, own = ("gloo", None) if cpu else ("nccl", device)
        dist.init_process_group(backend, timeout=PATIENCE, device_id=own)
    return device


def load(options: argparse.Namespace) -> PageRankGraph:
    """The whole graph in host memory; of R-MAT, mapped from the files that rank 0 has written."""
    if options.index is not None:
        from gpu_rag.index.index import Index  # with all that reads texts, which an R-MAT graph does without

        return Index.open(options.index).graph
    rank = dist.get_rank() if dist.is_initialized() else 0
    if options.work is None and int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1:
        raise SystemExit("pagerank_multi_gpu: several machines need --work, a folder that all of them see")
    shared = f"rmat-{options.nodes}-{options.edges}-{options.seed}"
    run = os.environ.get("TORCHELASTIC_RUN_ID", "alone") + os.environ.get("MASTER_PORT", "")
    folder = (options.work or Path(tempfile.gettempdir()) / f"pagerank-{run}") / shared
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        csr = rmat(options.nodes, options.edges, options.seed, CPU)
        np.save(folder / "indptr.npy", csr.indptr.numpy())
        np.save(folder / "indices.npy", csr.indices.numpy())
    if dist.is_initialized():
        dist.barrier()
    held = [torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in ("indptr", "indices")]
    if options.work is None:  # what is mapped stays until it is let go
        if dist.is_initialized():
            dist.barrier()
        if rank == 0:
            remove(folder)
    csr = CSR(held[0], held[1])
    degree = degrees(csr)  # R-MAT is made undirected: what `prepare` would find out in O(E log E)
    dangling = degree <= 0
    return PageRankGraph(csr, torch.where(dangling, 1.0, degree), dangling, bool(dangling.any()), True)


def spread(options: argparse.Namespace, device: torch.device) -> Shard:
    """The shard of an R-MAT graph of which each rank draws a part: another graph for another number of ranks."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    count = options.edges // world + (rank < options.edges % world)
    return shard_edges(*rmat_edges(options.nodes, count, options.seed, device, part=rank), options.nodes)


def remove(folder: Path) -> None:
    for name in ("indptr", "indices"):
        (folder / f"{name}.npy").unlink()
    folder.rmdir()
    folder.parent.rmdir()


def drawn_seeds(shard: Shard, count: int, seed: int) -> Ragged:
    """One node with edges for each question, the same on every rank."""
    linked = (~shard.dangling).nonzero()[:, 0]
    drawn = torch.randint(len(linked), (count,), generator=torch.Generator().manual_seed(seed + 1))
    return Ragged(linked[drawn], torch.arange(count + 1))


def digest(shard: Shard, rows: torch.Tensor) -> str:
    """Of the bits of the rows of all ranks side by side, whatever ranks there are: 16 hexadecimal digits.

    The sum over nodes v and questions b of bits(v, b) * (v + 1) * odd(b), modulo 2^63: no order, no rounding.
    """
    node = torch.arange(shard.lo + 1, shard.hi + 1, device=rows.device)
    odd = torch.arange(rows.shape[0], device=rows.device) * 2 + 1
    own = (rows.view(torch.int32).long() * node * odd[:, None]).sum()
    return hashlib.sha256(str(sum(shard.gather(own).tolist()) % 2**63).encode()).hexdigest()[:16]


def synchronise(shard: Shard) -> None:
    if shard.device.type == "cuda":
        torch.cuda.synchronize(shard.device)
    if shard.group is not None:
        dist.barrier()


if __name__ == "__main__":
    sys.exit(main())
