"""The sections of scripts/device_check.py that settle choices, without a device."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_rag_kernels import dispatch

SCRIPTS = Path(__file__).parents[2] / "scripts"
CPU = torch.device("cpu")
INTERPRETED = dispatch.interpreted() and "triton" in dispatch.loop_backends("cpu")
OPS = ("ppr_step", "msbfs_or", "minplus_relax", "ragged_gather_dot_topk", "join_top1")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module


def clock(run: Callable[[], Any]) -> float:
    run()
    return 2.0


@pytest.mark.triton
@pytest.mark.skipif(not INTERPRETED, reason="needs triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("op", OPS)
def test_every_tile_is_right(script: Callable[[str], Any], op: str) -> None:
    tuning, case = script("device_tuning"), script("device_cases").tiny(op, CPU)
    kernels: Any = importlib.import_module(f"gpu_rag_kernels.{dispatch.LOOPS[tuning.MODULES.get(op, op)]}.triton")
    for values in tuning.TILES[op]:
        before = {name: getattr(kernels, name) for name in values}
        with tuning.constants(op, values):
            assert {name: getattr(kernels, name) for name in values} == values
            assert tuning.tried(case, clock) == {"ok": True, "error": pytest.approx(0, abs=1e-2), "ms": 2.0}
        assert {name: getattr(kernels, name) for name in values} == before


def by_reference(case: Any) -> Any:
    return replace(case, run=lambda which: case.run("reference"))


def test_the_fastest_that_is_right_is_named(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """One choice is wrong, one is refused, one is slow."""
    tuning, cases = script("device_tuning"), script("device_cases")
    assert set(tuning.TILES) == set(OPS) <= set(cases.OPS)
    case = by_reference(cases.tiny("msbfs_or", CPU))
    held: dict[str, int] = {}

    def run(which: str) -> Any:
        if held.get("LANES") == 1:
            raise RuntimeError("out of resource: shared memory")
        fresh, seen = case.run(which)
        return (fresh + 1 if held.get("LANES") == 2 else fresh), seen

    class Constants:
        def __init__(self, op: str, values: dict[str, int]):
            held.clear()
            held.update(values)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(tuning, "constants", Constants)
    monkeypatch.setattr(tuning, "TILES", {"msbfs_or": [{}, {"LANES": 1}, {"LANES": 2}, {"LANES": 3}]})
    kept: list[Any] = []
    found = tuning.tiles(
        lambda op: replace(case, run=run), lambda call: 5.0 - held.get("LANES", 0), time.time() + 3600, kept.append
    )
    rows = found["ops"]["msbfs_or"]["tiles"]
    assert [row["ok"] for row in rows] == [True, False, False, True] and "shared memory" in rows[1]["error"]
    assert found["ok"] and found["ops"]["msbfs_or"]["best"] == {"LANES": 3} and len(kept) == 4
    late = tuning.tiles(lambda op: case, clock, time.time() - 1, kept.append)
    assert not late["ok"] and late["ops"]["msbfs_or"] == {"ok": False, "error": "no time left"}


@pytest.mark.parametrize("replays", ["the same", "nothing", "an error"])
def test_what_is_replayed_must_be_what_was_launched(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, replays: str
) -> None:
    tuning = script("device_tuning")
    monkeypatch.setattr(tuning, "SMALL", (100, 240))
    monkeypatch.setattr(tuning, "CALLS", 2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def captured(run: Callable[[], None]) -> Callable[[], None]:
        if replays == "an error":
            raise RuntimeError("operation not permitted when stream is capturing")
        return run if replays == "the same" else lambda: None

    monkeypatch.setattr(tuning, "captured", captured)
    found = tuning.launches(clock, time.time() + 3600, lambda result: None, device="cpu")
    assert found["ok"] == (replays == "the same") and [row["batch"] for row in found["batches"]] == [1, 8, 64]
    if replays == "the same":
        assert all(row["launched"]["ms"] == 2.0 and row["replayed"]["host_ms"] > 0 for row in found["batches"])
    if replays == "an error":
        assert "capturing" in found["batches"][0]["error"]
