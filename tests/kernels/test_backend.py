"""Which code runs an op: names, preferences, and the record of what was chosen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gpu_rag_kernels import dispatch
from gpu_rag_kernels.dispatch import chosen, pick_implementation, preferred, preferring, recording

from gpu_rag.errors import MissingBackend, UsageError

CPU = torch.device("cpu")


def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None if name == "numba" else object())


def test_auto_is_the_fastest_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_implementation(CPU) == "numba"
    assert pick_implementation(torch.device("cuda")) == "torch"
    without_numba(monkeypatch)
    assert pick_implementation(CPU) == "torch"


def test_a_name_that_cannot_be_had_is_an_error_and_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no such implementation; given fast; expected numba, torch, auto"):
        pick_implementation(CPU, "fast")
    with pytest.raises(UsageError, match="numba works on the CPU"):
        pick_implementation(torch.device("cuda"), "numba")
    without_numba(monkeypatch)
    with pytest.raises(MissingBackend, match=r"gpu-rag\[cpu\]"):
        pick_implementation(CPU, "numba")


def test_a_preference_stands_in_for_auto_and_for_nothing_else() -> None:
    with preferring({"ops": "torch", "pagerank": "scipy"}):
        assert pick_implementation(CPU) == "torch"
        assert pick_implementation(CPU, "numba") == "numba"
        assert preferred("pagerank", "auto") == "scipy"
        assert preferred("neighbours", "auto") == "auto"
        with preferring({}):
            assert pick_implementation(CPU) == "numba"
        assert pick_implementation(CPU) == "torch"
    assert pick_implementation(CPU) == "numba"


def test_a_preference_ends_with_its_block_when_an_error_leaves_it() -> None:
    with pytest.raises(KeyError), preferring({"ops": "torch"}):
        raise KeyError
    assert pick_implementation(CPU) == "numba"


def test_a_preferred_name_is_checked_like_a_given_one() -> None:
    with preferring({"ops": "numba"}), pytest.raises(UsageError, match="numba works on the CPU"):
        pick_implementation(torch.device("cuda"))


def test_the_record_has_every_choice_of_an_op_once() -> None:
    with recording() as record:
        pick_implementation(CPU, op="reachable")
        pick_implementation(CPU, op="reachable")
        pick_implementation(CPU, "torch", op="reachable")
        pick_implementation(CPU)  # no op of its own
        chosen("nearest", "faiss")
    assert record == {"reachable": {"numba", "torch"}, "nearest": {"faiss"}}
    pick_implementation(CPU, op="later")
    assert "later" not in record


def test_a_failed_choice_is_not_recorded() -> None:
    with recording() as record, pytest.raises(UsageError):
        pick_implementation(torch.device("cuda"), "numba", op="reachable")
    assert record == {}


def test_two_threads_do_not_share_preferences_or_records() -> None:
    def work(name: str) -> tuple[str, dict[str, set[str]]]:
        with preferring({"ops": name}), recording() as record:
            return pick_implementation(CPU, op=name), dict(record)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, ["torch", "numba"]))
    assert found == [("torch", {"torch": {"torch"}}), ("numba", {"numba": {"numba"}})]
