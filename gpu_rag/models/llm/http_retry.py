"""One HTTP exchange with patience: which failures are tried again, how long to wait, and when to give up."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from gpu_rag.errors import Cancelled, ModelError, RequestFailed
from gpu_rag.models.llm.http_wire import refusal

MAX_WAIT_S = 60.0
PROBE_S = 10.0


class Exchanger:
    """Sends JSON to one server; safe to share among threads.

    Tried again, after backoff_s * 2^attempt seconds or what Retry-After says (60 s at most): refused and broken
    connections, 429, and 5xx. Not tried again: other 4xx, and an answer that takes longer than the timeout, since the
    server would only be asked to do the same work twice. When a request is given up, a look at /models tells a server
    that is gone (ModelError) from one that failed this request alone (RequestFailed).
    """

    def __init__(self, url: str, client: httpx.Client, *, retries: int, backoff_s: float):
        self.url, self._client = url.rstrip("/"), client
        self._retries, self._backoff_s = retries, backoff_s

    def get(self, path: str) -> Any:
        """The JSON reply. Raises RequestFailed, ModelError."""
        return self._send("GET", path, None, threading.Event())

    def post(self, path: str, body: dict[str, Any], stop: threading.Event) -> Any:
        """The JSON reply. Raises RequestFailed, ModelError, and Cancelled instead of another try once `stop` is set."""
        return self._send("POST", path, body, stop)

    def _send(self, method: str, path: str, body: dict[str, Any] | None, stop: threading.Event) -> Any:
        failure = _Failure("not tried")
        attempt = 0
        for attempt in range(self._retries + 1):
            if stop.is_set():
                raise Cancelled("the request was not sent: the batch was given up")
            outcome = self._try_once(method, path, body)
            if not isinstance(outcome, _Failure):
                return _json(outcome)
            failure = outcome
            if not failure.again:
                break
            if attempt < self._retries:
                backoff_s = min(self._backoff_s * 2**attempt, MAX_WAIT_S)
                stop.wait(backoff_s if failure.wait_s is None else failure.wait_s)
        given = f"{failure.why}, {attempt + 1} times" if attempt else failure.why
        if failure.unreachable or not self._is_alive(path):
            do = "start it, then run again"
            raise ModelError("the model server does not answer", given=f"{self.url}: {given}", do=do)
        raise RequestFailed("the server did not complete the request", given=given)

    def _try_once(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response | _Failure:
        """The answer below 400, or why there is none. Raises what trying again cannot mend."""
        try:
            response = self._client.request(method, self.url + path, json=body)
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            return _Failure(f"no answer in time ({type(error).__name__})", again=False)
        except httpx.TransportError as error:
            return _Failure(f"{type(error).__name__}: {error}", unreachable=True)
        if response.status_code < 400:
            return response
        if response.status_code == 429 or response.status_code >= 500:
            return _Failure(f"HTTP {response.status_code}: {response.text[:200]}", wait_s=_retry_after_s(response))
        raise _refused(response, self.url + path)

    def _is_alive(self, path: str) -> bool:
        if path == "/models":
            return False
        try:
            return self._client.get(f"{self.url}/models", timeout=PROBE_S).status_code < 500
        except httpx.TransportError:
            return False


@dataclass(frozen=True)
class _Failure:
    """One try that failed. unreachable: no answer at all; again: whether another try makes sense; wait_s: as told."""

    why: str
    unreachable: bool = False
    again: bool = True
    wait_s: float | None = None


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:  # also a body that is not text
        given = f"{response.text[:100]!r}"
        raise RequestFailed("the server's reply is not JSON", given=given) from error


def _refused(response: httpx.Response, url: str) -> RequestFailed | ModelError:
    status = response.status_code
    if status in (401, 403):
        return ModelError("the server refuses the API key", given=f"{url}: HTTP {status}", do="give the right api_key")
    if status in (404, 405):
        do = "the address must end where /chat/completions begins, most often in /v1"
        return ModelError(
            "no such service at this address", given=f"{url}: HTTP {status}: {response.text[:200]}", do=do
        )
    return refusal(status, response.text)


def _retry_after_s(response: httpx.Response) -> float | None:
    """Seconds that the server asks to wait, bounded; None when it does not say."""
    text = response.headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0.0), MAX_WAIT_S)
