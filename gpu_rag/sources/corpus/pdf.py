"""A PDF to the text of its pages. Called in the process of `parse_worker` only: a hostile PDF may crash it."""

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

# dots to the end of a line, or to a number there (3, xii, A-3)
_LEADER = re.compile(
    r"[ \t]*(?:(?:\.[ \t]*){5,}|(?:[·…][ \t]*){3,})(?P<page>[A-Z]?-?[0-9]{1,5}|[ivxlcIVXLC]{1,8})?[ \t]*$"
)
_CONTENTS_LINES = 3
_TAIL = 1024  # where readers look for the end mark
# What pypdf raises on a broken file beside errors of its own: it trusts the types that it finds there.
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
    """The pages of a PDF, a line break between two, in their order; title and metadata (author, date): its own.

    Of a page of contents the leaders are left out, with the numbers of pages behind them.
    A page that cannot be read is empty and a problem. Raises RowError for a file that cannot be read at all: cut off,
    encrypted with a password, broken, too many pages, too much text, or no text on any page.
    """
    from pypdf import PasswordType, PdfReader
    from pypdf.errors import DependencyError, DeprecationError, PyPdfError

    refusals = (PyPdfError, DependencyError, DeprecationError, *_BROKEN)  # deprecated: old names of filters
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
    """A sentence when the page tree says that there are more pages than were found."""
    try:
        said = reader.root_object["/Pages"]["/Count"]  # type: ignore[index]
    except _BROKEN:
        return []
    if isinstance(said, int) and said > found:
        return [f"the PDF names {said} pages, but only {found} can be found"]
    return []


def _page_text(page: PageObject) -> str:
    """The text of a page, as UTF-8 and tables can hold it. Raises RowError when its content is not in the file."""
    from pypdf.generic import ArrayObject, IndirectObject, StreamObject

    if "/Contents" in page:
        data = page.raw_get("/Contents")
        found = data.get_object()
        streams = [part.get_object() for part in found] if isinstance(found, ArrayObject) else [found]
        # pypdf takes a reference that leads nowhere for an empty page.
        if not all(isinstance(stream, StreamObject) for stream in streams) and isinstance(data, (IndirectObject, list)):
            raise RowError("its content is not in the file")
    return _clean(page.extract_text())


def _clean(text: str) -> str:
    """Without NUL; two halves of a surrogate pair become one character, a single half U+FFFD."""
    return text.replace("\x00", "").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _without_leaders(page: str) -> str:
    """The text of a page without rows of dots; where several end in a number, as contents do, without that too."""
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
    """(title, metadata)."""
    if not reader.metadata:
        return "", {}
    title, author = (
        " ".join(_clean(str(found or "")).split()) for found in (reader.metadata.title, reader.metadata.author)
    )
    try:
        made = reader.metadata.creation_date
    except ValueError:
        made = None  # many are not written as they should be
    return title, properties(author, made.date().isoformat() if made else "")


def _broken(what: str, error: Exception) -> RowError:
    """The reason, in the library's words; a RowError is one already."""
    said = str(error) if isinstance(error, RowError) else f"{type(error).__name__}: {error}"
    return RowError(one_line(f"{what} cannot be read: {said}"))
