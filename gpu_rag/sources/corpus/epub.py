"""Text of the chapters of an .epub file. Called only in the process of `parse_worker`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from gpu_rag.sources.corpus.html import read_html
from gpu_rag.sources.corpus.package import Element, Package, beside, properties
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.rows import Limits, RowError

_CONTAINER, _LOCKS = "META-INF/container.xml", "META-INF/encryption.xml"
_CHAPTERS = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
# <title/> is empty in XML; HTML would read everything after it as the title.
_CLOSED = re.compile(rb"<(title|script|style|iframe|noscript|textarea|xmp|a|p|div|span)(\s[^<>]*?)?/>", re.IGNORECASE)


def read_epub(data: bytes, limits: Limits) -> Parsed:
    """Read the chapters in the order of the book, separated by empty lines; `html` reads each. The book's own table of
    contents is left out. title and metadata (author, date, language, publisher): the book's; headings: headings of the
    chapters, or their titles. A chapter that cannot be read is a problem; a chapter without text is skipped. Raises
    RowError: no book, locked, or without text.
    """
    package = Package(data, limits)
    roots = [attrs.get("full-path", "") for tag, attrs, _ in package.elements(_CONTAINER) if tag == "rootfile"]
    if not roots:
        raise RowError(f"{_CONTAINER} names no book")
    book = package.elements(roots[0])
    locked: set[str] = set()
    if _LOCKS in package:
        uris = (attrs.get("URI", "") for tag, attrs, _ in package.elements(_LOCKS) if tag == "CipherReference")
        locked = {beside("", unquote(uri)) for uri in uris}
    texts: list[str] = []
    problems: list[str] = []
    headings: list[tuple[int, str]] = []
    size = 0
    for name in dict.fromkeys(_chapters(roots[0], book)):
        try:
            if name in locked:
                raise RowError("it is encrypted")
            chapter = _chapter(package.read(name), limits)
        except RowError as error:
            problems.append(f"the chapter {name} cannot be read: {error}")
            continue
        if chapter is None:
            continue
        texts.append(chapter.text)
        headings += ((size + offset, words) for offset, words in chapter.headings or ((0, chapter.title),))
        size += len(chapter.text) + 2
        limits.check_chars(size)
    if not texts:
        raise RowError(f"no chapter of the book has text: {'; '.join(problems[:3]) or 'it is empty'}")
    known = {tag: ", ".join(_values(book, tag)) for tag in ("title", "creator", "date", "language", "publisher")}
    title = next(iter(_values(book, "title")), "")
    metadata = properties(known["creator"], known["date"], language=known["language"], publisher=known["publisher"])
    return Parsed(title, "\n\n".join(texts), (), tuple(problems), dict(metadata), tuple(headings))


def _values(book: Iterable[Element], tag: str) -> list[str]:
    return list(dict.fromkeys(text for name, _, text in book if name == tag and text))


def _chapters(root: str, book: list[Element]) -> list[str]:
    """Names of the chapters, in the order of the spine."""
    items = {attrs.get("id", ""): attrs for tag, attrs, _ in book if tag == "item"}
    named = [items.get(attrs.get("idref", ""), {}) for tag, attrs, _ in book if tag == "itemref"]
    texts = (item for item in named if item.get("media-type") in _CHAPTERS and "href" in item)
    read = (item["href"].partition("#")[0] for item in texts if "nav" not in item.get("properties", "").split())
    return [beside(root, unquote(href)) for href in read]


def _chapter(data: bytes, limits: Limits) -> Parsed | None:
    try:
        return read_html(_CLOSED.sub(rb"<\1\2></\1>", data), limits)
    except RowError as error:
        if str(error) == "the page has no text":
            return None
        raise
