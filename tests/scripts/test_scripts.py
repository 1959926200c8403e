"""The project's scripts: curves as pictures, installation."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from project_scripts import script

from gpu_rag.errors import BadInput

HEIGHT, WIDTH, curves_svg = (getattr(script("curves"), name) for name in ("HEIGHT", "WIDTH", "curves_svg"))
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


def test_a_peer_is_dashed_in_the_colour_of_its_op() -> None:
    svg = curves_svg("t", "x", "y", {**SERIES, "ours too": [(1.0, 3.0)]}, like={"peer <b>": "ours"})
    drawn = re.findall(r"<polyline [^>]*>", svg)
    colours = [re.search(r'stroke="(#\w+)"', line)[1] for line in drawn]  # type: ignore[index]
    assert colours[0] == colours[1] != colours[2]
    assert ["dasharray" in line for line in drawn] == [False, True, False]


def test_ten_ops_have_ten_colours() -> None:
    svg = curves_svg("t", "x", "y", {f"op {i}": [(1.0, 1.0 + i)] for i in range(10)})
    assert len(set(re.findall(r'<polyline [^>]*stroke="(#\w+)"', svg))) == 10


# --- scripts/plot_bench.py -------------------------------------------------------------------------


def bench_row(
    op: str, m: int, batch: int, ms: float, peer: str | None, peer_ms: float | None, **more: Any
) -> dict[str, Any]:
    known = {"op": op, "n": m // 10, "m": m, "B": batch, "hops": None, "damping": None, "ms": 9 * ms, "cpu_ms": ms}
    return {**known, "peer": peer, "peer_ms": peer_ms, "peer_cpu_ms": peer_ms, **more}


ROWS = [
    bench_row("ego", 1000, 64, 64.0, "slow", 640.0),
    bench_row("ego", 1000, 64, 64.0, "fast", 320.0),
    bench_row("ego", 10_000, 64, 128.0, "slow", 6400.0),
    bench_row("ego", 10_000, 64, 128.0, "fast", 384.0),
    bench_row("ego", 10_000, 1, 4.0, "fast", 6.0),
    bench_row("whole", 1000, 1, 5.0, None, None),
    bench_row("ranks", 1000, 64, 192.0, None, None, damping=0.5),
    {**bench_row("ego", 10**6, 64, 1.0, None, None), "ms": None},
]


def drawn(by: str, at: int = 64, size: int | None = None, all_peers: bool = False, damping: float = 0.85) -> Any:
    plot_bench = script("plot_bench")
    return plot_bench.lines_of(plot_bench.chosen(ROWS, by, [], at, size, damping), by, all_peers)


def test_time_against_edges_takes_one_batch_and_the_fastest_peer() -> None:
    series, like = drawn("edges")
    assert series == {
        "ego": [(1000, 1.0), (10_000, 2.0)], "ego: fast": [(1000, 5.0), (10_000, 6.0)], "whole": [(1000, 5.0)],
    }  # fmt: skip
    assert like == {"ego: fast": "ego"}
    assert set(drawn("edges", all_peers=True)[1]) == {"ego: slow", "ego: fast"}
    assert drawn("edges", damping=0.5)[0]["ranks"] == [(1000, 3.0)]


def test_time_against_batch_takes_one_size_and_no_op_without_questions() -> None:
    assert drawn("batch", size=1000)[0] == {"ego": [(1, 4.0), (64, 2.0)], "ego: fast": [(1, 6.0), (64, 6.0)]}


def test_rows_without_hops_have_no_place_on_that_axis() -> None:
    assert drawn("hops")[0] == {}


SCRIPTS = Path(__file__).parents[2] / "scripts"


# --- scripts/install.sh ----------------------------------------------------------------------------

PRETEND = """#!/bin/bash
# a Python that installs nothing and writes down what it is asked for
case "$*" in
*--dry-run*) exit 0 ;; # a wheel of torch is at hand: on this machine, the one for a CPU
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
--version) echo Python 3.12 ;;
*" install "*) echo "$*" >>"$ASKED" ;;
esac
"""


@pytest.mark.parametrize(("extras", "cuda"), [("gpu", True), ("documents,gpu,serve", True), ("cpu,serve", False)])
def test_vllm_never_gets_the_torch_of_a_cpu(tmp_path: Path, extras: str, cuda: bool) -> None:
    """On a machine without nvidia-smi, as where an image is built."""
    pretend, asked = tmp_path / "python", tmp_path / "asked"
    pretend.write_text(PRETEND)
    pretend.chmod(0o755)
    install = SCRIPTS / "install.sh"
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(pretend), "ASKED": str(asked)}
    subprocess.run(["bash", str(install), str(tmp_path / "venv"), extras], check=True, env=environment)
    torch_line, rest, _ = asked.read_text().splitlines()
    assert torch_line.endswith("install --quiet torch==2.13.0") == cuda
    assert ("--no-index" in torch_line) == (not cuda) and f".[{extras}]" in rest
