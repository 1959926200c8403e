"""The guard before every route: who may ask, how much, how slowly; and headers that browsers obey."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_rag.serve.metrics import Counts
from gpu_rag.serve.refusal import Refusal, error_body
from gpu_rag.serve.responses import ClientGone, Json
from gpu_rag.settings.sections import ServeSettings

# Without a key: whether it lives, and the page, which holds nothing of the index and asks for the key.
OPEN_PATHS = frozenset({"/", "/explorer.js", "/explorer.css", "/health", "/ready"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
ROUTE = "gpu_rag.route"  # where the routes say in a scope which of them it is: a label that clients cannot make up
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware: Host and Origin, the API key, the form of a body, headers, counts, and slow readers.

    host: the address bound; on loopback, or where settings name hosts, a Host header must be one of ours: a page whose
    name was rebound to this address is refused. key: what clients must send as `Authorization: Bearer KEY`, or None.
    """

    def __init__(self, app: ASGIApp, host: str, settings: ServeSettings, key: str | None, counts: Counts):
        self._app, self._settings, self._counts = app, settings, counts
        self._hosts = allowed_hosts(host, settings.hosts)
        self._key = None if key is None else _digest(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        counted = self._counted(scope, send)
        try:
            self._check(scope, Headers(scope=scope))
        except Refusal as error:
            refused = Json(error_body(error, scope["path"]), error.status, headers=error.headers)
            await refused(scope, receive, counted)
            return
        try:
            await self._app(scope, receive, counted)
        except ClientGone:  # nobody is there to read anything
            self._counts.refused["client gone"] += 1

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            do = "name it in serve.hosts when the server is started"
            raise Refusal(421, "this server does not go by that name", given=f"Host: {host[:80]}", do=do)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise Refusal(403, "pages of other sites may not ask this server", given=f"Origin: {origin[:80]}")
        if self._key is not None and scope["path"] not in OPEN_PATHS:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if not hmac.compare_digest(_digest(given.strip()), self._key) or scheme.lower() != "bearer":
                raise Refusal(
                    401, "the API key is missing or wrong", kind="Unauthorized",
                    expected="Authorization: Bearer KEY", headers={"WWW-Authenticate": "Bearer"},
                )  # fmt: skip
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":  # what a page can post without asking is no JSON
            do = "Content-Type: application/json"
            raise Refusal(415, "a body is JSON here", given=kind[:80] or "none", expected=do)

    def _counted(self, scope: Scope, send: Send) -> Send:
        """`send` with our headers and counts; a client that does not read for too long is taken to be gone."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                self._counts.requests[scope.get(ROUTE, "none"), int(message["status"])] += 1
            try:
                async with asyncio.timeout(self._settings.client_seconds):
                    await send(message)
            except TimeoutError as error:
                raise ClientGone from error

        return counted


def allowed_hosts(host: str, more: Collection[str]) -> frozenset[str] | None:
    """The names that a Host header may have, in lower case without a port; None where any will do."""
    if not more and not is_loopback(host):
        return None
    own = f"[{host}]" if ":" in host else host
    return frozenset({*LOOPBACK_NAMES, own.lower(), *(name.lower() for name in more)})


def is_loopback(host: str) -> bool:
    """Whether an address is one that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def read_body(request: Request, settings: ServeSettings) -> bytes:
    """The body of a request.

    Raises Refusal: 413 for one that is too large, 408 for one that comes too slowly; ClientGone in the middle of one.
    """
    most, parts, n = settings.max_body_kib * 1024, [], 0
    try:
        async with asyncio.timeout(settings.client_seconds):
            async for part in request.stream():
                parts.append(part)
                n += len(part)
                if n > most:
                    expected = f"at most {settings.max_body_kib} KiB"
                    raise Refusal(413, "the body is too large", expected=expected, headers={"Connection": "close"})
    except TimeoutError as error:
        expected = f"all of it within serve.client_seconds = {settings.client_seconds:g}"
        raise Refusal(408, "the body came too slowly", expected=expected, headers={"Connection": "close"}) from error
    except ClientDisconnect as error:
        raise ClientGone from error
    return b"".join(parts)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _name_of(host: str) -> str:
    """A Host header without its port."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() and not host.endswith("]") else host).lower()
