"""Fixtures for tests of stages: a bench for one stage, an index with hops, planted damage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stage_bench import bench, benches, plant  # noqa: F401

from gpu_rag.index.build import BuildReport, build_index
from gpu_rag.index.work import Sources
from gpu_rag.methods.registry import all_stages
from gpu_rag.models.llm.interface import LLM
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import make_settings


@pytest.fixture(scope="session")
def build_hops() -> Callable[..., BuildReport]:
    """build(corpus, out, llm=None, index={...}, **hops): an index with the hop graph and all that it needs."""

    def build(corpus: Path, out: Path, *, llm: LLM | None = None, index: Any = (), **hops: Any) -> BuildReport:
        models = {"embedder": "hash", "llm": "smollm2" if llm else "none", "max_batch": 1}
        settings = make_settings({"models": models, "index": dict(index), "hops": hops})
        wanted, stack = set(), ["hop_words", "hop_vertex_vectors"]
        while stack:
            wanted.add(name := stack.pop())
            stack.extend(all_stages()[name].needs)
        layers = [layer for name, layer in all_stages().items() if name in wanted]
        model_set = ModelSet(settings.models, out / "replies.sqlite", llm=llm)
        try:
            return build_index(out, layers, settings, Sources((corpus,)), model_set)
        finally:
            model_set.close()

    return build
