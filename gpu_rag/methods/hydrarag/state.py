"""The nouns of HydraRAG: its settings, topics and analysis of a question, paths, and what its search has found so far.

A path is three things: `batched.search.Walks` while it is searched (tensors, of many paths), `FoundPath` once it has
words, and `types.Path` in the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from gpu_rag.errors import GpuRagError
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.run import Run
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COUNT, Range, check_filled
from gpu_rag.sources.web import is_server
from gpu_rag.text.rules.relations.hops import relation_words
from gpu_rag.types import Pool

KINDS = ("kg", "document", "web")
ANSWER, RELATED = "ANSWER", "related to"  # in a chain: the place of the answer, and a relation that is not known
SEMANTIC, OVERLAP = 0.7, 0.3  # rel(p): weights of the cosine and of the shared topics
CROSS = 0.7  # weight of rel(p) in cross(p), beside ver(p)
SURE, LIKELY = 1.0, 0.1  # added to a path whose relations the question asks for, or may ask for
PHASES = 3
MOST_DEPTH = 4
MOST_CALLS = 36  # model requests of a question, repairs included; then rules decide
END_CALLS = 6  # of these for the last pruning and answer
SIBLING_CALLS = 4  # for the pages and the sentences of one predicted answer, each with a repair
MOST_TOPICS = 5  # of one order: with d_max = 4 a path has at most 20 hops


# --- settings ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Params(Declared):
    """The search for paths, what is kept of them, and the sources."""

    d_max: Annotated[int, Range(1, MOST_DEPTH), "greatest distance from a topic, in hops"] = 3
    phases: Annotated[int, Range(1, PHASES), "1: initial, 2: and refined, 3: and predicted"] = 3
    selector: Annotated[bool, "whether the model takes sources for the first phase; false: all"] = True
    refinement: Annotated[bool, "whether paths are summed up before the answer"] = True
    pruning: Annotated[
        Literal["verified", "relevance"], "relevance: paths are ranked without what other sources say of them"
    ] = "verified"
    w1: Annotated[int, COUNT, "paths kept in the search and by relevance"] = 100
    w_max: Annotated[int, COUNT, "paths kept by the decider; sentences of a document; web results that are opened"] = 3
    matches: Annotated[int, COUNT, "nodes that a mention may be, in each source"] = 3
    sources: Annotated[str, "all, or names with commas between; documents and web are two of them"] = "all"
    web: Annotated[str, "index: snapshots in it; none; or the address of a SearXNG server"] = "index"
    knowledge: Annotated[bool, "whether, without any path, the model is asked what it knows: `unsupported`"] = False

    w2: ClassVar[int] = 20  # paths kept by the cross-score
    threshold: ClassVar[float] = 0.75  # least cosine of a mention and a name
    gamma: ClassVar[float] = 0.8  # least cosine of paths that support each other
    rho_kg: ClassVar[float] = 1.0  # reliability of the kinds of sources
    rho_document: ClassVar[float] = 0.8
    rho_web: ClassVar[float] = 0.7
    documents: ClassVar[int] = 3  # passages that are read of a topic
    enough: ClassVar[float] = 0.45  # by rule, least relevance of a path that settles a question
    temperature: ClassVar[float] = 0.4  # of requests in exploration
    seed: ClassVar[int] = 0  # of the relations that `hydrarag-e` draws

    def __post_init__(self) -> None:
        super().__post_init__()
        check_filled(self, "sources", "web")

    @property
    def draw(self) -> int | None:
        """The seed by which one of parallel relations alone is kept (HydraRAG-E)."""
        return None

    @property
    def files(self) -> tuple[str, ...]:
        """The snapshot whose pages the answers depend on, where it is not in the index."""
        return () if self.web in ("index", "none") or is_server(self.web) else (self.web,)


# --- a question --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """A node that a mention may be. cosine: of the two names, 1 where they are one; sources: numbers of those that have
    the node."""

    node: int
    cosine: float
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Mention:
    """A topic entity as the question names it, and the nodes that it may be, best first."""

    text: str
    matches: tuple[Match, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes."""
        return tuple(match.node for match in self.matches)


@dataclass(frozen=True)
class Chain:
    """The skyline indicator: entities in order, the answer among them, and the relation between each two.

    entities hold names of topics, ANSWER, and whatever stands between; len(relations) = len(entities) - 1.
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]

    @property
    def text(self) -> str:
        """ "A - r - ANSWER - s - B"."""
        steps = zip(self.relations, self.entities[1:])
        return " - ".join([*self.entities[:1], *(word for step in steps for word in step)])

    def indicator(self, otherwise: str) -> str:
        """The text that paths are compared with: another where the chain says no relation."""
        return self.text if any(relation != RELATED for relation in self.relations) else otherwise

    def depth(self, topics: Sequence[str]) -> int:
        """D_predict: the greatest distance from the answer to a topic; 1 where either is missing."""
        at = [i for i, entity in enumerate(self.entities) if entity == ANSWER][:1]
        return max([abs(i - a) for a in at for i, entity in enumerate(self.entities) if entity in topics] or [1])


@dataclass(frozen=True)
class Analysis:
    """Step I of one question. indicator: the text that paths are compared with; depth: D_predict.

    opens, closes: whether the answer stands before the first or behind the last topic of the order; predicted: the
    mention that is a predicted answer, where one is among the mentions; follow_up: a model's question, which texts are
    searched for in place of the user's. It has read sources by then, so prompts show what it wrote inside a fence.
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
        """The question that texts are searched for."""
        return self.follow_up or self.question

    @property
    def shown(self) -> dict[str, str]:
        """The slots of prompts: what was asked, and what is sought now."""
        return {"question": self.question, "indicator": f"{self.follow_up} {self.indicator}".strip()}

    @property
    def topics(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that each topic may be."""
        return tuple(mention.nodes for mention in self.mentions)


@dataclass(frozen=True)
class Sources:
    """The sources of a question: numbers of knowledge graphs with a topic, and which of KINDS there are."""

    graphs: tuple[int, ...]
    kinds: tuple[str, ...]


# --- paths -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """The scores of a path that was kept, see `pruning`, and the other kinds of sources that support it."""

    rel: float = 0.0
    f1: float = 0.0
    f2: float = 0.0
    f3: float = 0.0
    ver: float = 0.0
    cross: float = 0.0
    support: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoundPath:
    """A path out of a source, which may hold the answer.

    text: in words; edges: (subject, relation, object, where it stands) of real triples; kind: of its weakest hop, one
    of KINDS; also: other kinds that state every hop; sources: names, "+" between; nodes: fused, the representative of
    each place, < 0 for a name that no graph has; places: for each place all fused nodes of the cluster; passages: rows
    that state an edge; relations: of each hop, in words, with direction; stated: whether all edges stand in the index
    (a text may say what nobody extracted); topics: of the order that it was found for; known: share of its entities in
    the evidence subgraph; answers: nodes where the answer stands; names: of a text path, whose entities the graphs may
    not have; scores: since it was pruned.
    """

    text: str
    edges: tuple[tuple[str, str, str, str], ...]
    kind: str
    sources: str
    nodes: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]
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

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of sources that state the whole path, its own first."""
        return (self.kind, *self.also)

    @property
    def said_by(self) -> str:
        """The kinds of sources that state the path or one like it, its own first."""
        return ", ".join((self.kind, *self.scores.support))


@dataclass
class Search:
    """The search of one question. run: bounded in its model requests; found: the paths of all phases so far; chosen:
    what each pruning left; kept: the W2 of the last pruning, the chosen paths first; documents: passage rows that were
    read, with their cosines; pools: for `answer_on_path`; missing: kinds of sources that failed, and why."""

    run: Run
    params: Params
    found: list[FoundPath] = field(default_factory=list)
    chosen: list[FoundPath] = field(default_factory=list)
    kept: list[FoundPath] = field(default_factory=list)
    documents: dict[int, float] = field(default_factory=dict)
    pools: list[Pool] = field(default_factory=list)
    missing: dict[str, GpuRagError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bound(MOST_CALLS - END_CALLS)

    def bound(self, most_calls: int) -> None:
        """Let rules decide as soon as the question has made so many model requests."""
        self.run = replace(self.run, most_calls=most_calls)

    def release_reserve(self) -> None:
        """Let the last pruning and answer make the requests that were kept for them."""
        self.bound(MOST_CALLS)

    def siblings(self, n: int) -> list[Search]:
        """Searches that run side by side, with documents of their own. Rules decide in those that the requests left do
        not suffice for, so that their order of running changes nothing."""
        left = (self.run.most_calls or 0) - self.run.ctx.usage.llm_calls
        searches = [replace(self, documents=dict(self.documents)) for _ in range(n)]
        for i, search in enumerate(searches, 1):
            search.bound((self.run.most_calls or 0) if i * SIBLING_CALLS <= left else 0)
        return searches

    def lost(self, kind: str, error: GpuRagError) -> None:
        """Leave out a kind of source that failed from now on; the others answer."""
        self.missing.setdefault(kind, error)

    @cached_property
    def kb(self) -> KnowledgeBase:
        """The knowledge base of the index."""
        return kb_of(self.run.index)

    @property
    def relation_words(self) -> frozenset[str]:
        """The words of the relations of the knowledge base."""
        return self.run.index.loaded("words of relations", lambda _: relation_words(self.kb.relation_texts))
