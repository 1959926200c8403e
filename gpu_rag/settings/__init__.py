"""Every setting, declared once. Precedence, strongest first: --set, flags, profile, saved settings of the index,
defaults.

A profile is a TOML file with the sections below; `[method.NAME]` sections hold a method's own parameters. An unknown
name is an error that lists the known ones, never dropped.

A section, and a method's `Params`, is a frozen dataclass over `check.Declared` with one annotation for each setting:

    @dataclass(frozen=True)
    class GraphSettings(Declared):
        budget: Annotated[float, NATURAL, "number of edges kept, as a multiple of n log2 n for n vertices"] = 1.0
        vertices: Annotated[Literal["passage", "sentence"], "unit of text that a vertex stands for"] = "passage"
        tokens: ClassVar[int] = 256  # fixed: an error tells anyone who sets it this value

Type, range (`ranges.py`), help and default are written nowhere else: checks, messages and docs/settings.toml are made
from them. A check over several settings goes into `__post_init__`, after `super().__post_init__()`. A method names the
sections of its index stages, which read them as `settings.section(CLASS)`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.settings.check import SECTIONS, Declared, checked, fixed, is_section, section_class, unknown_name
from gpu_rag.settings.ranges import shortened
from gpu_rag.settings.sections import (
    EvalSettings,
    GraphSettings,
    IndexSettings,
    ModelSettings,
    ReaderSettings,
    RuntimeSettings,
    ServeSettings,
    VllmSettings,
)

S = TypeVar("S", bound=Declared)


@dataclass(frozen=True)
class Settings:
    """All sections. own: sections of methods that are not the defaults, by name. method: maps a method's name to its
    own parameters. kept: saved sections of methods that are not installed, unchanged."""

    models: ModelSettings = field(default_factory=ModelSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    reader: ReaderSettings = field(default_factory=ReaderSettings)
    vllm: VllmSettings = field(default_factory=VllmSettings)
    graph: GraphSettings = field(default_factory=GraphSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    own: Mapping[str, Declared] = field(default_factory=dict)
    method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kept: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def section(self, cls: type[S]) -> S:
        """Section of a method that this class declares."""
        return next((own for own in self.own.values() if isinstance(own, cls)), None) or cls()

    def changed(self, section: str, **values: Any) -> Settings:
        """A copy of these settings with other `values` in one section."""
        if section in CORE:
            return dataclasses.replace(self, **{section: dataclasses.replace(getattr(self, section), **values)})
        old = self.own.get(section) or section_class(section)()
        return dataclasses.replace(self, own={**self.own, section: dataclasses.replace(old, **values)})


CORE = tuple(f.name for f in dataclasses.fields(Settings) if f.name not in ("own", "method", "kept"))
SECTIONS.update({name: partial(type, getattr(Settings(), name)) for name in CORE})


def parse_assignment(text: str) -> tuple[str, Any]:
    """Key and value of one `--set key=value`. The value is read as TOML, or as a plain string if it is no TOML value.
    Raises UsageError."""
    key, sign, raw = text.partition("=")
    if not sign or "." not in key:
        raise UsageError("cannot read --set", given=text, expected="section.name=value, such as index.chunk_words=200")
    try:
        table = tomllib.loads(f"v = {raw}")
    except tomllib.TOMLDecodeError:
        table = {}
    return key.strip(), table["v"] if len(table) == 1 else raw


def read_profile(path: Path) -> dict[str, Any]:
    """Sections of a TOML profile. Raises BadInput."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInput("no such profile", given=path, expected="the name of a profile, or a .toml file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput("the profile is not TOML", given=f"{path}: {error}") from error


def merge(*sections: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings section by section; later ones win."""
    out: dict[str, Any] = {}
    for mapping in sections:
        for key, value in mapping.items():
            old = out.get(key)
            out[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def nested(assignments: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Nest assignments: [("a.b", 1)] -> {"a": {"b": 1}}. If a key is given twice, the later value counts."""
    values = {key for key, value in assignments if not isinstance(value, Mapping)}
    out: dict[str, Any] = {}
    for key, value in assignments:
        path = key.split(".")
        for name in (".".join(path[:i]) for i in range(1, len(path))):
            if name in values:
                raise UsageError("a setting is both a value and a section", given=f"{name} and {key}")
        for part in reversed(path):
            value = {part: value}
        out = merge(out, value)
    return out


def make_settings(values: Mapping[str, Any], saved: Mapping[str, Any] | None = None) -> Settings:
    """Settings from nested sections. saved: weaker ones from an index; settings that are fixed now are removed from
    them, and sections without an installed method are kept unchanged.

    Raises UsageError naming an unknown section or setting.
    """
    known = {name: section for name, section in (saved or {}).items() if is_section(name)}
    kept = {name: _checked_section(name, section) for name, section in (saved or {}).items() if name not in known}
    built: dict[str, Any] = {"own": {}, "kept": kept}
    for name, section in merge(_without_fixed(known), values).items():
        if name != "method" and not is_section(name):
            raise unknown_name("section", name, [*SECTIONS, "method"])
        given = _checked_section(name, section)
        if name == "method":
            built[name] = {inner: _checked_section(f"method.{inner}", params) for inner, params in given.items()}
        elif name in CORE:
            built[name] = checked(section_class(name), given, name)
        elif (made := checked(section_class(name), given, name)) != section_class(name)():
            built["own"][name] = made
    return Settings(**built)


def _without_fixed(saved: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(saved)
    for name in saved:
        gone = fixed(section_class(name))
        out[name] = {key: value for key, value in _checked_section(name, saved[name]).items() if key not in gone}
    return out


def _checked_section(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"[{name}] is a section", given=shortened(given), expected="name = value lines")
    return given


def changed_settings(settings: Settings) -> dict[str, Any]:
    """The settings that differ from the defaults, for `make_settings`."""
    sections = {**{name: getattr(settings, name) for name in CORE}, **settings.own}
    changed = {name: differences(section) for name, section in sections.items()}
    return {**{name: values for name, values in changed.items() if values}, "method": settings.method}


def differences(section: Declared) -> dict[str, Any]:
    """Settings of a section that differ from the defaults."""
    defaults = dataclasses.asdict(type(section)())
    return {name: value for name, value in dataclasses.asdict(section).items() if value != defaults[name]}
