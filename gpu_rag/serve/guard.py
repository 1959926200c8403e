"""The guard before every route: access checks, limits of size and time, errors as responses, and counts."""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from gpu_rag.errors import GpuRagError
from gpu_rag.serve.audit import Audit, request_id
from gpu_rag.serve.keys import Access, Client, Keys
from gpu_rag.serve.metrics import Counts
from gpu_rag.serve.refusal import ClientGone, Refusal, error_body, refusal_of
from gpu_rag.settings.sections import ServeSettings

Endpoint = Callable[[Request], Awaitable[Response] | Response]
BELOW = "/w/{index}"  # before the paths of an index that is not the first one
_BELOW = re.compile("^/w/[^/]*(?=/)")
CLIENT_GONE = 499  # in audit lines: the client left before its response began
DEADLINE = "x-deadline-seconds"
DROPPED = 64  # times the limit that is read of a body: a client that still sends sees no reply
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
    """A JSON response in UTF-8. A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""

    def render(self, content: Any) -> bytes:
        """The bytes of the document."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


class Door(Route):
    """A route, and who may use it.

    calls: its endpoint for each index, by name; a route of the whole server has one endpoint, under the name "". An
    endpoint that is not async runs in a thread.
    """

    def __init__(self, method: str, path: str, calls: Mapping[str, Endpoint], access: Access):
        async def endpoint(request: Request) -> Response:
            call: Any = calls[request.scope["index"]]
            is_async = inspect.iscoroutinefunction(call)
            response: Response = await (call(request) if is_async else run_in_threadpool(call, request))
            return response

        first: Any = next(iter(calls.values()))
        endpoint.__doc__ = getattr(first, "func", first).__doc__
        super().__init__(path, endpoint, methods=[method])
        self.calls, self.access = calls, access

    def check(self, caller: Client | None, index: str, is_named: bool) -> None:
        """Raise Refusal (403) if a client may not use the route for an index.

        If the path names the index, an index that the client may not use is refused as one that does not exist: raises
        HTTPException (404) for both.
        """
        if not self.access.rights:
            return
        is_shown = index in self.calls and (caller is None or not index or caller.may_use(index))
        if is_named and not is_shown:
            raise HTTPException(404)
        if caller is not None:
            caller.check(self.access, index)


class Guard:
    """The ASGI application: routes behind checks of Host and Origin, the API key and the form of a body.

    Paths below /w/NAME/ belong to the index NAME, others to the first index or to the whole server.

    host: the bound address. On loopback, or if the settings name hosts, the Host header must be an allowed name; this
    refuses pages whose name was rebound to this address. keys: clients must send one of them as `Authorization: Bearer
    KEY`; None for no keys. audit: gets a line for each request, or None.
    """

    def __init__(
        self,
        doors: Sequence[Door],
        first_index: str,
        host: str,
        settings: ServeSettings,
        keys: Keys | None,
        counts: Counts,
        audit: Audit | None = None,
    ):
        self._router = Router(doors, redirect_slashes=False)  # a redirect would repeat the Host header
        self._paths: dict[object, str] = {door.endpoint: door.path for door in doors}
        self._doors, self._first_index = doors, first_index
        self._settings, self._counts, self._hosts = settings, counts, allowed_hosts(host, settings.hosts)
        self._keys, self._audit = keys, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        begun, status = False, CLIENT_GONE
        caller: Client | None = None  # the owner of the key
        is_counted = False  # among the open requests of the caller
        began, headers = time.perf_counter(), Headers(scope=scope)
        own_id = request_id(headers.get("x-request-id"))

        async def counted(message: Message) -> None:
            """`send` with our headers and counts. A client that does not read for too long counts as gone."""
            nonlocal begun, status
            if message["type"] == "http.response.start":
                begun, status = True, message["status"]
                sent_headers = MutableHeaders(scope=message)
                for header, value in {**HEADERS, "X-Request-Id": own_id}.items():
                    sent_headers.setdefault(header, value)
                path = self._paths.get(scope.get("endpoint"), "none")  # a label that clients cannot choose
                self._counts.requests.labels(path, message["status"]).inc()
            try:
                async with asyncio.timeout(self._settings.client_seconds):
                    await send(message)
            except TimeoutError as error:
                raise ClientGone from error

        scope["app"] = self  # makes the router raise instead of answering
        try:
            try:
                self._check(scope, headers)
                door, index = self._door(scope)
                if self._keys is not None and (door is None or door.access.rights):
                    caller = self._keys.client(headers.get("authorization", ""))
                if door is not None:
                    door.check(caller, index, "index" in scope["path_params"])
                if caller is not None:
                    caller.begin()
                    is_counted = True
                scope.update(index=index, caller=caller)
                await self._router(scope, receive, counted)
            except Exception as error:
                if begun or isinstance(error, ClientGone):
                    raise
                if isinstance(error, HTTPException):
                    given = f"{scope['method']} {scope['path']}"[:120]
                    more, do = dict(error.headers or {}), "GET /openapi.json lists the routes"
                    refusal = Refusal(error.status_code, error.detail, given=given, do=do, headers=more)
                else:
                    refusal = refusal_of(error)
                body = error_body(refusal, _BELOW.sub("", scope["path"]))
                response = Json(body, refusal.status, headers=refusal.headers)
                await response(scope, receive, counted)
                if not isinstance(error, (GpuRagError, HTTPException)):
                    raise  # a bug is reported to the operator
        except ClientGone:  # nobody is left to read a response
            self._counts.refused.labels("client gone").inc()
        finally:
            if caller is not None and is_counted:
                caller.end()
            if self._audit is not None:
                ms, name = 1e3 * (time.perf_counter() - began), caller.name if caller is not None else None
                self._audit.write(name, scope["method"], scope["path"], status, ms, own_id)

    def _door(self, scope: Scope) -> tuple[Door | None, str]:
        """(route of a request, name of its index): None without a route, "" for the whole server. Sets the scope's
        path_params."""
        for door in self._doors:
            match, more = door.matches(scope)
            if match is Match.FULL:
                scope["path_params"] = more["path_params"]
                return door, "" if "" in door.calls else more["path_params"].get("index", self._first_index)
        scope["path_params"] = {}
        return None, ""

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise Refusal for headers that a page of another site or a mistaken proxy may have caused."""
        framed = "transfer-encoding" in headers
        if framed and ("content-length" in headers or scope["http_version"] == "1.0"):
            # A proxy that uses the other header would take a part of the body for the next request.
            expected, ends = "Transfer-Encoding without Content-Length, in HTTP/1.1", {"Connection": "close"}
            raise Refusal(400, "the length of the body is not certain", expected=expected, headers=ends)
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            do = "name it in serve.hosts when the server is started"
            raise Refusal(421, "this server does not go by that name", given=f"Host: {host[:80]}", do=do)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise Refusal(403, "pages of other sites may not ask this server", given=f"Origin: {origin[:80]}")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":  # a page cannot post JSON without asking
            do = "Content-Type: application/json"
            raise Refusal(415, "a body is JSON here", given=kind[:80] or "none", expected=do)


def allowed_hosts(host: str, more: Collection[str]) -> frozenset[str] | None:
    """The names that a Host header may have, in lower case without a port; None if any is allowed."""
    if not more and not is_loopback(host):
        return None
    own = f"[{host}]" if ":" in host else host
    return frozenset({*LOOPBACK_NAMES, own.lower(), *(name.lower() for name in more)})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def read_body(request: Request, settings: ServeSettings) -> bytes:
    """The body of a request.

    Raises Refusal: 413 if it is too large, 408 if it arrives too slowly. Raises ClientGone if the client disconnects.
    """
    limit, size = settings.max_body_kib * 1024, 0
    body, ends = bytearray(), {"Connection": "close"}
    try:
        async with asyncio.timeout(settings.client_seconds):
            async for part in request.stream():
                size += len(part)
                body += part if size <= limit else b""
                if size > DROPPED * limit:
                    break
    except TimeoutError as error:
        expected = f"the whole within serve.client_seconds = {settings.client_seconds:g}"
        raise Refusal(408, "the body came too slowly", expected=expected, headers=ends) from error
    except ClientDisconnect as error:
        raise ClientGone from error
    if size > limit:
        raise Refusal(413, "the body is too large", expected=f"at most {limit // 1024} KiB", headers=ends)
    return bytes(body)


def deadline_s(request: Request) -> float | None:
    """The deadline of a client in seconds; None if it gives none. Raises Refusal (400)."""
    if (given := request.headers.get(DEADLINE)) is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise Refusal(400, "not a deadline", given=f"{DEADLINE}: {given[:40]}", expected="seconds, such as 2.5")
    return seconds


def _name_of(host: str) -> str:
    """A Host header without its port."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() and not host.endswith("]") else host).lower()
