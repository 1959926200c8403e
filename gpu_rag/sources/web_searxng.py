"""Web search by a SearXNG server of one's own (https://docs.searxng.org/dev/search_api.html, format json)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from gpu_rag.errors import MissingBackend, RequestFailed
from gpu_rag.sources.parsed import require_reader
from gpu_rag.sources.parser import Parser
from gpu_rag.sources.rows import Limits, RowError, document_text
from gpu_rag.sources.web import WebPage, WebResult
from gpu_rag.sources.web_snapshot import parsed_page

TIMEOUT_S = 20.0
MAX_PAGE_BYTES = 4 << 20
_AT_ONCE = 8


class SearxngProvider:
    """Searches by GET {base}/search?q=...&format=json, reads pages by GET. The server must allow the format json.

    base: such as http://127.0.0.1:8888. Pages: http and https, HTML or plain text, at most MAX_PAGE_BYTES; HTML is
    parsed in the process of `sources.parser`. transport: for tests.
    """

    def __init__(self, base: str, *, transport: httpx.BaseTransport | None = None, timeout_s: float = TIMEOUT_S):
        self.name = base.rstrip("/")
        self._client = httpx.Client(timeout=timeout_s, follow_redirects=True, transport=transport, trust_env=False)
        self._limits = Limits()
        self._parser = Parser(self._limits)

    def search(self, queries: Sequence[str], k: int) -> list[list[WebResult] | RequestFailed]:
        """The first k results of each query, or why it failed."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda query: self._search(query, k), queries))

    def _search(self, query: str, k: int) -> list[WebResult] | RequestFailed:
        try:
            answer = self._client.get(f"{self.name}/search", params={"q": query, "format": "json"})
            answer.raise_for_status()
            rows = answer.json()["results"]
            return [found for found in map(_result, rows) if found.url][:k]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return RequestFailed("the search server did not answer", given=f"{self.name}: {error}")
        except (ValueError, KeyError, TypeError, AttributeError):
            return RequestFailed(
                "the search server's answer cannot be read",
                given=self.name,
                expected='{"results": [{"url", "title", "content"}]}',
                do="allow the format json in its settings",
            )

    def read(self, urls: Sequence[str]) -> list[WebPage]:
        """The pages behind results."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            fetched = list(pool.map(self._fetch, urls))
        return [self._page(url, *found) for url, found in zip(urls, fetched)]

    def _fetch(self, url: str) -> tuple[bytes, str, str]:
        """(body, its type, what went wrong)."""
        if not url.startswith(("http://", "https://")):
            return b"", "", "not an http address"
        try:
            with self._client.stream("GET", url) as answer:
                answer.raise_for_status()
                body = bytearray()
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MAX_PAGE_BYTES:
                        return b"", "", f"more than {MAX_PAGE_BYTES} bytes"
                return bytes(body), answer.headers.get("content-type", "").partition(";")[0].strip(), ""
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return b"", "", f"{type(error).__name__}: {error}"

    def _page(self, url: str, body: bytes, kind: str, problem: str) -> WebPage:
        if problem:
            return WebPage(url, "", "", problem)
        try:
            if kind in ("text/html", "application/xhtml+xml"):
                require_reader("page.html")
                return parsed_page(url, body, self._parser)
            if kind == "text/plain":
                return WebPage(url, "", document_text(body.decode("utf-8"), self._limits))
            return WebPage(url, "", "", f"{kind or 'no content type'} is not read")
        except (RowError, MissingBackend, UnicodeDecodeError) as error:
            return WebPage(url, "", "", str(error))

    def close(self) -> None:
        """Ends the connections and the parser's process."""
        self._client.close()
        self._parser.close()


def _result(row: Any) -> WebResult:
    return WebResult(*(" ".join(str(row.get(key) or "").split()) for key in ("url", "title", "content")))
