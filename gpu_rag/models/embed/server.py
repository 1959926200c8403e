"""Embedder of a server with the OpenAI embeddings protocol: vLLM, llama.cpp, Ollama, TEI and others."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import closing
from typing import Any

import msgspec
import numpy as np

from gpu_rag.errors import ContextOverflow, ModelError, RequestFailed
from gpu_rag.models.embed.interface import OnBatch, Parts, gathered
from gpu_rag.models.fingerprint import text_hash
from gpu_rag.models.llm import addresses
from gpu_rag.models.llm.http_servers import Patience, Servers, address_of
from gpu_rag.models.llm.http_wire import Exchanger, Failure
from gpu_rag.models.llm.interface import ApiKeys

CODE_VERSION = 1
TEXTS = 32  # texts per request: servers take that many by default
SHORTEST = 16  # characters: a shorter text that counts as too long was refused for another reason
PATIENCE = Patience(timeout_s=600.0, connect_timeout_s=10.0, retries=5, backoff_s=0.5)

Turn = list[Exchanger]  # all servers, in the order in which a request tries them
Tasks = set[asyncio.Task[tuple[list[int], np.ndarray]]]  # running requests, each with its rows and their vectors


class ServerEmbedder:
    """Unit vectors by the model of a server.

    spec: "http://HOST:PORT/v1#NAME"; without a name, the only model served; several servers of one model are separated
    by commas. On opening, GET /models must list it, and one text is embedded to find the dimension. ca_file: further
    certificates for https. A request has 32 texts, sorted by length; at most `connections` are in flight at each
    server, and each begins at the next server. It is retried like requests of the language model, at the server after
    that; an answer with a vector that is missing, of another length, not finite or zero is a failure. If a server
    refuses a request, its texts are sent in halves; a single text that is too long is cut by half, and counted in
    `n_truncated`. content_hash depends on the model's name, the revision if a server reports one, and the dimension.
    Rows may depend on their batch.
    """

    def __init__(
        self,
        spec: str,
        *,
        api_key: ApiKeys = None,
        connections: int = 32,
        ca_file: str = "",
        patience: Patience = PATIENCE,
    ):
        """Look up the model. Raises ModelError (no server, another model, no vectors), BadInput (ca_file)."""
        urls, model = addresses(spec)
        self._addresses = [address_of(url, api_key, ca_file) for url in urls]
        self._connections, self._patience = connections * len(urls), patience
        self._model, revision = asyncio.run(self._opened(model))
        self.name = f"{','.join(address.url for address in self._addresses)}#{self._model}"
        self.device, self.n_truncated, self.row_identical = "server", 0, False
        self.dim = 0
        ((_, vectors),) = self.parts(["dimension"])
        self.dim = vectors.shape[1]
        self.content_hash = text_hash("embeddings", CODE_VERSION, self._model, revision, self.dim)

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]. Equal texts are sent once. Raises ModelError."""
        return gathered(texts, self.dim, self.parts, on_batch)

    def parts(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> Parts:
        """(rows, f32[len(rows), D]) of distinct texts, as answers arrive. Raises ModelError."""
        n_done, failed = 0, list[BaseException]()  # after a failure only requests in flight are finished
        with asyncio.Runner() as runner, closing(_Exchange(runner, self._exchangers())) as exchange:
            batches, running = _batches(texts), Tasks()
            while True:
                while not failed and len(running) < self._connections and (rows := next(batches, None)) is not None:
                    task = self._answered(exchange.turn(), rows, [texts[row] for row in rows])
                    running.add(runner.get_loop().create_task(task))
                if not running:
                    break
                done, running = runner.run(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))
                failed += [error for task in done if (error := task.exception()) is not None]
                answers = [task.result() for task in done if task.exception() is None]
                if answers:
                    rows = [row for rows_of, _ in answers for row in rows_of]
                    yield rows, np.concatenate([vectors for _, vectors in answers])
                    n_done += len(rows)
                    if on_batch is not None:
                        on_batch(n_done)
        if failed:
            raise failed[0]

    async def _opened(self, model: str) -> tuple[str, str]:
        servers = Servers(self._addresses, model, "", self._connections, self._patience)
        try:
            await servers.open()
            return servers.model, servers.revision
        finally:
            await servers.close()

    async def _exchangers(self) -> list[Exchanger]:
        return [address.exchanger(self._patience.connect_timeout_s) for address in self._addresses]

    async def _answered(self, servers: Turn, rows: list[int], texts: list[str]) -> tuple[list[int], np.ndarray]:
        """Rows and their vectors; sends halves if the server refuses the whole."""
        try:
            return rows, await self._request(servers, texts)
        except RequestFailed as error:
            if len(rows) > 1:
                half = len(rows) // 2
                first = await self._answered(servers, rows[:half], texts[:half])
                second = await self._answered(servers, rows[half:], texts[half:])
                return first[0] + second[0], np.concatenate([first[1], second[1]])
            if not isinstance(error, ContextOverflow) or len(texts[0]) <= SHORTEST:
                given = f"{self.name}: {texts[0][:80]!r}: {error}"
                raise ModelError("a text could not be embedded", given=given) from error
        cut = texts[0]
        self.n_truncated += 1
        while True:
            cut = cut[: len(cut) // 2]
            try:
                return rows, await self._request(servers, [cut])
            except ContextOverflow:
                if len(cut) <= SHORTEST:
                    raise

    async def _request(self, servers: Turn, texts: list[str]) -> np.ndarray:
        """Vectors of one request, with retries, each at the next server. Raises RequestFailed, ModelError."""
        plain = [text.encode("utf-8", "replace").decode("utf-8") or " " for text in texts]  # some servers refuse ""
        body = msgspec.json.encode({"model": self._model, "input": plain, "encoding_format": "float"})
        why = ""
        for n_before in range(self._patience.retries + 1):
            outcome = await servers[n_before % len(servers)].post("/embeddings", body, self._patience.timeout_s)
            if isinstance(outcome, (RequestFailed, ModelError)):
                raise outcome
            answer = outcome if isinstance(outcome, Failure) else read_vectors(outcome, len(texts), self.dim)
            if not isinstance(answer, Failure):
                return answer
            why = answer.why
            if not answer.again:
                break
            if n_before < self._patience.retries:
                pause_s = self._patience.pause_s(n_before)
                await asyncio.sleep(pause_s if answer.wait_s is None else max(answer.wait_s, pause_s))
        expected = f"{len(texts)} vectors" + (f" of {self.dim} numbers" if self.dim else "")
        given, do = f"{self.name}: {why}", "see whether the server embeds: its log, its model"
        raise ModelError("the server does not embed", given=given, expected=expected, do=do)


class _Exchange:
    """The exchangers of all servers for one call; closing it gives up open requests."""

    def __init__(self, runner: asyncio.Runner, making: Coroutine[Any, Any, list[Exchanger]]):
        self._runner, self._exchangers, self._n_turns = runner, runner.run(making), 0

    def turn(self) -> Turn:
        """All servers, from the one whose turn it is."""
        first = self._n_turns % len(self._exchangers)
        self._n_turns += 1
        return self._exchangers[first:] + self._exchangers[:first]

    def close(self) -> None:
        for exchanger in self._exchangers:
            self._runner.run(exchanger.close())


class _Vector(msgspec.Struct):
    embedding: list[float] | str
    index: int


class _Answer(msgspec.Struct):
    data: list[_Vector]


def read_vectors(content: bytes, n: int, dim: int) -> np.ndarray | Failure:
    """f32[n, D] unit vectors in the order of the texts, or the reason why there are none. dim: D, 0 for any.

    A vector is a list of numbers, or base64 of little-endian float32. Its position is its `index`, not its order.
    """
    try:
        answer = msgspec.json.decode(content, type=_Answer)
        if sorted(item.index for item in answer.data) != list(range(n)):
            return Failure(f"not one vector a text: {len(answer.data)} for {n}, indexes not 0 to {n - 1}"[:200])
        ordered = sorted(answer.data, key=lambda item: item.index)
        rows = [_numbers(item.embedding) for item in ordered]
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error, ValueError, RecursionError) as error:
        return Failure(f"no list of vectors: {error}; {content[:100]!r}")
    sizes = {len(row) for row in rows}
    if len(sizes) != 1 or sizes == {0} or (dim and sizes != {dim}):
        return Failure(f"vectors of {sorted(sizes)} numbers")
    vectors = np.stack(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt((vectors**2).sum(1, keepdims=True))
    if not (np.isfinite(norms) & (norms > 0)).all():
        return Failure("a vector that is zero or not finite")
    unit: np.ndarray = (vectors / norms).astype(np.float32)
    return unit


def _numbers(embedding: list[float] | str) -> np.ndarray:
    """Numbers of a vector: f64[D]."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4").astype(np.float64)
    return np.asarray(embedding, np.float64)


def _batches(texts: Sequence[str]) -> Iterator[list[int]]:
    """Rows sorted by length, TEXTS at a time."""
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    return (order[start : start + TEXTS] for start in range(0, len(order), TEXTS))
