"""The engine behind an address: any server that speaks the OpenAI chat completions protocol.

`Exchanger` makes one HTTP exchange with patience: it tries again what may pass, waits, and gives up.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from gpu_rag.errors import BadInput, Cancelled, GpuRagError, ModelError, RequestFailed
from gpu_rag.models.fingerprint import text_hash
from gpu_rag.models.llm.capability import is_capable
from gpu_rag.models.llm.http_wire import Style, body, check_constraint, read_answer, refusal
from gpu_rag.models.llm.interface import OnReply, estimate_tokens, in_order
from gpu_rag.types import Reply, Request

CODE_VERSION = 1
CONTEXT_TOKENS = 4096
# Chat templates add some tokens a message, and the server counts them.
TEMPLATE_TOKENS = 64
CHOICE_STYLES = ("structured_outputs", "json_schema")


class HttpLLM:
    """Replies of a served model, `max_connections` requests at a time.

    url: up to and with /v1. model: its id there; "" takes the only one served. On opening, GET /models must list it;
    context_tokens is what the server says there (max_model_len, as vLLM does), else 4,096, less 64 for the template.
    A reply comes as it was said, whether it keeps to its constraint or not: some servers accept one and ignore it.
    Rank asks for the letter of the best of at most 20 listed options and scores each by
    its letter's log-probability: the model's opinion of the choice, not of the option's wording.
    content_hash knows the server's model id and `revision` alone: give another `revision` when the weights behind the
    same id change. Counts are the server's; count_tokens is a cautious estimate unless `tokenizer` names a folder.
    Environment variables (proxies, keys) are not read.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        api_key: str | None = None,
        max_connections: int = 32,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        retries: int = 5,
        backoff_s: float = 0.5,
        context_tokens: int | None = None,
        capable: bool | None = None,
        revision: str = "",
        choice_style: str = "structured_outputs",
        tokenizer: str | None = None,
    ):
        """Look the model up on the server. Raises BadInput (address, option), ModelError (server, model id)."""
        _check_settings(url, max_connections, retries, choice_style)
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
        timeout = httpx.Timeout(timeout_s, connect=connect_timeout_s)
        client = httpx.Client(headers=headers, limits=limits, timeout=timeout, trust_env=False)
        self._client, self._choice_style, self.max_connections = client, choice_style, max_connections
        self._exchanger = Exchanger(url, client, retries=retries, backoff_s=backoff_s)
        card = _find_model(self._exchanger, model)
        self.model = str(card["id"])
        self.name = f"{url}#{self.model}"
        self.content_hash = text_hash("http", CODE_VERSION, self.model, revision)
        self.context_tokens = (context_tokens or int(card.get("max_model_len") or CONTEXT_TOKENS)) - TEMPLATE_TOKENS
        root = str(card.get("root") or "")  # vLLM tells here what a served alias stands for
        self.capable = is_capable(f"{self.model} {Path(root).name}") if capable is None else capable
        self._count = estimate_tokens if tokenizer is None else _token_counter(tokenizer)

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` by the given tokenizer, else the estimate of `estimate_tokens`."""
        return self._count(text)

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order. Raises ModelError when the server is gone; replies that arrived before
        have been handed to `on_reply`."""
        work: queue.SimpleQueue[int] = queue.SimpleQueue()
        arrived: queue.SimpleQueue[tuple[int, Reply | GpuRagError]] = queue.SimpleQueue()
        for i in range(len(requests)):
            work.put(i)
        stop = threading.Event()
        try:  # from here on: Ctrl-C between two starts must stop the threads that run already
            # daemon threads: a process that has to end does not wait for answers that may take minutes
            for _ in range(min(self.max_connections, len(requests))):
                threading.Thread(target=self._work, args=(requests, work, arrived, stop), daemon=True).start()
            return in_order(len(requests), (_unless_fatal(*arrived.get()) for _ in requests), on_reply)
        finally:
            stop.set()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _work(
        self,
        requests: Sequence[Request],
        work: queue.SimpleQueue[int],
        arrived: queue.SimpleQueue[tuple[int, Reply | GpuRagError]],
        stop: threading.Event,
    ) -> None:
        """One connection: take requests until none is left."""
        while not stop.is_set():
            try:
                i = work.get_nowait()
            except queue.Empty:
                return
            outcome: Reply | GpuRagError = ModelError("a connection thread ended", given="the error printed above")
            try:
                outcome = self._complete_one(requests[i], stop)
            except (ModelError, Cancelled) as error:
                outcome = error
            except RuntimeError:
                if not stop.is_set():
                    raise
                outcome = Cancelled("the run was stopped")  # and the client closed under this thread
            finally:  # whatever happens here, the caller is not left waiting
                arrived.put((i, outcome))

    def _complete_one(self, request: Request, stop: threading.Event) -> Reply | RequestFailed:
        problem = check_constraint(request)
        if problem is not None:
            return problem
        try:
            answer = self._exchanger.post(
                "/chat/completions", body(self.model, request, Style(choices=self._choice_style)), stop
            )
        except RequestFailed as error:
            return error
        return read_answer(request, answer)


def _find_model(exchanger: Exchanger, model: str) -> dict[str, Any]:
    """The entry of GET /models for `model`, or the only one there."""
    try:
        answer = exchanger.get("/models")
        cards = {str(card["id"]): card for card in answer["data"]}
    except (KeyError, TypeError, RequestFailed) as error:
        given = f"{exchanger.url}/models: {error!r}"
        raise ModelError("the server does not list its models", given=given, expected="an OpenAI-style list") from error
    if not model and len(cards) == 1:
        return next(iter(cards.values()))
    if model not in cards:
        expected = f"one of {', '.join(sorted(cards)) or 'none'}"
        do = "name the model after # in the address"
        raise ModelError("the server does not serve this model", given=model or "no name", expected=expected, do=do)
    return cards[model]


def _check_settings(url: str, max_connections: int, retries: int, choice_style: str) -> None:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BadInput("not an address", given=f"{url}: {error}", expected="http://HOST:PORT/v1") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise BadInput("not an address", given=url, expected="http://HOST:PORT/v1")
    if max_connections < 1:
        raise BadInput("a server needs a connection", given=f"max_connections={max_connections}", expected=">= 1")
    if retries < 0:
        raise BadInput("a negative number of retries", given=f"retries={retries}", expected=">= 0")
    if choice_style not in CHOICE_STYLES:
        raise BadInput("unknown choice_style", given=choice_style, expected=" or ".join(CHOICE_STYLES))


def _token_counter(folder: str) -> Callable[[str], int]:
    from gpu_rag.models.pretrained import load_tokenizer

    tokenizer = load_tokenizer(Path(folder))
    return lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _unless_fatal(i: int, outcome: Reply | GpuRagError) -> tuple[int, Reply | RequestFailed]:
    """The outcome of request i. Raises the one that concerns the engine as a whole."""
    if isinstance(outcome, (Reply, RequestFailed)):
        return i, outcome
    raise outcome


MAX_WAIT_S = 60.0
PROBE_S = 10.0


class Exchanger:
    """Sends JSON to one server; safe to share among threads.

    Tried again, after backoff_s * 2^attempt seconds or what Retry-After says (60 s at most): refused and broken
    connections, 429, and 5xx. Not tried again: other 4xx, and an answer that takes longer than the timeout, since the
    server would only do the same work twice. When a request is given up, a look at /models tells a server
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
    except (ValueError, RecursionError):  # also a body that is not text
        return None


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
