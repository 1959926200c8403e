"""Open requests over time: against a plain list of intervals, and what idle time is put down to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.runtime.occupancy import Occupancy

DOINGS = ("programs", "graph", "embedding", "waiting")
INTERVALS = st.lists(
    st.tuples(st.floats(0.0001, 3.0), st.sampled_from([0, 0, 1, 5, 40]), st.sampled_from(DOINGS)), max_size=40
)


def told(intervals, start=100.0):
    """An Occupancy that was told of (seconds, open requests, what the driver did)."""
    occupancy, now = Occupancy(), start
    occupancy.begin(now)
    for seconds, level, doing in intervals:
        occupancy.mark(now, level, doing)
        now += seconds
    occupancy.end(now)
    return occupancy


def reasons(intervals):
    """{cause: idle seconds} by the rules of the docstring, one interval after the other."""
    asked = [i for i, (_, level, _) in enumerate(intervals) if level]
    found = {}
    for i, (seconds, level, doing) in enumerate(intervals):
        if not level:
            before, after = not asked or i < asked[0], bool(asked) and i > asked[-1]
            cause = "ramp-up" if before else "nothing left to ask" if after else doing
            found[cause] = found.get(cause, 0.0) + seconds
    return found


@settings(max_examples=150, deadline=None, derandomize=True)
@given(INTERVALS)
def test_totals_and_causes_are_those_of_the_intervals(intervals):
    occupancy = told(intervals)
    assert occupancy.busy_s == pytest.approx(sum(s for s, level, _ in intervals if level), abs=1e-6)
    assert {k: v for k, v in occupancy.idle_s.items() if v > 1e-9} == pytest.approx(reasons(intervals), abs=1e-6)
    assert sum(occupancy.doing_s.values()) == pytest.approx(sum(s for s, _, _ in intervals), abs=1e-6)
    open_s = sum(seconds * level for seconds, level, _ in intervals)
    length = sum(seconds for seconds, _, _ in intervals)
    assert occupancy.open_s == pytest.approx(open_s, abs=1e-6)
    assert occupancy.mean_open == pytest.approx(open_s / length if open_s else 0.0, abs=1e-6)


def test_replies_within_a_batch_lower_the_level():
    occupancy = Occupancy()
    occupancy.begin(0.0)
    occupancy.mark(0.0, 2, "waiting")
    occupancy.answered(1.0)
    occupancy.answered(3.0)
    occupancy.answered(3.5)  # one too many is no negative queue
    occupancy.end(4.0)
    assert (occupancy.busy_s, occupancy.idle_s) == (3.0, {"nothing left to ask": 1.0})
    assert (occupancy.open_s, occupancy.mean_open) == (2 * 1 + 1 * 2, 1.0)


def test_two_runs_do_not_count_the_time_between_them():
    occupancy = Occupancy()
    for start in (0.0, 50.0):
        occupancy.begin(start)
        occupancy.mark(start + 1.0, 1, "waiting")
        occupancy.mark(start + 2.0, 0, "graph")
        occupancy.end(start + 2.5)
    assert occupancy.busy_s == 2.0 and occupancy.idle_s == {"ramp-up": 2.0, "nothing left to ask": 1.0}
    assert occupancy.share == pytest.approx(0.6)


def test_nothing_asked_is_no_share():
    occupancy = told([(1.0, 0, "graph")])
    assert occupancy.share is None and occupancy.idle_s == {"ramp-up": 1.0}
    assert Occupancy().share is None and Occupancy().mean_open == 0
