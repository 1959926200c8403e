"""HopRAG (Liu et al. 2025): retrieve, reason and prune on a passage graph whose edges are pseudo-questions.

Retrieve: top_k vertices with count 1. Reason, n_hop rounds: from every vertex in the queue at most one out-edge is
followed, chosen by the decider; its target's count grows, and it is queued unless it was counted before. Prune: the
top_k of H(v) = (SIM(v, q) + count(v) / sum of counts) / 2, ties to the lower passage.
With sentences as vertices, evidence is the passages: one has the H of its best sentence, and top_k counts passages.

Two things are ours where the paper and its published code differ or are silent; `entry: edges`, `keywords: all` is the
letter of the paper. entry: the paper starts from the best edges, its code from the nearest vertices. keywords: those of
the question are its names, as the paper's recogniser gives them; those of a passage what it is about, since a set of
all its words has next to no Jaccard index with any question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.methods.hoprag.batched import ENTRIES, HopQuestion, OutEdge
from gpu_rag.methods.hoprag.walk import Walk, helpfulness, pruned
from gpu_rag.program.reader import Support, read
from gpu_rag.program.search import Ranking
from gpu_rag.program.verbs import Verbs
from gpu_rag.runtime.gather import gather
from gpu_rag.settings.ranges import COUNT, NATURAL, check_fields
from gpu_rag.text.keywords import keywords
from gpu_rag.text.names import names
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Draft, Question

KEYWORDS = ("names", "all")


@dataclass(frozen=True)
class Params:
    """top_k: vertices to start from, and passages kept. n_hop: rounds. n_options: out-edges that a language model is
    shown, the nearest to the question. entry: vertices | edges, what the start is searched among. keywords: names (of
    the question; what a passage is about) | all (of the question; of a passage's text)."""

    top_k: int = 20
    n_hop: int = 4
    n_options: int = 20
    entry: str = "vertices"
    keywords: str = "names"

    def __post_init__(self) -> None:
        check_fields(self, top_k=COUNT, n_hop=NATURAL, n_options=COUNT, entry=ENTRIES, keywords=KEYWORDS)

    @property
    def about(self) -> str:
        """Which keywords of a vertex count."""
        return "topics" if self.keywords == "names" else "text"


async def retrieve(question: Question, verbs: Verbs, params: Params) -> Support:
    """The passages of the top_k vertices by H, at most verbs.limit."""
    (vector,) = await verbs.embed([question.text])
    asked = HopQuestion(vector, question_words(question.text, params.keywords))
    start = await verbs.enter_hops(asked, params.top_k, entry=params.entry, about=params.about)
    verbs.ctx.note(f"hop_entry/{params.entry}", params.top_k, tuple(_name(verbs, v) for v in start.rows))
    walk = Walk(list(start.rows))
    for hop in range(1, params.n_hop + 1):
        if not walk.queue:
            break
        await _hop(question.text, asked, walk, hop, verbs, params)
    counted = list(walk.counts)
    near = await verbs.near_vertices(asked, counted, about=params.about) if counted else []
    scores = helpfulness(walk.counts, dict(zip(counted, near)))
    kept = pruned(scores, {v: verbs.vertex_passage(v) for v in counted}, min(params.top_k, verbs.limit))
    ranking = Ranking(tuple(p for p, _ in kept), tuple(h for _, h in kept))
    return Support(verbs.evidence(ranking, "visited on a walk along questions, and near", "hop_prune"))


def question_words(text: str, kind: str) -> frozenset[str]:
    """The names in a question, or all its keywords where it has none or `kind` is "all"."""
    return (names(text) if kind == "names" else frozenset()) or keywords(text)


async def _hop(text: str, asked: HopQuestion, walk: Walk, hop: int, verbs: Verbs, params: Params) -> None:
    """One round of hops from every vertex in the queue."""
    by_model = verbs.settings.decides_by == "llm"
    ways = await verbs.out_edges(asked, walk.queue, params.n_options if by_model else 1)
    taken: Sequence[OutEdge | None]
    if by_model:
        choices = (_choose(text, vertex, edges, hop, verbs) for vertex, edges in zip(walk.queue, ways))
        taken = await gather(*choices)
    else:
        taken = [edges[0] if edges else None for edges in ways]
    told = tuple(_told(verbs, vertex, edge) for vertex, edge in zip(walk.queue, taken))
    verbs.ctx.note(f"hop_{hop}", len(walk.queue), told)
    walk.hop([None if edge is None else edge.target for edge in taken])


async def _choose(text: str, vertex: int, edges: Sequence[OutEdge], hop: int, verbs: Verbs) -> OutEdge | None:
    """The out-edge that the decider takes, or None."""
    chosen = await verbs.choose(
        Prompt.read("gpu_rag.methods.hoprag.prompts", "choose"),
        {"question": text, "title": _name(verbs, vertex)},
        [verbs.edge_question(way.edge) for way in edges],
        query=text,
        allow_none=True,
        threshold=-1.0,  # similarity, where it stands in for an unreadable reply, always takes the nearest
        similarity=[way.score for way in edges],
        name=f"hop_{hop}",
    )
    return edges[chosen[0]] if chosen else None


def _name(verbs: Verbs, vertex: int) -> str:
    """A vertex as a person would name it: the title of its passage, or the passage's id."""
    passage = verbs.vertex_passage(vertex)
    return str(verbs.index.passages["title"][passage].as_py() or verbs.index.passage_ids[passage])


def _told(verbs: Verbs, vertex: int, edge: OutEdge | None) -> str:
    """One hop in words, for the trace."""
    if edge is None:
        return f"{_name(verbs, vertex)} -> none"
    return f"{_name(verbs, vertex)} -> {verbs.edge_question(edge.edge)} -> {_name(verbs, edge.target)}"


async def program(question: Question, verbs: Verbs, params: Params) -> Draft:
    """Retrieve, then read."""
    return await read(verbs, question.text, await retrieve(question, verbs, params))
