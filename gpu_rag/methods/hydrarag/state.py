"""The data types of HydraRAG: settings, topics and analysis of a question, paths, and the state of a search.

A path has three forms: `batched.search.Walks` during the search (tensors, many paths), `FoundPath` in words, and
`types.Path` in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal, NamedTuple

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.program.knowledge_base.query import Query
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.run import Run
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COSINE, COUNT, Range, check_filled
from gpu_rag.sources.web import is_server
from gpu_rag.text.rules.relations.hops import relation_words
from gpu_rag.types import Pool

KINDS = ("kg", "document", "web")
ANSWER, RELATED = "ANSWER", "related to"  # in a chain: the place of the answer, and an unknown relation
SEMANTIC, OVERLAP = 0.7, 0.3  # rel(p): weights of the cosine and of the shared topics
CROSS = 0.7  # weight of rel(p) in cross(p); the rest is for ver(p)
SURE, LIKELY = 1.0, 0.2  # bonus of a path whose relations the question asks for, or most likely asks for
PHASES = 3
MAX_DEPTH = 4
MAX_CALLS = 36  # model requests per question, repairs included; then rules decide
END_CALLS = 6  # part of MAX_CALLS that is reserved for the last pruning and answer
SIBLING_CALLS = 4  # for pages and sentences of one predicted answer, each with a repair
MAX_TOPICS = 5  # per order: with d_max = 4 a path has at most 20 hops


# --- settings ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Params(Declared):
    """Settings of the path search, of pruning, and of the sources."""

    d_max: Annotated[int, Range(1, MAX_DEPTH), "maximum distance from a topic, in hops"] = 3
    phases: Annotated[int, Range(1, PHASES), "number of phases: 1 initial, 2 also refined, 3 also predicted"] = 3
    selector: Annotated[bool, "whether the model selects the sources of the first phase; false: all sources"] = True
    refinement: Annotated[bool, "whether paths are summarised before the answer"] = True
    pruning: Annotated[
        Literal["verified", "relevance"], "ranking of paths: with agreement of other sources, or by relevance alone"
    ] = "verified"
    sentences: Annotated[
        Literal["both", "cosine"], "ranking of sentences of a document: BM25 and cosine, or cosine (the paper's choice)"
    ] = "both"
    w1: Annotated[int, COUNT, "number of paths kept by relevance, after each hop and at the end"] = 100
    w_max: Annotated[
        int, COUNT, "number of paths kept by the decider, of sentences per document, and of web results opened"
    ] = 3
    matches: Annotated[int, COUNT, "maximum number of nodes per mention in each source"] = 3
    sources: Annotated[str, "all, or names separated by commas; documents and web are two of the names"] = "all"
    web: Annotated[
        str, "where web pages come from: index (snapshots in it), none, or the address of a SearXNG server"
    ] = "index"
    w2: Annotated[int, COUNT, "number of paths kept by relevance and verification, and shown to the decider"] = 20
    gamma: Annotated[float, COSINE, "minimum cosine of paths that support each other"] = 0.8
    trust: Annotated[
        str, "trust from 0 to 1 in kinds of sources and in single ones, such as web=0.5,register=0.9; "
        "kinds that it does not name have kg=1,document=0.8,web=0.7"
    ] = ""  # fmt: skip
    chains: Annotated[
        bool, "whether paths along relations named in the question become candidates; false: the paper's choice"
    ] = True
    knowledge: Annotated[
        bool, "whether the model is asked for its own knowledge if there is no path; such answers are `unsupported`"
    ] = False

    threshold: ClassVar[float] = 0.75  # minimum cosine of a mention and a name
    documents: ClassVar[int] = 3  # passages read per topic
    enough: ClassVar[float] = 0.45  # by rule, minimum relevance of a path that settles a question
    temperature: ClassVar[float] = 0.4  # temperature of requests in exploration
    seed: ClassVar[int] = 0  # seed of the relations that `hydrarag-e` draws

    def __post_init__(self) -> None:
        super().__post_init__()
        check_filled(self, "sources", "web")
        _ = self.shares  # report what cannot be read

    @property
    def draw(self) -> int | None:
        """The seed that picks one of parallel relations (HydraRAG-E); None keeps all."""
        return None

    @cached_property
    def shares(self) -> dict[str, float]:
        """The trust in each kind and each named source. Raises UsageError."""
        shares = {"kg": 1.0, "document": 0.8, "web": 0.7}
        for part in filter(None, map(str.strip, self.trust.split(","))):
            name, _, share = part.rpartition("=")
            if not name or not re.fullmatch(r"0?\.\d+|0|1(\.0+)?", share):
                raise UsageError("trust has a source and a share", given=part, expected="NAME=0 to 1, such as web=0.5")
            shares[name] = float(share)
        return shares

    def reliability(self, kind: str, sources: str) -> float:
        """The trust in the least reliable of the sources of a path ("a+b"), whose own kind counts for the others."""
        return min(self.shares.get(name, self.shares[kind]) for name in sources.split("+"))

    @property
    def files(self) -> tuple[str, ...]:
        """The web snapshot outside the index that the answers depend on, if any."""
        return () if self.web in ("index", "none") or is_server(self.web) else (self.web,)


# --- a question --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """A node that a mention may denote. cosine: cosine of the two names, 1 if they are equal; sources: numbers of the
    sources that have the node."""

    node: int
    cosine: float
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Mention:
    """A topic entity as the question names it, and the nodes that it may denote, best first."""

    text: str
    matches: tuple[Match, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The matched nodes, best first."""
        return tuple(match.node for match in self.matches)


@dataclass(frozen=True)
class Chain:
    """The skyline indicator: entities in order, including the answer, and the relation between each two neighbours.

    entities: names of topics, ANSWER, and intermediate entities; len(relations) = len(entities) - 1.
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]

    @property
    def text(self) -> str:
        """ "A - r - ANSWER - s - B"."""
        steps = zip(self.relations, self.entities[1:])
        return " - ".join([*self.entities[:1], *(word for step in steps for word in step)])

    def indicator(self, otherwise: str) -> str:
        """The text that paths are compared with; `otherwise` if the chain names no relation."""
        return self.text if any(relation != RELATED for relation in self.relations) else otherwise

    def depth(self, topics: Sequence[str]) -> int:
        """D_predict: the greatest distance from the answer to a topic; 1 if either is missing."""
        answers = [i for i, entity in enumerate(self.entities) if entity == ANSWER][:1]
        return max([abs(i - a) for a in answers for i, entity in enumerate(self.entities) if entity in topics] or [1])


@dataclass(frozen=True)
class Analysis:
    """The result of step I for one question. indicator: the text that paths are compared with; depth: D_predict.

    opens, closes: whether the answer stands before the first or after the last topic of the order; predicted: the
    mention that is a predicted answer, if any; follow_up: a question by the model, which replaces the user's question
    in text search. The model has read sources by then, so prompts show its words inside a fence.
    """

    question: str
    mentions: tuple[Mention, ...]
    subquestions: tuple[str, ...]
    indicator: str
    depth: int
    opens: bool
    closes: bool
    predicted: Mention | None = None
    follow_up: str = ""

    @property
    def sought(self) -> str:
        """The question used to search texts."""
        return self.follow_up or self.question

    @property
    def shown(self) -> dict[str, str]:
        """The slots of prompts: the user's question, and the current search text."""
        return {"question": self.question, "indicator": f"{self.follow_up} {self.indicator}".strip()}

    @property
    def topics(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that each topic may denote."""
        return tuple(mention.nodes for mention in self.mentions)


@dataclass(frozen=True)
class Sources:
    """The sources of a question: numbers of knowledge graphs with a topic, and the available KINDS."""

    graphs: tuple[int, ...]
    kinds: tuple[str, ...]


# --- paths -------------------------------------------------------------------------------------------


class Scores(NamedTuple):
    """The scores of a kept path, see `pruning`, and the other kinds of sources that support it."""

    rel: float = 0.0
    f1: float = 0.0
    f2: float = 0.0
    f3: float = 0.0
    ver: float = 0.0
    cross: float = 0.0
    support: tuple[str, ...] = ()


class FoundPath(NamedTuple):
    """A path from a source, which may hold the answer.

    text: in words; kind: kind of its weakest hop, one of KINDS; also: other kinds that state every hop; sources: names
    joined by "+"; nodes: fused, the representative of each place, < 0 for a name that no graph has; places: for each
    place all fused nodes of the cluster; facts: edges of the knowledge base; edges, passages: in place of facts, of a
    text path: (subject, relation, object, location), and its passage; relations: relations of each hop, in words, with
    direction; stated: whether all edges are in the index (a text may state facts that were not extracted); topics:
    topics of the order it was found for; known: share of its entities in the evidence subgraph; answers: nodes at the
    answer place; names: entities of a text path, which the graphs may not have; scores: set by pruning; asked: bonus if
    the question asks for its relations; chain: the relations and directions that it was found along, if it realises the
    question's query.
    """

    text: str
    kind: str
    sources: str
    nodes: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]
    facts: tuple[int, ...] = ()
    edges: tuple[tuple[str, str, str, str], ...] = ()
    passages: tuple[int, ...] = ()
    relations: tuple[str, ...] = ()
    stated: bool = True
    also: tuple[str, ...] = ()
    topics: tuple[int, ...] = ()
    known: float = 1.0
    answers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    scores: Scores = Scores()
    asked: float = 0.0
    chain: tuple[tuple[int, int], ...] = ()

    def edges_in(self, kb: KnowledgeBase) -> tuple[tuple[str, str, str, str], ...]:
        """(subject, relation, object, location) of its triples."""
        return (*self.edges, *map(kb.triple, self.facts))

    def passages_in(self, kb: KnowledgeBase) -> tuple[int, ...]:
        """The rows of the passages that state an edge."""
        return (*self.passages, *kb.passages_stating(self.facts))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of sources that state the whole path, its own first."""
        return (self.kind, *self.also)

    @property
    def said_by(self) -> str:
        """The kinds of sources that state the path or a similar one, its own first."""
        return ", ".join((self.kind, *self.scores.support))


@dataclass(frozen=True)
class Realised:
    """The query of a question and its exact answers.

    nodes: the answers, ascending, if the query has operations; exact: whether it was plainly understood; barred: nodes
    that are not answers, each with the reason; unread, sought: see `Answer`.
    """

    query: Query | None = None
    nodes: tuple[int, ...] = ()
    exact: bool = False
    barred: Mapping[int, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    sought: tuple[str, ...] = ()

    @property
    def count(self) -> str:
        """The number of exact answers, if the question asks for it; else ""."""
        counts = self.exact and self.query is not None and self.query.operations.aggregate == "count"
        return str(len(self.nodes)) if counts and self.nodes else ""


@dataclass
class Search:
    """The search of one question.

    run: limited in its model requests; paths: those of all phases so far; chosen: the result of each pruning; kept:
    the W2 paths of the last pruning, the chosen ones first; documents: passage rows that were read, with their cosines;
    pools: for `answer_on_path`; missing: {kind of source that failed: error}; asked: what the question asks, see
    `chains`.
    """

    run: Run
    params: Params
    paths: list[FoundPath] = field(default_factory=list)
    chosen: list[FoundPath] = field(default_factory=list)
    kept: list[FoundPath] = field(default_factory=list)
    documents: dict[int, float] = field(default_factory=dict)
    pools: list[Pool] = field(default_factory=list)
    missing: dict[str, GpuRagError] = field(default_factory=dict)
    asked: Realised = field(default_factory=lambda: Realised())

    def __post_init__(self) -> None:
        self.bound(MAX_CALLS - END_CALLS)

    def bound(self, most_calls: int) -> None:
        """Let rules decide once the question has made `most_calls` model requests."""
        self.run = replace(self.run, most_calls=most_calls)

    def release_reserve(self) -> None:
        """Release the requests that were reserved for the last pruning and answer."""
        self.bound(MAX_CALLS)

    def siblings(self, n: int) -> list[Search]:
        """Searches that run side by side, each with its own documents. Where too few requests are left for a search,
        rules decide in it, so the running order changes nothing."""
        n_left = (self.run.most_calls or 0) - self.run.ctx.usage.llm_calls
        searches = [replace(self, documents=dict(self.documents)) for _ in range(n)]
        for i, search in enumerate(searches, 1):
            search.bound((self.run.most_calls or 0) if i * SIBLING_CALLS <= n_left else 0)
        return searches

    def lost(self, kind: str, error: GpuRagError) -> None:
        """Record that a kind of source failed; the others answer."""
        self.missing.setdefault(kind, error)

    @cached_property
    def kb(self) -> KnowledgeBase:
        """The knowledge base of the index."""
        return kb_of(self.run.index)

    @property
    def relation_words(self) -> frozenset[str]:
        """The words of the relations of the knowledge base."""
        return self.run.index.loaded("words of relations", lambda _: relation_words(self.kb.relation_texts))
