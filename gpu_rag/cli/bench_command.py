"""The command `gpu-rag bench`: time the graph ops and the libraries that people use for the same work."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
from typing import Any

from gpu_rag.bench import OPS
from gpu_rag.cli.options import names, numbers, say, table
from gpu_rag.errors import UsageError

HELP = "Check each graph op, then time it against other libraries."
EXAMPLE = "gpu-rag bench pagerank --peers --sizes 100000 --batch 1,64"

USUAL: dict[str, Any] = {"sizes": "100000,1000000", "batch": "1,16,64,256,1000", "damping": "0.5,0.85", "rounds": 3}
QUICK: dict[str, Any] = {"sizes": "10000", "batch": "1,64", "damping": "0.85", "rounds": 1}
OPENMP_USERS = ("torch", "igraph", "faiss", "sklearn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("ops", nargs="*", metavar="OP", help=f"{', '.join(OPS)}, all (default all)")
    parser.add_argument("--peers", action="store_true", help="time other libraries too; names the missing ones")
    parser.add_argument("--quick", action="store_true", help="10,000 nodes, B 1 and 64, damping .85, one round")
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu, cuda or cuda:N (peers run on the CPU)")
    parser.add_argument("--sizes", metavar="N,...", help="nodes or vectors (default 100000,1000000)")
    parser.add_argument("--batch", metavar="B,...", help="questions in a call (default 1,16,64,256,1000)")
    parser.add_argument("--damping", metavar="D,...", help="factors of PageRank (default 0.5,0.85)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads of ops and copies (default 1)")
    parser.add_argument("--rounds", type=int, metavar="N", help="interleaved rounds (default 3)")


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Check each op, then time it. Exit status 1 when an op failed its check."""
    single_thread_by_default()
    from gpu_rag.bench import report
    from gpu_rag.bench.case import REFUSED, Config
    from gpu_rag.bench.peers import check_peers
    from gpu_rag.bench.run import run_bench
    from gpu_rag.models.device import check_device

    if options.peers:  # before minutes of measuring, not after
        check_peers()
    usual = QUICK if options.quick else USUAL
    chosen = {name: usual[name] if getattr(options, name) is None else getattr(options, name) for name in usual}
    config = Config(
        sizes=tuple(numbers(chosen["sizes"])),
        batches=tuple(numbers(chosen["batch"])),
        dampings=tuple(_fraction(text) for text in names(chosen["damping"])),
        peers=options.peers,
        device=str(check_device(options.device)),
        threads=options.threads,
        rounds=chosen["rounds"],
    )
    ops = list(OPS) if not options.ops or "all" in options.ops else options.ops
    rows = run_bench(list(dict.fromkeys(ops)), config, lambda text: say(f"gpu-rag: {text}"))
    document = {
        "rows": [row.document() for row in rows],
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command_line(options),
        "machine": report.machine(config.device),
        "threads": config.threads,
        "rounds": config.rounds,
    }
    if n_refused := sum(row.note.startswith(REFUSED) for row in rows):
        say(f"gpu-rag: {n_refused} rows were refused: an op failed its check and was not timed")
    header, lines = report.shown(rows)
    return int(n_refused > 0), document, table(lines, header)


def single_thread_by_default() -> None:
    """Set OMP_NUM_THREADS to 1 if nobody chose it and no OpenMP library has read it yet.

    igraph is several times slower with more threads on shared cores, which would flatter every ratio.
    """
    if "OMP_NUM_THREADS" not in os.environ and not any(name in sys.modules for name in OPENMP_USERS):
        os.environ["OMP_NUM_THREADS"] = "1"


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError("cannot read --damping", given=text, expected="such as 0.5,0.85") from error


def command_line(options: argparse.Namespace) -> str:
    """The command that measures the same again, without --json."""
    words = ["gpu-rag", "bench", *options.ops, *(f"--{name}" for name in ("peers", "quick") if getattr(options, name))]
    for name in ("sizes", "batch", "damping", "device", "threads", "rounds"):
        value = getattr(options, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(words)
