"""What the Librarian reads: relations and passages out of HiGraAgent's graph for one question (HiGraRetriever)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from gpu_rag.methods.higra.batched import HigraFact, HigraFound, HigraRanking, HigraSearch
from gpu_rag.methods.higra.rank import HigraRank
from gpu_rag.program.verbs import Verbs
from gpu_rag.settings.ranges import COUNT, NATURAL, check_fields
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Evidence, Path


@dataclass(frozen=True)
class Params:
    """n_entities: candidates for seeds. max_seeds: most that the decider takes. seed_threshold: with the decider
    "similarity", least score of a seed: 1 is first in the vector and in the word ranking. named_bonus: added to the
    score of an entity that the question names. fallback_seeds: taken when none is chosen. radius: hops around them.
    damping, tol: of PageRank. structure_constant, similarity_constant: of the fusion. n_relations (0: passages only),
    n_passages, n_similar: what is read: the best by fused rank, then of the n_similar best by similarity those not yet
    there. similarity: hybrid | dense; depth, constant: of its fusion. graph_context: False is similarity alone."""

    n_entities: int = 20
    max_seeds: int = 5
    seed_threshold: float = 0.95
    named_bonus: float = 1.0
    fallback_seeds: int = 3
    radius: int = 1
    damping: float = 0.85
    structure_constant: float = 10.0
    similarity_constant: float = 10.0
    n_relations: int = 10
    n_passages: int = 10
    n_similar: int = 5
    similarity: str = "hybrid"
    depth: int = 100
    constant: float = 60.0
    graph_context: bool = True
    tol: float = 1e-6

    def __post_init__(self) -> None:
        check_fields(
            self, n_entities=COUNT, max_seeds=COUNT, fallback_seeds=NATURAL, n_relations=NATURAL, n_passages=NATURAL,
            n_similar=NATURAL,
        )  # fmt: skip
        self.search(), self.rank()  # these check the others

    def search(self) -> HigraSearch:
        """The search part."""
        return HigraSearch(self.similarity, self.n_entities, self.depth, self.constant)

    def rank(self) -> HigraRank:
        """The ranking part."""
        constants = (self.structure_constant, self.similarity_constant)
        return HigraRank(self.radius, self.damping, *constants, self.depth, self.graph_context, self.tol)


@dataclass(frozen=True)
class Context:
    """What was retrieved for one question: passages best first, facts best first, and the facts as paths."""

    passages: tuple[Evidence, ...]
    facts: tuple[HigraFact, ...] = ()
    paths: tuple[Path, ...] = ()


async def graph_context(text: str, verbs: Verbs, params: Params, limit: int = 0) -> Context:
    """HiGraRetriever on one question: n_passages to n_passages + n_similar passages, at least `limit` where there are
    so many, and n_relations relations."""
    (vector,) = await verbs.embed([text])
    found = await verbs.higra_search(text, vector, params.search())
    seeds = await _seeds(text, found, verbs, params) if params.graph_context else []
    ranking = await verbs.higra_rank(seeds, found, params.rank())
    rows, scores = _chosen(ranking, found, params, limit)
    why = "high in the fused ranking of subgraph and similarity"
    evidence = verbs.index.evidence(rows, scores, why)
    facts = tuple(verbs.higra_facts(ranking.relations.rows[: params.n_relations]))
    titles = tuple(f"{e.passage_id} {e.title}" for e in evidence)
    verbs.ctx.note("higra_rank", ranking.n_entities + ranking.n_passages, titles)
    return Context(evidence, facts, _paths(facts, evidence))


async def _seeds(text: str, found: HigraFound, verbs: Verbs, params: Params) -> list[int]:
    """Rows of the seed entities: what the decider chooses among the candidates, else the first ones."""
    candidates = list(dict.fromkeys(chain(found.named, found.entities.rows)))[: params.n_entities]
    by_rank = dict(zip(found.entities.rows, found.entities.scores))
    named = set(found.named)
    scores = [by_rank.get(row, 0.0) + params.named_bonus * (row in named) for row in candidates]
    chosen = await verbs.choose(
        Prompt.read("gpu_rag.methods.higra.prompts", "seeds"),
        {"question": text},
        verbs.higra_entity_texts(candidates),
        query=text,
        k=params.max_seeds,
        allow_none=True,
        threshold=params.seed_threshold,
        similarity=scores,
        name="seeds",
    )
    if chosen:
        return [candidates[i] for i in chosen]
    return list(found.entities.rows[: params.fallback_seeds])


def _chosen(ranking: HigraRanking, found: HigraFound, params: Params, limit: int) -> tuple[list[int], list[float]]:
    """Passage rows in reading order with their fused scores (0 for one beyond the fused ranking)."""
    fused = dict(zip(ranking.passages.rows, ranking.passages.scores))
    order = list(fused)[: params.n_passages]
    order += [row for row in found.passages.rows[: params.n_similar] if row not in order]
    order += [row for row in fused if row not in order][: max(0, limit - len(order))]
    return order, [fused.get(row, 0.0) for row in order]


def _paths(facts: tuple[HigraFact, ...], evidence: tuple[Evidence, ...]) -> tuple[Path, ...]:
    """Each fact as a path of one edge; of the passages that state it, one that was retrieved where there is one."""
    shown = {e.passage_id for e in evidence}
    paths = []
    for fact in facts:
        passage = next((p for p in fact.passages if p in shown), fact.passages[0] if fact.passages else "")
        paths.append(Path(fact.text, ((fact.subject, fact.label, fact.object, passage),), "graph"))
    return tuple(paths)
