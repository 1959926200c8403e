"""Web search by your own SearXNG server (https://docs.searxng.org/dev/search_api.html, format json)."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

import httpx

from gpu_rag.errors import BadInput, MissingBackend, RequestFailed
from gpu_rag.sources.corpus.parser import Parser, require_reader
from gpu_rag.sources.rows import Limits, RowError, document_text
from gpu_rag.sources.web.snapshot import parsed_page
from gpu_rag.sources.web.types import WebPage, WebResult

TIMEOUT_S = 20.0
MAX_PAGE_BYTES = 4 << 20
PAGE_S = 60.0
_AT_ONCE = 8
_MAX_REDIRECTS = 5
_ENCODINGS = ("", "identity", "gzip", "deflate")
_PORTS = {"http": 80, "https": 443}


class _Inside(httpx.RequestError):
    """The address of a page is in the network of this machine."""


def _place(url: httpx.URL) -> tuple[str, int]:
    """Host and port for the connection."""
    return url.raw_host.decode("ascii"), url.port or _PORTS.get(url.scheme, 0)


def is_public(host: str, port: int) -> bool:
    """Whether all addresses of a host are public: not of this machine, nor of a private network.

    A name is looked up. Raises httpx.ConnectError if it has no address.
    """
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError(f"{host} has no address: {error}") from error
    return all(ip_address(address).is_global for address in addresses)


class SearxngProvider:
    """Provider that searches by GET {base}/search?q=...&format=json and reads pages by GET. The server must allow the
    format json.

    base: such as http://127.0.0.1:8888; results come only from it, its redirects are not followed. Pages: http and
    https, HTML or plain text, at most MAX_PAGE_BYTES and PAGE_S seconds, from the server itself or from public
    addresses, also after redirects: a result never leads into the network of this machine. (A name is looked up twice,
    for the check and for the connection, so a lying name server can still send a request there.) HTML is parsed in the
    process of `sources.parser`.
    """

    def __init__(self, base: str, *, timeout_s: float = TIMEOUT_S):
        self.name = base.rstrip("/")
        try:
            url = httpx.URL(self.name)
        except httpx.InvalidURL as error:
            raise BadInput(f"the address of a search server cannot be read: {error}", given=self.name) from error
        if not url.host:
            expected = "such as http://127.0.0.1:8888"
            raise BadInput("the address of a search server has no host", given=self.name, expected=expected)
        self._own = _place(url)
        self._client = httpx.Client(timeout=timeout_s, trust_env=False)
        self._pages = httpx.Client(
            timeout=timeout_s,
            follow_redirects=True,
            max_redirects=_MAX_REDIRECTS,
            trust_env=False,
            headers={"accept-encoding": ", ".join(_ENCODINGS[1:])},
            event_hooks={"request": [self._check]},
        )
        self._limits = Limits()
        self._parser = Parser(self._limits)

    def search(self, queries: Sequence[str], k: int) -> list[list[WebResult] | RequestFailed]:
        """First k results of each query, or the reason of its failure."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda query: self._search(query, k), queries))

    def _search(self, query: str, k: int) -> list[WebResult] | RequestFailed:
        try:
            answer = self._client.get(f"{self.name}/search", params={"q": query, "format": "json"})
            answer.raise_for_status()
            keys, rows = ("url", "title", "content"), answer.json()["results"]
            results = [WebResult(*(" ".join(str(row.get(key) or "").split()) for key in keys)) for row in rows]
            return [result for result in results if result.url][:k]
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
        """Pages of results."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            fetched = list(pool.map(self._fetch, urls))
        return [self._page(url, *reply) for url, reply in zip(urls, fetched)]

    def _check(self, request: httpx.Request) -> None:
        """Raise `_Inside` for a page that is neither on the server nor public. Called before every redirect too."""
        place = _place(request.url)
        if place != self._own and not is_public(*place):
            raise _Inside("its address is not public", request=request)

    def _fetch(self, url: str) -> tuple[bytes, str, str]:
        """(body, its type, the problem or "")."""
        if not url.startswith(("http://", "https://")):
            return b"", "", "not an http address"
        until = time.monotonic() + PAGE_S
        try:
            with self._pages.stream("GET", url) as answer:
                answer.raise_for_status()
                encoding = answer.headers.get("content-encoding", "").strip().lower()
                if encoding not in _ENCODINGS:  # others may unpack to any size at once
                    return b"", "", f"the content-encoding {encoding} is not read"
                body = bytearray()
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MAX_PAGE_BYTES:
                        return b"", "", f"more than {MAX_PAGE_BYTES} bytes"
                    if time.monotonic() > until:
                        return b"", "", f"more than {PAGE_S:g} seconds"
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
        """Close the connections and end the parser's process."""
        self._client.close()
        self._pages.close()
        self._parser.close()
