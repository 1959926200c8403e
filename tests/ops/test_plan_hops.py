"""Planning HopRAG's edge merging: quadratic in the questions, nothing where only candidates are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_rag.index.work import Sources
from gpu_rag.methods.hoprag import plan as hops
from gpu_rag.methods.hoprag.plan import merging_seconds
from gpu_rag.methods.registry import all_layers
from gpu_rag.models.set import ModelSet
from gpu_rag.plan.index_plan import BuildJob, plan_index
from gpu_rag.settings import make_settings

COUNTS = {"hop_in_questions": 300, "hop_out_questions": 100}


def test_pairs_grow_with_the_square_of_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hops, "_pairs_per_second", lambda dim, threads: 1e6)
    assert merging_seconds(COUNTS, 10.0, 10_000, 384, 1) == 3000 * 1000 / 1e6
    assert merging_seconds(COUNTS, 20.0, 10_000, 384, 1) == 4 * 3000 * 1000 / 1e6
    assert merging_seconds(COUNTS, 40.0, 10_000, 384, 1) == 0.0  # 12,000 in-questions: candidates alone


def test_a_plan_counts_the_pairs_and_settles_who_asks(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hops, "_pairs_per_second", lambda dim, threads: 1.0)
    settings = make_settings({"models": {"embedder": "hash", "llm": "none"}})
    names = ["passages", "extraction", "hop_vertices", "hop_questions", "hop_keywords", "hop_in_vectors"]
    layers = [all_layers()[name] for name in [*names, "hop_out_vectors", "hop_edges"]]
    job = BuildJob(tmp_path / "ix", layers, settings, Sources((tiny_corpus,)), ModelSet(settings.models))
    stage = plan_index(job)["stages"]["hop_edges"]
    assert stage["grows_with"] == "questions squared" and stage["s"] > 100  # at one pair a second
