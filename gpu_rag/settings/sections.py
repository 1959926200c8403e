"""The sections that belong to no method, each setting on its own line: type, range, help, default."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from gpu_rag.errors import UsageError
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COSINE, COUNT, NATURAL, SEED, SHARE, Range, check_filled


@dataclass(frozen=True)
class ModelSettings(Declared):
    """The models that run, and their device."""

    embedder: Annotated[
        str, "minilm (packaged), a sentence-transformers folder or name, http://HOST:PORT/v1#NAME, hash (for tests)"
    ] = "minilm"
    llm: Annotated[
        str,
        "none (evidence without an answer), a model folder, vllm:FOLDER_OR_NAME, http://HOST:PORT/v1#MODEL (several "
        "servers of it: separated by commas), smollm2 (packaged, small), or replay:FILE",
    ] = "none"
    connections: Annotated[int, COUNT, "requests in flight at each model server; fewer for llama.cpp or Ollama"] = 256
    api_keys: Annotated[tuple[str, ...], '"http://HOST:PORT/v1=NAME": the variable NAME has the key for it'] = ()
    ca_file: Annotated[str, "certificates (PEM) that https servers are also checked by, such as a company's own"] = ""
    think_tokens: Annotated[int, NATURAL, "room beside each limit for the thought of a model that always thinks"] = 2048
    revision: Annotated[str, "of a served model, where its server says none: another one for other weights"] = ""
    extra_body: Annotated[str, 'more of each request to a server, as JSON, such as {"reasoning_effort": "low"}'] = ""
    capable: Annotated[bool | None, "whether the LLM may extract and judge; empty: by its size"] = None
    decider: Annotated[Literal["auto", "model", "rule"], "who decides; auto: a capable LLM, else rules"] = "auto"
    reason: Annotated[
        bool, "whether each reply to a question's step begins with a sentence of reasoning: slower, for capable models"
    ] = False
    reranker: Annotated[
        str,
        "orders evidence anew: a cross-encoder's folder, llm, or empty: none (methods over a knowledge base never do)",
    ] = ""
    device: Annotated[str, "auto, cpu or cuda, or one GPU such as cuda:0"] = "auto"
    threads: Annotated[int, Range(1, 1024), "CPU threads of a model or a graph op"] = 1
    max_batch: Annotated[int, COUNT, "requests that a transformers model decodes together"] = 16
    vector_cache_gib: Annotated[float, NATURAL, "size of the vector cache that all indexes share; 0: none"] = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_filled(self, "embedder", "llm")
        _ = self.more_body

    @property
    def more_body(self) -> dict[str, Any]:
        """`extra_body` as an object. Raises UsageError if it is no JSON object."""
        try:
            found = json.loads(self.extra_body or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            expected = '{"reasoning_effort": "low"}'
            raise UsageError("models.extra_body is no JSON object", given=self.extra_body[:80], expected=expected)
        return found


@dataclass(frozen=True)
class IndexSettings(Declared):
    """From a corpus to an index. A change builds the stages anew that depend on it."""

    chunk_words: Annotated[int, Range(8), "words of a passage, for documents longer than that"] = 300
    overlap_words: Annotated[int, NATURAL, "words that neighbouring passages share"] = 50
    extractor: Annotated[Literal["patterns", "llm", "import"], "who extracts; import: files of `--openie`"] = "patterns"
    extract_nodes: Annotated[bool, "false: nothing is extracted from texts of nodes of a base (`--skb`)"] = True
    coref: Annotated[Literal["none", "fastcoref", "llm"], "who replaces pronouns before extraction"] = "none"
    min_yield: Annotated[float, SHARE, "share of passages in which an LLM must find an entity, or a build fails"] = 0.5
    extract_tokens: Annotated[int, COUNT, "tokens of a reply of the extractor: 30 names, 30 facts"] = 1536
    synonym_threshold: Annotated[float, COSINE, "least cosine of two names that the graph joins"] = 0.8
    mediators: Annotated[Literal["keep", "collapse"], "nameless nodes of `--kg`; collapse: facts pass over them"] = (
        "keep"
    )
    block: Annotated[int, Range(8), "texts that are sorted by length and embedded together, at most"] = 32768
    memory: Annotated[float, NATURAL, "GiB for sorting and joining tables; 0: a quarter of what is free"] = 0.0

    max_document_chars: ClassVar[int] = 10_000_000  # a longer document is a rejected row
    coref_tokens: ClassVar[int] = 1024  # for a passage without pronouns
    synonym_k: ClassVar[int] = 20  # most synonyms per name
    bm25_k1: ClassVar[float] = 1.2
    bm25_b: ClassVar[float] = 0.75


@dataclass(frozen=True)
class RuntimeSettings(Declared):
    """Runs of questions."""

    driver: Annotated[
        Literal["rounds", "streaming"],
        "rounds: equal steps of open questions in batches, deterministic; streaming: LLM requests leave as they come",
    ] = "rounds"
    max_live: Annotated[int, COUNT, "questions that are open at once"] = 1024
    low_water: Annotated[int, COUNT, "streaming: the LLM is fed first below so many requests; twice its batch"] = 64
    seed: Annotated[int, SEED, "the seed of all requests"] = 0
    max_calls: Annotated[int, NATURAL, "LLM requests of a question; 0: no limit"] = 0
    max_tokens: Annotated[int, NATURAL, "LLM tokens of a question; 0: no limit"] = 0
    max_seconds: Annotated[float, NATURAL, "seconds of a question; 0: no limit"] = 0.0


@dataclass(frozen=True)
class ReaderSettings(Declared):
    """The shared reader prompt."""

    passages: Annotated[int, COUNT, "passages that are retrieved, and shown in rank order, at most"] = 5
    max_tokens: Annotated[int, COUNT, "tokens of the answer"] = 48


@dataclass(frozen=True)
class VllmSettings(Declared):
    """The servers of `models.llm = "vllm:..."`; 0 leaves a choice to vLLM or to the device."""

    tensor_parallel: Annotated[int, COUNT, "GPUs that share the model"] = 1
    max_model_len: Annotated[int, NATURAL, "tokens of prompt and reply together; 0: the model's own limit"] = 0
    gpu_memory_utilization: Annotated[float, Range(0.01, 1), "share of a GPU's memory for weights and cache"] = 0.9
    kv_cache_gib: Annotated[float, NATURAL, "size of the kept keys and values instead; 0 on a CPU: 1 GiB"] = 0.0
    max_num_seqs: Annotated[int, NATURAL, "requests that run together; 0: 32 on a CPU, 256 on a GPU"] = 0
    dtype: Annotated[Literal["auto", "bfloat16", "float16", "float32"], "type of the weights"] = "auto"
    load_format: Annotated[Literal["auto", "safetensors", "dummy"], "how weights are read; dummy: random"] = "auto"
    enforce_eager: Annotated[bool | None, "no compiled graphs; empty: on a CPU only"] = None
    engines: Annotated[int, NATURAL, "servers side by side, each with all of the model; 0: one for each GPU"] = 0
    arguments: Annotated[str, 'more options of vLLM\'s server, as JSON: {"kv_cache_dtype": "fp8"}'] = ""

    seed: ClassVar[int] = 0  # of the server; a request's own seed decides its sampling


@dataclass(frozen=True)
class GraphSettings(Declared):
    """The code that runs the graph ops. It is printed and recorded; one that cannot be had here is an error."""

    pagerank: Annotated[
        Literal["auto", "numba", "torch", "cugraph"],
        "PageRank of the whole graph; auto: numba on a CPU, else torch; torch on a GPU",
    ] = "auto"
    ops: Annotated[Literal["auto", "numba", "torch"], "other graph ops; auto: numba on a CPU, torch on a GPU"] = "auto"
    neighbours: Annotated[Literal["auto", "torch", "faiss"], "exact search by vectors; auto: torch"] = "auto"

    def preferences(self) -> dict[str, str]:
        """Preferred implementations by family of ops, for `backend.preferring`; without those set to auto."""
        return {family: name for family, name in asdict(self).items() if name != "auto"}


@dataclass(frozen=True)
class EvalSettings(Declared):
    """The judge of `gpu-rag eval --judge`."""

    judge: Annotated[str, "the model that judges, named as in `models.llm`; empty: `models.llm` itself"] = ""
    judge_capable: Annotated[bool | None, "whether it may judge; empty: by its size"] = None
    controls: Annotated[int, NATURAL, "planted right, planted wrong and exact answers to check the judge, of each"] = 20

    judge_tokens: ClassVar[int] = 160  # tokens of a verdict with its reason


@dataclass(frozen=True)
class ServeSettings(Declared):
    """Limits for clients of `gpu-rag serve`. They change no answer, so they are in no hash."""

    max_queue: Annotated[int, NATURAL, "questions that may wait beyond `runtime.max_live`; more get status 429"] = 1024
    max_connections: Annotated[int, COUNT, "connections; more get status 503, and from 64 more on are cut off"] = 1024
    question_seconds: Annotated[float, NATURAL, "from the arrival of a question until it fails; 0: no limit"] = 300.0
    client_seconds: Annotated[float, Range(0.1), "for a client to send headers or a body, or take a piece"] = 30.0
    grace_seconds: Annotated[float, NATURAL, "for the questions in flight when the server is stopped"] = 10.0
    tls_cert: Annotated[str, "a file with the certificate chain (PEM) by which https is spoken; empty: http"] = ""
    tls_key: Annotated[str, "the file with its private key (PEM), without a password"] = ""
    hosts: Annotated[tuple[str, ...], "names that a Host header may give, beside the address bound"] = ()
    params: Annotated[
        tuple[str, ...], 'parameters that a request may set: "METHOD.NAME"; "METHOD.*": all but texts'
    ] = ()
    warm: Annotated[bool, "ask each method a question before the first client can"] = True

    max_questions: ClassVar[int] = 256  # per request
    max_passages: ClassVar[int] = 100  # most passages of one retrieval
    max_body_kib: ClassVar[int] = 1024  # of a request
    max_question_chars: ClassVar[int] = 4000
    revive_seconds: ClassVar[float] = 5.0  # pause before dead models are reopened, doubled up to a minute


@dataclass(frozen=True)
class ScaleSettings(Declared):
    """Models on the workers of a Ray cluster. They change no vector and no request, so they are in no hash."""

    address: Annotated[
        str,
        "none: models run in this process; local: a Ray of this machine, started and ended with the command; auto: the "
        "cluster that this machine belongs to; HOST:PORT: that of this head node",
    ] = "none"
    embed_workers: Annotated[int, NATURAL, "processes that hold the embedder; 0: it stays in this process"] = 1
    llm_workers: Annotated[int, NATURAL, "processes that hold the LLM; 0: it stays in this process"] = 1
    embed_cpus: Annotated[float, NATURAL, "CPUs that a worker of the embedder reserves"] = 1.0
    llm_cpus: Annotated[float, NATURAL, "CPUs that a worker of the LLM reserves"] = 1.0
    embed_gpus: Annotated[float, NATURAL, "GPUs that a worker of the embedder reserves, or a part of one; 0: CPU"] = 0.0
    llm_gpus: Annotated[float, NATURAL, "GPUs that a worker of the LLM reserves, likewise"] = 0.0
    start_seconds: Annotated[float, COUNT, "time for the first worker to be ready, loading the model included"] = 900.0
    restarts: Annotated[int, NATURAL, "how often each worker that died is started again"] = 4

    embed_batch: ClassVar[int] = 256  # texts per call of a worker
