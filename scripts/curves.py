"""Curves on two logarithmic axes, as one SVG: how a cost grows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape as text

from gpu_rag.errors import BadInput
from gpu_rag.report.page import COLOURS

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 740, 380, 70, 50, 40, 280


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside a range, and 2 and 5 times them where there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**d for d in decades]
    fine = [m * t for t in tens for m in (1, 2, 5)]
    inside = [t for t in tens if low <= t <= high]
    return inside if len(inside) >= 3 else [t for t in fine if low * 0.999 <= t <= high * 1.001]


def _short(value: float) -> str:
    """1200000 -> 1.2M: ticks must not touch."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.10g}{letter}"
    return f"{value:.10g}"


def curves_svg(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    like: Mapping[str, str] | None = None,
) -> str:
    """A standalone SVG document: a line a series of (x, y) points, both above 0. Raises BadInput without points.

    like: series that are drawn dashed, each in the colour of another series.
    """
    like = like or {}
    points = [point for line in series.values() for point in line]
    if not points or min(min(x, y) for x, y in points) <= 0:
        raise BadInput("curves need points above 0", given=f"{len(points)} points")
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low_x, high_x, low_y, high_y = min(xs), max(xs) * 1.0001, min(ys) / 1.3, max(ys) * 1.3

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low_x) / math.log(high_x / low_x)
        up = math.log(y / low_y) / math.log(high_y / low_y)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)

    parts = [f'<text x="{LEFT}" y="22" font-weight="bold">{text(title)}</text>']
    for tick in _ticks(low_x, high_x):
        x, _ = place(tick, low_y)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_short(tick)}</text>')
    for tick in _ticks(low_y, high_y):
        _, y = place(low_x, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{text(x_label)}</text>'
    )
    parts.append(f'<text x="14" y="{TOP - 6}">{text(y_label)}</text>')
    solid = [name for name in series if name not in like]
    step = min(22.0, (HEIGHT - TOP) / len(series))
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[solid.index(like.get(name, name)) % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if name in like else ""
        places = [place(x, y) for x, y in sorted(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places)
        x, y = WIDTH - RIGHT + 14, TOP + 6 + step * i
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="3"{dash}/>'
        )
        parts.append(f'<text x="{x + 28}" y="{y + 4:.1f}">{text(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#222"'
    return f'{head} {style}><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{"".join(parts)}</svg>\n'
