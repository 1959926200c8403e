"""A folder of .txt and .md files: one document a file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from gpu_rag.sources.lines import read_whole
from gpu_rag.sources.rows import Limits, RowError, document_text, id_text, shown
from gpu_rag.types import Document, Reject

TEXT_SUFFIXES = (".txt", ".md")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def list_files(folder: Path) -> list[bytes]:
    """The paths of all files below `folder`, relative, "/" between parts, sorted as bytes; names that begin with "."
    are left out, and links to folders are listed as if they were files.

    Bytes, because a name read through the locale would be another name on another machine.
    """
    root = os.fsencode(folder)
    found: list[bytes] = []
    for base, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        folders[:] = [name for name in folders if not name.startswith(b".") and name not in links]
        names = (name for name in files + links if not name.startswith(b"."))
        found.extend(os.path.relpath(os.path.join(base, name), root) for name in names)
    return sorted(found)


def is_text_name(name: bytes) -> bool:
    """Whether a file of this name is read as a document."""
    return name.lower().endswith(tuple(suffix.encode() for suffix in TEXT_SUFFIXES))


def read_folder(folder: Path, names: list[bytes], limits: Limits) -> Iterator[Document | Reject]:
    """One document or Reject for each of `names` (from `list_files`), in their order. The id is the relative path."""
    for name in names:
        path = Path(os.fsdecode(os.path.join(os.fsencode(folder), name)))
        yield read_text_file(path, name, limits)


def read_text_file(path: Path, name: bytes, limits: Limits) -> Document | Reject:
    """The document of one .txt or .md file. `name` becomes its id; the text is the file's, unchanged.

    Title: of .md the first heading ("# ...", outside code fences), otherwise the file name without its ending.
    """
    file = shown(path)
    try:
        if not is_text_name(name):
            raise RowError(f"in a folder only {' and '.join(TEXT_SUFFIXES)} files are read")
        id = _id_of(name)
        if stat.S_ISDIR(path.stat().st_mode):
            raise RowError("a link to a folder is not followed")
        # A character has at most 4 bytes in UTF-8; a byte order mark has 3.
        whole = read_whole(path, 4 * limits.max_document_chars + 3, "4 * max_document_chars + 3")
        text = document_text(whole, limits)
    except RowError as error:
        return Reject(file, 0, str(error))
    except OSError as error:
        return Reject(file, 0, f"the file cannot be read: {error.strerror}")
    title = _first_heading(text) if name.lower().endswith(b".md") else ""
    return Document(id, title or Path(id).stem, text, file, 0)


def _id_of(name: bytes) -> str:
    try:
        return id_text(name.decode("utf-8"), "the path")
    except UnicodeDecodeError as error:
        raise RowError("the name of the file is not UTF-8") from error


def _first_heading(text: str) -> str:
    """The words of the first markdown heading, or ""."""
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence):
            fence = ""
        elif not fence and (heading := _HEADING.fullmatch(line)) and heading[1].strip():
            return heading[1].strip()
    return ""
