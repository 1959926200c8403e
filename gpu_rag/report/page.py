"""The parts of a report page: headings, tables, and plots as inline SVG. Every text is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from gpu_rag.errors import StorageError

COLOURS = (
    "#2a6f97", "#c8553d", "#588157", "#7b5ea7", "#b08900", "#4a4e69", "#9c6644", "#00798c", "#d1568a", "#111111",
)  # fmt: skip

_GLYPH = 7.2  # pixels that a character of a plot's 12-pixel text takes at most, on average over a label
_LEFT = 170  # the least space for labels, so that the plots of a page stand in line
_PLOT = 400  # pixels of the axis

_STYLE = """
:root { color-scheme: light dark; --line: #d6d6d6; --soft: #f5f6f7; --text: #1d1f21; --dim: #667; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3d41; --soft: #24262a; --text: #e6e6e6; --dim: #9aa; --page: #17181a; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 0 auto;
  max-width: 64rem; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p.dim, td.dim, figcaption { color: var(--dim); }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; } th { background: var(--soft); font-weight: 600; }
div.wide { overflow-x: auto; } figure { margin: .8rem 0; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; font: 12px system-ui, sans-serif; }
p.verdict { background: var(--soft); border-left: 4px solid #2a6f97; padding: .7rem 1rem; font-size: 1.05rem; }
details { border: 1px solid var(--line); border-radius: 6px; padding: .4rem .8rem; margin: .5rem 0; }
summary { cursor: pointer; } ol { margin: .3rem 0; padding-left: 1.4rem; } .hit { font-weight: 600; }
"""


def text(value: object) -> str:
    """Any value as escaped text."""
    return escape(str(value))


def heading(title: str) -> str:
    """A section's heading."""
    return f"<h2>{text(title)}</h2>"


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph, of a style class if given."""
    return f'<p class="{text(kind)}">{text(words)}</p>' if kind else f"<p>{text(words)}</p>"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; the first column is left-aligned."""
    head = "".join(f"<th>{text(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def intervals(
    caption: str, rows: Sequence[tuple[str, float, float, float]], low: float = 0.0, high: float = 1.0
) -> str:
    """A dot and an interval a row: (label, mean, low, high) on the axis [low, high]; zero is marked when inside."""
    left, step = _space([row[0] for row in rows], _LEFT), 26
    width = left + _PLOT + 70
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return left + _PLOT * (min(max(value, low), high) - low) / span

    parts = [_axis(x, low, high, len(rows) * step + 8)]
    for i, (label, mean, lower, upper) in enumerate(rows):
        y, colour = i * step + 18, COLOURS[i % len(COLOURS)]
        parts.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{text(label)}</text>')
        parts.append(
            f'<line x1="{x(lower):.1f}" x2="{x(upper):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
        )
        parts.append(f'<circle cx="{x(mean):.1f}" cy="{y}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{width - 62}" y="{y + 4}">{mean:+.3f}</text>' if low < 0 else "")
        parts.append(f'<text x="{width - 62}" y="{y + 4}">{mean:.3f}</text>' if low >= 0 else "")
    return figure(caption, width, len(rows) * step + 34, parts)


def _space(words: Sequence[str], least: int) -> int:
    """Pixels that hold the longest of the words, with a gap of 10 on either side; at least `least`."""
    return max(least, round(_GLYPH * max(map(len, words), default=0)) + 20)


def _axis(x: object, low: float, high: float, bottom: int) -> str:
    scale = x if callable(x) else float
    ticks = [low + (high - low) * i / 4 for i in range(5)]
    if low < 0 < high:
        ticks.append(0.0)
    lines = []
    for tick in sorted(set(ticks)):
        place = f"{scale(tick):.1f}"
        lines.append(f'<line x1="{place}" x2="{place}" y1="4" y2="{bottom}" stroke="var(--line)"/>')
        lines.append(f'<text x="{place}" y="{bottom + 16}" text-anchor="middle">{tick:.2f}</text>')
    return "".join(lines)


def stacked_bars(caption: str, rows: Sequence[tuple[str, Mapping[str, float]]], unit: str) -> str:
    """A bar a row, of parts by name: (label, {part: amount}); the legend names the parts.

    An int is a count and is printed whole; a float has two decimals.
    """
    names = list(dict.fromkeys(name for _, parts in rows for name in parts))
    totals = [sum(parts.values()) for _, parts in rows]
    longest = max(totals, default=0.0) or 1.0
    said = [f"{total:,} {unit}" if isinstance(total, int) else f"{total:,.2f} {unit}" for total in totals]
    left, step = _space([label for label, _ in rows], _LEFT), 26
    width = left + _PLOT + _space(said, 70)
    drawn = []
    for i, (label, parts) in enumerate(rows):
        y, start = i * step + 8, float(left)
        drawn.append(f'<text x="{left - 10}" y="{y + 14}" text-anchor="end">{text(label)}</text>')
        for name, amount in parts.items():
            length = _PLOT * amount / longest
            colour = COLOURS[names.index(name) % len(COLOURS)]
            drawn.append(f'<rect x="{start:.1f}" y="{y}" width="{length:.1f}" height="18" fill="{colour}"/>')
            start += length
        drawn.append(f'<text x="{start + 6:.1f}" y="{y + 14}">{text(said[i])}</text>')
    y, start = len(rows) * step + 22, float(left)
    for i, name in enumerate(names if len(names) > 1 else []):
        drawn.append(f'<rect x="{start:.1f}" y="{y - 10}" width="11" height="11" fill="{COLOURS[i % len(COLOURS)]}"/>')
        drawn.append(f'<text x="{start + 16:.1f}" y="{y}">{text(name)}</text>')
        start += 40 + 7.2 * len(name)
    return figure(caption, width, len(rows) * step + 32, drawn)


def figure(caption: str, width: int, height: int, parts: Sequence[str]) -> str:
    """An SVG of drawn parts with a caption."""
    drawing = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{"".join(parts)}</svg>'
    return f"<figure>{drawing}<figcaption>{text(caption)}</figcaption></figure>"


def page(title: str, subtitle: str, sections: Sequence[str]) -> str:
    """The whole document: one file, no script, nothing fetched."""
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head>\n"
        f'<body><h1>{text(title)}</h1><p class="dim">{text(subtitle)}</p>\n{body}\n</body></html>\n'
    )


def write(path: Path, document: str) -> None:
    """Writes a page. Raises StorageError where the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document, encoding="utf-8", errors="replace")
    except OSError as error:
        raise StorageError("the report cannot be written", given=f"{path}: {error.strerror}") from error
