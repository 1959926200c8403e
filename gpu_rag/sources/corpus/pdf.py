"""Text of the pages of a PDF. Called only in the process of `parse_worker`: a hostile PDF may crash it."""

from __future__ import annotations

import re
import struct
import zlib
from io import BytesIO
from itertools import accumulate
from typing import TYPE_CHECKING

from gpu_rag.sources.corpus.package import properties
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.rows import Limits, RowError, one_line

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader

# dots to the end of a line, or to a page number there (3, xii, A-3)
_LEADER = re.compile(
    r"[ \t]*(?:(?:\.[ \t]*){5,}|(?:[·…][ \t]*){3,})(?P<page>[A-Z]?-?[0-9]{1,5}|[ivxlcIVXLC]{1,8})?[ \t]*$"
)
_CONTENTS_LINES = 3
_TAIL = 1024  # bytes in which readers look for the end mark
# Errors of pypdf for a broken file beside its own: it trusts the types that it finds there.
_BROKEN = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    NameError,
    EOFError,
    OSError,
    zlib.error,
    struct.error,
)


def read_pdf(data: bytes, limits: Limits) -> Parsed:
    """Pages of a PDF in order, separated by line breaks; title and metadata (author, date): its own.

    On a page of contents, leaders and the page numbers after them are removed.
    A page that cannot be read is empty and a problem. Raises RowError for a file that cannot be read at all: cut off,
    encrypted with a password, broken, too many pages, too much text, or no text on any page.
    """
    from pypdf import PasswordType, PdfReader
    from pypdf.errors import DependencyError, DeprecationError, PyPdfError

    refusals = (PyPdfError, DependencyError, DeprecationError, *_BROKEN)  # DeprecationError: old names of filters
    if b"%%EOF" not in data[-_TAIL:]:
        raise RowError(f"not a whole PDF: no %%EOF in the last {_TAIL} bytes")
    try:
        reader = PdfReader(BytesIO(data))
        if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
            raise RowError("the PDF is encrypted with a password")
        count = len(reader.pages)
        if count > limits.max_pages:
            raise RowError(f"the PDF has {count} pages, more than max_pages = {limits.max_pages}")
        pages = list(reader.pages)
        problems = _missing_pages(reader, count)
    except RowError:
        raise
    except DependencyError as error:
        raise RowError(f"the PDF is encrypted in a way that needs another library: {error}") from error
    except refusals as error:
        raise _broken("the PDF", error) from error
    title = ""
    metadata: dict[str, str] = {}
    try:
        title, metadata = _about(reader)
    except refusals as error:
        problems.append(str(_broken("its title", error)))
    texts: list[str] = []
    size = 0
    for number, page in enumerate(pages, start=1):
        text, problem = "", ""
        try:
            text = _without_leaders(_page_text(page)).rstrip()
        except refusals as error:
            problem = str(_broken(f"page {number}", error))
        texts.append(text)
        problems += [problem] if problem else []
        size += len(text) + 1
        if size > limits.max_document_chars:
            raise RowError(f"the text has more than max_document_chars = {limits.max_document_chars} characters")
    if not any(map(str.strip, texts)):
        why = "; ".join(problems[:3]) or "pages that are pictures only have none"
        raise RowError(f"no page of the PDF has text: {why}")
    starts = accumulate((len(text) + 1 for text in texts[:-1]), initial=0)
    return Parsed(title, "\n".join(texts), tuple(starts), tuple(problems), dict(metadata))


def _missing_pages(reader: PdfReader, found: int) -> list[str]:
    """A sentence if the page tree declares more pages than were found."""
    try:
        said = reader.root_object["/Pages"]["/Count"]  # type: ignore[index]
    except _BROKEN:
        return []
    if isinstance(said, int) and said > found:
        return [f"the PDF names {said} pages, but only {found} can be found"]
    return []


def _page_text(page: PageObject) -> str:
    """Text of a page that UTF-8 and tables can hold. Raises RowError if its content is not in the file."""
    from pypdf.generic import ArrayObject, IndirectObject, StreamObject

    if "/Contents" in page:
        data = page.raw_get("/Contents")
        found = data.get_object()
        streams = [part.get_object() for part in found] if isinstance(found, ArrayObject) else [found]
        # pypdf treats a dangling reference as an empty page.
        if not all(isinstance(stream, StreamObject) for stream in streams) and isinstance(data, (IndirectObject, list)):
            raise RowError("its content is not in the file")
    return _clean(page.extract_text())


def _clean(text: str) -> str:
    """Text without NUL; surrogate pairs become one character, a single half becomes U+FFFD."""
    return text.replace("\x00", "").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _without_leaders(page: str) -> str:
    """Page text without rows of dots; if at least three end in a number, as in contents, also without those numbers."""
    lines = [(line, _LEADER.search(line)) for line in page.split("\n")]
    n_numbered = sum(1 for _, leader in lines if leader and leader["page"])
    if not any(leader for _, leader in lines):
        return page
    kept = []
    for line, leader in lines:
        if leader:
            number = leader["page"] or "" if n_numbered < _CONTENTS_LINES else ""
            line = " ".join(filter(None, (line[: leader.start()].rstrip(), number)))
        kept.append(line)
    return "\n".join(kept)


def _about(reader: PdfReader) -> tuple[str, dict[str, str]]:
    """(title, metadata) of the document information."""
    if not reader.metadata:
        return "", {}
    title, author = (
        " ".join(_clean(str(found or "")).split()) for found in (reader.metadata.title, reader.metadata.author)
    )
    try:
        made = reader.metadata.creation_date
    except ValueError:
        made = None  # many dates are malformed
    return title, properties(author, made.date().isoformat() if made else "")


def _broken(what: str, error: Exception) -> RowError:
    """RowError for an error, with the library's message."""
    said = str(error) if isinstance(error, RowError) else f"{type(error).__name__}: {error}"
    return RowError(one_line(f"{what} cannot be read: {said}"))
