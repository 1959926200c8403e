"""BubbleRAG by replay on the sample corpus is what is on record. If meant to change: record_bubblerag.py."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from gpu_rag.api import Index
from gpu_rag.models.llm import load_llm


@pytest.fixture(scope="module")
def bubble_index(bubblerag: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Index:
    found: Index = bubblerag.RECORDING.build(tmp_path_factory.mktemp("golden_bubblerag") / "ix")
    return found


def test_answers_by_replay_are_those_on_record(bubblerag: ModuleType, bubble_index: Index) -> None:
    expected = json.loads(bubblerag.RECORDING.answers.read_text(encoding="utf-8"))
    names = list(expected["llm"])
    assert len(names) == 3 and set(expected) == set(bubblerag.RUNS)
    found = bubblerag.RECORDING.answered(bubble_index, names, load_llm(f"replay:{bubblerag.RECORDING.replies}"))
    assert found == expected
    for row in found["llm"].values():
        ranked = [step for step in row["steps"] if step[0].endswith("/rank")]
        assert ranked[0][0] == "enough/rank" and row["tokens"][0] >= len(ranked)
    assert all(row["tokens"][0] == 1 for row in found["similarity"].values())
    assert any(step[0].startswith("expand") and step[2:] for row in found["llm"].values() for step in row["steps"])


def test_other_trees_are_not_on_record(bubblerag: ModuleType, bubble_index: Index) -> None:
    expected = json.loads(bubblerag.RECORDING.answers.read_text(encoding="utf-8"))
    kept = bubblerag.RUNS["llm"]["method"]["bubblerag"]
    bubblerag.RUNS["llm"]["method"]["bubblerag"] = {**kept, "alpha": 0.0, "depth": 1}
    found = bubblerag.RECORDING.answered(
        bubble_index, list(expected["llm"]), load_llm(f"replay:{bubblerag.RECORDING.replies}")
    )
    bubblerag.RUNS["llm"]["method"]["bubblerag"] = kept
    assert found["similarity"] == expected["similarity"] and found["llm"] != expected["llm"]
