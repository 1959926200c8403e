"""Pages fetched earlier, and a search over them, for machines without web access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput, RequestFailed
from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.corpus.folder import list_files
from gpu_rag.sources.corpus.parser import Parser
from gpu_rag.sources.formats import LINES_SUFFIXES, has_suffix
from gpu_rag.sources.json_rows import read_rows
from gpu_rag.sources.parquet import Columns, read_parquet
from gpu_rag.sources.rows import LIMITS, Limits, RowError, document_text, optional_string, shown
from gpu_rag.sources.web.types import WebPage, WebResult
from gpu_rag.text.bm25 import Bm25
from gpu_rag.text.sentences import split_sentences
from gpu_rag.types import Reject

SNIPPET_CHARS = 300
_COLUMNS = Columns(
    ("url", "title", "text", "html"), (("url", "text"), ("url", "html")), (), "url, title, and text or html"
)
_EXPECTED = "a folder of .html, .txt or .md files, or .parquet or .jsonl rows {url, title, text or html}"


class SnapshotProvider:
    """BM25 over the titles and texts of pages; the snippet is the beginning of a page. Ties go to the earlier page.

    bm25: over "title newline text" of the pages, if it exists; otherwise it is built here.
    """

    def __init__(self, name: str, pages: Sequence[WebPage], bm25: Bm25 | None = None):
        self.name = name
        self._pages = list(pages)
        self._rows = {page.url: row for row, page in enumerate(self._pages)}
        self._bm25 = bm25 or Bm25.build([f"{page.title}\n{page.text}" for page in self._pages])

    def search(self, queries: Sequence[str], k: int) -> list[list[WebResult] | RequestFailed]:
        """At most k pages with a BM25 score above 0 for each query."""
        ids, _ = self._bm25.search(queries, k)
        return [[self._result(int(row)) for row in rows if row >= 0] for rows in ids]

    def _result(self, row: int) -> WebResult:
        page = self._pages[row]
        return WebResult(page.url, page.title, beginning(page.text))

    def read(self, urls: Sequence[str]) -> list[WebPage]:
        """Pages by url; a page that is not in the snapshot has a problem."""
        return [
            self._pages[self._rows[url]] if url in self._rows else WebPage(url, "", "", "not in the snapshot")
            for url in urls
        ]

    def close(self) -> None:
        """Do nothing: nothing is open."""


def beginning(text: str) -> str:
    """First sentences of a text, at most SNIPPET_CHARS characters."""
    end = 0
    for _, last in split_sentences(text[: 2 * SNIPPET_CHARS]):
        if end and last > SNIPPET_CHARS:
            break
        end = last
    return " ".join(text[: min(end, SNIPPET_CHARS)].split())


def read_pages(path: Path, limits: Limits = LIMITS) -> tuple[list[WebPage], list[Reject]]:
    """Pages of a snapshot, each url once (the first), and the Rejects.

    path: a folder (the url of a file is its relative path), or rows {url, title, text or html} as .parquet, .jsonl or
    .jsonl.gz. HTML is read in the process of `parser`, so a hostile page costs one Reject. Raises BadInput if there is
    nothing to read.
    """
    pages: dict[str, WebPage] = {}
    rejects: list[Reject] = []
    for page in _read(path, limits):
        if isinstance(page, Reject):
            rejects.append(page)
        elif page.url in pages:
            rejects.append(Reject(shown(path), 0, "another page has this url", page.url))
        else:
            pages[page.url] = page
    return list(pages.values()), rejects


def _read(path: Path, limits: Limits) -> Iterator[WebPage | Reject]:
    if path.is_dir():
        if not list_files(path):
            raise BadInput("the snapshot has no page", given=path, expected=_EXPECTED)
        for document in read_corpus([path], Limits(limits.max_document_chars)):
            yield document if isinstance(document, Reject) else WebPage(document.id, document.title, document.text)
        return
    if not path.exists() or not has_suffix(path, (*LINES_SUFFIXES, ".parquet")):
        raise BadInput("there is no snapshot of the web", given=path, expected=_EXPECTED)
    rows = read_parquet(path, _COLUMNS) if has_suffix(path, (".parquet",)) else read_rows(path, limits)
    with closing(Parser(limits)) as parser:
        for row in rows:
            if isinstance(row, Reject):
                yield row
                continue
            try:
                yield page_of(row.value, limits, parser)
            except RowError as error:
                yield Reject(shown(path), row.line, str(error))


def page_of(row: dict[str, Any], limits: Limits, parser: Parser) -> WebPage:
    """Page of a row {url, title, text or html}. Raises RowError."""
    url = optional_string(row, "url")
    if not url:
        raise RowError("the page has no url")
    if row.get("html") is None:
        return WebPage(url, optional_string(row, "title"), document_text(row.get("text"), limits))
    if not isinstance(row["html"], str):
        raise RowError("html is not a string")
    return parsed_page(url, row["html"].encode("utf-8", "surrogatepass"), parser, optional_string(row, "title"))


def parsed_page(url: str, data: bytes, parser: Parser, title: str = "") -> WebPage:
    """Page from HTML bytes, parsed by the child process of `parser`. Raises RowError."""
    parsed = parser.parse_html(data)
    return WebPage(url, title or parsed.title, parsed.text)
