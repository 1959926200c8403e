"""HybGRAG's refinement paths by replay are those on record. If meant to change: record_hybgrag.py."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from gpu_rag.api import Index
from gpu_rag.models.llm import load_llm


@pytest.fixture(scope="module")
def kb_index(hybgrag: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Index:
    found: Index = hybgrag.RECORDING.build(tmp_path_factory.mktemp("golden_hybgrag") / "ix")
    return found


def test_refinement_paths_by_replay_are_those_on_record(hybgrag: ModuleType, kb_index: Index) -> None:
    expected = json.loads(hybgrag.RECORDING.answers.read_text(encoding="utf-8"))
    names = list(expected["llm"])
    assert len(names) == 3 and set(expected) == set(hybgrag.RUNS)
    found = hybgrag.RECORDING.answered(kb_index, names, load_llm(f"replay:{hybgrag.RECORDING.replies}"))
    assert found == expected
    for row in found["llm"].values():
        judged = [step for step in row["path"] if step[0].endswith("/rank")]
        assert judged and row["tokens"][0] == len(judged) + 1
    assert all(row["tokens"][0] == 1 and row["nodes"] for row in found["similarity"].values())


def test_a_run_with_other_parameters_is_not_on_record(hybgrag: ModuleType, kb_index: Index) -> None:
    expected = json.loads(hybgrag.RECORDING.answers.read_text(encoding="utf-8"))
    hybgrag.RUNS["similarity"]["method"] = {"hybgrag": {"radius": 1}}
    found = hybgrag.RECORDING.answered(kb_index, list(expected["llm"]), load_llm(f"replay:{hybgrag.RECORDING.replies}"))
    del hybgrag.RUNS["similarity"]["method"]
    assert found["llm"] == expected["llm"] and found["similarity"] != expected["similarity"]
