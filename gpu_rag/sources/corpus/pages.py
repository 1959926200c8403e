"""Web pages that come with a question: rows of CRAG, and your own rows with `pages`.

| | list | address | title | content | else |
|---|---|---|---|---|---|
| CRAG | search_results | page_url | page_name | page_result (HTML) | page_snippet |
| your own | pages | url | title | html, or text | snippet |

If the content of a page is empty or cannot be read, its search snippet is used. A page that repeats another one of the
question is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

from gpu_rag.sources.corpus.parser import Parser, require_reader
from gpu_rag.sources.rows import Limits, RowError, document_text, kind, optional_string
from gpu_rag.types import Page

_TAG = re.compile(r"</?(?:strong|b|em)>")  # searches put them around the words searched for
CRAG_KEY, OWN_KEY = "search_results", "pages"
_CRAG = {"url": "page_url", "title": "page_name", "html": "page_result", "snippet": "page_snippet"}


def is_crag(row: dict[str, Any]) -> bool:
    """Whether a row is a question of CRAG."""
    return "query" in row and isinstance(row.get(CRAG_KEY), list)


def brings_pages(row: dict[str, Any]) -> bool:
    """Whether a row is a question with web pages. A list without objects, such as a list of numbers, is none."""
    own = row.get(OWN_KEY)
    return is_crag(row) or ("question" in row and isinstance(own, list) and any(isinstance(page, dict) for page in own))


def pages_of(row: dict[str, Any], limits: Limits, parser: Parser) -> Iterator[Page | RowError]:
    """Pages of such a row, and the reasons why a page, or its content, could not be used.

    HTML is read in the process of `parser`, so that a hostile page costs only itself.
    """
    names = _CRAG if is_crag(row) else {name: name for name in ("url", "title", "html", "text", "snippet")}
    seen: set[tuple[str, ...]] = set()
    for number, entry in enumerate(row[CRAG_KEY if is_crag(row) else OWN_KEY], 1):
        try:
            if not isinstance(entry, dict):
                raise RowError(f"it is {kind(entry)}; expected an object")
            fields = {name: optional_string(entry, key) for name, key in names.items()}
            content = tuple(fields.values())
            if content not in seen:
                seen.add(content)
                yield from _read(fields, limits, parser)
        except RowError as error:
            yield RowError(f"page {number}: {error}")


def _read(fields: dict[str, str], limits: Limits, parser: Parser) -> Iterator[Page]:
    """The page. If its content cannot be read, yields it with its snippet, then raises RowError."""
    url, title = fields["url"], " ".join(fields["title"].split())
    snippet = unescape(_TAG.sub("", fields["snippet"]))
    try:
        if fields["html"].strip():
            require_reader("page.html")
            read = parser.parse_html(fields["html"].encode("utf-8", "surrogatepass"))
            yield Page(url, title or read.title, read.text)
            return
        if fields.get("text", "").strip() or not snippet.strip():
            yield Page(url, title, document_text(fields.get("text", ""), limits))
            return
    except RowError:
        if snippet.strip():
            yield Page(url, title, document_text(snippet, limits, "snippet"))
        raise
    yield Page(url, title, document_text(snippet, limits, "snippet"))
