"""Shared data types of gpu-rag: frozen dataclasses that every package may import.

Axes: N nodes, E edges, B questions, K results, D dimensions, T ragged total.

torch is imported for type checking only, so importing this module is cheap.
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
    """A sparse matrix in compressed rows. Each row is sorted by column and has no duplicates.

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
    """B local subgraphs as one block-diagonal CSR, made by `induced_subgraphs`; the ops that take one do not check it.

    csr: the block-diagonal matrix over all local nodes; offsets: i64[B+1], the first node of each block; global_ids:
    i32[offsets[B]], for each local node its id in the whole graph.
    """

    csr: CSR
    offsets: torch.Tensor
    global_ids: torch.Tensor


# --- text ------------------------------------------------------------------------------------------

Scalar = str | int | float | bool  # a metadata value


@dataclass(frozen=True)
class Document:
    """One document of a corpus. `file` and `line` (1-based, 0 for a whole file) say where it came from.

    pages: the start of each page, as ascending character offsets into `text`, the first 0; empty when the source has no
    pages. `index.index.page_of` turns an offset into a page number.
    metadata: other values that the source gives for the document, by column name; see `sources.rows.metadata_of`.
    headings: (character offset, words) of each chapter and section, ascending; they complete the titles of passages.
    """

    id: str
    title: str
    text: str
    file: str = ""
    line: int = 0
    pages: tuple[int, ...] = ()
    metadata: dict[str, Scalar] = field(default_factory=dict, hash=False)
    headings: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Reject:
    """One input row that could not be used, and the reason. Rejects are counted and written to a file."""

    file: str
    line: int
    reason: str
    id: str = ""


@dataclass(frozen=True)
class PageReject(Reject):
    """A page of a question that could not be used. The question itself is still used."""


@dataclass(frozen=True)
class Profile:
    """Facts that a passage states about the entity `name`: other names, types such as "river", a short description."""

    name: str
    aliases: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True)
class Extraction:
    """The result of extraction from one passage: entity names, (subject, relation, object) triples, and profiles.

    profiles: only for entities with more known facts than the name. Patterns find aliases only; imported triples have
    no profiles.
    """

    entities: tuple[str, ...]
    triples: tuple[tuple[str, str, str], ...]
    profiles: tuple[Profile, ...] = ()


# --- questions and answers -------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """A web page that comes with a question. text: its main text, or the snippet of the search engine."""

    url: str
    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """The part of a question that a program sees. Gold ids and answers never reach it.

    query_time: when the question was asked, as its source writes it; pages: web search results for it, in their order.
    """

    id: str
    text: str
    query_time: str = ""
    pages: tuple[Page, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """A passage that supports an answer. start, end: character offsets into the source document.

    file, place: the location of that document, such as "report.pdf", "pages 3-4"; see `index.places`.
    metadata: the metadata of the document.
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
    """A sentence of a passage that bears on the question. start, end: character offsets into the passage's text."""

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


UNTYPED = "entity"  # the type of a node of a knowledge base that is given without one
# How a reply that was not in the form asked for was handled: read leniently, read in part, read after one repair, or
# replaced by the rule of the step.
FALLBACKS = ("lenient", "salvaged", "repaired", "rule")


@dataclass
class Usage:
    """The cost of one question. The seconds of a shared batch are divided among its calls.

    malformed: replies that could not be read, even leniently; replies_read: replies that code had to read (a reply and
    its repair count once); fallbacks: {"step/kind": count} of replies that were not in the form asked for, see
    `FALLBACKS`.
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
    """The paths that a search held at one moment, such as "initial beam": their number, and the names of all entities
    on them. Evaluation uses it to check whether the answer was still there."""

    name: str
    n_paths: int
    entities: tuple[str, ...]


@dataclass(frozen=True)
class GroundingSentence:
    """A sentence that supports an answer, as characters of the text of a passage. answer: where the answer stands in
    the text; None in the other sentences of a path."""

    passage_id: str
    start: int
    end: int
    answer: tuple[int, int] | None


@dataclass(frozen=True)
class Grounding:
    """Whether the evidence supports an answer, judged by words alone.

    status: supported (one sentence, or the sentences of one path, hold the answer and what the question asks about) |
    mentioned (the evidence has the answer's words) | unsupported (it lacks some) | none (no answer, or undecided).
    sentences: the support, the sentence with the answer first; empty for an edge of a knowledge base.
    """

    status: str = "none"
    sentences: tuple[GroundingSentence, ...] = ()


@dataclass(frozen=True)
class Draft:
    """The return value of a program.

    status: answered | retrieved | unsupported. nodes: knowledge base nodes, best first; pools: `Pool`; support: only
    where it was asked for, see `program.support`; condensed, missing, source, unread, barred, sought: see `Answer`;
    count: the number of exact answers, if the question asks for it and that needs no model.
    """

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
    unread: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()
    sought: tuple[str, ...] = ()
    count: str = ""

    @property
    def doubtful(self) -> bool:
        """Whether words of the question were not understood, or what it asks for is not known: never `answered`."""
        return bool(self.unread or self.sought)


@dataclass(frozen=True)
class Answer:
    """The recorded result of one question.

    status: answered | retrieved (evidence; no model was asked) | unsupported | failed.
    grounding: whether the evidence supports the text. If it lacks its words, status is unsupported.
    error: None, or {"type", "message"} when failed. nodes, pools: as in `Draft`. where: the filter of documents.
    condensed: the standalone question that was answered, if the asked one was clear only with its history; else "".
    source: "model" if no source had anything and the model answered from its own knowledge; else "".
    missing: sources that failed while others answered, such as "web: the search server did not answer; ...".
    unread: words of the question that change its meaning and were not understood, such as "not"; sought: things that
    were looked for and are not known, such as "entity: Zorvex"; with either of them, status is never `answered`.
    barred: nodes that the question rules out, each with the reason.
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
    grounding: Grounding = Grounding()
    support: tuple[Sentence, ...] = ()
    where: str = ""
    condensed: str = ""
    missing: tuple[str, ...] = ()
    source: str = ""
    unread: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()
    sought: tuple[str, ...] = ()


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
    """Scoring instead of generation: each option is scored as a continuation. Reply.text is the best option (ties: the
    earlier), Reply.scores the mean log-probability per token of each option, in the order given."""

    options: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """One request to an LLM. `system` is the static part that all requests of a stage share; `prompt` differs.

    on_text: called in a thread of the engine while the reply arrives, with its whole text so far. A new try starts with
    a shorter text. Engines that cannot stream do not call it, and it is not called for a cached reply.
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

    Token counts come from the engine. estimated: they are estimates, since the server reports no counts.
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
        """The first 12 hexadecimal digits of the text's sha1, which a trace shows for a reply."""
        return sha1(self.text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:12]


@dataclass(frozen=True)
class Malformed:
    """A reply that could not be read under its schema: the reason, and the raw text."""

    reason: str
    raw: str
