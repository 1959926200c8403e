"""HiGraAgent's dialogues by replay on the sample corpus are those on record. If meant to change: record_higra.py."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from gpu_rag.api import Index
from gpu_rag.models.llm import load_llm


@pytest.fixture(scope="module")
def higra_index(higra: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Index:
    found: Index = higra.build(tmp_path_factory.mktemp("golden_higra") / "ix")
    return found


def test_dialogues_by_replay_are_those_on_record(higra: ModuleType, record: ModuleType, higra_index: Index) -> None:
    expected = json.loads(higra.ANSWERS.read_text(encoding="utf-8"))
    names = list(expected["higra-agent"])
    assert len(names) == 3 and set(expected) == set(higra.METHODS)
    replay = load_llm(f"replay:{higra.REPLIES}")
    found = higra.answered(higra_index.engine(record.SETTINGS, llm=replay), names)
    assert found == expected
    for method in ("dual-agent", "higra-agent"):
        for row in found[method].values():
            verbs = [line[0] for line in row["dialogue"]]
            assert verbs[:2] == ["plan/rules", "ask_librarian"] and verbs[-1] in (
                "seeker/answer",
                "seeker/forced_answer",
            )
    assert max(len(row["dialogue"]) for row in found["higra-agent"].values()) >= 4  # a question of several turns
    assert all(row["dialogue"] == [] for row in found["higra-retriever"].values())


def test_what_is_not_on_record_fails_alone(higra: ModuleType, record: ModuleType, higra_index: Index) -> None:
    expected = json.loads(higra.ANSWERS.read_text(encoding="utf-8"))
    names = list(expected["higra-agent"])
    unheard = next(question.id for question in record.questions() if question.id not in names)
    replay = load_llm(f"replay:{higra.REPLIES}")
    for method, rows in higra.answered(higra_index.engine(record.SETTINGS, llm=replay), [*names, unheard]).items():
        assert rows.pop(unheard)["status"] == "failed"
        assert rows == expected[method]
