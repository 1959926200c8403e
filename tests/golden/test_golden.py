"""Rankings and answers on the sample corpus are those on record. If a change means to alter them: record.py."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import gpu_rag


@pytest.fixture(scope="session")
def found(record: ModuleType, sample_index: gpu_rag.Index, tmp_path_factory: pytest.TempPathFactory) -> Any:
    minilm = record.build(tmp_path_factory.mktemp("golden") / "minilm", record.MINILM)
    return {
        "hash": record.rank(sample_index.engine(record.SETTINGS)),
        "minilm": record.rank(minilm.engine(record.MINILM)),
    }


@pytest.fixture(scope="session")
def recorded(record: ModuleType) -> Any:
    return json.loads(record.RANKINGS.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def expected(recorded: Any) -> Any:
    return recorded["hash"]


@pytest.mark.parametrize("embedder", ["hash", "minilm"])
@pytest.mark.parametrize("method", ["dense", "bm25", "hybrid", "ppr"])
def test_rankings_are_those_on_record(
    record: ModuleType, found: Any, recorded: Any, embedder: str, method: str
) -> None:
    assert len(recorded[embedder][method]) == 30
    assert record.differences(found[embedder], {method: recorded[embedder][method]}) == []


@pytest.mark.parametrize("embedder, unsure, tolerance", [("hash", 0.02, 2e-3), ("minilm", 0.1, 0.1)])
def test_the_record_leaves_little_unsure(recorded: Any, embedder: str, unsure: float, tolerance: float) -> None:
    rows = [row for by_question in recorded[embedder].values() for row in by_question.values()]
    assert sum(len(row["unsure"]) for row in rows) <= unsure * sum(len(row["ids"]) for row in rows)
    assert max(row["tolerance"] for row in rows) < tolerance


def swapped(rows: Any) -> None:
    ids = rows["q07"]["ids"]
    ids[0], ids[1] = ids[1], ids[0]


def last_exchanged(rows: Any) -> None:
    ids = rows["q30"]["ids"]
    ids[-1] = "p_000000000000"


def one_fewer(rows: Any) -> None:
    rows["q11"]["ids"].pop()
    rows["q11"]["scores"].pop()


def scores_shifted(rows: Any) -> None:
    rows["q02"]["scores"][4] -= 5e-3


def question_exchanged(rows: Any) -> None:
    rows["q04"] = rows["q05"]


@pytest.mark.parametrize("method", ["dense", "bm25", "hybrid", "ppr"])
@pytest.mark.parametrize("damage", [swapped, last_exchanged, one_fewer, scores_shifted, question_exchanged])
def test_other_rankings_are_told_apart(
    record: ModuleType, expected: Any, method: str, damage: Callable[[Any], None]
) -> None:
    rows = {method: expected[method]}
    other = copy.deepcopy(rows)
    assert record.differences(other, rows) == []
    damage(other[method])
    assert record.differences(other, rows)
