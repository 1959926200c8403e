"""Tests made of tables: calls that are refused, wrong versions that are caught, versions that pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from gpu_rag.errors import BadInput, UsageError


def refusal(call: Callable[[], object], error: type[Exception] = BadInput) -> str:
    """Message of the call's refusal, "" where it is not refused."""
    try:
        call()
    except error as refused:
        return str(refused)
    return ""


@contextmanager
def slow_checks(*modules: ModuleType) -> Iterator[None]:
    """Inside, these modules have no compiled checks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "compiled_checks", lambda device: None)
        yield


def refusals(
    cases: Sequence[tuple[str, Callable[[], object]]], error: type[Exception] = UsageError
) -> Callable[..., Any]:
    """A test that every call is refused with its words: `test_bad_input_says_what = refusals([(words, call), ...])`."""

    @pytest.mark.parametrize(("match", "call"), cases)
    def refused(match: str, call: Callable[[], object]) -> None:
        with pytest.raises(error, match=match):
            call()

    return refused


def caught(wrong: Any, check: Callable[..., object] | None = None, *given: Any) -> Callable[..., Any]:
    """A test that check(version, *given) fails for every wrong version: `test_checks_catch = caught([...], check)`.
    Where each brings its own, (version, check), there is none for all. wrong: a list, or a dict by what is wrong."""
    names = list(wrong) if isinstance(wrong, dict) else [getattr(one, "__name__", None) for one in wrong]
    cases = list(wrong.values()) if isinstance(wrong, dict) else list(wrong)

    @pytest.mark.parametrize("case", cases, ids=names)
    def caught_by_its_check(case: Any) -> None:
        version, checked = (case, check) if check is not None else case
        with pytest.raises(AssertionError):
            checked(version, *given)

    return caught_by_its_check


def passes(versions: Sequence[Any], checks: Sequence[Callable[[Any], object]]) -> Callable[..., Any]:
    """A test that every version passes every check: the plain one, so that the checks are right, and ours."""

    @pytest.mark.parametrize("check", checks)
    @pytest.mark.parametrize("version", versions)
    def passed(version: Any, check: Callable[[Any], object]) -> None:
        check(version)

    return passed
