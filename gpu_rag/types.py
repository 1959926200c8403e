"""The nouns of gpu-rag: frozen dataclasses that every room may import.

Axes: N nodes, E edges, B questions, K results, D dimensions, T ragged total.
torch is imported for type checking only, so this module costs nothing to import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha1
from typing import TYPE_CHECKING

from gpu_rag.errors import BadInput

if TYPE_CHECKING:
    import torch


# --- tensors ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CSR:
    """A sparse matrix by rows: rows sorted by column, no duplicates.

    indptr: i64[N+1]; indices: i32[E]; weight: f32[E], or None where all weights are 1.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    weight: torch.Tensor | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.indptr.shape[0]) - 1

    @property
    def m(self) -> int:
        """Number of stored entries."""
        return int(self.indices.shape[0])


@dataclass(frozen=True)
class Ragged:
    """B lists of different lengths: list b is values[offsets[b]:offsets[b+1]].

    values: any dtype [T]; offsets: i64[B+1], offsets[0] = 0, offsets[B] = T.
    """

    values: torch.Tensor
    offsets: torch.Tensor

    @property
    def batch(self) -> int:
        """Number of lists B."""
        return int(self.offsets.shape[0]) - 1


@dataclass(frozen=True)
class TopK:
    """The best K of each of B rows, sorted by (-score, id), padded with id -1 and score -inf.

    ids: i32[B, K]; scores: f32[B, K].
    """

    ids: torch.Tensor
    scores: torch.Tensor


@dataclass(frozen=True)
class Blocks:
    """B local subgraphs as one block-diagonal CSR.

    csr: the block-diagonal matrix over all local nodes; offsets: i64[B+1], where the nodes of block b start;
    global_ids: i32[offsets[B]], the node of the whole graph that each local node is.
    """

    csr: CSR
    offsets: torch.Tensor
    global_ids: torch.Tensor


# --- text ------------------------------------------------------------------------------------------

Scalar = str | int | float | bool  # a value of metadata


@dataclass(frozen=True)
class Document:
    """One document of a corpus. `file` and `line` (1-based, 0 for a whole file) say where it came from.

    pages: where each page begins, as ascending character offsets into `text`, the first 0; empty when the source has
    no pages. `index.index.page_of` turns an offset into a page number.
    metadata: what the source says of the document beside its text, by name of column, see `sources.rows.metadata_of`.
    """

    id: str
    title: str
    text: str
    file: str = ""
    line: int = 0
    pages: tuple[int, ...] = ()
    metadata: dict[str, Scalar] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Reject:
    """One row of input that could not be used, and why. Counted, written down, never lost."""

    file: str
    line: int
    reason: str
    id: str = ""


@dataclass(frozen=True)
class PageReject(Reject):
    """A page that a question brings and that could not be used; the question itself is."""


@dataclass(frozen=True)
class Profile:
    """What a passage says of the entity `name`: its other names, types such as "river", and a short description."""

    name: str
    aliases: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True)
class Extraction:
    """What extraction found in one passage: entity names, (subject, relation, object) triples, and profiles.

    profiles: of those entities of which more than the name is known; patterns know aliases, imports nothing.
    """

    entities: tuple[str, ...]
    triples: tuple[tuple[str, str, str], ...]
    profiles: tuple[Profile, ...] = ()


# --- questions and answers -------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """A web page that a question brings. text: its main text, or what a search said of it."""

    url: str
    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """What a program sees of a question. Gold ids and answers never reach it.

    query_time: when it was put, as its source writes it; pages: of a web search for it, in that order.
    """

    id: str
    text: str
    query_time: str = ""
    pages: tuple[Page, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """A passage that supports an answer. start, end: character offsets into the source document.

    file, place: where that document lies, such as "report.pdf", "pages 3-4"; see `index.places`. metadata: its own.
    """

    passage_id: str
    title: str
    text: str
    start: int
    end: int
    score: float
    why: str = ""
    file: str = ""
    place: str = ""
    metadata: dict[str, Scalar] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Sentence:
    """A sentence of a passage that bears on the question. start, end: characters of the passage's text."""

    passage_id: str
    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True)
class Path:
    """A chain of edges (subject, relation, object, passage id or file:line) that supports an answer."""

    text: str
    edges: tuple[tuple[str, str, str, str], ...]
    source: str = ""


@dataclass(frozen=True)
class TraceStep:
    """One decision of a program, for `explain`."""

    step: int
    verb: str
    n_candidates: int
    chosen: tuple[str, ...]
    reply_hash: str = ""
    s: float = 0.0


# What became of a reply that was not in the form asked for: read leniently, in part, after one repair, or not at all,
# so that the rule of the step decided.
FALLBACKS = ("lenient", "salvaged", "repaired", "rule")


@dataclass
class Usage:
    """What one question cost. Seconds of a shared batch are divided among its calls.

    malformed: replies that could not be read, even leniently; replies_read: those that code had to read, a repair and
    what it repairs counted once; fallbacks: {"step/kind": number} of those that were not in the form asked for, see
    `FALLBACKS`; reason_tokens: generated tokens that were reasons before a verdict, see `models.reason`.
    """

    llm_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    llm_s: float = 0.0
    graph_s: float = 0.0
    embed_s: float = 0.0
    wall_s: float = 0.0
    malformed: int = 0
    cut: int = 0
    replies_read: int = 0
    reason_tokens: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RankedNode:
    """A node of the knowledge base as an answer. id: as in `KnowledgeBase.node_ids`; source: names of its sources."""

    id: str
    name: str
    type: str
    source: str
    score: float


@dataclass(frozen=True)
class Pool:
    """The paths that a search held at one moment, such as "initial beam": how many, and the names of all entities on
    them. For evaluation: was the answer still there?"""

    name: str
    n_paths: int
    entities: tuple[str, ...]


@dataclass(frozen=True)
class Draft:
    """What a program returns. status: answered | retrieved | unsupported. nodes: of a knowledge base, best first;
    pools: `Pool`; support: where it was asked for, see `program.support`; condensed, missing, source: see `Answer`."""

    text: str | None
    evidence: tuple[Evidence, ...] = ()
    paths: tuple[Path, ...] = ()
    status: str = "answered"
    nodes: tuple[RankedNode, ...] = ()
    pools: tuple[Pool, ...] = ()
    support: tuple[Sentence, ...] = ()
    condensed: str = ""
    missing: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Answer:
    """The recorded result of one question. status: answered | retrieved (evidence; no model was asked) | unsupported |
    failed.

    grounding: whether the evidence states the text, see `text.grounding`; where it does not, status is unsupported.
    error: None, or {"type", "message"} when failed. nodes, pools: as in `Draft`. where: the filter of documents.
    condensed: the question that was answered in place of one that only a history made clear, else "".
    source: "model" where no source had anything and the model said what it knows by itself, else "".
    missing: sources that failed while others answered, such as "web: the search server did not answer; ...".
    """

    question_id: str
    question: str
    method: str
    status: str
    text: str | None
    evidence: tuple[Evidence, ...] = ()
    paths: tuple[Path, ...] = ()
    trace: tuple[TraceStep, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error: dict[str, str] | None = None
    config_hash: str = ""
    nodes: tuple[RankedNode, ...] = ()
    pools: tuple[Pool, ...] = ()
    grounding: str = "none"
    support: tuple[Sentence, ...] = ()
    where: str = ""
    condensed: str = ""
    missing: tuple[str, ...] = ()
    source: str = ""


# --- model requests --------------------------------------------------------------------------------


@dataclass(frozen=True)
class JsonSchema:
    """Constraint: the reply is JSON valid under `schema` (a JSON Schema as canonical JSON text)."""

    schema: str


@dataclass(frozen=True)
class Choice:
    """Constraint: the reply is exactly one of `options`."""

    options: tuple[str, ...]


@dataclass(frozen=True)
class Rank:
    """Not generation: score each option as a continuation. Reply.text is the best option (ties: the earlier),
    Reply.scores one mean log-probability per token of each option, in the order given."""

    options: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """One request to an LLM. `system` is the static part that requests of a stage share; `prompt` differs.

    on_text: called while the reply comes, in a thread of the engine, with all of its text so far; a try that begins
    anew begins with less. It is not called by an engine that cannot stream, nor for a kept reply.
    """

    system: str
    prompt: str
    constraint: JsonSchema | Choice | Rank | None = None
    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    attempt: int = 0
    on_text: Callable[[str], None] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise BadInput("a request needs room for a reply", given=f"max_tokens={self.max_tokens}", expected=">= 1")
        if isinstance(self.constraint, (Choice, Rank)) and not self.constraint.options:
            raise BadInput("a choice needs options", given="none", expected="one or more")


@dataclass(frozen=True)
class Reply:
    """One reply. finish_reason: stop | length | rank | unscored (the engine cannot rank).

    Token counts are the engine's own; estimated: they are not, since its server does not count them.
    """

    text: str
    finish_reason: str
    n_prompt: int
    n_cached: int
    n_generated: int
    scores: tuple[float, ...] = ()
    from_cache: bool = False
    estimated: bool = False

    @property
    def hash(self) -> str:
        """The first 12 hexadecimal digits of sha1 of the text: what a trace shows of a reply."""
        return sha1(self.text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:12]


@dataclass(frozen=True)
class Malformed:
    """A reply that could not be read under its schema: why, and what it said."""

    reason: str
    raw: str
