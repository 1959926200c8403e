"""HydraRAG by replay on the sample corpus is what is on record. If meant to change: record_hydrarag.py."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from gpu_rag.api import Index
from gpu_rag.models.llm import load_llm


@pytest.fixture(scope="module")
def hydra_index(hydrarag: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Index:
    found: Index = hydrarag.RECORDING.build(tmp_path_factory.mktemp("golden_hydrarag") / "ix")
    return found


def test_answers_by_replay_are_those_on_record(hydrarag: ModuleType, hydra_index: Index) -> None:
    expected = json.loads(hydrarag.RECORDING.answers.read_text(encoding="utf-8"))
    replay = load_llm(f"replay:{hydrarag.RECORDING.replies}")
    assert set(expected) == set(hydrarag.RUNS) and all(len(rows) >= 2 for rows in expected.values())
    assert all(row["paths"] for row in expected["all"].values())
    assert any(row["tokens"][0] for row in expected["documents"].values())
    assert hydrarag.RECORDING.answered(hydra_index, list(expected["all"]), replay) == expected


def test_another_choice_of_paths_is_not_on_record(
    hydrarag: ModuleType, hydra_index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads(hydrarag.RECORDING.answers.read_text(encoding="utf-8"))
    monkeypatch.setitem(hydrarag.RUNS["all"]["method"]["hydrarag"], "w_max", 1)
    replay = load_llm(f"replay:{hydrarag.RECORDING.replies}")
    found = hydrarag.RECORDING.answered(hydra_index, list(expected["all"]), replay)
    assert found["documents"] == expected["documents"] and found["all"] != expected["all"]
