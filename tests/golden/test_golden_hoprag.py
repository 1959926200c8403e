"""HopRAG's walks by replay on the sample corpus are those on record. If meant to change: record_hoprag.py."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from gpu_rag.api import Index
from gpu_rag.models.llm import load_llm


@pytest.fixture(scope="module")
def hop_index(hoprag: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Index:
    found: Index = hoprag.RECORDING.build(tmp_path_factory.mktemp("golden_hoprag") / "ix")
    return found


def test_walks_by_replay_are_those_on_record(hoprag: ModuleType, hop_index: Index) -> None:
    expected = json.loads(hoprag.RECORDING.answers.read_text(encoding="utf-8"))
    names = list(expected["llm"])
    assert len(names) == 3 and set(expected) == set(hoprag.RUNS)
    found = hoprag.RECORDING.answered(hop_index, names, load_llm(f"replay:{hoprag.RECORDING.replies}"))
    assert found == expected
    for row in found["llm"].values():
        choices = [step for step in row["walk"] if step[0].endswith("/rank")]
        lengths = [step[1] for step in row["walk"] if step[0] in ("hop_1", "hop_2")]
        assert 0 < len(choices) <= sum(lengths) and row["tokens"][0] == len(choices) + 1
    assert all(row["tokens"][0] == 1 for row in found["similarity"].values())
    assert max(len(row["walk"]) for row in found["similarity"].values()) >= 3


def test_a_walk_that_takes_other_ways_is_not_on_record(hoprag: ModuleType, hop_index: Index) -> None:
    expected = json.loads(hoprag.RECORDING.answers.read_text(encoding="utf-8"))
    hoprag.RUNS["llm"]["constants"]["n_options"] = 3
    found = hoprag.RECORDING.answered(hop_index, list(expected["llm"]), load_llm(f"replay:{hoprag.RECORDING.replies}"))
    hoprag.RUNS["llm"]["constants"]["n_options"] = 4
    assert found["similarity"] == expected["similarity"] and found["llm"] != expected["llm"]
