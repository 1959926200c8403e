"""Write docs/settings.toml from the declarations of the settings: python scripts/make_docs_settings.py"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from textwrap import fill
from typing import Any

from gpu_rag.methods.registry import load_method, method_names
from gpu_rag.settings import Settings
from gpu_rag.settings.check import SECTIONS, Declared, Setting, declared, section_class, type_in_words
from gpu_rag.settings.ranges import in_words

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.toml"
KINDS = {"a whole number": "integer", "a number": "number", "true | false": "true, false"}
KINDS["a list, each item text"] = "list of texts"
HEAD = """# Every setting with its default and the values that it takes.
#
# Copy the lines that you change, without "#", into a file of your own: gpu-rag COMMAND ... --profile FILE.toml
# Or change one: --set SECTION.NAME=VALUE. Strongest first: --set, options of a command, the profile, what the index
# has saved of how it was built, the defaults. A value outside its range and a name that does not exist are errors.
# This file is made from the declarations by: python scripts/make_docs_settings.py
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
    settings = [f"{_comment(s.help)}\n#{s.name} ={_value(s.default)}  # {_allowed(s)}" for s in own.values()]
    return "\n".join([_comment(" ".join((cls.__doc__ or "").split())), f"[{name}]", *settings]) + "\n"


def _comment(text: str) -> str:
    return fill(text, 118, initial_indent="# ", subsequent_indent="#   ")


def _value(default: Any) -> str:
    """A default in TOML after a blank; nothing for None."""
    return "" if default is None else f" {json.dumps(default, ensure_ascii=False)}"


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
