"""HiGraRetriever with one reading: the Librarian of HiGraAgent alone, on the question itself.

Personalized PageRank from seeds near the question: on the whole graph, or (as in the paper) on the subgraph around
them, fused with similarity by reciprocal ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from gpu_rag.graph.ego import ego_balls
from gpu_rag.graph.ragged import ragged_of_lists
from gpu_rag.index.index import Index
from gpu_rag.methods.higra.asks import SEEDS
from gpu_rag.methods.higra.batched import HigraFound, Params, Seeded, Walked, higra_rank, higra_search, higra_walk
from gpu_rag.methods.higra.graph import entity_options, higra_graph, relation_paths
from gpu_rag.methods.higra.librarian import consult
from gpu_rag.program.choose import best
from gpu_rag.program.decide import decide, only_rules
from gpu_rag.program.embed import embed
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run, depth_for
from gpu_rag.types import Draft, Question

Begun = tuple[np.ndarray, HigraFound, list[int]]  # a text's vector, its similar rows, and its seed entity rows

__all__ = ["Params", "find", "program", "retrieve"]


async def find(run: Run, text: str, params: Params, limit: int = 0) -> Support:
    """HiGraRetriever on one question: n_passages to n_passages + n_similar passages, at least `limit` if there are
    enough, and n_relations relations as paths."""
    return await ranked_from(run, text, await started(run, text, params), params, limit)


async def ranked_from(run: Run, text: str, begun: Begun, params: Params, limit: int) -> Support:
    """The part of `find` that follows the seeds."""
    vector, similar, seeds = begun
    if params.walk == "whole" and seeds:  # without seeds, similarity alone
        walked = Walked(text, vector, tuple(seeds), similar.relations.rows)
        ranking = await higra_walk(walked, *params.walked(max(params.depth, depth_for(limit))))
    else:
        query = Seeded(tuple(seeds), similar.relations.rows, similar.passages.rows)
        ranking = await higra_rank(query, params.radius, params.damping, params.constants)
    fused = dict(zip(ranking.passages.rows, ranking.passages.scores))
    rows = list(fused)[: params.n_passages]
    rows += [row for row in similar.passages.rows[: params.n_similar] if row not in rows]
    n = max(limit, len(rows))
    rows += [row for row in fused if row not in rows]
    scores = [fused.get(row, 0.0) for row in rows]
    deepest = max(params.depth, depth_for(n))
    evidence = run.different(rows[:deepest], scores, "high in the ranking of graph and similarity", n)
    titles = tuple(f"{e.passage_id} {e.title}" for e in evidence)
    run.note("higra_rank", ranking.n_entities + ranking.n_passages, titles)
    read = ranking.relations.rows[: params.n_relations]
    return Support(evidence, relation_paths(run.index, read, {e.passage_id for e in evidence}))


async def started(run: Run, text: str, params: Params) -> Begun:
    """The start of a text's ranking: its vector, similar rows and seeds."""
    (vector,) = await embed([text])
    similar = await higra_search((text, vector), params.similarity)
    return vector, similar, await _seeds(run, text, vector, similar, params) if params.graph_context else []


async def _seeds(run: Run, text: str, vector: np.ndarray, similar: HigraFound, params: Params) -> list[int]:
    """Rows of the seed entities: the decider's choice among the candidates, else the rule's or the first entities.

    In a walk on the whole graph named entities come first, a model is also offered the rarest ones of the passages that
    the walk without a model ranks first, and a choice is not trusted if it has none of the rule's, or just the nearest.
    """
    named = similar.named if params.walk == "whole" else ()
    candidates = list(dict.fromkeys(chain(named, similar.entities.rows)))[: params.n_entities]
    by_rank = dict(zip(similar.entities.rows, similar.entities.scores))
    score = {row: by_rank.get(row, 0.0) + params.named_bonus * (row in similar.named) for row in candidates}
    near = best(list(score.values()), params.max_seeds, params.seed_threshold)
    by_rule = [candidates[i] for i in near] or list(similar.entities.rows[: params.fallback_seeds])
    bridges: dict[int, int] = {}  # {entity: passage}
    if params.walk == "whole" and by_rule and not only_rules(run):
        walked = Walked(text, vector, tuple(by_rule), similar.relations.rows)
        first = (await higra_walk(walked, *params.walked(params.depth))).passages.rows[: params.n_bridges]
        for passage, entity in zip(first, higra_graph(run.index).rarest[list(first)].tolist()):
            bridges.setdefault(entity, passage)
        bridges.pop(-1, None)
        by_score = (candidates[i] for i in near)
        candidates = list(dict.fromkeys((*candidates[: params.n_nearest], *by_score, *bridges)))
    chosen = await decide(
        run,
        SEEDS,
        question=text,
        options=entity_options(run.index, candidates, bridges),
        candidates=candidates,
        k=max(len(candidates), 1),
        max_seeds=params.max_seeds,
        threshold=params.seed_threshold,
        scores=[score.get(row, 0.0) for row in candidates],
    )
    seeds = [candidates[i] for i in chosen]
    are_nearest = set(chosen) == set(range(len(chosen)))
    if not seeds or (params.walk == "whole" and (set(seeds).isdisjoint(by_rule) or are_nearest)):
        seeds = by_rule
    run.saw(lambda: _around(run.index, seeds, params.radius))
    return seeds


def _around(index: Index, seeds: Sequence[int], radius: int) -> set[int]:
    """Rows of the passages of all entities within `radius` of the seeds."""
    graph, starts = higra_graph(index), ragged_of_lists([sorted(set(seeds))], index.device)
    ball = ego_balls(graph.checked[0], starts, radius, threads=index.threads).values.cpu().numpy()
    near = np.isin(graph.links["entity"].to_numpy(), ball)
    return set(graph.links["passage"].to_numpy()[near].tolist())


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The first run.limit passages in reading order, and the relations read with them as paths."""
    support = await find(run, question.text, params, run.limit)
    return replace(support, evidence=support.evidence[: run.limit])


async def program(question: Question, run: Run, params: Params) -> Draft:
    """One call to the Librarian; several answers are joined by "; "."""
    finding = await consult(run, question.text, partial(find, run, params=params))
    passages, paths = finding.retrieved.evidence, finding.retrieved.paths
    if not finding.answers:
        return Draft(None, passages, paths, "unsupported")
    evidence = {e.passage_id: e for e in (*finding.cited, *passages)}
    return Draft("; ".join(finding.answers), tuple(evidence.values()), paths)
