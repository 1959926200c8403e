"""docs/methods.md against the program: a section a method, its settings with their defaults, commands that parse."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.methods.registry import load_method, method_names
from gpu_rag.settings.check import Declared

METHODS = method_names()
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def page() -> str:
    return (DOCS / "methods.md").read_text(encoding="utf-8")


def section(page: str, name: str) -> str:
    """The page of a method, or its part of that page or of docs/methods.md."""
    if name in METHODS:
        readme = Path(str(load_method(name).__file__)).parent / "README.md"
        page = readme.read_text(encoding="utf-8") if readme.is_file() else page
        if page.startswith(f"# {name}\n"):
            return page
    (text,) = re.findall(rf"^##+ {re.escape(name)}\n(.*?)(?=^##+ |\Z)", page, re.DOTALL | re.MULTILINE)
    return text


def shown(value: Any) -> str:
    """A default as the tables write it."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def defaults(settings: type) -> dict[str, str]:
    return {field.name: shown(field.default) for field in dataclasses.fields(settings)}


def table(text: str) -> dict[str, str]:
    """{setting: default} of the tables whose rows are | `name` | default | meaning |."""
    return dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+?) \| [^|]+ \|$", text, re.MULTILINE))


def check_table(found: dict[str, str], settings: type) -> None:
    assert found == defaults(settings)


def test_every_method_has_a_section_and_a_link_at_the_top(page):
    top = page.split("\n## ", 1)[0]
    for name in METHODS:
        assert re.search(rf"\[{name}\]\((#{name}|\.\./gpu_rag/methods/\w+/README\.md(#{name})?)\)", top), name
        assert re.search(rf"--(method|for) [\w,-]*\b{name}\b|gpu-rag index corpus.jsonl", section(page, name)), name


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_of_a_method_stands_with_its_default(name, page):
    text, settings = section(page, name), load_method(name).Params
    if issubclass(settings, Declared):  # docs/settings.toml is made of its declarations
        assert f"[`[method.{name}]`](../../../docs/settings.toml)" in text
        assert f"[method.{name}]\n" in (DOCS / "settings.toml").read_text(encoding="utf-8")
        return
    found = table(text)
    for other in re.findall(r"^\| all of `\[method\.([\w-]+)\]` \| the same \|", text, re.MULTILINE):
        found = {**table(section(page, other)), **found}
    check_table(found, settings)
    if not defaults(settings):
        assert "Settings: none" in text
        return
    assert f"| `[method.{name}]` | default | meaning |" in text
    some = next(iter(found))
    for wrong in ({**found, some: "77.5"}, {**found, "imaginary": "1"}, {k: v for k, v in found.items() if k != some}):
        with pytest.raises(AssertionError):
            check_table(wrong, settings)


def test_every_link_of_the_page_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page):
        linked = DOCS / target if target else DOCS / "methods.md"
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {title.lower().replace(" ", "-") for title in titles}, anchor
