"""Rules in several processes: the rows of one process, in order, and errors that say what happened."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from gpu_rag.errors import GpuRagError
from gpu_rag.index import workers
from gpu_rag.index.stages import passages
from gpu_rag.index.stages.passages import read_texts
from gpu_rag.index.work import Work
from gpu_rag.index.workers import TEXTS, Shared, embedding_workers, n_workers
from gpu_rag.methods.hoprag.stages.vertices import keywords_batch
from gpu_rag.settings import Settings, make_settings
from gpu_rag.types import Document, Reject

CUT = {"chunk_words": 8, "overlap_words": 2}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "START_S", 0.0)


def settings(n: int) -> Settings:
    return make_settings({"index": {"workers": n}})


def texts(n: int, first: int = 0) -> pa.RecordBatch:
    lines = [f"Ada Lovelace {k} wrote to Halden Bridge. " * (k % 7) for k in range(first, first + n)]
    return pa.record_batch([lines], TEXTS)


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


def test_little_work_starts_no_process_and_is_counted() -> None:
    work = SimpleNamespace(shared_s=0.0)
    with Shared(read_texts, settings(4), cast(Work, work), **CUT) as shared:
        shared(texts(500))
        assert not shared._processes
    assert 0 < work.shared_s < workers.START_S


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
        with pytest.raises(GpuRagError, match="signal 9") as caught:
            shared(texts(100))
    assert "index.workers=1" in str(caught.value.do)


def test_a_process_that_cannot_start_is_told(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(workers.subprocess, "Popen", refuse)
    with pytest.raises(GpuRagError, match="Too many open files"), Shared(read_texts, settings(2), **CUT) as shared:
        shared(texts(100))


def test_long_texts_are_spread_and_stay_in_order(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[int]()
    monkeypatch.setattr(workers, "PART_BYTES", 1 << 16)
    plain = workers._Process.result
    monkeypatch.setattr(workers._Process, "result", lambda one, part: sent.append(len(part)) or plain(one, part))
    batch = pa.record_batch([["Long ago. " * 50_000, *["Short."] * 9, "Then. " * 90_000, "End."]], TEXTS)
    with Shared(read_texts, settings(2), **CUT) as shared:
        assert shared(batch).equals(read_texts(batch, **CUT))
    assert max(sent) < len(batch)


def test_blocks_of_documents() -> None:
    def document(k: int, n_chars: int = 1) -> Document:
        return Document(str(k), "", "x" * n_chars, "f.jsonl", k)

    def sizes(rows: Iterable[Document | Reject], strict: bool = False) -> list[int]:
        return [len(block) for block in passages._blocks(rows, strict)]

    reject = Reject("f.jsonl", 7, "no JSON")
    assert sizes([]) == [0] and sizes(map(document, range(1025))) == [1024, 1]
    assert sizes([document(0, passages._PYTHON_CHARS), document(1), document(2)]) == [2, 1]
    assert sizes([document(0), reject, document(1)]) == [3] and sizes([document(0), reject, document(1)], True) == [
        2,
        1,
    ]


def test_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 64)
    assert n_workers(settings(70)) == embedding_workers(settings(70)) == 70 and n_workers(settings(0)) == 16
    assert embedding_workers(make_settings({"index": {"workers": 16}, "models": {"threads": 5}})) == 3
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)
    assert n_workers(settings(0)) == 3
