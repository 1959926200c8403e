"""The check that tests of hostile input use: it lets pass what is linear, and nothing that grows as a square."""

import pytest


def found_from_every_tenth_place(n: int) -> None:
    text = "x" * n
    assert not any("xy" in text[start:] for start in range(0, n, 10))


def found_in_every_tenth_part(n: int) -> None:
    text = "x" * n
    assert not any("xy" in text[start : start + 200] for start in range(0, n, 10))


def test_only_linear_time_passes(takes_linear_time):
    takes_linear_time(found_in_every_tenth_part, 400_000)
    with pytest.raises(AssertionError, match="s for 40000"):
        takes_linear_time(found_from_every_tenth_place, 40_000)
