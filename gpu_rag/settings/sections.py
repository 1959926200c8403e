"""The sections that belong to no method, each setting on its own line: type, range, help, default."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from gpu_rag.errors import UsageError
from gpu_rag.machine import MAX_CORES, usable_cores
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COSINE, COUNT, NATURAL, SEED, SHARE, Range, check_filled


@dataclass(frozen=True)
class ModelSettings(Declared):
    """The models that run, and their device."""

    embedder: Annotated[
        str, "minilm, e5 (packaged), a sentence-transformers folder or name, http://HOST:PORT/v1#NAME, hash (for tests)"
    ] = "minilm"
    llm: Annotated[
        str,
        "none (evidence without an answer), a model folder, vllm:FOLDER_OR_NAME, http://HOST:PORT/v1#MODEL (several "
        "servers of it, separated by commas), smollm2 (packaged, small), or replay:FILE",
    ] = "none"
    connections: Annotated[int, COUNT, "open requests at each model server; choose fewer for llama.cpp or Ollama"] = 256
    api_keys: Annotated[tuple[str, ...], '"http://HOST:PORT/v1=NAME": the variable NAME has the key for it'] = ()
    ca_file: Annotated[
        str, "file with further certificates (PEM) for checking https servers, such as a company's own"
    ] = ""
    think_tokens: Annotated[int, NATURAL, "tokens added to each limit for a model that always thinks"] = 2048
    revision: Annotated[
        str, "version of a served model whose server reports none; change it when the weights change"
    ] = ""
    extra_body: Annotated[
        str, 'further fields of each request to a server, as JSON, such as {"reasoning_effort": "low"}'
    ] = ""
    capable: Annotated[bool | None, "whether the LLM may extract and judge; empty: decided by its size"] = None
    decider: Annotated[
        Literal["auto", "model", "rule"], "what makes decisions; auto: the LLM if it is capable, else rules"
    ] = "auto"
    reranker: Annotated[
        str,
        "reranker of evidence: the folder of a cross-encoder, or empty for none; not used over knowledge bases",
    ] = ""
    device: Annotated[str, "auto, cpu or cuda, or one GPU such as cuda:0"] = "auto"
    threads: Annotated[
        int, Range(0, 1024), "CPU threads of a graph op, and of a model in this process; 0: one per core, models one"
    ] = 0
    max_batch: Annotated[int, COUNT, "requests that a model in this process decodes together"] = 16
    vector_cache_gib: Annotated[
        float, NATURAL, "size limit of the vector cache that all indexes share; 0: no cache"
    ] = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_filled(self, "embedder", "llm")
        _ = self.more_body

    def op_threads(self, device: str) -> int:
        """CPU threads of a graph op on a device: `threads`; if it is 0, the cores that this process may use, at most
        16, and one beside a GPU."""
        return self.threads or (min(usable_cores(), MAX_CORES) if device == "cpu" else 1)

    @property
    def model_threads(self) -> int:
        """CPU threads of a model in this process, and of the tables of a build: `threads`, or one."""
        return self.threads or 1

    @property
    def more_body(self) -> dict[str, Any]:
        """`extra_body` as an object. Raises UsageError if it is not a JSON object."""
        try:
            body = json.loads(self.extra_body or "{}")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            expected = '{"reasoning_effort": "low"}'
            raise UsageError("models.extra_body is not a JSON object", given=self.extra_body[:80], expected=expected)
        return body


@dataclass(frozen=True)
class IndexSettings(Declared):
    """The build of an index. If a setting changes, the stages that depend on it are built again."""

    chunk_words: Annotated[int, Range(8), "words in a passage; longer documents are split"] = 300
    overlap_words: Annotated[int, NATURAL, "words shared by neighbouring passages"] = 50
    columns: Annotated[str, "columns of tables that hold id, title and text: `title=name,text=description`"] = ""
    extractor: Annotated[
        Literal["patterns", "llm", "import"],
        "how entities and triples are extracted; import: from the files of `--openie`",
    ] = "patterns"
    extract_nodes: Annotated[bool, "whether to extract from the texts of knowledge base nodes (`--skb`)"] = True
    coref: Annotated[Literal["none", "fastcoref", "llm"], "how pronouns are replaced before extraction"] = "none"
    min_yield: Annotated[
        float, SHARE, "share of passages in which the LLM must find an entity; below it the build fails"
    ] = 0.5
    extract_tokens: Annotated[
        int, COUNT, "token limit of an extraction reply; 1536 is enough for 30 names and 30 facts"
    ] = 1536
    synonym_threshold: Annotated[float, COSINE, "minimum cosine of two names that are joined as synonyms"] = 0.8
    mediators: Annotated[
        Literal["keep", "collapse"],
        "what to do with nameless nodes of `--kg`; collapse: connect their neighbours directly",
    ] = "keep"
    relation_vectors: Annotated[
        Literal["exact", "composed"],
        "vectors of facts; composed: of more than 4,096, from subject, label and object, by a map fitted on that many",
    ] = "exact"
    block: Annotated[int, Range(8), "maximum number of texts that are sorted by length and embedded together"] = 32768
    memory: Annotated[float, NATURAL, "GiB for sorting and joining tables; 0: a quarter of free memory"] = 0.0
    workers: Annotated[
        int,
        NATURAL,
        "processes, of 70 MB each, and threads that read and embed texts on a CPU; 0: one per core, at most 16",
    ] = 0

    max_document_chars: ClassVar[int] = 10_000_000  # a longer document is a rejected row
    coref_tokens: ClassVar[int] = 1024  # enough for a passage without pronouns
    synonym_k: ClassVar[int] = 20  # maximum synonyms of a name
    bm25_k1: ClassVar[float] = 1.2
    bm25_b: ClassVar[float] = 0.75


@dataclass(frozen=True)
class RuntimeSettings(Declared):
    """Runs of questions."""

    driver: Annotated[
        Literal["rounds", "streaming"],
        "rounds: questions advance in batches, deterministic; streaming: LLM requests are sent as they arise",
    ] = "rounds"
    max_live: Annotated[int, COUNT, "maximum number of open questions"] = 1024
    low_water: Annotated[
        int, COUNT, "streaming: below this many open requests, LLM work goes first; about twice its batch size"
    ] = 64
    seed: Annotated[int, SEED, "seed of all requests"] = 0
    max_calls: Annotated[int, NATURAL, "limit of LLM requests per question; 0: no limit"] = 0
    max_tokens: Annotated[int, NATURAL, "limit of LLM tokens per question; 0: no limit"] = 0
    max_seconds: Annotated[float, NATURAL, "time limit per question, in seconds; 0: no limit"] = 0.0


@dataclass(frozen=True)
class ReaderSettings(Declared):
    """The shared reader prompt."""

    passages: Annotated[
        int, COUNT, "maximum number of passages that are retrieved, and shown to the reader in rank order"
    ] = 5
    max_tokens: Annotated[int, COUNT, "token limit of the answer"] = 48


@dataclass(frozen=True)
class VllmSettings(Declared):
    """Servers started for `models.llm = "vllm:..."`; 0 leaves the choice to vLLM or to the device."""

    tensor_parallel: Annotated[int, COUNT, "GPUs that share the model"] = 1
    max_model_len: Annotated[int, NATURAL, "token limit of prompt and reply together; 0: the model's own"] = 0
    gpu_memory_utilization: Annotated[float, Range(0.01, 1), "share of a GPU's memory for weights and cache"] = 0.9
    kv_cache_gib: Annotated[
        float, NATURAL, "size of the KV cache, in place of a share of memory; 0: the share, or 1 GiB on a CPU"
    ] = 0.0
    max_num_seqs: Annotated[int, NATURAL, "requests processed together; 0: 32 on a CPU, 256 on a GPU"] = 0
    dtype: Annotated[Literal["auto", "bfloat16", "float16", "float32"], "data type of the weights"] = "auto"
    load_format: Annotated[Literal["auto", "safetensors", "dummy"], "how weights are loaded; dummy: random weights"] = (
        "auto"
    )
    enforce_eager: Annotated[bool | None, "whether to run without compiled graphs; empty: only on a CPU"] = None
    engines: Annotated[int, NATURAL, "number of servers, each with the whole model; 0: one per GPU"] = 0
    arguments: Annotated[str, 'more options of vLLM\'s server, as JSON: {"kv_cache_dtype": "fp8"}'] = ""

    seed: ClassVar[int] = 0  # the server's seed; a request's own seed decides its sampling


@dataclass(frozen=True)
class GraphSettings(Declared):
    """Implementations of the graph ops. The choice is printed and recorded; a missing one is an error."""

    pagerank: Annotated[
        Literal["auto", "numba", "torch"],
        "implementation of PageRank on the whole graph; auto: numba on a CPU, torch on a GPU",
    ] = "auto"
    ops: Annotated[
        Literal["auto", "numba", "torch"], "implementation of other graph ops; auto: numba on a CPU, torch on a GPU"
    ] = "auto"
    neighbours: Annotated[Literal["auto", "torch", "faiss"], "implementation of exact vector search; auto: torch"] = (
        "auto"
    )

    def preferences(self) -> dict[str, str]:
        """Preferred implementations by family of ops, for `dispatch.preferring`; without those set to auto."""
        return {family: name for family, name in asdict(self).items() if name != "auto"}


@dataclass(frozen=True)
class EvalSettings(Declared):
    """The judge of `gpu-rag eval --judge`."""

    judge: Annotated[str, "model that judges, named as in `models.llm`; empty: `models.llm` itself"] = ""
    judge_capable: Annotated[bool | None, "whether that model may judge; empty: decided by its size"] = None
    controls: Annotated[
        int, NATURAL, "number of planted right, planted wrong and exact answers that check the judge, of each kind"
    ] = 20

    judge_tokens: ClassVar[int] = 160  # tokens of a verdict with its reason


@dataclass(frozen=True)
class ServeSettings(Declared):
    """Limits for clients of `gpu-rag serve`. They change no answer, so they are in no hash."""

    max_queue: Annotated[
        int, NATURAL, "number of questions that may wait beyond `runtime.max_live`; more get status 429"
    ] = 1024
    max_connections: Annotated[
        int, COUNT, "maximum number of connections; more get status 503, and beyond 64 more they are closed"
    ] = 1024
    question_seconds: Annotated[float, NATURAL, "time limit for a question, from its arrival; 0: no limit"] = 300.0
    client_seconds: Annotated[
        float, Range(0.1), "time limit for a client to send headers or a body, or to receive a piece"
    ] = 30.0
    grace_seconds: Annotated[float, NATURAL, "time for open questions to finish when the server is stopped"] = 10.0
    tls_cert: Annotated[str, "file with the certificate chain (PEM) for https; empty: http"] = ""
    tls_key: Annotated[str, "file with the private key (PEM), without a password"] = ""
    hosts: Annotated[tuple[str, ...], "names that a Host header may contain, in addition to the bound address"] = ()
    params: Annotated[
        tuple[str, ...], 'parameters that a request may set: "METHOD.NAME"; "METHOD.*": all but texts'
    ] = ()
    warm: Annotated[bool, "whether to ask each method one question before clients are served"] = True

    max_questions: ClassVar[int] = 256  # maximum questions of one request
    max_passages: ClassVar[int] = 100  # maximum passages of one retrieval
    max_body_kib: ClassVar[int] = 1024  # maximum size of a request
    max_question_chars: ClassVar[int] = 4000
    revive_seconds: ClassVar[float] = 5.0  # pause before dead models are reopened, doubled up to a minute
