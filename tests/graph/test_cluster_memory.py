"""Memory of radius clustering, measured in a process of its own: a tile and a few numbers a row, never all pairs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_clusters.py"
ROWS = 12_000  # all pairs: 288 MB in bf16, which is far above the bound
RUN = """
import runpy, sys
from gpu_rag.graph import cluster
{}
sys.argv = sys.argv[1:]
runpy.run_path({!r}, run_name="__main__")
"""
pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to measure memory"),
    pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba"),
]


def measured(*options: object, change: str = "pass") -> dict[str, Any]:
    code = RUN.format(change, str(SCRIPT))
    arguments = [sys.executable, "-c", code, str(SCRIPT), "--rows", str(ROWS), *map(str, options)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_memory_is_within_its_bound() -> None:
    found = measured("--dims", 64, "--min-samples", 4, "--dtype", "f16")
    assert found["wrong_of_sample"] == 0 and found["clusters"] == ROWS // 4
    assert found["beside_gb"] <= found["bound_gb"] <= 0.1 < 2 * ROWS**2 / 1e9


def test_the_measurement_sees_all_pairs() -> None:
    found = measured("--dims", 16, change="cluster.TILE = cluster.CACHED_TILE = 1 << 20")
    assert found["beside_gb"] > 2 * ROWS**2 / 1e9 * 0.9 > found["bound_gb"]


def test_the_bound_of_a_million_rows() -> None:
    from gpu_rag.graph.cluster import cluster_bytes

    for itemsize in (2, 4):  # of the vectors, f16 and f32
        assert cluster_bytes(10**6, 384) + itemsize * 384 * 10**6 < 4e9
