"""HiGraRetriever with one reading: the Librarian of HiGraAgent alone, on the question itself.

Seeds near the question, personalized PageRank on the subgraph around them, reciprocal rank fusion with similarity.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, ClassVar, Literal

from gpu_rag.methods.higra.batched import (
    HigraFound,
    HigraRank,
    HigraRanking,
    Seeded,
    higra_rank,
    higra_search,
)
from gpu_rag.methods.higra.graph import HigraFact, entity_options, facts
from gpu_rag.methods.higra.librarian import Retrieval, consult
from gpu_rag.program.ask import embed
from gpu_rag.program.choose import choose
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import DAMPING, NATURAL
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Draft, Evidence, Path, Question


@dataclass(frozen=True)
class Params(Declared):
    """Seeds, the subgraph around them, and what is read of it."""

    seed_threshold: Annotated[
        float, "by similarity: least score of a seed; 1 is first in the vector and in the word ranking"
    ] = 0.95
    radius: Annotated[int, NATURAL, "hops around the seeds"] = 1
    damping: Annotated[float, DAMPING, "of PageRank"] = 0.85
    n_relations: Annotated[int, NATURAL, "relations read; 0: passages only"] = 10
    n_passages: Annotated[int, NATURAL, "passages read, best by fused rank"] = 10
    similarity: Annotated[Literal["hybrid", "dense"], "hybrid (BM25 and cosine) or dense (cosine)"] = "hybrid"
    graph_context: Annotated[bool, "false: similarity alone"] = True

    n_entities: ClassVar[int] = 20  # candidates for seeds
    max_seeds: ClassVar[int] = 5  # of these taken by the decider
    named_bonus: ClassVar[float] = 1.0  # added to the score of an entity that the question names
    fallback_seeds: ClassVar[int] = 3  # first entities by rank, taken when none is chosen
    n_similar: ClassVar[int] = 5  # passages best by similarity, of which those not yet there are read too
    structure_constant: ClassVar[float] = 10.0  # of the fusion, for the rank in the subgraph
    similarity_constant: ClassVar[float] = 10.0  # of the fusion, for the rank by similarity
    depth: ClassVar[int] = 100  # of each ranking that is fused
    constant: ClassVar[float] = 60.0  # of the fusion of BM25 and cosine
    tol: ClassVar[float] = 1e-6  # L1 error of PageRank

    def rank(self) -> HigraRank:
        """The parameters of the fused ranking."""
        constants = (self.structure_constant, self.similarity_constant)
        return HigraRank(self.radius, self.damping, *constants, self.depth, self.graph_context, self.tol)


async def find(run: Run, text: str, params: Params, limit: int = 0) -> Retrieval:
    """HiGraRetriever on one question: n_passages to n_passages + n_similar passages, at least `limit` where there are
    so many, and n_relations relations."""
    (vector,) = await embed([text])
    found = await higra_search((text, vector), params.similarity, params.n_entities, params.depth, params.constant)
    seeds = await _seeds(run, text, found, params) if params.graph_context else []
    ranking = await higra_rank(Seeded(tuple(seeds), found.relations.rows, found.passages.rows), params.rank())
    rows, scores = _reading_order(ranking, found, params, limit)
    evidence = run.index.evidence(rows, scores, "high in the fused ranking of subgraph and similarity")
    read = facts(run.index, ranking.relations.rows[: params.n_relations])
    titles = tuple(f"{e.passage_id} {e.title}" for e in evidence)
    run.note("higra_rank", ranking.n_entities + ranking.n_passages, titles)
    return Retrieval(evidence, read, _paths(read, evidence))


async def _seeds(run: Run, text: str, found: HigraFound, params: Params) -> list[int]:
    """Rows of the seed entities: what the decider chooses among the candidates, else the first ones."""
    candidates = list(dict.fromkeys(chain(found.named, found.entities.rows)))[: params.n_entities]
    by_rank = dict(zip(found.entities.rows, found.entities.scores))
    named = set(found.named)
    chosen = await choose(
        run,
        Prompt.read("gpu_rag.methods.higra.prompts", "seeds"),
        {"question": text},
        entity_options(run.index, candidates),
        query=text,
        k=params.max_seeds,
        allow_none=True,
        threshold=params.seed_threshold,
        scores=[by_rank.get(row, 0.0) + params.named_bonus * (row in named) for row in candidates],
        name="seeds",
    )
    if chosen:
        return [candidates[i] for i in chosen]
    return list(found.entities.rows[: params.fallback_seeds])


def _reading_order(
    ranking: HigraRanking, found: HigraFound, params: Params, limit: int
) -> tuple[list[int], list[float]]:
    """Passage rows in reading order with their fused scores (0 for one beyond the fused ranking)."""
    fused = dict(zip(ranking.passages.rows, ranking.passages.scores))
    order = list(fused)[: params.n_passages]
    order += [row for row in found.passages.rows[: params.n_similar] if row not in order]
    order += [row for row in fused if row not in order][: max(0, limit - len(order))]
    return order, [fused.get(row, 0.0) for row in order]


def _paths(read: tuple[HigraFact, ...], evidence: tuple[Evidence, ...]) -> tuple[Path, ...]:
    """Each fact as a path of one edge; of the passages that state it, one that was retrieved where there is one."""
    shown = {e.passage_id for e in evidence}
    paths = []
    for fact in read:
        passage = next((p for p in fact.passages if p in shown), fact.passages[0] if fact.passages else "")
        paths.append(Path(fact.text, ((fact.subject, fact.label, fact.object, passage),), "graph"))
    return tuple(paths)


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The run.limit passages that come first in reading order, and the relations read with them as paths."""
    found = await find(run, question.text, params, run.limit)
    return Support(found.passages[: run.limit], found.paths)


async def program(question: Question, run: Run, params: Params) -> Draft:
    """One call to the Librarian; several answers are joined by "; "."""
    found = await consult(run, question.text, partial(find, run, params=params))
    retrieved = found.retrieved
    if not found.answers:
        return Draft(None, retrieved.passages, retrieved.paths, "unsupported")
    evidence = {e.passage_id: e for e in (*found.cited, *retrieved.passages)}
    return Draft("; ".join(found.answers), tuple(evidence.values()), retrieved.paths)
