"""Damage to columns of tables of an index, for `plant`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Columns = dict[str, list[Any]]
Change = Callable[[Columns], None]


def put(column: str, row: int, value: Any) -> Change:
    """Another value; a function is given the old one."""

    def change(columns: Columns) -> None:
        columns[column][row] = value(columns[column][row]) if callable(value) else value

    return change


def drop(row: int) -> Change:
    def change(columns: Columns) -> None:
        for column in columns.values():
            del column[row]

    return change


def repeat(row: int) -> Change:
    def change(columns: Columns) -> None:
        for values in columns.values():
            values.insert(row, values[row])

    return change


def swap(column: str) -> Change:
    """The first two values of a column in the other order."""

    def change(columns: Columns) -> None:
        columns[column][:2] = columns[column][1::-1]

    return change


def turned(column: str, change: Callable[[Any], Any]) -> Change:
    """The whole column or array changed by a function."""

    def damage(columns: Columns) -> None:
        columns[column] = change(columns[column])

    return damage


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest as one built before it had checksums of its own, so that what a test puts in it counts."""
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return {key: part for key, part in document.items() if key not in ("sha256", "blocks")}
