"""Every method, and every fault by both drivers, where 30 % of the connections fail: every row is written, those of
healthy requests as on a calm day."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_rag import Index
from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.models.misbehave import Manners, MisbehavingServer
from gpu_rag.types import Answer

_SPEC = importlib.util.spec_from_file_location("misbehaving", Path(__file__).parent / "test_misbehaving_server.py")
assert _SPEC is not None and _SPEC.loader is not None
shared = importlib.util.module_from_spec(_SPEC)
sys.modules["misbehaving"] = shared
_SPEC.loader.exec_module(shared)
sound, READS, QUESTIONS, timeless = shared.sound, shared.READS, shared.QUESTIONS, shared.timeless

PASSING = ("reset", "500", "429", "half_closed")  # another try gets a reply
FAULTS, DRIVERS = (*PASSING, "dripping"), ("rounds", "streaming")
STORMS = [(method, DRIVERS[i % 2], FAULTS[i % 5]) for i, method in enumerate(READS)]
assert len({storm[1:] for storm in STORMS}) == 10, "each fault by both drivers"


def answers(index: Path, method: str, driver: str, **manners: Any) -> tuple[list[Answer], MisbehavingServer]:
    server = MisbehavingServer(Manners(seed=11, **manners))
    llm = HttpLLM(server.url, capable=True, backoff_s=0.01, retries=6, timeout_s=2.0)
    settings = {"models": {"embedder": "hash", "device": "cpu"}, "runtime": {"driver": driver}}
    try:
        return list(Index.open(index).answer(QUESTIONS, method=method, settings=settings, llm=llm)), server
    finally:
        llm.close()
        server.close()


@pytest.fixture(scope="module")
def calm(sound: Path) -> Iterator[dict[str, list[Any]]]:
    yield {method: [timeless(a) for a in answers(sound, method, "rounds", share=0.0)[0]] for method in READS}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "driver", "fault"), STORMS)
def test_a_storm(sound: Path, calm: dict[str, list[Any]], method: str, driver: str, fault: str) -> None:
    found, server = answers(sound, method, driver, share=0.3, faults=(fault,))
    assert len(found) == len(QUESTIONS) and server.done[""]
    if fault in PASSING:
        assert [timeless(answer) for answer in found] == calm[method]
        return
    for answer, expected in zip(found, calm[method]):
        if answer.status == "failed":
            assert answer.error is not None and answer.error["type"] == "RequestFailed", answer.error
            assert "no answer in time (2 s)" in answer.error["message"]
        else:
            assert timeless(answer) == expected


def test_a_storm_of_each_kind(sound: Path) -> None:
    """The slice of every run: all faults together, by a method of few requests."""
    for driver in ("rounds", "streaming"):
        expected = [timeless(answer) for answer in answers(sound, "bubblerag", driver, share=0.0)[0]]
        found, server = answers(sound, "bubblerag", driver, share=0.4, faults=PASSING)
        assert [timeless(answer) for answer in found] == expected and sum(server.done.values()) > server.done[""]
