"""HopRAG (Liu et al. 2025): retrieve, reason and prune on a passage graph whose edges are pseudo-questions.

Retrieve: top_k vertices. Reason, n_hop rounds: from every vertex in the queue the decider follows at most one
out-edge. The count of its target grows, and the target is queued unless it was counted before. Prune: the top_k
passages by H; ties to the lower passage. With sentences as vertices, a passage has the H of its best sentence.

entry     the start vertices, and H(v)
walk      The top_k of a random walk along all edges, see `batched`; H is the walk's score, plus what the hops of a
          model add, see `program.choices`. Similarity takes no hops, since the walk has taken them.
edges     The ends of the nearest edges; H(v) = (SIM(v, q) + count(v) / sum of counts) / 2, as in the paper.

`entry: edges`, `keywords: all`, `hops: single` follow the paper exactly. Then a vertex reached by a hop
is kept only if it is near the question itself, so hops add almost nothing.

keywords: the names in the question, as the paper's recogniser finds them, and the topics of a passage, since the set
of all its words has a Jaccard index near 0 with any question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

from gpu_rag.methods.hoprag.asks import HOP, HOPS, MAX_PLACES, Place, chosen
from gpu_rag.methods.hoprag.batched import (
    HopQuestion,
    OutEdge,
    edge_question,
    enter_hops,
    near_vertices,
    out_edges,
    vertex_passage,
    walk_hops,
)
from gpu_rag.models.ask import shown
from gpu_rag.program.choices import DEPTH, Choices
from gpu_rag.program.choose import shuffled
from gpu_rag.program.decide import decide, decide_all, only_rules
from gpu_rag.program.embed import embed
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.runtime.gather import gather
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COUNT, NATURAL
from gpu_rag.text.keywords import keywords, names
from gpu_rag.types import Question


class Walk:
    """The traversal for one question. queue: vertices to hop from in this round, in order; counts: visits of each
    vertex, in the order of first visits."""

    def __init__(self, start: Sequence[int]):
        self.queue, self.counts = list(start), dict.fromkeys(start, 1)

    def hop(self, targets: Sequence[int | None]) -> None:
        """Take one round of hops: vertex i of the queue hops to targets[i], or stays if that is None.

        The count of a target grows by one per hop. It enters the queue of the next round only if it was not counted
        before.
        """
        reached = [target for target in targets if target is not None]
        self.queue = [target for target in dict.fromkeys(reached) if target not in self.counts]
        for target in reached:
            self.counts[target] = self.counts.get(target, 0) + 1


def helpfulness(counts: Mapping[int, int], similarity: Mapping[int, float]) -> dict[int, float]:
    """H(v) = (SIM(v, q) + counts[v] / sum of all counts) / 2 of every counted vertex; equation 2 of HopRAG."""
    total = sum(counts.values())
    return {v: (similarity[v] + n / total) / 2 for v, n in counts.items()}


def pruned(scores: Mapping[int, float], passage_of: Mapping[int, int]) -> Ranking:
    """Passages by H, best first, ties to the lower passage. A passage has the score of its best vertex."""
    best: dict[int, float] = {}
    for vertex, score in scores.items():
        passage = passage_of[vertex]
        best[passage] = max(score, best.get(passage, score))
    rows = sorted(best, key=lambda passage: (-best[passage], passage))
    return Ranking(tuple(rows), tuple(best[passage] for passage in rows))


@dataclass(frozen=True)
class Params(Declared):
    """Settings of the walk over passages."""

    top_k: Annotated[int, COUNT, "number of start vertices, and maximum number of passages kept"] = 20
    n_hop: Annotated[int, NATURAL, "number of hop rounds; 0: none"] = 4
    entry: Annotated[
        Literal["walk", "edges"],
        "start vertices: best of a random walk along all edges, or ends of the nearest edges (the paper's choice)",
    ] = "walk"
    hops: Annotated[
        Literal["joint", "single"],
        "requests to a capable model: joint: one for all vertices of a round if they fit; single: one for each vertex",
    ] = "joint"
    keywords: Annotated[
        Literal["names", "all"],
        "names: names in the question, topics of a passage; all: all keywords of question and passage",
    ] = "names"

    n_options: ClassVar[int] = 20  # out-edges shown to a language model, nearest to the question

    @property
    def about(self) -> str:
        """The kind of vertex keywords that are used."""
        return "topics" if self.keywords == "names" else "text"


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The passages of the top_k vertices by H, at most run.limit."""
    (vector,) = await embed([question.text])
    query = HopQuestion(vector, question_words(question.text, params.keywords))
    if params.entry == "walk":
        near = await walk_hops((question.text, query), params.about, max(params.top_k, DEPTH))
    else:
        near = await enter_hops(query, params.top_k)
    start = near.rows[: params.top_k]
    run.note(f"hop_entry/{params.entry}", params.top_k, tuple(_name(run, v) for v in start))
    walk, choices = Walk(start), Choices()
    stays = params.entry == "walk" and only_rules(run)  # no rule takes a hop after the walk
    for hop in range(1, 1 if stays else params.n_hop + 1):
        if not walk.queue:
            break
        await _hop(run, question.text, query, walk, choices, hop, params)
    counted = list(walk.counts)
    run.saw(lambda: {vertex_passage(run.index, v) for v in counted})
    if params.entry == "walk":
        scores = dict(zip(near.rows, near.scores))
    else:
        sims = await near_vertices((query, tuple(counted)), params.about) if counted else []
        scores = helpfulness(walk.counts, dict(zip(counted, sims)))
    walked = pruned(scores, {v: vertex_passage(run.index, v) for v in scores})
    ranking = choices.ranked(walked, walked, len(walked.rows))
    limit = min(params.top_k, run.limit)
    return Support(run.evidence(ranking, "visited on a walk along questions, and near", "hop_prune", limit))


def question_words(text: str, kind: str) -> frozenset[str]:
    """The names in a question, or all its keywords if it has no names or `kind` is "all"."""
    return (names(text) if kind == "names" else frozenset()) or keywords(text)


async def _hop(run: Run, text: str, query: HopQuestion, walk: Walk, choices: Choices, hop: int, params: Params) -> None:
    """One round of hops from every vertex in the queue."""
    options = await out_edges((query, tuple(walk.queue)), params.n_options)
    edge_texts = [[edge_question(run.index, edge.edge) for edge in edges] for edges in options]
    places = [Place(_name(run, v), questions) for v, questions in zip(walk.queue, edge_texts)]
    fields = {"step": hop, "question": text, "entry": params.entry}
    asks = [{**fields, "title": p.title, "options": p.options, "edges": edges} for p, edges in zip(places, options)]
    together = partial(_jointly, run, text, places, params.entry) if params.hops == "joint" else None
    positions = await decide_all(run, HOP, asks, together)
    chosen_edges = [edges[choice[0]] if choice else None for edges, choice in zip(options, positions)]
    if any(chosen_edges) or params.entry != "walk":  # after a random walk, rounds without hops are not noted
        lines = (_in_words(run, v, edge) for v, edge in zip(walk.queue, chosen_edges))
        run.note(f"hop_{hop}", len(walk.queue), tuple(lines))
    for edges, choice in zip(options if params.entry == "walk" else (), positions):  # the paper's H counts visits alone
        choices.add(run, [edge.target for edge in edges], choice, lambda v: [vertex_passage(run.index, v)])
    walk.hop([None if edge is None else edge.target for edge in chosen_edges])


async def _jointly(run: Run, text: str, places: Sequence[Place], entry: str) -> list[list[int]]:
    """The way taken from each place, as `chosen` gives it, by as few requests as the context allows."""
    waiting, requests = list[Place](), list[list[Place]]()
    for place in places:
        if place.options:
            order = shuffled(run, HOPS.name, place.options[0], len(place.options))
            waiting.append(replace(place, order=order))
    llm = run.models.language_model
    while waiting:
        fields = {"question": text, "places": waiting[:MAX_PLACES]}
        room = HOPS.room(fields, llm)
        fitting = shown(llm, HOPS.prompt_of(fields), HOPS.slots(fields), room).positions
        requests.append(waiting[: len(fitting) or 1])
        waiting = waiting[len(requests[-1]) :]
    replies = await gather(*(decide(run, HOPS, question=text, places=part, entry=entry) for part in requests))
    choices = iter(choice for reply, part in zip(replies, requests) for choice in chosen(reply, part))
    return [next(choices) if place.options else [] for place in places]


def _name(run: Run, vertex: int) -> str:
    """A readable name of a vertex: the title of its passage, or the passage's id."""
    passage = vertex_passage(run.index, vertex)
    return run.index.passage_titles[passage] or run.index.passage_ids[passage]


def _in_words(run: Run, vertex: int, edge: OutEdge | None) -> str:
    """One hop, for the trace."""
    if edge is None:
        return f"{_name(run, vertex)} -> none"
    return f"{_name(run, vertex)} -> {edge_question(run.index, edge.edge)} -> {_name(run, edge.target)}"
