"""Columns of a table that hold the id, the title and the text of a document: named by the user, or guessed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat, starmap
from math import inf
from typing import Any

from gpu_rag.errors import UsageError

ROLES = ("id", "title", "text")
_NAME_CHARS, _MAX_NUMBERS, MAX_HEAD = 200, 32, 60
NUMBER = re.compile(r"[-+.,\d]*%?")
_FIGURE = re.compile(r"\d")
Columns = Sequence[Sequence[str]]  # pairs of a role and a column


def columns_of(text: str) -> tuple[tuple[str, str], ...]:
    """(role, column) pairs of "title=name,text=description"; () for "". Raises UsageError."""
    pairs = [tuple(part.strip() for part in item.partition("=")[::2]) for item in text.split(",")] if text else []
    roles = [role for role, _ in pairs]
    if not all(column for _, column in pairs) or not set(roles) <= set(ROLES) or len(set(roles)) < len(roles):
        expected = f"ROLE=COLUMN,..., each role once: {', '.join(ROLES)}"
        raise UsageError("the columns of tables cannot be read", given=text, expected=expected)
    return tuple((role, column) for role, column in pairs)


def applicable(columns: Columns, names: Collection[str]) -> Columns:
    """The columns, if a table with these names has the one named as text, or any if none is named so; else ()."""
    needed = [column for role, column in columns if role == "text"] or [column for _, column in columns]
    return columns if any(column in names for column in needed) else ()


def renamed(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Row whose named columns are its id, title and text; numbers there become texts. Columns that it lacks, and those
    not `applicable`, change nothing."""
    roles = {column: role for role, column in applicable(columns, row) if column in row}
    given = {name: value for name, value in row.items() if name not in roles and name not in roles.values()}
    for column, role in roles.items():
        value = row[column]
        given[role] = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    return given


def is_composable(names: Sequence[str]) -> bool:
    """Whether rows with these columns, none of them `text`, become documents: not a list, and no questions."""
    return len(names) > 1 and "text" not in names and "question" not in names


def title_column(names: Sequence[str]) -> str:
    """The column that titles the rows of such a table: title, or name, or the first that is no id."""
    others = [name for name in names if name.lower() not in ("id", "_id")] or list(names)
    return next((name for wanted in ("title", "name") for name in others if name.lower() == wanted), others[0])


def row_title(column: str, cell: str, id: str = "") -> str:
    """Title of a row by its cell in the column that titles it. An empty cell or a number, which alone says nothing,
    gives way to the id of the row; if that is a number too, it comes behind the name of the column."""
    if not NUMBER.fullmatch(cell):
        return cell
    return id if not NUMBER.fullmatch(id) else f"{column} {cell}" if cell else ""


def with_names(rows: Sequence[Sequence[str]], n_heads: int, room: float) -> tuple[list[str], float]:
    """Lines of a table with tabs between cells, each behind the name of its column: "Year: 1902".

    Names are the last of the first n_heads rows; without these the first row of several cells, if it has three or more,
    all different words, above a column of figures; a word that begins with a letter may have a figure ("Q1") above
    numbers alone. Rows of one cell are left alone. All rows are left alone if names would add more than `room`
    characters. Returns the lines, and the room that they leave."""
    start, names = n_heads, [*rows[n_heads - 1]] if n_heads else []
    if not n_heads:
        first = next((i for i, row in enumerate(rows) if sum(map(bool, row)) > 1), 0)
        start, names = first + 1, [*rows[first]] if rows and _are_names(rows[first], rows[first + 1 :]) else []
    if sum(map(bool, names)) < 2 or max(map(len, names)) > MAX_HEAD:
        names = []
    plain = ["\t".join(row).rstrip() for row in rows]
    named = [
        "\t".join(f"{name}: {cell}" if name and cell else cell for name, cell in zip(chain(names, repeat("")), row))
        if sum(map(bool, row)) > 1
        else line
        for row, line in zip(rows[start:], plain[start:])
    ]
    lines = [*plain[:start], *(line.rstrip() for line in named)]
    left = room - sum(map(len, lines)) + sum(map(len, plain))
    return (lines, left) if left >= 0 else (plain, room)


def _are_names(row: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    with_figure = [bool(_FIGURE.search(name)) for name in row]
    are_names = all(name[:1].isalpha() for name in compress(row, with_figure))  # "Q1", not "10 km"
    if len(row) < 3 or not all(row) or len(set(row)) < len(row) or not are_names:
        return False
    n_figures = [0.0] * len(row)  # by column; -inf after a cell without a figure
    for cells in below:
        for i, cell in enumerate(cells[: len(row)]):
            if cell:
                n_figures[i] += 1 if (NUMBER.fullmatch if with_figure[i] else _FIGURE.search)(cell) else -inf
    return max(n_figures) > 1 and all(n > 0 for n in compress(n_figures, with_figure))


def composed(cells: Iterable[tuple[str, Any]], max_chars: float = inf) -> str:
    """Text of a row without a text: a line "column: value" for each (column, value), also of objects within it.

    Left out: nulls, and lists of more than 32 numbers alone, which are vectors. Names, which inner values and rows
    repeat, are cut at 200 characters. A text of more than max_chars, which will be a reject, ends soon after them."""
    lines, size = list[str](), -1
    for name, value in chain.from_iterable(starmap(_plain_cells, cells)):
        lines.append(f"{name[:_NAME_CHARS]}: {' '.join(str(value).split())}")
        size += len(lines[-1]) + 1
        if size > max_chars:
            break
    return "\n".join(lines)


def _plain_cells(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _plain_cells(f"{name[: _NAME_CHARS // 2]} {inner}", part)
    elif isinstance(value, list) and any(isinstance(part, list | dict) for part in value):
        for part in value:
            yield from _plain_cells(name, part)
    elif isinstance(value, list):
        if len(value) <= _MAX_NUMBERS or not all(isinstance(part, int | float | None) for part in value):
            yield from _plain_cells(name, ", ".join(str(part) for part in value if part is not None))
    elif value not in (None, ""):
        yield name, value
