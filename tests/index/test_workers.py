"""Rules in several processes: the rows of one process, in order, and errors that say what happened."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from gpu_rag.errors import GpuRagError
from gpu_rag.index import workers
from gpu_rag.index.stages.passages import read_texts
from gpu_rag.index.work import StageReport
from gpu_rag.index.workers import Shared, n_workers, usable_cores
from gpu_rag.methods.hoprag.stages.vertices import keywords_batch
from gpu_rag.settings import Settings, make_settings

CUT = {"chunk_words": 8, "overlap_words": 2}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "START_S", 0.0)


def settings(n: int) -> Settings:
    return make_settings({"index": {"workers": n}})


def texts(n: int, first: int = 0) -> pa.RecordBatch:
    lines = [f"Ada Lovelace {k} wrote to Halden Bridge. " * (k % 7) for k in range(first, first + n)]
    return pa.record_batch([lines], pa.schema([("text", pa.string())]))


def test_processes_give_the_rows_of_one(at_once: None) -> None:
    with Shared(read_texts, settings(3), **CUT) as shared:
        for n in (0, 1, 5, 400, 0, 3):
            assert shared(texts(n)).equals(read_texts(texts(n), **CUT))
        assert len(shared._processes) == 3
        pids = [process._process.pid for process in shared._processes]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "they end with the block"


def test_rules_of_methods_are_found(at_once: None) -> None:
    with Shared(keywords_batch, settings(2)) as shared:
        made = shared(texts(100))["keywords"].to_pylist()
    assert [sorted(row) for row in made] == [sorted(row) for row in keywords_batch(texts(100))["keywords"].to_pylist()]


def test_little_work_starts_no_process_and_is_measured() -> None:
    report = StageReport()
    with Shared(read_texts, settings(4), report, **CUT) as shared:
        shared(texts(500))
        assert not shared._processes
    assert 0 < report.shared_s < workers.START_S


def test_one_worker_is_this_process(at_once: None) -> None:
    with Shared(read_texts, settings(1), **CUT) as shared:
        assert shared(texts(100)).equals(read_texts(texts(100), **CUT)) and not shared._processes


def test_an_error_of_the_rule_is_told(at_once: None) -> None:
    shared = Shared(read_texts, settings(2), chunk_words=4, overlap_words=9)
    with pytest.raises(GpuRagError, match="overlap_words=9"), shared:
        shared(texts(100))


def test_a_killed_process_ends_the_build(at_once: None) -> None:
    with Shared(read_texts, settings(2), **CUT) as shared:
        shared(texts(100))
        for process in shared._processes:
            os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises(GpuRagError, match="status -9") as caught:
            shared(texts(100))
    assert "index.workers=1" in str(caught.value.do)


def test_a_slow_part_does_not_change_the_order(at_once: None) -> None:
    started = time.perf_counter()
    lines = ["Long ago. " * 20_000, *("Short." for _ in range(200))]
    batch = pa.record_batch([lines], pa.schema([("text", pa.string())]))
    with Shared(read_texts, settings(2), **CUT) as shared:
        assert shared(batch).equals(read_texts(batch, **CUT))
    assert time.perf_counter() - started < 60


def test_the_number_of_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    for quota, cores in (("max 100000", 64), ("250000 100000", 2), ("10000 100000", 1), ("", 64)):
        (tmp_path / "cpu.max").write_text(quota)
        monkeypatch.setattr(workers, "_QUOTA", tmp_path / "cpu.max")
        assert usable_cores() == cores
    assert n_workers(settings(7)) == 7
    chosen = settings(0)
    assert n_workers(replace(chosen, index=replace(chosen.index, workers=0))) == 64
