"""Write docs/settings.md from the declarations of the settings: python scripts/make_docs_settings.py"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpu_rag.methods.registry import load_method, method_names
from gpu_rag.settings import Settings
from gpu_rag.settings.check import SECTIONS, Declared, Setting, declared, section_class, type_in_words
from gpu_rag.settings.ranges import in_words

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
KINDS = {"a whole number": "integer", "a number": "number", "true | false": "true, false"}
KINDS["a list, each item text"] = "list of texts"
HEAD = """# Settings

Made from the declarations by `python scripts/make_docs_settings.py`. Strongest first: `--set SECTION.NAME=VALUE`,
options of a command, the profile (`--profile`), what the index has saved of how it was built, the defaults below.
A value outside its range and a name that does not exist are errors.
"""


def settings_page() -> str:
    """The page."""
    classes = {name: load_method(name).Params for name in method_names()}
    methods = {f"method.{name}": params for name, params in classes.items() if issubclass(params, Declared)}
    own = sorted(SECTIONS.keys() - {f.name for f in fields(Settings)})  # in any order of imports
    sections = {name: section_class(name) for name in [*(name for name in SECTIONS if name not in own), *own]}
    return "\n".join([HEAD, *(_section(name, cls) for name, cls in {**sections, **methods}.items())])


def _section(name: str, cls: Any) -> str:
    base = cls.__mro__[1]
    own = (
        dict(declared(cls)) if base is Declared else {k: s for k, s in declared(cls).items() if k not in declared(base)}
    )
    rows = [f"| `{s.name}` | {s.shown or 'empty'} | {_allowed(s)} | {s.help} |" for s in own.values()]
    table = [f"| `[{name}]` | default | values | meaning |", "|---|---|---|---|", *rows] if rows else []
    return "\n\n".join(part for part in (f"## {name}", cls.__doc__, "\n".join(table)) if part) + "\n"


def _allowed(setting: Setting) -> str:
    if isinstance(setting.allowed, tuple):
        return ", ".join(setting.allowed)
    kind = KINDS.get(words := type_in_words(setting.type), words)
    if setting.allowed is None:
        return kind
    between = re.sub("^(.*) <= x <= (.*)$", r"\1 to \2", in_words("x", setting.allowed))  # else >= 1, or 0 <= x < 1
    return f"{kind} {between}"


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
