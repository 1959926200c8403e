"""Requests as JSON bodies of the OpenAI chat completions protocol, bounded exchanges, and the meaning of answers."""

from __future__ import annotations

import json
import math
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import aiohttp

from gpu_rag.errors import BadInput, ContextOverflow, ModelError, RequestFailed
from gpu_rag.models.llm.interface import JSON_LAYOUT, estimate_tokens, ranked
from gpu_rag.text.replies import spoken
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

LABELS = "ABCDEFGHIJKLMNOPQRST"  # top_logprobs shows at most 20
_SEED_BITS = (1 << 63) - 1
MAX_REPLY_BYTES = 16 * 2**20  # after decompression
MAX_ERROR_BYTES = 64 * 2**10  # read of the body of a status >= 400; the rest is ignored
MAX_WAIT_S = 60.0
KEEP_ALIVE_S = 30.0  # idle connections are closed after this time
EVENTS = "text/event-stream"
ENCODINGS = ("", "identity", "gzip", "x-gzip", "deflate")
PASSING = (408, 409, 424, 425, 429)  # refusals that another try may not meet; 424: TGI broke off
TEMPLATE_TOKENS = 64  # reserve for the tokens that chat templates add, which the server counts

# Messages of vLLM, SGLang, llama.cpp, llama-cpp-python, TGI, Gemini, Ollama, LM Studio, Mistral and others.
_TOO_LONG = re.compile(
    r"context[ _.-](?:length|size|window)|maximum (?:model|context)|max(?:imum)?.model.len|too many (?:input )?tokens"
    r"|input token count|`?inputs`? (?:tokens|must have less than)|(?:prompt|input) is too long|longer than the model"
    r"|exceeds? (?:the )?(?:available )?context|(?:maximum|max) number of tokens allowed|too large for model with",
    re.IGNORECASE,
)
# Words of a refusal that concerns the form of a request, not its text.
_FORM = re.compile(
    r"response_format|json_schema|json_object|structured_outputs|guided|grammar|\bschema\b|logprobs|chat_template_kwargs"
    r"|enable_thinking|top_n_tokens|\bseed\b|max_tokens|max_completion_tokens|extra (?:inputs|fields)"
    r"|unrecognized request|unsupported (?:parameter|value)|not permitted|unknown (?:field|parameter|argument|name)"
    r"|deserialize",
    re.IGNORECASE,
)
_LOADING = re.compile(r"\bload(?:ing|ed)?\b|warm(?:ing)?[ -]?up|starting|not ready", re.IGNORECASE)


class FormRefused(RequestFailed):
    """The server does not understand the form of a request; another form may work."""


class Unanswered(RequestFailed):
    """No try of the request brought an answer."""


# --- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """Features that a server understands besides plain chat, as probed by `http.find_style`.

    objects: form of a JSON Schema; choices: form of options ("prompt": in words only); ranks: whether letters come with
    log-probabilities; thinks: whether replies begin with a thought; quiet: whether thinking can be switched off;
    one_line: whether a schema may set the layout of its JSON, as llguidance reads it; seed: whether a request may have
    one; limit: name of the token limit, "" if none may be given.
    """

    objects: str = "json_schema"
    choices: str = "structured_outputs"
    ranks: bool = True
    thinks: bool = False
    quiet: bool = False
    one_line: bool = False
    seed: bool = True
    limit: str = "max_tokens"

    def __str__(self) -> str:
        rank = "log-probabilities" if self.ranks else "labels"
        thought = ", thinks first" + (" (switched off)" if self.quiet else "") if self.thinks else ""
        plain = ("" if self.seed else ", no seed") + ("" if self.limit == "max_tokens" else f", limit: {self.limit!r}")
        return f"JSON by {self.objects}, choices by {self.choices}, ranks by {rank}{thought}{plain}"


OBJECT_STYLES = ("json_schema", "structured_outputs", "json_object", "prompt")
CHOICE_STYLES = ("structured_outputs", "json_schema", "prompt")
PLAIN_STYLES = tuple(Style(seed=seed, limit=limit) for limit in ("max_tokens", "max_completion_tokens", "")
                     for seed in (True, False))  # fmt: skip
_IN_WORDS = "\n\nReply with one JSON object and nothing else. It must be valid under this JSON Schema:\n"


def body(model: str, request: Request, style: Style, think_tokens: int = 0) -> dict[str, Any]:
    """Body of POST /chat/completions for a request that passed `check_constraint`.

    A JSON Schema is sent as response_format json_schema, as structured_outputs of vLLM, or in words, with or without
    response_format json_object. A Choice is sent as structured_outputs, as a JSON string of an enum, or in words. A
    Rank lists the options under the letters A to T and asks for one token with its 20 most likely alternatives.
    think_tokens: added to the limit of a model whose thinking cannot be switched off.
    """
    system, user, limit = request.system, request.prompt, request.max_tokens
    extra: dict[str, Any] = {}
    match request.constraint:
        case JsonSchema(schema):
            system, extra = _object_form(system, schema, style)
        case Choice(options) if style.choices == "structured_outputs":
            extra["structured_outputs"] = {"choice": list(options)}
        case Choice(options) if style.choices == "json_schema":
            extra["response_format"] = _schema_format({"type": "string", "enum": list(options)})
        case Choice(options):
            user = f"{user}\n\nReply with exactly one of: {', '.join(options)}"
        case Rank(options):
            user, limit = f"{user}\n\n{_labelled(options)}", 1
            extra = {"logprobs": True, "top_logprobs": len(LABELS)}
    if style.thinks and style.quiet:
        extra["chat_template_kwargs"] = {"enable_thinking": False, "thinking": False}  # depends on the model family
    elif style.thinks:
        limit += think_tokens
    messages = [{"role": "user", "content": user}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    sampling: dict[str, Any] = {"temperature": request.temperature}
    if style.seed:
        sampling["seed"] = request.seed & _SEED_BITS
    if style.limit:
        sampling[style.limit] = limit
    return {"model": model, "messages": messages, **sampling, **extra}


def _object_form(system: str, schema: str, style: Style) -> tuple[str, dict[str, Any]]:
    """System text, and the part of the body that asks for an object."""
    parsed = json.loads(schema)
    if style.one_line and isinstance(parsed, dict):
        parsed["x-guidance"] = JSON_LAYOUT
    if style.objects == "json_schema":
        return system, {"response_format": _schema_format(parsed)}
    if style.objects == "structured_outputs":
        return system, {"structured_outputs": {"json": parsed}}
    form = {"response_format": {"type": "json_object"}} if style.objects == "json_object" else {}
    return f"{system}{_IN_WORDS}{schema}".lstrip(), form


def _schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}


def _labelled(options: tuple[str, ...]) -> str:
    lines = [f"{label}. {option}" for label, option in zip(LABELS, options)]
    return "\n".join([*lines, "", "Reply with the letter of the best option only."])


def check_constraint(request: Request) -> RequestFailed | None:
    """RequestFailed if a request cannot be sent at all (its schema is not JSON), else None."""
    if isinstance(request.constraint, JsonSchema):
        try:
            json.loads(request.constraint.schema)
        except ValueError as error:
            return RequestFailed("the schema is not JSON", given=error)
    return None


# --- completions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """An exchange that brought no answer to the request.

    broken: no answer at all, so the server may be dead; unreached: not even a connection; busy: the server was
    overloaded; alive: the server itself answered, not a proxy for a dead one; again: whether another try makes sense;
    unready: HTTP 503, as during model loading; loading: the server says that it is loading; wait_s: the pause that it
    asks for.
    """

    why: str
    broken: bool = False
    unreached: bool = False
    busy: bool = False
    alive: bool = False
    again: bool = True
    unready: bool = False
    loading: bool = False
    wait_s: float | None = None


Completion = dict[str, Any]
# A body; a failure that may pass; an error of this request alone; or an error of the whole server.
Outcome = bytes | Failure | RequestFailed | ModelError


class Service(NamedTuple):
    """The kind of requests to servers. path: below the address; trial: the rest of a harmless request that tells
    whether a server refuses everything, None: a refusal for a reason that concerns all is the outcome of its
    request."""

    path: str
    trial: dict[str, Any] | None = None


CHAT = Service("/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})


def read_completion(content: bytes) -> Completion | Failure | RequestFailed:
    """Chat completion in the body of a status 2xx, or the reason why there is none: an error, a page, a reply broken
    off.

    The reader checks whether a completion keeps the form asked for. A completion without text counts if the model
    thought, or was cut by its limit.
    """
    answer = _json(content)
    if not isinstance(answer, dict):
        return _no_completion(content.decode("utf-8", "replace"))
    error = answer.get("error")
    try:
        choice = answer["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text = message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        return _no_completion(_message(json.dumps(answer)))
    if error or finish in ("error", "abort"):
        return _no_completion(_message(json.dumps({"error": error or choice.get("error") or f"it ended by {finish}"})))
    if isinstance(text, str) or _parts(text) is not None or (text is None and (thought(answer) or finish == "length")):
        return answer
    if finish == "content_filter" or message.get("refusal"):
        return RequestFailed("the server withheld the reply", given=message.get("refusal") or finish)
    return _no_completion(f"a message without text: {json.dumps(message)}")


def _no_completion(message: str) -> Failure | ContextOverflow:
    if _TOO_LONG.search(message[:MAX_ERROR_BYTES]):
        return _too_long(200, message)
    return Failure(f"HTTP 200 without a reply: {' '.join(message[:200].split())}", alive=True)


def _json(content: bytes) -> Any:
    """Value of a JSON text; None for anything else."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None


def _parts(content: Any) -> str | None:
    """Text of a content in parts, as some servers write it; None if it has no such form."""
    try:
        return "".join(part["text"] for part in content if part.get("type") == "text")
    except (KeyError, TypeError, AttributeError):
        return None


def thought(answer: Completion) -> str:
    """Thought in a chat completion, from its own field or from the text; "" for none."""
    try:
        message = answer["choices"][0]["message"]
        if reasoning := message.get("reasoning_content") or message.get("reasoning"):
            return str(reasoning)
        content = message.get("content") or ""
        visible = spoken(content)
        return content if visible != content else ""
    except (KeyError, IndexError, TypeError, AttributeError):
        return ""


def read_answer(request: Request, answer: Completion, count: Callable[[str], int] = estimate_tokens) -> Reply:
    """Reply in a chat completion, unchanged: the maker of the request interprets it.

    Reasoning content in a field of its own is never part of the text. A Rank without log-probabilities of its letters
    has no scores. Any finish reason but "length" is "stop". count: estimates tokens that the server does not count;
    such a reply is marked `estimated`.
    """
    choice = answer["choices"][0]
    content = choice["message"].get("content")
    text = content if isinstance(content, str) else _parts(content) or ""
    finish = "length" if choice.get("finish_reason") == "length" else "stop"
    n_prompt, n_cached, n_generated = _counts(answer)
    reasoning = thought(answer)
    written = text if reasoning == text else text + reasoning
    estimated = n_prompt is None or (n_generated is None and bool(written))
    if n_prompt is None:
        n_prompt = TEMPLATE_TOKENS + count(request.system) + count(request.prompt)
    n_generated = (count(written) if written else 0) if n_generated is None else n_generated
    if isinstance(request.constraint, Choice):
        text = _unquoted(text)
    if isinstance(request.constraint, Rank):
        scores = _scores(request.constraint.options, choice)
        if scores is not None:
            return ranked(request.constraint.options, scores, n_prompt, n_cached, 1, estimated)
    return Reply(text, finish, n_prompt, n_cached, n_generated, estimated=estimated)


class Pieces:
    """A chat completion in pieces. ended: whether the last has come; error: sent by the server in place of the rest."""

    def __init__(self) -> None:
        self.text, self.error, self.ended = "", "", False
        self._thought, self._finish, self._rest = "", None, dict[str, Any]()
        self._readable = True

    def take_line(self, line: bytes) -> None:
        """Add a line of the stream; lines other than data are ignored."""
        if line.startswith(b"data:"):
            self.take(line.removeprefix(b"data:").strip())

    def take(self, data: bytes) -> None:
        """Add the data of one event."""
        if data == b"[DONE]":
            self.ended = True
            return
        try:
            chunk = json.loads(data)
            self._rest |= {name: chunk[name] for name in ("usage", "model") if chunk.get(name)}
            if chunk.get("error"):
                self.error = _message(data.decode("utf-8", "replace"))
            for choice in (chunk.get("choices") or ())[:1]:
                delta = choice.get("delta") or {}
                self.text += delta.get("content") or ""
                self._thought += delta.get("reasoning_content") or delta.get("reasoning") or ""
                self._finish = choice.get("finish_reason") or self._finish
                self.ended = self.ended or self._finish is not None
        except (ValueError, RecursionError, AttributeError, TypeError):
            self._readable = False

    def whole(self) -> bytes:
        """The completion in one piece; bytes that are not a completion if a piece could not be read."""
        if not self._readable:
            return b"pieces that cannot be read"
        message = {"role": "assistant", "content": self.text, "reasoning_content": self._thought or None}
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return json.dumps({"choices": [choice], **self._rest}).encode()


def _unquoted(text: str) -> str:
    """Text of a JSON string, the form of an option of an enum; other text unchanged."""
    value = _json(text.encode("utf-8", "surrogatepass"))
    return value if isinstance(value, str) else text


def _counts(answer: Completion) -> tuple[int | None, int, int | None]:
    """Prompt, cached and generated tokens by the server's count; None for one that it does not give, or gives as 0."""
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return _count(usage.get("prompt_tokens")), _count(cached) or 0, _count(usage.get("completion_tokens"))


def _count(number: Any) -> int | None:
    """A number of tokens >= 1, also given as float or text; None for anything else."""
    if isinstance(number, bool):
        return None
    try:
        count = float(number)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(count) if 1 <= count < 2**53 and count.is_integer() else None


def _scores(options: tuple[str, ...], choice: dict[str, Any]) -> tuple[float, ...] | None:
    try:
        return _label_scores(options, choice["logprobs"]["content"][0]["top_logprobs"])
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError):
        return None


def _label_scores(options: tuple[str, ...], alternatives: list[dict[str, Any]]) -> tuple[float, ...] | None:
    """Log-probability of each option's letter; None if no letter is among the alternatives.

    "A" and " A" are one letter: their probabilities add up. A letter that is missing, or whose number is not finite, is
    less likely than all alternatives: it gets the lowest value less 1.
    """
    numbers: dict[str, list[float]] = {}
    for alternative in alternatives:
        if math.isfinite(number := float(alternative["logprob"])):
            numbers.setdefault(str(alternative["token"]).strip(), []).append(number)
    labels = LABELS[: len(options)]
    if not any(label in numbers for label in labels):
        return None
    floor = min(min(values) for values in numbers.values()) - 1.0
    return tuple(_log_sum(numbers[label]) if label in numbers else floor for label in labels)


def _log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


# --- exchanges ------------------------------------------------------------------------------------


class Exchanger:
    """Client of one address that reads bounded replies. Only its own event loop may use it.

    A time limit covers a whole exchange: connecting, sending, headers and body. Replies end at MAX_REPLY_BYTES. It
    follows no redirects, keeps no cookies and reads no environment variables. The key goes to this address only.
    """

    def __init__(self, url: str, key: str | None, *, connect_timeout_s: float, socket: str = "", ca_file: str = ""):
        """Open no connection yet. socket: path of a Unix socket. Needs a running event loop."""
        self.url, self._connect_timeout_s = url, connect_timeout_s
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if socket:
            connector: Any = _UnixConnector(socket, limit=0, keepalive_timeout=KEEP_ALIVE_S)
        else:
            certificates = certificates_for(url, ca_file)
            connector = _TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=certificates)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def get(self, path: str, timeout_s: float) -> Outcome:
        """Outcome of a GET. path: below the address; with ".." it replaces the final /v1."""
        return await self._exchange("GET", path, None, timeout_s)

    async def post(
        self, path: str, body: bytes, timeout_s: float, on_text: Callable[[str], None] | None = None
    ) -> Outcome:
        """Outcome of a POST of JSON. on_text: called with the text so far, for a chat completion that comes as
        server-sent events; the outcome is still the completion in one piece."""
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
                encoding = response.headers.get("Content-Encoding", "").strip().lower()
                if encoding not in ENCODINGS:
                    return _encoded(url, encoding)
                if response.status < 300 and response.content_type == EVENTS:
                    return await _read_events(response, on_text)
                if response.status < 300:
                    content = await _read(response, MAX_REPLY_BYTES)
                    return _too_large() if len(content) > MAX_REPLY_BYTES else content
                text = (await _read(response, MAX_ERROR_BYTES)).decode("utf-8", "replace")
                return refused(response.status, text, response.headers, url)
        except aiohttp.ConnectionTimeoutError as error:
            return Failure(f"no connection in time: {error}", broken=True)
        except TimeoutError:
            return Failure(f"no answer in time ({timeout_s:g} s)", busy=True, again=False)
        except (aiohttp.ClientError, OSError) as error:
            if unknown := re.search(r"content-encoding: \w+ \((\w+)\)", str(error)):
                return _encoded(url, unknown[1])
            unreached = isinstance(error, aiohttp.ClientConnectorError)
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            return Failure(f"{type(error).__name__}: {cause}", broken=True, unreached=unreached)
        # The bytes of a server can make a library raise anything; it is a failure of this exchange alone.
        except Exception as error:  # noqa: BLE001
            return Failure(f"{type(error).__name__}: {error}"[:300], broken=True)


class _OfOneProcess(aiohttp.BaseConnector):
    """A pool of connections that a forked process leaves alone: they share a selector with its parent."""

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


def certificates_for(url: str, ca_file: str = "") -> Any:
    """Certificates for checking https: the list of httpx, the same on every machine, and the contents of a PEM file.

    Returns True for other addresses. Raises BadInput for a file without certificates.
    """
    if not url.startswith("https:"):
        return True
    import httpx

    context = httpx.create_ssl_context(trust_env=False)
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            expected = "a file of certificates, PEM"
            raise BadInput("models.ca_file cannot be read", given=f"{ca_file}: {error}", expected=expected) from error
    return context


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Decompressed body, up to the piece that makes it longer than `limit`."""
    pieces: list[bytes] = []
    n_bytes = 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        n_bytes += len(piece)
        if n_bytes > limit:
            break
    return b"".join(pieces)


async def _read_events(response: aiohttp.ClientResponse, on_text: Callable[[str], None] | None) -> Outcome:
    """Chat completion that comes as server-sent events, put together into one piece."""
    completion = Pieces()
    rest, n_bytes = b"", 0
    async for piece in response.content.iter_any():
        n_bytes += len(piece)
        if n_bytes > MAX_REPLY_BYTES:
            return _too_large()
        *lines, rest = (rest + piece).split(b"\n")
        before = completion.text
        for line in lines:
            completion.take_line(line)
        if on_text is not None and completion.text != before:
            on_text(completion.text)
    completion.take_line(rest)  # some servers leave out the last line break
    if completion.error:
        return _no_completion(completion.error)
    if not completion.ended:
        return Failure("the server broke off in the middle of its events", broken=True)
    return completion.whole()


def _too_large() -> RequestFailed:
    expected = f"at most {MAX_REPLY_BYTES:,} bytes, decompressed"
    return RequestFailed("the server's reply is too large", given=f"more than {MAX_REPLY_BYTES:,}", expected=expected)


def _encoded(url: str, encoding: str) -> ModelError:
    given, do = f"{url}: content-encoding {encoding}", "switch that off at the server, or at the proxy before it"
    return ModelError("the server uses a compression that was not asked for", given=given, expected="gzip", do=do)


def refused(status: int, text: str, headers: Any, url: str) -> Failure | RequestFailed | ModelError:
    """Meaning of a status >= 300. headers: headers of the response, in any case."""
    message = _message(text)
    if status == 413 or (status >= 400 and status not in (401, 403, 404) and _TOO_LONG.search(message)):
        return _too_long(status, message)
    if status in PASSING or status >= 500:
        wait_s = retry_after_s(headers.get("Retry-After", ""), headers.get("Date", ""))
        why, unready = f"HTTP {status}: {text[:200]}", status == 503
        busy, loading = status == 429 or unready, unready and bool(_LOADING.search(message))
        return Failure(why, busy=busy, alive=status < 500, unready=unready, loading=loading, wait_s=wait_s)
    if status in (401, 403):
        do = "give its key: models.api_keys, or GPU_RAG_API_KEY"
        return ModelError("the server refuses the API key", given=f"{url}: HTTP {status}", do=do)
    if status < 400:
        given = f"{url}: HTTP {status}, Location {headers.get('Location', 'none')[:200]}"
        return ModelError("the server redirects, which is not followed", given=given, do="name the address itself")
    if status in (404, 405):
        do = "the address must end where /chat/completions begins, most often in /v1"
        return ModelError("no such service at this address", given=f"{url}: HTTP {status}: {text[:200]}", do=do)
    given = f"HTTP {status}: {message[:300]}"
    if _FORM.search(text):
        do = "gpu-rag models probe --fresh finds out what it understands now; then run again"
        return FormRefused("the server refused the form of the request", given=given, do=do)
    return RequestFailed("the server refused the request", given=given)


def _too_long(status: int, message: str) -> ContextOverflow:
    given = f"HTTP {status}: {message[:300]}"
    return ContextOverflow("the prompt does not fit the server's context", given=given, do="shorten the prompt")


def _message(text: str) -> str:
    """Message inside an error body, else the whole body."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(content, list) and len(content) == 1:  # Gemini
        content = content[0]
    if isinstance(content, dict):
        inner = content.get("error", content)
        if isinstance(inner, dict) and "message" in inner:
            return str(inner["message"])
        if isinstance(inner, str):
            return inner
    return text


def retry_after_s(text: str, date: str = "") -> float | None:
    """Seconds that the server asks to wait, 0 to MAX_WAIT_S; None if it does not say.

    date: date of the answer, by the server's clock; "" takes ours.
    """
    if not text.strip():
        return None
    try:
        seconds = float(text)
    except ValueError:
        until, now = _moment(text), _moment(date)
        if until is None:
            return None
        seconds = (until - (now or datetime.now(UTC))).total_seconds()
    return None if math.isnan(seconds) else min(max(seconds, 0.0), MAX_WAIT_S)


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
