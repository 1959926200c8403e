"""The readable result: a table in the terminal, and a Markdown page that describes the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gpu_rag.bench.case import Row

LIBRARIES = (
    "torch", "numpy", "scipy", "numba", "igraph", "networkx", "scikit-learn", "faiss-cpu", "faiss-gpu",
    "torch-geometric",
)  # fmt: skip

COLUMNS = {  # title -> field of a row
    "op": "op", "graph": "graph", "n": "n", "m": "m", "damping": "damping", "hops": "hops", "B": "B", "ms": "ms",
    "ms a question": "ms", "CPU ms a question": "cpu_ms", "asked": "asked", "peer": "peer",
    "peer ms a question": "peer_ms", "ratio": "ratio", "CPU ratio": "cpu_ratio", "sampled": "sampled",
    "L1 error": "l1_error", "peer's L1 error": "peer_l1_error", "% of copy bandwidth": "pct_of_copy_bandwidth",
    "note": "note",
}  # fmt: skip
HEADER = tuple(COLUMNS)
SHORT = ("damping", "l1_error", "peer_l1_error")

READING = """\
Medians of interleaved rounds: in every round each batch size, each peer and a plain memory copy take their turn, on
other questions than in the round before: one call that is not timed, then timed ones of as many questions, the same
ones for all. `asked` is the number of questions that ours was timed on in a round, 16 or more unless they take over two
seconds; `sampled` is that of the peer, whose time is scaled from it. Compare figures of one table, and ratios rather
than times: the machine may be shared. `ratio` is the peer's time over ours for the same number of questions; `CPU
ratio` is that of processor time, which waiting for a busy machine does not change. Graphs and questions were converted
to each peer's form before the clock started. Every op was checked in this run before it was timed. `% of copy
bandwidth` is the bytes that a call must move, each once a pass, over its time, in percent of what the copy reached."""


def machine(device: str) -> dict[str, Any]:
    """The machine of a run: processor, cores, GPU, memory, versions."""
    gpu = torch.cuda.get_device_name(torch.device(device)) if device != "cpu" else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "gpu": gpu,
        "python": platform.python_version(),
        "libraries": {name: dist.version for name in LIBRARIES for dist in importlib.metadata.distributions(name=name)},
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    match = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def cells(row: Row) -> list[str]:
    """The cells of a row in the order of HEADER; an unmeasured value is empty."""
    texts = []
    for title, field in COLUMNS.items():
        value = getattr(row, field)
        if value is not None and title.endswith("a question"):
            value /= row.B
        texts.append(f"{value:.2g}" if field in SHORT and value is not None else _shown(value))
    return texts


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return str(value)


def shown(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of rows, without columns that are empty in every row."""
    lines = [cells(row) for row in rows]
    kept = [i for i in range(len(HEADER)) if any(line[i] for line in lines)]
    return [HEADER[i] for i in kept], [[line[i] for i in kept] for line in lines]


def markdown(rows: Sequence[Row], document: dict[str, Any]) -> str:
    """The Markdown page: date, machine, command, and a table of all rows."""
    machine = document["machine"]
    libraries = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    gpu = f"; {machine['gpu']}" if machine["gpu"] else ""
    omp = machine["OMP_NUM_THREADS"]
    settings = f"{document['threads']} thread(s), {document['rounds']} rounds"
    lines = [
        f"# Benchmark: {', '.join(dict.fromkeys(row.op for row in rows))}",
        "",
        f"- date: {document['date']}",
        f"- machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB memory{gpu}",
        f"- software: Python {machine['python']}, {libraries}",
        f"- command: `{'' if omp is None else f'OMP_NUM_THREADS={omp} '}{document['command']}`",
        f"- {settings}; copy bandwidth {_range([row.copy_gb_s for row in rows])} GB/s",
        "",
        READING,
        "",
        *_grid(*shown(rows)),
    ]
    return "\n".join(lines) + "\n"


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.1f} to {max(known):.1f}" if known else "not measured:"


def _grid(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table with numbers aligned right."""
    ruler = ["---" if title in ("op", "graph", "peer", "note") else "---:" for title in header]
    escaped = ([text.replace("|", "\\|") for text in line] for line in (header, ruler, *lines))
    return [f"| {' | '.join(line)} |" for line in escaped]
