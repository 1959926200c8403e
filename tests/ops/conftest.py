"""Fixtures for tests of stages and of drivers: a bench for one stage, an index with hops, a clock, planted damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from stage_bench import bench, benches  # noqa: F401

from gpu_rag.index import tables
from gpu_rag.index.build import BuildReport, build_index
from gpu_rag.index.folder import checksums
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.work import Sources
from gpu_rag.methods.registry import all_layers
from gpu_rag.models.llm.interface import LLM
from gpu_rag.models.set import ModelSet
from gpu_rag.runtime import batches, core, rounds, service, streaming
from gpu_rag.settings import make_settings


@pytest.fixture(scope="session")
def build_hops() -> Callable[..., BuildReport]:
    """build(corpus, out, llm=None, index={...}, **hops): an index with the hop graph and all that it needs."""

    def build(corpus: Path, out: Path, *, llm: LLM | None = None, index: Any = (), **hops: Any) -> BuildReport:
        models = {"embedder": "hash", "llm": "smollm2" if llm else "none", "max_batch": 1}
        settings = make_settings({"models": models, "index": dict(index), "hops": hops})
        wanted, stack = set(), ["hop_edges", "hop_vertex_vectors"]
        while stack:
            wanted.add(name := stack.pop())
            stack.extend(all_layers()[name].needs)
        layers = [layer for name, layer in all_layers().items() if name in wanted]
        model_set = ModelSet(settings.models, out / "replies.sqlite", llm=llm)
        try:
            return build_index(out, layers, settings, Sources((corpus,)), model_set)
        finally:
            model_set.close()

    return build


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        """Let seconds pass."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the drivers, in place of that of a machine which may be busy."""
    made = Clock()
    for module in (batches, core, rounds, service, streaming):
        monkeypatch.setattr(module, "perf_counter", lambda: made.now)
    return made


Plant = Callable[[Path, str, str, Callable[[Any], None]], None]


@pytest.fixture
def plant() -> Plant:
    """plant(index, stage, file, change): damage under redone checksums, as a bug in a layer would have left it.

    change: alters the columns of a table (lists by name), or the arrays of a file, in place.
    """

    def damage(folder: Path, stage: str, file: str, change: Callable[[Any], None]) -> None:
        manifest = Manifest.read(folder)
        path = folder / manifest.stages[stage].folder / file
        before = checksums(path.parent)
        if path.suffix == ".parquet":
            schema = pq.read_schema(path)
            columns = tables.read_table(path, schema).to_pydict()
            change(columns)
            tables.write_table(path, schema, columns)
        else:
            arrays = {name: array.copy() for name, array in tables.read_arrays(path).items()}
            change(arrays)
            tables.write_arrays(path, arrays)
        assert checksums(path.parent) != before, "the damage changed nothing"
        manifest = manifest.with_stage(replace(manifest.stages[stage], files=checksums(path.parent)))
        for other in manifest.stages.values():
            inputs = {need: manifest.stages[need].output_hash for need in other.inputs}
            manifest = manifest.with_stage(replace(other, inputs=inputs))
        manifest.write(folder)

    return damage
