"""Each method by replay on the sample corpus is what is on record. If meant to change: recordings.py METHOD."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.models.llm import load_llm

sys.path.insert(0, str(Path(__file__).resolve().parent))
from recordings import RECORDINGS, Recording

Rows = dict[str, dict[str, Any]]


def chosen_by_the_model(rows: Rows, part: str) -> list[int]:
    """Of each question how many steps of a part were choices of the model, which read the rest once."""
    counts = [sum(step[0].endswith("/rank") for step in row[part]) for row in rows.values()]
    assert all(counts)
    return counts


def calls(rows: Rows) -> list[int]:
    return [row["tokens"][0] for row in rows.values()]


def walks(found: dict[str, Rows]) -> None:
    chosen = chosen_by_the_model(found["llm"], "walk")
    lengths = [sum(s[1] for s in row["walk"] if s[0] in ("hop_1", "hop_2")) for row in found["llm"].values()]
    assert all(few <= most for few, most in zip(chosen, lengths)) and calls(found["llm"]) == [n + 1 for n in chosen]
    assert calls(found["similarity"]) == [1] * 3
    assert max(len(row["walk"]) for row in found["similarity"].values()) >= 3


def trees(found: dict[str, Rows]) -> None:
    chosen = chosen_by_the_model(found["llm"], "steps")
    assert (
        all(n_calls >= n for n_calls, n in zip(calls(found["llm"]), chosen)) and calls(found["similarity"]) == [1] * 3
    )
    ranked = [[step[0] for step in row["steps"] if step[0].endswith("/rank")] for row in found["llm"].values()]
    assert {verbs[0] for verbs in ranked} == {"enough/rank"}
    assert any(step[0].startswith("expand") and step[2:] for row in found["llm"].values() for step in row["steps"])


def refinement(found: dict[str, Rows]) -> None:
    assert calls(found["llm"]) == [n + 1 for n in chosen_by_the_model(found["llm"], "path")]
    assert calls(found["similarity"]) == [1] * 3 and all(row["nodes"] for row in found["similarity"].values())


def paths(found: dict[str, Rows]) -> None:
    assert all(row["paths"] for row in found["all"].values()) and any(calls(found["documents"]))


def dialogues(found: dict[str, Rows]) -> None:
    for method in ("dual-agent", "higra-agent"):
        for row in found[method].values():
            verbs = [line[0] for line in row["dialogue"]]
            assert verbs[:2] == ["plan/rule", "ask_librarian"] and verbs[-1] in (
                "seeker/answer",
                "seeker/forced_answer",
            )
    assert max(len(row["dialogue"]) for row in found["higra-agent"].values()) >= 4  # a question of several turns
    assert all(row["dialogue"] == [] for row in found["higra-retriever"].values())


def texts(found: dict[str, Rows]) -> None:
    assert len({row["text"] for rows in found.values() for row in rows.values()}) > 3


SAYS_SOMETHING = {
    "sample": texts,
    "hoprag": walks,
    "bubblerag": trees,
    "hybgrag": refinement,
    "hydrarag": paths,
    "higra": dialogues,
}
OTHER: dict[str, tuple[str, dict[str, Any]]] = {  # a run, and what is changed in it: another walk, other trees, paths
    "hoprag": ("llm", {"constants": {"n_options": 3}}),
    "bubblerag": ("llm", {"method": {"bubblerag": {"n_trees": 1, "depth": 1, "alpha": 0.0}}}),
    "hybgrag": ("similarity", {"method": {"hybgrag": {"n_nodes": 2}}}),
    "sample": ("dense", {"reader": {"max_tokens": 7}}),
    "hydrarag": ("all", {"method": {"hydrarag": {"d_max": 2, "w1": 20, "w_max": 1}}}),
}


@pytest.fixture(scope="module", params=RECORDINGS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def index(method: str, tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    return RECORDINGS[method].build(tmp_path_factory.mktemp(method) / "ix")


def replayed(recording: Recording, index: gpu_rag.Index, more: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """What is found, and what is on record, of the questions on record and some more."""
    expected = json.loads(recording.answers.read_text(encoding="utf-8"))
    names = [*next(iter(expected.values())), *more]
    return recording.answered(index, names, load_llm(f"replay:{recording.replies}")), expected


def test_answers_by_replay_are_those_on_record(method: str, index: gpu_rag.Index) -> None:
    found, expected = replayed(RECORDINGS[method], index)
    assert found == expected and set(expected) == set(RECORDINGS[method].runs)
    assert {len(rows) for rows in expected.values()} == {3}
    SAYS_SOMETHING[method](found)


@pytest.mark.parametrize("method", OTHER, indirect=True)
def test_other_parameters_are_not_on_record(method: str, index: gpu_rag.Index) -> None:
    recording, (run, changed) = RECORDINGS[method], OTHER[method]
    other = replace(recording, runs={**recording.runs, run: {**recording.runs[run], **changed}})
    found, expected = replayed(other, index)
    assert found.pop(run) != expected.pop(run) and found == expected


@pytest.mark.parametrize("method", ["higra", "sample"], indirect=True)
def test_a_question_that_is_not_on_record_fails_alone(method: str, index: gpu_rag.Index) -> None:
    found, expected = replayed(RECORDINGS[method], index, ("q30",))
    assert {rows.pop("q30")["status"] for rows in found.values()} == {"failed"}
    assert found == expected
