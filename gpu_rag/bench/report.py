"""The readable result, a table in the terminal, and the machine of a run."""

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
