"""The file types that a library has to parse: which, with what, and whether it is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_rag.errors import MissingBackend

# ending: (kind, the libraries that read it). Of kind K function `read_K` of the file K.py; documents depend on the
# first library.
_HTML = ("html", ("selectolax", "webencodings"))
_READERS = {".pdf": ("pdf", ("pypdf",)), ".html": _HTML, ".htm": _HTML}
PARSED_SUFFIXES = tuple(_READERS)
_INSTALL = "pip install 'gpu-rag[documents]'"


@dataclass(frozen=True)
class Parsed:
    """The contents of one file. title: "" where it has none; pages: see `Document`; problems: one sentence for
    each part of the file that could not be read and is not in `text`."""

    title: str
    text: str
    pages: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()


def kind_of(name: str) -> str:
    """ "pdf", "html", or "" for a name of another type."""
    return _READERS[_suffix(name)][0] if _suffix(name) in _READERS else ""


def require_reader(name: str) -> None:
    """Raises MissingBackend, which names the extra, when a library for this type of file is not installed."""
    kind, libraries = _READERS[_suffix(name)]
    for library in libraries:
        if not _is_installed(library):
            raise MissingBackend(f"reading {kind} files needs the documents extra", given=f"no {library}", do=_INSTALL)


def versions_for(names: Iterable[str]) -> dict[str, str]:
    """{library: its version, or "absent"} for the libraries that files of these names need."""
    needed = {_READERS[_suffix(name)][1][0] for name in names if kind_of(name)}
    return {lib: importlib.metadata.version(lib) if _is_installed(lib) else "absent" for lib in sorted(needed)}


def _suffix(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot >= 0 else ""


def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
