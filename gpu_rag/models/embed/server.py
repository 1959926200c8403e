"""Embedder of a server with the OpenAI embeddings protocol: vLLM, llama.cpp, Ollama, TEI and others."""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np

from gpu_rag.errors import ContextOverflow, GpuRagError, ModelError, RequestFailed
from gpu_rag.models.embed.interface import OnBatch, Parts, gathered
from gpu_rag.models.fingerprint import text_hash
from gpu_rag.models.llm import addresses
from gpu_rag.models.llm.http import ServerThread
from gpu_rag.models.llm.http_servers import Job, Patience, Servers, address_of
from gpu_rag.models.llm.http_wire import Failure, Service, Unanswered
from gpu_rag.models.llm.interface import ApiKeys

CODE_VERSION = 1
TEXTS = 32  # texts per request: servers take that many by default
SHORTEST = 16  # characters: a shorter text that counts as too long was refused for another reason
PATIENCE = Patience(timeout_s=600.0, connect_timeout_s=10.0, retries=5, backoff_s=0.5)


class ServerEmbedder:
    """Unit vectors by the model of a server.

    spec: "http://HOST:PORT/v1#NAME"; without a name, the only model served; several servers of one model are separated
    by commas. On opening, GET /models must list it, and one text is embedded to find the dimension. ca_file: further
    certificates for https. A request has 32 texts, sorted by length; at most `connections` are in flight at each
    server. Servers are chosen, and requests retried, as for the language model, see `Servers`; an answer with a vector
    that is missing, of another length, not finite or zero is a failure. If a server
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
        servers = [address_of(url, api_key, ca_file) for url in urls]
        self._connections = connections * len(urls)
        self._thread = ServerThread(self, servers, model, "", connections, patience, Service("/embeddings"))
        self._thread.open()
        self._model, revision = self._thread.servers.model, self._thread.servers.revision
        self.name = f"{','.join(server.url for server in servers)}#{self._model}"
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
        self._thread = self._thread.of_this_process(self, self._model)
        finished: SimpleQueue[tuple[Job, list[int], list[str], Any]] = SimpleQueue()
        batches = ((rows, [texts[row] for row in rows]) for rows in _batches(texts))
        smaller, running = deque[tuple[list[int], list[str]]](), set[Job]()
        n_done = 0
        error: ModelError | None = None  # after one only requests in flight are finished
        try:
            while True:
                while error is None and len(running) < self._connections:
                    if (part := smaller.popleft() if smaller else next(batches, None)) is None:
                        break
                    running.add(self._send(*part, finished))
                if not running:
                    break
                job, rows, sent, outcome = finished.get()
                running.remove(job)
                if isinstance(outcome, np.ndarray):
                    self.n_truncated += sent != [texts[row] for row in rows]
                    yield rows, outcome
                    n_done += len(rows)
                    if on_batch is not None:
                        on_batch(n_done)
                    continue
                try:
                    smaller += self._smaller(rows, sent, outcome)
                except ModelError as unusable:
                    error = error or unusable
        finally:
            self._thread.call(Servers.drop, list(running))
        if error is not None:
            raise error

    def _send(self, rows: list[int], texts: list[str], finished: SimpleQueue[Any]) -> Job:
        plain = [text.encode("utf-8", "replace").decode("utf-8") or " " for text in texts]  # some servers refuse ""
        content = {"model": self._model, "input": plain, "encoding_format": "float"}
        job = Job(
            lambda _: msgspec.json.encode(content),
            lambda job, outcome: finished.put((job, rows, texts, outcome)),
            partial(read_vectors, n=len(texts), dim=self.dim),
        )
        self._thread.add([job])
        return job

    def _smaller(self, rows: list[int], texts: list[str], error: GpuRagError) -> Iterator[tuple[list[int], list[str]]]:
        """The texts to send in place of refused ones: two halves, or a half of one text that is too long. Raises
        ModelError for other errors."""
        if isinstance(error, Unanswered):
            expected = f"{len(texts)} vectors" + (f" of {self.dim} numbers" if self.dim else "")
            given, do = f"{self.name}: {error.given}", "see whether the server embeds: its log, its model"
            raise ModelError("the server does not embed", given=given, expected=expected, do=do) from error
        if not isinstance(error, RequestFailed):
            raise error
        half = len(rows) // 2
        if half:
            yield rows[:half], texts[:half]
            yield rows[half:], texts[half:]
        elif isinstance(error, ContextOverflow) and len(texts[0]) > SHORTEST:
            yield rows, [texts[0][: len(texts[0]) // 2]]
        else:
            given = f"{self.name}: {texts[0][:80]!r}: {error}"
            raise ModelError("a text could not be embedded", given=given) from error


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
