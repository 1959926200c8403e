"""Zip files, also zip files of XML such as .docx: members are unpacked within limits, XML may not declare entities.

XML is read only in the process of `parse_worker`.
"""

from __future__ import annotations

import lzma
import posixpath
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from gpu_rag.sources.rows import Limits, RowError, check_unpacked, one_line

Start = Callable[[str, dict[str, str]], None]
End = Callable[[str], None]
Text = Callable[[str], None]
Element = tuple[str, dict[str, str], str]

_READ_BYTES = 1 << 18
_MAX_MEMBERS = 100_000
# Errors of zipfile for a broken file; RuntimeError: a member with a password, or an unknown method.
_BROKEN = (
    BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError, ValueError, IndexError,
    OverflowError,
)  # fmt: skip
_DEFAULT = re.compile(  # of programs that make documents
    r"\(?(?:untitled|anonymous|unspecified)\)?(?: document)?|microsoft (?:word|powerpoint|excel) - .*"
    r"|(?:document|presentation) ?\d+|powerpoint presentation|word document|python-docx",
    re.IGNORECASE,
)
_DAY = re.compile(r"\s*(\d{4}(?:-\d{2}(?:-\d{2})?)?)(?![\d-])")


class Package:
    """A zip file. Links in it are not followed: a name is a member's, or unknown."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        """Open the file. Raises RowError if `data` is no zip file."""
        self._size, self._limit, self._unpacked = len(data), limits.max_file_bytes, 0
        if data.count(b"PK\x01\x02") > _MAX_MEMBERS:  # each is a Python object once the file is open
            raise RowError(f"the zip file names more than {_MAX_MEMBERS} files")
        try:
            self._zip = ZipFile(BytesIO(data))
            self._names = set(self._zip.namelist())
        except _BROKEN as error:
            raise RowError(one_line(f"not a zip file, or a broken one: {error}")) from error

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str) -> bytes:
        """Bytes of a member. Raises RowError: missing, broken, locked, or the total of all members read is
        too large."""
        if name not in self._names:
            raise RowError(one_line(f"{name} is not in the file"))
        parts: list[bytes] = []
        try:
            with self._zip.open(name) as stream:
                while part := stream.read(_READ_BYTES):
                    self._unpacked += len(part)
                    check_unpacked(self._size, self._unpacked)
                    if self._unpacked > self._limit:
                        raise RowError(f"it unpacks to more than max_file_bytes = {self._limit} bytes")
                    parts.append(part)
        except RowError:
            raise
        except _BROKEN as error:
            raise RowError(one_line(f"{name} cannot be unpacked: {error}")) from error
        return b"".join(parts)

    def unpack(self, folder: Path, is_read: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
        """Write the members below `folder`; members for which `is_read` is false and hidden ones stay empty. Yields
        (name, reason why it is not written)."""
        written: set[str] = set()
        for member in self._zip.infolist():
            name = member.filename
            parts = name.split("/")
            if not name:
                yield name, "a file in it has no name"
            elif ".." in parts or name.startswith("/"):
                yield name, "its path leads out of the zip file"
            elif member.is_dir():
                continue
            elif stat.S_ISLNK(member.external_attr >> 16):
                yield name, "a link in a zip file is not followed"
            elif member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # LZMA takes as much memory as a file asks for
                yield name, "its compression is neither deflate nor none"
            elif name in written:
                yield name, "the zip file has two files of this name"
            elif name.lower().endswith(".zip"):
                yield name, "a zip file in a zip file is not read"
            else:
                written.add(name)
                try:
                    is_hidden = any(part.startswith(".") for part in parts)
                    content = self.read(name) if is_read(name) and not is_hidden else b""
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(content)
                except RowError as error:
                    yield name, str(error)
                except (OSError, ValueError) as error:
                    yield name, f"it cannot be unpacked: {getattr(error, 'strerror', None) or error}"

    def walk(self, name: str, start: Start, end: End, text: Text) -> None:
        """Parse an XML member with callbacks; names of elements and attributes come without their namespaces.

        Raises RowError: missing, broken, or with entities, which no such file needs and which bombs use.
        """
        from xml.parsers import expat

        def refuse(*_: object) -> None:
            raise RowError(one_line(f"{name} declares entities"))

        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.EntityDeclHandler = refuse
        parser.StartElementHandler = lambda tag, attrs: start(_local(tag), {_local(k): v for k, v in attrs.items()})
        parser.EndElementHandler = lambda tag: end(_local(tag))
        parser.CharacterDataHandler = text
        try:
            parser.Parse(self.read(name), True)
        except (expat.ExpatError, UnicodeError, LookupError) as error:
            raise RowError(one_line(f"{name} is broken XML: {error}")) from error

    def elements(self, name: str) -> list[Element]:
        """Elements of a small XML member, in the order of their start tags: (name, attributes, text)."""
        elements: list[tuple[str, dict[str, str], list[str]]] = []
        open_: list[int] = []

        def start(tag: str, attributes: dict[str, str]) -> None:
            open_.append(len(elements))
            elements.append((tag, attributes, []))

        def text(data: str) -> None:
            elements[open_[-1]][2].append(data)

        def end(_: str) -> None:
            open_.pop()

        self.walk(name, start, end, text)
        return [(tag, attributes, " ".join("".join(parts).split())) for tag, attributes, parts in elements]


def _local(name: str) -> str:
    return name.rsplit(" ", 1)[-1]


def beside(name: str, target: str) -> str:
    """Member that `target`, a link in the member `name`, points to; a leading "/" means the root."""
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(name), target)).lstrip("/")


def properties(author: str = "", date: str = "", **others: str) -> dict[str, str]:
    """Non-empty properties of a document as metadata; an ISO date is cut to the day, or its known part."""
    day = _DAY.match(date)
    return {k: v for k, v in {"author": given(author), "date": day[1] if day else "", **others}.items() if v}


def given(words: str) -> str:
    """A title or an author; "" for one that no person wrote, such as "untitled" or "Microsoft Word - a.doc"."""
    return "" if _DEFAULT.fullmatch(words) else words
