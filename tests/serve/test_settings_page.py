"""The settings of the server against their page."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.settings.serve import ServeSettings


def spelled(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "empty" if value == () else f"{value:g}"


def check(page: str) -> None:
    rows = dict(re.findall(r"^\| `serve\.(\w+)` \| (\S+) \|", page, re.MULTILINE))
    assert rows == {field.name: spelled(field.default) for field in dataclasses.fields(ServeSettings)}


def test_every_setting_is_on_the_page_with_its_default():
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    check(page)
    for wrong in (
        page.replace("| `serve.warm` | true", "| `serve.warm` | false"),
        page.replace("`serve.hosts` |", "`x` |"),
    ):
        with pytest.raises(AssertionError):
            check(wrong)
