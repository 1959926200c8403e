"""The table engine: bytes depend on neither memory nor threads, the limit is kept, and nothing is left behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpu_rag.errors import GpuRagError
from gpu_rag.index import database as database_module
from gpu_rag.index import tables
from gpu_rag.index.database import database, memory_limit
from gpu_rag.index.folder import checksums
from gpu_rag.index.stages import graph
from gpu_rag.index.stages.entities import entities_stage, runs_of
from gpu_rag.index.stages.graph import graph_stage, relation_graph_stage
from gpu_rag.index.work import Work
from gpu_rag.settings import make_settings

PASSAGES = 20_000
LAYERS = (entities_stage, graph_stage, relation_graph_stage)


def put_many(bench: Any) -> None:
    """Extractions of many passages: hubs in all of them, names of a few, spellings that differ in case."""
    rng = np.random.default_rng(0)
    names = [f"{'Name' if n % 3 else 'NAME'} of {n} and its long further words" for n in range(4 * PASSAGES)]
    drawn = (len(names) * rng.random((PASSAGES, 6)) ** 2).astype(int)
    facts = [[[names[a], "is near", names[b]], [names[b], "is near", names[c]]] for a, b, c, *_ in drawn.tolist()]
    entities = [[names[n] if n % 2 else names[n].lower() for n in row[2:]] for row in drawn.tolist()]
    columns = {"passage": range(PASSAGES), "entities": entities, "triples": facts, "status": ["ok"] * PASSAGES}
    tables.write_table(bench.folder("extraction") / "extractions.parquet", tables.EXTRACTIONS, columns)
    bench.put_passages(["text"] * PASSAGES)


@pytest.mark.slow
def test_neither_memory_nor_threads_show(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put_many(bench)
    bench.put("synonyms", [{"left": a, "right": a + 1, "score": 0.9} for a in range(50)])
    mentions = [{"entity": i, "passage": i % 10, "start": 0, "end": 1, "origin": "search"} for i in range(5000)]
    bench.put("mentions", mentions)
    found = []
    for gib, threads, least in ((4.0, 1, 256), (0.5, 2, 256), (0.5, 1, 256), (0.03, 2, 32)):
        monkeypatch.setattr(database_module, "LEAST", least << 20)
        monkeypatch.setattr(graph, "_SORTED", 1 << 14)  # so entries of a graph are sorted in several parts
        settings = {"index": {"memory": gib}, "models": {"threads": threads}}
        counts = [bench.run(layer, settings) for layer in LAYERS]
        found.append((counts, *(checksums(bench.folder(layer.name)) for layer in LAYERS)))
        assert not list((bench.root / "work").rglob("spill"))
    assert found[0][0][0]["entities"] > 30_000
    assert all(other == found[0] for other in found[1:])


def work_of(tmp_path: Path) -> Work:
    nothing: Any = None
    settings = make_settings({"index": {"memory": 0.001}})
    return Work(tmp_path, tmp_path / "work", {}, settings, nothing, nothing, nothing, nothing)


def test_a_limit_that_is_too_low_is_said_and_the_work_space_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "LEAST", 1 << 20)
    with pytest.raises(GpuRagError, match=r"index\.memory"), database(work_of(tmp_path)) as db:
        db.run("CREATE TABLE numbers AS SELECT range AS n, repeat('x', 100) AS text FROM range(1000000)")
        list(db.batches("SELECT text, count(*), list(n) FROM numbers GROUP BY text || n::VARCHAR, text ORDER BY 2, 1"))
    assert not list(tmp_path.rglob("spill"))


def test_the_limit_is_a_share_of_what_is_free_and_never_below_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "free_host_bytes", lambda: 8 << 30)
    assert memory_limit(0) == 2 << 30 and memory_limit(1.5) == 3 << 29
    assert memory_limit(0.001) == database_module.LEAST


@pytest.mark.parametrize("sizes", [[7], [1] * 7, [3, 0, 4], [2, 2, 3], []])
def test_runs_are_whole_wherever_batches_are_cut(sizes: list[int]) -> None:
    rows = pa.record_batch({"key": ["a", "a", "a", "b", "c", "c", "d"], "other": [1, 1, 2, 2, 2, 2, 2]})

    def batches() -> Iterator[pa.RecordBatch]:
        start = 0
        for size in sizes:
            yield rows.slice(start, size)
            start += size

    for key in (("key",), ("key", "other")):
        found = [
            tuple(run.rows.slice(a, b - a)["key"].to_pylist())
            for run in runs_of(batches(), key)
            for a, b in zip(run.starts[:-1].tolist(), run.starts[1:].tolist())
        ]
        by_key = [("a",) * 3, ("b",), ("c",) * 2, ("d",)]
        by_both = [("a",) * 2, ("a",), *by_key[1:]]
        assert found == ((by_key if key == ("key",) else by_both) if sizes else [])
