"""The guard before every route: who may ask, how much, how slowly; errors as responses; counts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Collection, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from gpu_rag.errors import GpuRagError
from gpu_rag.serve.metrics import Counts
from gpu_rag.serve.refusal import ClientGone, Refusal, error_body, refusal_of
from gpu_rag.settings.sections import ServeSettings

# Without a key: whether it lives, and the page, which holds nothing of the index and asks for the key.
OPEN_PATHS = frozenset({"/", "/explorer.js", "/explorer.css", "/health", "/ready"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
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


class Json(JSONResponse):
    """A JSON document in UTF-8; half a surrogate pair, which UTF-8 cannot hold, becomes a question mark."""

    def render(self, content: Any) -> bytes:
        """The bytes of the document."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


class Guard:
    """The ASGI application: routes behind checks of Host and Origin, the API key and the form of a body.

    host: the address bound; on loopback, or where settings name hosts, a Host header must be one of ours: a page whose
    name was rebound to this address is refused. key: what clients must send as `Authorization: Bearer KEY`, or None.
    """

    def __init__(self, routes: Sequence[Route], host: str, settings: ServeSettings, key: str | None, counts: Counts):
        self._router = Router(routes, redirect_slashes=False)  # a redirect repeats the Host header
        self._paths: dict[object, str] = {route.endpoint: route.path for route in routes}
        self._settings, self._counts, self._hosts = settings, counts, allowed_hosts(host, settings.hosts)
        self._key = None if key is None else _digest(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        begun = False

        async def counted(message: Message) -> None:
            """`send` with our headers and counts; a client that does not read for too long is taken to be gone."""
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                path = self._paths.get(scope.get("endpoint"), "none")  # a label that clients cannot make up
                self._counts.requests.labels(path, message["status"]).inc()
            try:
                async with asyncio.timeout(self._settings.client_seconds):
                    await send(message)
            except TimeoutError as error:
                raise ClientGone from error

        scope["app"] = self  # then the router raises what it would answer itself
        try:
            try:
                self._check(scope, Headers(scope=scope))
                await self._router(scope, receive, counted)
            except Exception as error:
                if begun or isinstance(error, ClientGone):
                    raise
                if isinstance(error, HTTPException):
                    given = f"{scope['method']} {scope['path']}"[:120]
                    headers = dict(error.headers or {})
                    refusal = Refusal(error.status_code, error.detail, given=given, headers=headers)
                else:
                    refusal = refusal_of(error)
                said = Json(error_body(refusal, scope["path"]), refusal.status, headers=refusal.headers)
                await said(scope, receive, counted)
                if not isinstance(error, (GpuRagError, HTTPException)):
                    raise  # a bug is told to the operator
        except ClientGone:  # nobody is there to read anything
            self._counts.refused.labels("client gone").inc()

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
    body, ends = bytearray(), {"Connection": "close"}
    try:
        async with asyncio.timeout(settings.client_seconds):
            async for part in request.stream():
                body += part
                if len(body) > settings.max_body_kib * 1024:
                    expected = f"at most {settings.max_body_kib} KiB"
                    raise Refusal(413, "the body is too large", expected=expected, headers=ends)
    except TimeoutError as error:
        expected = f"all of it within serve.client_seconds = {settings.client_seconds:g}"
        raise Refusal(408, "the body came too slowly", expected=expected, headers=ends) from error
    except ClientDisconnect as error:
        raise ClientGone from error
    return bytes(body)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _name_of(host: str) -> str:
    """A Host header without its port."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() and not host.endswith("]") else host).lower()
