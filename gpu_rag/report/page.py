"""The parts of a report page: headings, tables, and plots as inline SVG, from the templates in parts.html.

The templates escape every text. A part is a string of HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gpu_rag.errors import StorageError

COLOURS = (
    "#2a6f97", "#c8553d", "#588157", "#7b5ea7", "#b08900", "#4a4e69", "#9c6644", "#00798c", "#d1568a", "#111111",
)  # fmt: skip

_GLYPH = 7.2  # average pixels per character of a plot's 12-pixel text, at most
_LEFT = 170  # minimum space for labels, so that the plots of a page are aligned
_PLOT = 400  # pixels of the axis


@cache
def _parts() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("gpu_rag", "report"), autoescape=True, undefined=StrictUndefined)
    environment.globals["COLOURS"] = COLOURS
    return environment.get_template("parts.html").module


def heading(title: str) -> str:
    """The heading of a section."""
    return str(_parts().heading(title))


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph, with a style class if given."""
    return str(_parts().paragraph(words, kind))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; the first column is left-aligned."""
    return str(_parts().table(header, rows))


def intervals(
    caption: str, rows: Sequence[tuple[str, float, float, float]], low: float = 0.0, high: float = 1.0
) -> str:
    """A plot with a dot and an interval per row (label, mean, low, high) on the axis [low, high]; zero is marked."""
    left = _space([row[0] for row in rows], _LEFT)

    def x(value: float) -> float:
        return left + _PLOT * (min(max(value, low), high) - low) / ((high - low) or 1.0)

    ticks = {low + (high - low) * i / 4 for i in range(5)} | ({0.0} if low < 0 < high else set())
    return str(_parts().intervals(caption, rows, sorted(ticks), x, left, left + _PLOT + 70))


def stacked_bars(caption: str, rows: Sequence[tuple[str, Mapping[str, float]]], unit: str) -> str:
    """A stacked bar per row: (label, {part: amount}). The legend names the parts.

    An int is a count and is printed as a whole number; a float has two decimals.
    """
    names = list(dict.fromkeys(name for _, parts in rows for name in parts))
    totals = [sum(parts.values()) for _, parts in rows]
    amounts = [f"{total:,} {unit}" if isinstance(total, int) else f"{total:,.2f} {unit}" for total in totals]
    left, scale = _space([label for label, _ in rows], _LEFT), _PLOT / (max(totals, default=0.0) or 1.0)
    bars = [(*row, words) for row, words in zip(rows, amounts)]
    return str(_parts().stacked_bars(caption, bars, names, scale, left, left + _PLOT + _space(amounts, 70)))


def _space(words: Sequence[str], minimum: int) -> int:
    """Pixels for the longest of the words, with a gap of 10 on both sides; at least `minimum`."""
    return max(minimum, round(_GLYPH * max(map(len, words), default=0)) + 20)


def example(question: str, gold: str, measure: str, methods: Sequence[tuple[Any, ...]]) -> str:
    """A question with its evidence: (method, score, answer, [(title, text, whether it is gold)]) of each method."""
    return str(_parts().example(question, gold, measure, methods))


def page(title: str, subtitle: str, sections: Sequence[str]) -> str:
    """The whole document: one self-contained file without scripts. sections: parts."""
    return str(_parts().page(title, subtitle, sections))


def write(path: Path, document: str) -> None:
    """Write a page. Raises StorageError if the disk cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document, encoding="utf-8", errors="replace")
    except OSError as error:
        raise StorageError("the report cannot be written", given=f"{path}: {error.strerror}") from error
