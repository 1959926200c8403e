"""Output to a user equals the record. If a part is meant to change: record_frozen.py PART, and say why."""

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import record_frozen as record

HASHES_OF_INDEXES = re.compile(r"\b([0-9a-f]{64}|[0-9a-f]{16}|[0-9a-f]{10} files [0-9a-f]{10})\b")


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> record.Work:
    return record.Work(tmp_path_factory.mktemp("frozen"))


def check(found: Any, expected: Any, part: str) -> None:
    """Fails with what differs, by name; without hashes of indexes where another pyarrow wrote these."""
    if record.frozen("versions") != record.VERSIONS:
        found, expected = (json.loads(HASHES_OF_INDEXES.sub("", json.dumps(value))) for value in (found, expected))
    lines = record.differences(json.loads(json.dumps(found)), expected, part)
    if lines:
        pytest.fail("\n".join([f"{len(lines)} differences (found, not recorded):", *lines[:20]]), pytrace=False)


@pytest.mark.parametrize("part", [part for part in record.PARTS if part != "versions"])
def test_what_is_on_record(work: record.Work, part: str) -> None:
    with contextlib.chdir(work.folder):
        check(record.PARTS[part](work), record.frozen(part), part)


PAIRS = [("capable", "rounds"), ("capable", "streaming"), ("small", "rounds"), ("small_ranks", "streaming")]


@pytest.mark.parametrize(("model", "driver"), [*PAIRS, ("capable_other", "streaming")])
def test_questions_that_run_together_get_what_each_gets_alone(work: record.Work, model: str, driver: str) -> None:
    alone = record.frozen(f"scripted_{model}")
    for name, methods in record.METHODS_OF.items():
        for method in methods:
            recorded = {q: dict(row) for q, row in alone[name][method].items()}
            asked = {q: row.pop("requests") for q, row in recorded.items()}
            with contextlib.chdir(work.folder):
                answers, requests = work.answer(name, method, model, work.questions[name], driver)
            failed = [q for q, row in recorded.items() if row["status"] == "failed"]
            spared = [line for q in failed for line in asked[q] if line not in requests]
            for q in failed if spared else ():  # requests of a failed question that were not sent yet are never sent
                recorded[q]["usage"] = answers[q]["usage"]
            sent = sorted(line for lines in asked.values() for line in lines if line not in spared)
            found, expected = {**answers, "requests": sorted(requests)}, {**recorded, "requests": sent}
            check(found, expected, f"{model} > {name} > {method}")


@pytest.mark.parametrize("part", record.PARTS)
def test_a_difference_is_found(part: str) -> None:
    recorded, other = record.frozen(part), record.frozen(part)
    inner = other
    while isinstance(value := next(iter(inner.values())), dict) and value:
        inner = value
    inner["renamed"] = inner.pop(name := next(iter(inner)))
    assert record.differences(recorded, recorded) == []
    gone, new = record.differences(other, recorded, part)
    assert gone.startswith(part) and gone.endswith(f"{name}: is gone") and new.endswith("renamed: is new")
    pairs: Any = [(1.0, 1.001), (True, 1), (["a"], ["a", "b"]), (["a", "b"], ["b", "a"]), ("", None)]
    assert all(record.differences(*pair) for pair in pairs) and not record.differences(1.0, 1.0 + 1e-8)
