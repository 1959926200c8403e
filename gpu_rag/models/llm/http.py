"""Engine over HTTP: one or several servers of one model that speak the OpenAI chat completions protocol."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gpu_rag.errors import BadInput, GpuRagError, RequestFailed, UsageError
from gpu_rag.models.fingerprint import text_hash
from gpu_rag.models.llm.capability import is_capable
from gpu_rag.models.llm.http_servers import Address, Card, Job, Keeper, Patience, Servers, address_of
from gpu_rag.models.llm.http_wire import (
    CHAT,
    CHOICE_STYLES,
    LABELS,
    OBJECT_STYLES,
    PLAIN_STYLES,
    TEMPLATE_TOKENS,
    Completion,
    FormRefused,
    Service,
    Style,
    body,
    certificates_for,
    check_constraint,
    read_answer,
    thought,
)
from gpu_rag.models.llm.interface import ApiKeys, OnReply, ServerAccount, check_key, estimate_tokens, in_order
from gpu_rag.models.llm.own_server import OwnServer
from gpu_rag.models.llm.service import StreamingEngine
from gpu_rag.models.packaged import cache_dir, keep_json
from gpu_rag.settings.ranges import MAX_INTEGER
from gpu_rag.text.lenient import Read, read_reply
from gpu_rag.text.prompts import break_template_tokens
from gpu_rag.text.replies import spoken
from gpu_rag.types import Choice, JsonSchema, Malformed, Rank, Reply, Request

CODE_VERSION = 1
CONTEXT_TOKENS = 4096
THINK_TOKENS = 2048
MAX_STARVED = 8  # replies in a row that held only a thought: more are not an accident
READ_AGAIN = 16  # the style is learnt again when most of the last READ_AGAIN constrained replies cannot be read
MAX_RELEARNT = 4  # limit on relearning: two kinds of servers behind one address would change the style for ever
CONNECTIONS = 256
JOIN_S = 20.0  # our own servers take some seconds to end

_log = logging.getLogger(__name__)
_Item = tuple[int, Request, "Completion | Reply | GpuRagError", "Job | None"]  # no job: it could not be sent
_Finished = queue.SimpleQueue[_Item]
_Reply = tuple[int, "Reply | RequestFailed"]


class HttpLLM(StreamingEngine[_Item, "Job | None"]):
    """Replies of a served model, with at most `max_connections` requests at a time at each server.

    url: up to and with /v1, or servers of our own. Several servers of one model are one engine: a request goes to the
    least loaded, and to another one when its server dies. model: its id there; "" takes the only one served. On
    opening, GET /models must list it. api_key: one for all addresses, or keys by address; each goes to its own address
    only. A request fails alone (RequestFailed) after its retries; the engine is dead (ModelError) when no server
    answers. A reply is returned unchanged, whether it keeps its constraint or not; an answer that is not a chat
    completion is tried again. style: what the servers understand. None finds it by trial, keeps it, and repeats the
    trial when a server refuses a form or most replies cannot be read. think_tokens: room besides max_tokens for the
    thought of a model whose thinking is not switched off; also for a reply that held only a thought, which is then
    asked again. extra_body: merged into every body. Rank asks for the letter of the best of at most 20 listed options
    and scores each by its letter's log-probability. content_hash depends only on the model id and the revision (as the
    server reports it, else `revision`): change `revision` when the weights behind an id change. A server that reports
    another revision is refused. context_tokens: default the least that a server reports, else 4,096, less 64 for the
    template. tokenizer: folder of the tokenizer that counts tokens; without it counts are cautious estimates. Template
    tokens are broken up in every message. ca_file: PEM certificates besides the usual ones. No environment variables
    (proxies, keys) are read.

    One thread runs an event loop for all connections. Replies are parsed in the caller's thread, after the next request
    is sent. A forked process opens connections of its own.
    """

    def __init__(
        self,
        url: str | Sequence[str | OwnServer],
        model: str = "",
        *,
        api_key: ApiKeys = None,
        max_connections: int = CONNECTIONS,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        retries: int = 5,
        backoff_s: float = 0.5,
        context_tokens: int | None = None,
        capable: bool | None = None,
        revision: str = "",
        style: Style | None = Style(),  # noqa: B008 (it is frozen)
        think_tokens: int = THINK_TOKENS,
        extra_body: Mapping[str, Any] | None = None,
        tokenizer: str | None = None,
        ca_file: str = "",
    ):
        """Look up the model on the servers. Raises BadInput (address, option) or ModelError (server, model id)."""
        super().__init__()
        addresses = [_address(server, api_key, ca_file) for server in ([url] if isinstance(url, str) else url)]
        _check_settings(addresses, max_connections, retries)
        certificates_for("https:" if ca_file else "", ca_file)
        patience = Patience(timeout_s, connect_timeout_s, retries, backoff_s)
        self._thread = ServerThread(self, addresses, model, revision, max_connections, patience)
        cards = self._thread.open()
        self._think_tokens, self._extra = think_tokens, dict(extra_body or {})
        self.model = str(cards[0]["id"])
        self.name = f"{url if isinstance(url, str) else url[0]}#{self.model}"
        self.content_hash = text_hash("http", CODE_VERSION, self.model, self._thread.servers.revision)
        served = min(_context_of(card) for card in cards)
        self.context_tokens = (context_tokens or served) - TEMPLATE_TOKENS
        root = str(cards[0].get("root") or "")  # vLLM reports here the model behind an alias
        self.capable = is_capable(f"{self.model} {Path(root).name}") if capable is None else capable
        self._count = estimate_tokens if tokenizer is None else _token_counter(tokenizer)
        self._template_tokens = template_tokens(Path(tokenizer or root)) if tokenizer or root else ()
        self._n_starved = 0
        self._learns, self._n_learnt = style is None, 0
        self._unread: deque[bool] = deque(maxlen=READ_AGAIN)
        self._other_models: set[str] = set()
        try:
            self.style = style or Style()
            if self._learns:
                self.learn()
        except BaseException:
            self._thread.close()
            raise

    def learn(self, fresh: bool = False) -> None:
        """Load the kept style of the first address; find it if there is none, or if `fresh`."""
        self.style = kept_style(cache_dir(), self.name.partition("#")[0], self.model, self.find_style, fresh)

    def find_style(self) -> Style | None:
        """Style of the servers, found by trial; None if they answer nothing."""
        return find_style(self.model, self._post, self._think_tokens)

    def _is_stale(self, style: Style) -> bool:
        """Whether the servers no longer have this style. Tries them again unless that was done since."""
        if self._learns and self.style == style and self._n_learnt < MAX_RELEARNT:
            self._n_learnt += 1
            self._unread.clear()
            self._keep(self.find_style() or style)
            if self.style == style:
                self._n_learnt = MAX_RELEARNT  # the servers are not the cause
            else:
                _log.warning("model server %s is another one than before: %s", self.name, self.style)
        return self.style != style

    def _keep(self, style: Style) -> None:
        """Use a style from now on, also in later runs."""
        self.style = style
        if self._learns:
            keep_style(cache_dir(), self.name.partition("#")[0], self.model, style)

    def accounts(self) -> list[ServerAccount]:
        """Account of each server, including the trials of its style."""
        self._thread.run(Keeper.count)
        return [server.report() for server in self._thread.servers.servers]

    def sleep(self) -> None:
        """Free the GPU memory of our own idle servers until their next request, where they can."""
        self._thread.run(Keeper.sleep)

    def _post(self, content: dict[str, Any]) -> Any:
        """Chat completion for a body. Raises RequestFailed or ModelError."""
        answers: queue.SimpleQueue[Completion | GpuRagError] = queue.SimpleQueue()
        job = Job(lambda _: msgspec.json.encode(content | self._extra), lambda _, outcome: answers.put(outcome))
        self._running().add([job])
        outcome = answers.get()
        if isinstance(outcome, GpuRagError):
            raise outcome
        return outcome

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` by the given tokenizer, else by `estimate_tokens`."""
        return self._count(text)

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order. Raises ModelError when no server is left, after `on_reply` of others."""
        finished: _Finished = queue.SimpleQueue()
        jobs = {i: self._job(i, request, finished) for i, request in enumerate(requests)}
        thread = self._running()

        def replies() -> Iterator[_Reply]:
            n = len(requests)
            while n:
                if (read := self._reply(finished.get(), jobs, finished)) is not None:
                    n -= 1
                    yield read

        try:
            thread.add([job for job in jobs.values() if job is not None])
            return in_order(len(requests), replies(), on_reply)
        finally:  # an interrupted caller leaves nothing running
            thread.call(Servers.drop, [job for job in jobs.values() if job is not None and not job.over])

    # --- the streaming face ---

    def submit(self, key: int, request: Request) -> None:
        """Hand over a request; returns at once. Raises UsageError for an open key or a closed engine."""
        thread = self._running()
        check_key(key, self._open)
        job = self._job(key, request, self._finished)
        thread.add([job] if job is not None else [])
        self._open[key] = job

    def abort(self, key: int) -> None:
        """Give up a request. If it is with a server it is not tried again, but its reply is still returned, so that the
        work is not lost. Ignores a key that is not open."""
        job = self._open.get(key)
        if job is not None:
            self._running().call(Servers.abort, [job])

    def close(self) -> None:
        """Give up open requests, close all connections and end the thread."""
        self._thread.close()
        self._open.clear()

    # --- requests to bodies, bodies to replies ---

    def _running(self) -> ServerThread:
        thread, self._thread = self._thread, self._thread.of_this_process(self, self.model)
        if self._thread is not thread:
            self._open.clear()
            self._finished, self._dead = queue.SimpleQueue(), None
        return self._thread

    def _job(self, key: int, request: Request, finished: _Finished, style: Style | None = None) -> Job | None:
        """Job of a request; None if it cannot be sent: its failure is queued at once."""
        problem: Reply | RequestFailed | None = check_constraint(request)
        rank = request.constraint if isinstance(request.constraint, Rank) else None
        if rank is not None and not (self.style.ranks and len(rank.options) <= len(LABELS)):
            problem = Reply("", "unscored", 0, 0, 0)  # nothing is sent: the caller then asks in another way
        if problem is not None:
            finished.put((key, request, problem, None))
            return None
        chosen = style or self.style
        # A thought that cannot be switched off may come in the text itself: do not stream it.
        on_text = None if chosen.thinks and not chosen.quiet else request.on_text
        job = Job(
            lambda job: self._body(job, request, style or self.style),
            lambda job, outcome: finished.put((key, request, outcome, job)),
            again=style is not None,
            on_text=on_text,
        )
        return job

    def _body(self, job: Job, request: Request, style: Style) -> bytes:
        job.style = style
        content = body(self.model, request, style, self._think_tokens) | self._extra
        for message in content["messages"]:
            message["content"] = break_template_tokens(message["content"], self._template_tokens)
        if job.on_text is not None:
            content |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            return msgspec.json.encode(content)
        except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can carry
            return json.dumps(content).encode()

    def _read(self, item: _Item) -> _Reply | None:
        return self._reply(item, self._open, self._finished)

    def _reply(self, item: _Item, jobs: dict[int, Job | None], finished: _Finished) -> _Reply | None:
        """Key and reply of an item. Raises an error that concerns the whole engine.

        Returns None for a request that is sent again: its style was stale, or its reply held only a thought for want of
        room. The new job takes its place in `jobs`. After MAX_STARVED such thoughts in a row, all requests get room.
        """
        key, request, outcome, job = item
        is_last = job is not None and (job.again or job.unwanted)  # not to be sent again
        if isinstance(outcome, FormRefused) and job is not None and not is_last and self._is_stale(job.style):
            self._again(key, request, jobs, finished)
            return None
        if isinstance(outcome, (Reply, RequestFailed)):
            return key, outcome
        if isinstance(outcome, GpuRagError):
            raise outcome
        assert job is not None and job.tried is not None
        reply = read_answer(request, outcome, self.count_tokens)
        job.tried.account.add_reply(reply)
        self._note_model(job, outcome)
        if is_last:  # a reply with extra room tells nothing about other requests
            return key, reply
        if reply.finish_reason != "length" or spoken(reply.text).strip() or not thought(outcome):
            self._n_starved = 0
            if not self._is_lost(job, request, reply):
                return key, reply
            self._again(key, request, jobs, finished)
            return None
        self._n_starved += 1
        thinking = replace(self.style, thinks=True, quiet=False)
        if self._n_starved >= MAX_STARVED:
            self._keep(thinking)
        self._again(key, request, jobs, finished, thinking)
        return None

    def _again(
        self, key: int, request: Request, jobs: dict[int, Job | None], finished: _Finished, style: Style | None = None
    ) -> None:
        """Send a request once more, with the given style."""
        jobs[key] = job = self._job(key, request, finished, style)
        self._running().add([job] if job is not None else [])

    def _note_model(self, job: Job, answer: Completion) -> None:
        """Count a reply that names another model; logs each such name once."""
        reported = answer.get("model")
        if isinstance(reported, str) and reported and reported != self.model and job.tried is not None:
            job.tried.account.other_model += 1
            if reported not in self._other_models:
                self._other_models.add(reported)
                _log.warning("model server %s replies as %r; asked was %r", job.tried.name, reported[:100], self.model)

    def _is_lost(self, job: Job, request: Request, reply: Reply) -> bool:
        """Whether a reply cannot be read because the servers changed their style. If most fail, it is learnt again."""
        is_current = job.style == self.style
        if not self._learns or not isinstance(request.constraint, (JsonSchema, Choice)):
            return False
        if is_current and self._n_learnt >= MAX_RELEARNT:
            return False
        is_unread = isinstance(read_reply(reply, request.constraint), Malformed)
        if is_current:
            self._unread.append(is_unread)
            if len(self._unread) == READ_AGAIN and 2 * sum(self._unread) > READ_AGAIN:
                self._is_stale(self.style)
        return is_unread and job.style != self.style


# --- styles ---------------------------------------------------------------------------------------

STYLE_VERSION = 1
TRIES = 3  # tries of each form: a server that fails once may still understand it
TRIAL = "Reply with the word hello and nothing else."
_SCHEMA = '{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}'
_TRIAL_TOKENS = 64
Post = Callable[[dict[str, Any]], Any]


def find_style(model: str, post: Post, think_tokens: int) -> Style | None:
    """Style of a server, found with short requests that ask in words for one word and demand another form.

    post(body): returns the chat completion or raises RequestFailed; other errors end the trial. A form counts as
    understood if a reply keeps it although the words ask otherwise, because some servers accept a form and ignore it.
    If no form is understood, it is asked for in words. None if the server does not even answer plain words.
    """

    def answers(style: Style, request: Request) -> Iterator[Any]:
        for _ in range(TRIES):
            try:
                yield post(body(model, request, style, think_tokens))
            except RequestFailed as error:  # after its retries
                refusals.append(error)
                return

    def keeps(style: Style, constraint: JsonSchema | Choice | Rank) -> bool:
        request = Request("", TRIAL, constraint, max_tokens=_TRIAL_TOKENS)
        replies = (read_reply(read_answer(request, answer), constraint) for answer in answers(style, request))
        return any(isinstance(reply, Read) for reply in replies)

    refusals: list[RequestFailed] = []
    plain = Request("", TRIAL, max_tokens=_TRIAL_TOKENS)
    for style in PLAIN_STYLES:
        if seen := list(answers(style, plain)):
            break
        if not isinstance(refusals[-1], FormRefused):
            return None
    else:
        return None
    style = replace(style, thinks=any(map(thought, seen)))
    if style.thinks:
        silent = replace(style, quiet=True)
        style = replace(style, quiet=not all(map(thought, answers(silent, plain))))
    forms = (replace(style, objects=form) for form in OBJECT_STYLES)
    style = next(form for form in forms if form.objects == "prompt" or keeps(form, JsonSchema(_SCHEMA)))
    forms = (replace(style, choices=form) for form in CHOICE_STYLES)
    style = next(form for form in forms if form.choices == "prompt" or keeps(form, Choice(("yes", "no"))))
    return replace(style, ranks=keeps(style, Rank(("yes", "no"))))


def kept_style(folder: Path, url: str, model: str, find: Callable[[], Style | None], fresh: bool = False) -> Style:
    """Style of a server as an earlier run kept it below `folder`, else as `find` returns it now, which is then kept.

    If `find` returns None, the style of vLLM is used for this run. Raises StorageError.
    """
    path = _style_file(folder, url, model)
    if path.is_file() and not fresh:
        try:
            return Style(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            pass  # an unreadable file is replaced
    style = find()
    if style is None:
        return Style()
    keep_style(folder, url, model, style)
    return style


def keep_style(folder: Path, url: str, model: str, style: Style) -> None:
    """Keep the style of a server for later runs. Raises StorageError."""
    keep_json(_style_file(folder, url, model), asdict(style))


def _style_file(folder: Path, url: str, model: str) -> Path:
    return folder / "servers" / f"{text_hash('style', STYLE_VERSION, url, model)[:16]}.json"


# --- the thread -----------------------------------------------------------------------------------


class ServerThread:
    """One daemon thread with an event loop and its servers, until `owner` is garbage."""

    def __init__(
        self,
        owner: object,
        addresses: Sequence[Address],
        model: str,
        revision: str,
        connections: int,
        patience: Patience,
        service: Service = CHAT,
    ):
        """See `Servers`."""
        self._given = addresses, revision, connections, patience, service
        self.process, self.closed = os.getpid(), False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_say_of_own_process(self.process))
        self._thread = threading.Thread(target=self._main, name="llm-http", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()  # guards `closed`: nothing is called after the end
        weakref.finalize(owner, self.close)

        async def make() -> Servers:
            return Servers(addresses, model, revision, connections, patience, service)

        self.servers = asyncio.run_coroutine_threadsafe(make(), self._loop).result()

    def of_this_process(self, owner: object, model: str) -> ServerThread:
        """This thread; in a forked process, which has only the thread that forked, a new one. It uses the same servers;
        its parent owns them."""
        if self.process == os.getpid():
            return self
        addresses, revision, connections, patience, service = self._given
        shared = [replace(address, own=None) for address in addresses]
        return ServerThread(owner, shared, model, revision, connections, patience, service)

    def open(self) -> list[Card]:
        """Run `Servers.open` in the thread. Closes the thread if that fails or is interrupted."""
        try:
            return asyncio.run_coroutine_threadsafe(self.servers.open(), self._loop).result()
        except BaseException:
            self.close()
            raise

    def add(self, jobs: list[Job]) -> None:
        """Hand over jobs; returns at once. Raises UsageError if the thread is closed."""
        if not self.call(Servers.add, jobs):
            raise UsageError("the request cannot be taken", given="a closed engine", expected="an open one")

    def run(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Run work of the keeper and wait for it. Does nothing after the end, or without servers of our own."""
        with self._lock:
            if self.closed or not any(server.own for server in self.servers.servers):
                return
            done = asyncio.run_coroutine_threadsafe(work(self.servers.keeper), self._loop)
        done.result()

    def call(self, method: Callable[[Servers, list[Job]], None], jobs: list[Job]) -> bool:
        """Call a method of the servers with jobs, in the thread; returns at once. False: the thread is closed."""
        with self._lock:
            if jobs and not self.closed:
                self._loop.call_soon_threadsafe(method, self.servers, jobs)
            return not self.closed

    def close(self) -> None:
        """End all jobs, the connections and the thread. A forked process leaves its parent's thread alone."""
        if self.process != os.getpid():
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
            asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        if threading.current_thread() is not self._thread:  # garbage collection can call this in any thread
            self._thread.join(JOIN_S)

    async def _close(self) -> None:
        try:
            await self.servers.close()
        finally:
            self._loop.stop()

    def _main(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


def _context_of(card: Card) -> int:
    """Context tokens that a server reports; CONTEXT_TOKENS if the value is not a valid number."""
    reported = card.get("max_model_len")
    return reported if type(reported) is int and 0 < reported <= MAX_INTEGER else CONTEXT_TOKENS


def _say_of_own_process(process: int) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Error handler that is silent in a forked process, whose connections are copies of its parent's."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if os.getpid() == process:
            loop.default_exception_handler(context)

    return handle


def _address(given: str | OwnServer, keys: ApiKeys, ca_file: str) -> Address:
    if isinstance(given, OwnServer):
        return Address(given.url, given.key, given.socket, given, ca_file)
    return address_of(given, keys, ca_file)


def _check_settings(addresses: Sequence[Address], max_connections: int, retries: int) -> None:
    for address in addresses:
        try:
            parts = urlsplit(address.url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise BadInput("not an address", given=address.url, expected="http://HOST:PORT/v1")
        if address.key is not None and not address.key.isprintable():
            raise BadInput("the API key has a line break or another character that cannot be sent")
    names = [address.name for address in addresses]
    if not names or len(set(names)) < len(names):
        raise BadInput("not a list of servers", given=", ".join(names) or "none", expected="each address once")
    if max_connections < 1:
        raise BadInput("a server needs a connection", given=f"max_connections={max_connections}", expected=">= 1")
    if retries < 0:
        raise BadInput("a negative number of retries", given=f"retries={retries}", expected=">= 0")


def _token_counter(folder: str) -> Callable[[str], int]:
    from gpu_rag.models.pretrained import load_tokenizer

    tokenizer = load_tokenizer(Path(folder))
    return lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def template_tokens(folder: Path) -> tuple[str, ...]:
    """Special tokens of the tokenizer in a model folder, as a chat template writes them; () if none can be read."""
    try:
        added = json.loads((folder / "tokenizer.json").read_bytes())["added_tokens"]
        return tuple(
            sorted({str(token["content"]) for token in added if token["special"] and len(token["content"]) > 1})
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()
