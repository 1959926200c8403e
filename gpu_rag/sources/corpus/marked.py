"""Tables of Markdown and reStructuredText: each row on its line, every cell behind the name of its column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gpu_rag.sources.columns import with_names

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)", re.DOTALL)
_RULE = re.compile(r" {0,3}(?=.*\|)\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")
_PIPE = re.compile(r"(?<!\\)\|")
_GRID = re.compile(r"\+(?:[-=]+\+)+[ \t]*")
_BORDER = re.compile(r"={2,}(?: +={2,})+[ \t]*")
_MAX_GAPS = 100  # between columns: of more, each line costs their number
_Row = tuple[int, list[str]]  # the number of its first line, and its cells


def with_named_tables(text: str, is_rst: bool, max_chars: int) -> str:
    """`text` whose rows of tables are as of `with_names`; it keeps its number of lines. Tables with which it would have
    more than max_chars characters are left alone."""
    lines = text.split("\n")
    left = max_chars - len(text)
    for first, last, rows, n_heads in _grids(lines) if is_rst else _pipes(lines):
        before = sum(map(len, lines[first:last]))
        named, _ = with_names([cells for _, cells in rows], n_heads, before + max(left, 0))
        written = [""] * (last - first)
        for (number, _), line in zip(rows, named):
            written[number - first] = line
        if n_heads and len(rows) > n_heads:  # the names right above the first row, below their rule
            above = rows[n_heads][0] - first - 1
            written[rows[n_heads - 1][0] - first], written[above] = "", named[n_heads - 1]
        added = sum(map(len, written)) - before
        if added <= left:
            left -= added
            lines[first:last] = written
    return "\n".join(lines)


def fence_after(line: str, fence: str) -> str:
    """The mark of the code fence that is open after a line, "" for none. fence: the one before it, which only a mark
    of its character closes, at least as long and without a word behind it, as in CommonMark."""
    mark = _FENCE.match(line)
    if mark is None or not fence:
        return mark[1] if mark else fence
    return "" if mark[1].startswith(fence) and not mark[2].strip() else fence


def _pipes(lines: Sequence[str]) -> Iterator[tuple[int, int, list[_Row], int]]:
    """(first line, end, rows, number of rows of names) of each Markdown table outside code fences."""
    fence, end = "", 0
    for i, line in enumerate(lines):
        fence = fence_after(line, fence)
        if fence or i <= end or "|" not in lines[i - 1] or not _RULE.fullmatch(line):
            continue
        end = next((n for n in range(i + 1, len(lines)) if "|" not in lines[n]), len(lines))
        yield i - 1, end, [(n, _cells(lines[n])) for n in (i - 1, *range(i + 1, end))], 1


def _cells(line: str) -> list[str]:
    cells = [cell.replace("\\|", "|").strip().replace("\t", " ") for cell in _PIPE.split(line.strip())]
    return cells[not cells[0] : len(cells) - (not cells[-1] and len(cells) > 1)]


def _grids(lines: Sequence[str]) -> Iterator[tuple[int, int, list[_Row], int]]:
    """(first line, end, rows, number of rows of names) of each table of reStructuredText without spanning cells."""
    end = 0
    for i, line in enumerate(lines):
        border = next((border for border in (_GRID, _BORDER) if i >= end and border.fullmatch(line)), None)
        if border is None:
            continue
        end = next((n for n in range(i, len(lines)) if not lines[n].strip()), len(lines))
        rules = [n for n in range(i, end) if border.fullmatch(lines[n])]
        edges = [at for at, char in enumerate(line) if char == "+"] if border is _GRID else []
        gaps = edges or [at for at, char in enumerate(line.rstrip()) if char == " "]
        columns = "|+" if edges else " "
        inner = [own for own in lines[i:end] if not border.fullmatch(own)]
        has_more = bool(edges) and any(own[edges[-1] + 1 :].strip() for own in inner)  # words beside the table
        if len(gaps) > _MAX_GAPS or has_more or any(own[at : at + 1] not in columns for own in inner for at in gaps):
            continue  # a cell over several columns
        spans = list(pairwise(edges)) or [match.span() for match in re.finditer("=+", line)]
        spans = spans if edges else [*spans[:-1], (spans[-1][0], 1 << 20)]  # the last column may be longer
        rows = list[_Row]()
        n_heads = 0
        for above, below in pairwise(rules):
            is_new = True
            for n in range(above + 1, below):
                cells = [lines[n][start + bool(edges) : stop].strip().replace("\t", " ") for start, stop in spans]
                if is_new or (not edges and cells[0]):
                    rows.append((n, cells))
                else:
                    rows[-1] = (rows[-1][0], [" ".join(filter(None, pair)) for pair in zip(rows[-1][1], cells)])
                is_new = False
            is_head = above == rules[0] and (lines[below].startswith("+=") if edges else len(rules) > 2)
            n_heads = len(rows) if is_head else n_heads
        if rows:
            yield i, rules[-1] + 1, rows, n_heads
