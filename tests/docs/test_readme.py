"""The figures of README are those of the pages of benchmarks that it names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
Table = dict[tuple[str, str], str]


def tables(text: str) -> list[tuple[str, Table]]:
    """(paragraph before it, {(row, column): cell}) of each table; the first of two columns with one head."""
    found = []
    for before, block in re.findall(r"((?:^[^|\n].*\n)+)\n((?:^\|.*\n)+)", text, re.M):
        head, _, *rows = [[cell.strip(" *") for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        cells: Table = {}
        for row in rows:
            for column, cell in zip(head[1:], row[1:], strict=True):
                cells.setdefault((row[0], column), cell)
        found.append((before, cells))
    return found


def check_tables(readme: str) -> None:
    """Each table stands, whole or in part, in a table of the page that the paragraph before it names."""
    found = tables(readme)
    assert len(found) == readme.count("|---|\n") > 1
    for before, cells in found:
        (page,) = re.findall(r"\((docs/benchmarks/[\w-]+\.md)\)", before)
        pages = [table for _, table in tables((ROOT / page).read_text(encoding="utf-8"))]
        assert any(cells.items() <= table.items() for table in pages), page


def test_tables_are_those_of_their_pages() -> None:
    check_tables(README)


@pytest.mark.parametrize("cell", [".792", "| .772 | 28 |", "| recall@2 |"])
def test_another_figure_is_noticed(cell: str) -> None:
    assert README.count(cell) == 1
    with pytest.raises(AssertionError):
        check_tables(README.replace(cell, cell.replace("2", "3")))
