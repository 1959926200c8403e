"""One bounded exchange with one model server, and the kinds of failure that it can have."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from gpu_rag.errors import ModelError, RequestFailed
from gpu_rag.models.llm.http_wire import Pieces, refusal

MAX_REPLY_BYTES = 16 * 2**20  # after decompression
MAX_ERROR_BYTES = 64 * 2**10  # of the body behind a status from 400 on; the rest is not read
MAX_WAIT_S = 60.0
KEEP_ALIVE_S = 30.0  # an idle connection is closed after it
EVENTS = "text/event-stream"


@dataclass(frozen=True)
class Failure:
    """An exchange that brought no answer to the request.

    broken: no answer at all, so the server may be gone; unreached: not even a connection; busy: the server had too
    much to do; alive: it said so itself, and did not stand for another one that is gone; again: whether another try
    makes sense; wait_s: the pause that the server asks for.
    """

    why: str
    broken: bool = False
    unreached: bool = False
    busy: bool = False
    alive: bool = False
    again: bool = True
    wait_s: float | None = None


# The body; or a failure that may pass; or an error of this request alone; or one of the whole server.
Outcome = bytes | Failure | RequestFailed | ModelError


class Exchanger:
    """Sends requests to one address and reads bounded replies; its own event loop alone uses it.

    A time limit covers a whole exchange: connecting, sending, headers and body. Replies end at MAX_REPLY_BYTES.
    Redirects are not followed, cookies not kept, no environment variable is read. The key goes to this address only.
    """

    def __init__(self, url: str, key: str | None, *, connect_timeout_s: float, socket: str = ""):
        """Opens no connection yet. socket: of a Unix socket the path. Needs a running event loop."""
        self.url, self._connect_timeout_s = url, connect_timeout_s
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if socket:
            connector: Any = _UnixConnector(socket, limit=0, keepalive_timeout=KEEP_ALIVE_S)
        else:
            connector = _TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=_certificates(url))
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def get(self, path: str, timeout_s: float) -> Outcome:
        """The outcome of a GET. path: below the address, or with "..": beside its /v1."""
        return await self._exchange("GET", path, None, timeout_s)

    async def post(
        self, path: str, body: bytes, timeout_s: float, on_text: Callable[[str], None] | None = None
    ) -> Outcome:
        """The outcome of a POST of JSON. on_text: called with the text so far of a chat completion that comes as
        server-sent events; the outcome is the completion in one piece all the same."""
        return await self._exchange("POST", path, body, timeout_s, on_text)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        on_text: Callable[[str], None] | None = None,
    ) -> Outcome:
        headers = None if body is None else {"Content-Type": "application/json"}
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(self._connect_timeout_s, timeout_s))
        url = self.url.removesuffix("/v1") + path[2:] if path.startswith("..") else self.url + path
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=limits, allow_redirects=False
            ) as response:
                if response.status < 300 and on_text is not None and response.content_type == EVENTS:
                    return await _read_events(response, on_text)
                if response.status < 300:
                    content = await _read(response, MAX_REPLY_BYTES)
                    return _too_large() if len(content) > MAX_REPLY_BYTES else content
                text = (await _read(response, MAX_ERROR_BYTES)).decode("utf-8", "replace")
                return _refused(response, text, url)
        except aiohttp.ConnectionTimeoutError as error:
            return Failure(f"no connection in time: {error}", broken=True)
        except TimeoutError:
            return Failure(f"no answer in time ({timeout_s:g} s)", busy=True, again=False)
        except (aiohttp.ClientError, OSError) as error:
            unreached = isinstance(error, aiohttp.ClientConnectorError)
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            return Failure(f"{type(error).__name__}: {cause}", broken=True, unreached=unreached)
        # Whatever else the bytes of a server make a library raise is the failure of this exchange alone.
        except Exception as error:  # noqa: BLE001
            return Failure(f"{type(error).__name__}: {error}"[:300], broken=True)


class _OfOneProcess(aiohttp.BaseConnector):
    """A pool of connections that a forked process leaves alone.

    They are its parent's: closing one in the child would take it out of the selector that both processes share.
    """

    def __init__(self, *given: Any, **options: Any):
        self._process = os.getpid()
        super().__init__(*given, **options)

    def __del__(self, *options: Any) -> None:
        if os.getpid() == self._process:
            super().__del__(*options)


class _TCPConnector(_OfOneProcess, aiohttp.TCPConnector):
    pass


class _UnixConnector(_OfOneProcess, aiohttp.UnixConnector):
    pass


def _certificates(url: str) -> Any:
    """The certificates that https is checked by: those of httpx, the same on every machine."""
    if not url.startswith("https:"):
        return True
    import httpx

    return httpx.create_ssl_context(trust_env=False)


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body, decompressed, up to the piece that makes it longer than `most`."""
    pieces: list[bytes] = []
    n_bytes = 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        n_bytes += len(piece)
        if n_bytes > most:
            break
    return b"".join(pieces)


async def _read_events(response: aiohttp.ClientResponse, on_text: Callable[[str], None]) -> Outcome:
    """The chat completion that comes as server-sent events, as the server would have sent it in one piece."""
    completion = Pieces()
    rest, n_bytes = b"", 0
    async for piece in response.content.iter_any():
        n_bytes += len(piece)
        if n_bytes > MAX_REPLY_BYTES:
            return _too_large()
        *lines, rest = (rest + piece).split(b"\n")
        before = completion.text
        for line in lines:
            if line.startswith(b"data:"):
                completion.take(line.removeprefix(b"data:").strip())
        if completion.text != before:
            on_text(completion.text)
    if completion.error:
        return Failure(f"the server broke off: {completion.error[:200]}", alive=True)
    if not completion.ended:
        return Failure("the server broke off in the middle of its events", broken=True)
    return completion.whole()


def _too_large() -> RequestFailed:
    expected = f"at most {MAX_REPLY_BYTES:,} bytes, decompressed"
    return RequestFailed("the server's reply is too large", given=f"more than {MAX_REPLY_BYTES:,}", expected=expected)


def _refused(response: aiohttp.ClientResponse, text: str, url: str) -> Failure | RequestFailed | ModelError:
    """The meaning of a status from 300 on."""
    status = response.status
    if status == 429 or status >= 500:
        wait_s = _retry_after_s(response.headers.get("Retry-After", ""))
        why, busy = f"HTTP {status}: {text[:200]}", status in (429, 503)
        return Failure(why, busy=busy, alive=status == 429, wait_s=wait_s)
    if status in (401, 403):
        do = "give its key: models.api_keys, or GPU_RAG_API_KEY"
        return ModelError("the server refuses the API key", given=f"{url}: HTTP {status}", do=do)
    if status < 400:
        given = f"{url}: HTTP {status}, Location {response.headers.get('Location', 'none')[:200]}"
        return ModelError("the server redirects, which is not followed", given=given, do="name the address itself")
    if status in (404, 405):
        do = "the address must end where /chat/completions begins, most often in /v1"
        return ModelError("no such service at this address", given=f"{url}: HTTP {status}: {text[:200]}", do=do)
    return refusal(status, text)


def _retry_after_s(text: str) -> float | None:
    """Seconds that the server asks to wait, bounded; None when it does not say."""
    if not text.strip():
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), MAX_WAIT_S)
