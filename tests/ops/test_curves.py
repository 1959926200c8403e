"""Curves: every point is drawn, in order, inside the picture; bad points are refused."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from gpu_rag.errors import BadInput
from gpu_rag.report.curves import HEIGHT, WIDTH, curves_svg

SERIES = {"ours": [(64.0, 2.0), (1.0, 40.0), (1000.0, 2.5)], "peer <b>": [(1.0, 60.0), (1000.0, 60.0)]}


def places(svg: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<polyline points="([^"]+)"', svg)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in lines]


def test_points_grow_to_the_right_and_upward_on_logarithmic_axes() -> None:
    svg = curves_svg("title", "B", "ms", SERIES)
    ElementTree.fromstring(svg)  # well-formed, with the hostile name escaped
    ours, peer = places(svg)
    assert [len(ours), len(peer)] == [3, 2]
    assert ours[0][0] < ours[1][0] < ours[2][0] and ours[0][1] < ours[2][1] < ours[1][1]  # y runs downward
    assert peer[0][1] == peer[1][1] < ours[0][1]
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for line in (ours, peer) for x, y in line)
    middle = (ours[1][0] - ours[0][0]) / (ours[2][0] - ours[0][0])
    assert abs(middle - 0.602) < 0.002  # log 64 / log 1000


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(0.0, 1.0)]}, {"a": [(1.0, -2.0)]}])
def test_points_that_no_logarithm_has_are_refused(series: dict) -> None:
    with pytest.raises(BadInput, match="above 0"):
        curves_svg("t", "x", "y", series)
