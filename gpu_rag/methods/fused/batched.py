"""The step behind `fused`: numeric features of each question's first passages.

For a question with text t and unit vector q, over the nodes [entities | passages] of the graph that `ppr` walks on:
  f, m      = the seeds by its nearest facts and by the names in it, r = the restart on passages, as in `ppr`
  F, M, R   = PageRank with restart on f, on m, or on r only, computed as three columns of one run; A = their mixture
              with the shares of `ppr`
  s(p)      = minmax(log A(p)) + fusion * minmax(cos(q, p)), the score of `ppr`
The candidates are the DEPTH passages of highest s; the first ANCHORS of them are the anchors a. NAMES lists the
features:
  score, walk, facts, names, passages, cosine, words
            = s, log A, log F, log M, log R, cos(q, p), BM25, each minus its maximum over the candidates
  ... rank  = log(1 + the place by this feature, from 0); BM25 is divided by the highest of all passages
  first N   = 1 for the first N by s
  named     = the sum of m(e) over the entities e of p; named entities: their number; named title: 1 if m has the
              title of p
  fact ends = the sum of f(e) over the entities of p
  links     = the number of anchors that mention the title of p
  shared a  = the sum of 1 / (passages of e) over entities shared by p and anchor a, at most 2; new: without those of m
  near a    = cos(a, p); beyond a = cos(q, p) - cos(q, a) cos(a, p), nearness to the part of q that is not in a
  LIST      = the score of p in the list of another method, minus its maximum; its minimum if the list lacks p
  LIST rank = log(1 + the place in it), log(1 + ABSENT) if the list lacks p
An anchor has 0 with itself.

PAIRS lists the numbers of two candidates i and j. They are 0 for i = j. A passage has its FACTS facts nearest to q; U
are the entities that m lacks.
  bridge    = the sum over e in U of min(1, COMMON / passages of e) times the highest cosine to q, not below 0, of a
              fact of i with the end e, if j mentions e
  chain     = the highest cosine of q and f + g over facts f of i and g of j with a common end in U, not below 0
  new words = the sum over words of t that i lacks of their part of the BM25 of j, divided as above
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import torch

from gpu_rag.graph.csr import weights_of
from gpu_rag.graph.fuse import minmax_rows
from gpu_rag.graph.nearest import on_host, topk_rows
from gpu_rag.graph.pagerank import PageRankGraph, Restarts, personalized_pagerank
from gpu_rag.index.index import Index
from gpu_rag.index.name_table import words_of
from gpu_rag.index.titles import TITLE_WEIGHT
from gpu_rag.program.kinds import WALK
from gpu_rag.program.search import Ranking, best_by_words
from gpu_rag.program.seeds import entity_names, entity_seeds, spread, title_names, title_seeds
from gpu_rag.program.walk import (
    N_WORDS,
    TITLE_SHARE,
    Seeds,
    blended,
    ends_of,
    fact_weights,
    near_facts,
    passage_cosines,
    restart,
    restarts_of,
    seeds_of,
    uploaded,
    walk_tile,
    weights_by_words,
)
from gpu_rag.runtime.step import batched

DEPTH, ANCHORS, ABSENT = 50, 3, 60
HELD, SHARE_NAMED = 0.8, 0.5  # share of a question's words, and of the highest `named`
FACTS, COMMON = 8, 4
_QUESTIONS, _PAIRS_AT_ONCE = 16, 1 << 15  # questions, and pairs of facts, whose vectors are in memory together
N_FACTS, DAMPING, MASS, TEMPERATURE, FUSION = 5, 0.85, 0.5, 30.0, 0.1  # as in `ppr`
TOL = 1e-5  # L1 error bound of PageRank
_MIN_S, _MIN_OTHER = 1e-12, 1e-9  # minimum of a probability before its logarithm: in s, and in other features

_RANKED = ("score", "walk", "names", "facts", "passages", "cosine", "words")  # in the order of `_walks`
_FIRST = (1, 2, 5, 10)
NAMES = (
    *(name for feature in _RANKED for name in (feature, f"{feature} rank")),
    *(f"first {n}" for n in _FIRST),
    "named", "named entities", "named title", "fact ends", "anchor", "links", "shared 1", "shared 2", "shared 3",
    "new 1", "near 1", "near 2", "beyond 1", "beyond 2",
)  # fmt: skip
PAIRS = ("bridge", "chain", "new words")


@dataclass(frozen=True)
class Asked:
    """A question's text and unit vector, and the lists of other methods, best first."""

    text: str
    vector: np.ndarray
    lists: tuple[Ranking, ...] = ()


@dataclass(frozen=True)
class Candidates:
    """The passages of a question by the score of `ppr`. values: f32[c, n], features of the first c <= DEPTH, with the
    columns NAMES and two for each list; pairs: f32[c, c, PAIRS]. holding: the passages among these, then among the
    first by BM25, that hold HELD of its words, see `Bm25.coverage`, and SHARE_NAMED of the highest `named`."""

    ranking: Ranking
    values: np.ndarray
    pairs: np.ndarray
    holding: tuple[int, ...]


@dataclass(frozen=True)
class Links:
    """Passages, entities and facts.

    graph: graph of `ppr`, with titles. The entities of passage p are entities[offsets[p]:offsets[p + 1]]; title: the
    entity that its title names, -1 for none; rarity: 1 / (passages of each entity). The facts of p are in the same way
    in facts; ends: i64[R, 2] of each fact.
    """

    graph: PageRankGraph
    offsets: np.ndarray
    entities: np.ndarray
    title: np.ndarray
    rarity: np.ndarray
    fact_offsets: np.ndarray
    facts: np.ndarray
    ends: np.ndarray


def columns(lists: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns of `Candidates.values`, to which a model adds PAIRS."""
    return (*NAMES, *(name for feature in lists for name in (feature, f"{feature} rank")))


@batched(WALK, tile=walk_tile)
def fused_candidates(index: Index, queries: list[Asked], k: int, n_lists: int) -> list[Candidates]:
    """At least k passages of each question (if there are enough), and the features of the first ones, see the module.
    n_lists: the number of lists of each query."""
    links, texts = index.loaded("fused links", _links), [query.text for query in queries]
    words = [words_of(text) for text in texts]
    names = spread(entity_seeds(entity_names(index), words, index.entity_n_passages))
    titles = spread(title_seeds(title_names(index), words))
    vectors, *lists = uploaded(index, [query.vector for query in queries], names, titles)
    cosine = passage_cosines(index, vectors)
    ends = ends_of(index, "relation_vectors", index.relation_ends)
    by_fact = fact_weights(ends, near_facts(index, "relation_vectors", vectors, N_FACTS, True)[0])
    by_name = seeds_of(lists[0], lists[1])
    facts, named = (_weights_of(seeds, index.n_entities) for seeds in (by_fact, by_name))
    best = best_by_words(index, texts, N_WORDS)
    passages = blended(restart(TEMPERATURE * cosine, *weights_by_words(best)), lists[2], lists[3], TITLE_SHARE)
    walks = _walks(index, links, by_fact, by_name, passages)
    scores = minmax_rows(walks[0].clamp_min(_MIN_S).log()) + FUSION * minmax_rows(cosine)
    top = on_host(topk_rows(scores, min(max(k, DEPTH), index.n_passages)))
    rows = top.ids[:, :DEPTH].long()
    by_bm25 = on_host(best)
    highest = by_bm25.scores.clamp(min=_MIN_S).numpy()[:, 0]
    parts = [index.bm25.parts(text, c) / high for text, c, high in zip(texts, rows.numpy(), highest)]
    by_words = np.stack([part.sum(0) for part in parts])
    device_rows = rows.to(index.device)
    logs = [walk.gather(1, device_rows).clamp_min(_MIN_OTHER).log().cpu().numpy() for walk in walks]
    near = cosine.gather(1, device_rows).cpu().numpy()
    ranked = [top.scores[:, :DEPTH].numpy(), *logs, near, by_words]
    vectors_of = index.vectors("passage_vectors")[device_rows].float().cpu().numpy()
    values = [
        *(column for feature in ranked for column in (feature - feature.max(1, keepdims=True), _places(feature))),
        *_columns_by_entities(links, rows.numpy(), facts, named, vectors_of, near),
    ]
    for number in range(n_lists):
        values += _listed(rows.numpy(), [query.lists[number] for query in queries])
    table = np.stack(values, axis=2).astype(np.float32)
    facts_of = index.vectors("relation_vectors")
    asked, pairs = [query.vector for query in queries], list[np.ndarray]()
    for a in range(0, len(queries), _QUESTIONS):
        b = a + _QUESTIONS
        pairs.extend(_pairs(links, facts_of, rows.numpy()[a:b], asked[a:b], named.part(a, b), parts[a:b]))
    rankings = [Ranking(*map(tuple, row)) for row in zip(top.ids.tolist(), top.scores.tolist())]
    named_in = table[:, :, NAMES.index("named")]
    holding = [_holding(index, *row) for row in zip(texts, rows.numpy(), named_in, by_bm25.ids.numpy())]
    return [Candidates(*row) for row in zip(rankings, table, pairs, holding)]


def _holding(
    index: Index, text: str, candidates: np.ndarray, named: np.ndarray, by_words: np.ndarray
) -> tuple[int, ...]:
    """The passages that hold nearly all words of a text and its names. named: the feature of the candidates; by_words:
    the first passages by BM25, -1 for none."""
    others = [] if named.any() else [row for row in by_words.tolist() if row >= 0]
    rows = np.array([*dict.fromkeys((*candidates[named >= SHARE_NAMED * named.max()].tolist(), *others))], np.int64)
    return tuple(rows[index.bm25.coverage(text, rows) >= HELD].tolist())


def _links(index: Index) -> Links:
    """The links of an index. An edge of exactly TITLE_WEIGHT is a title that the passage does not mention."""
    csr, n = index.graph.pull, index.n_entities  # symmetric
    indptr, indices, weight = (csr.indptr.cpu().numpy(), csr.indices.cpu().numpy(), weights_of(csr).cpu().numpy())
    first = indptr[n]
    entities, weight = indices[first:].astype(np.int64), weight[first:]
    owner = np.repeat(np.arange(index.n_passages), np.diff(indptr[n:]))
    title = np.full(index.n_passages, -1)
    title[owner[weight >= TITLE_WEIGHT]] = entities[weight >= TITLE_WEIGHT]
    mentioned = weight != TITLE_WEIGHT
    offsets = np.searchsorted(owner[mentioned], np.arange(index.n_passages + 1))
    rarity = 1 / np.maximum(index.entity_n_passages, 1)
    stated = index.relation_passages.column.combine_chunks()
    passages, lengths = stated.flatten().to_numpy(), stated.value_lengths().to_numpy()
    order = np.argsort(passages, kind="stable")
    fact_offsets = np.searchsorted(passages[order], np.arange(index.n_passages + 1))
    facts, ends = np.repeat(np.arange(len(lengths)), lengths)[order], np.stack(index.relation_ends, axis=1)
    return Links(index.graph, offsets, entities[mentioned], title, rarity, fact_offsets, facts, ends)


def _walks(index: Index, links: Links, facts: Seeds, named: Seeds, passages: torch.Tensor) -> list[torch.Tensor]:
    """A, M, F and R on passages: f32[B, P] each. A mixes the others; a column without seeds is zero."""
    nothing, none = torch.zeros_like(passages), Seeds(named.nodes[:, :0], named.weights[:, :0])
    columns = [restarts_of(named, nothing, 1.0), restarts_of(facts, nothing, 1.0), restarts_of(none, passages, 0.0)]
    width = max(restarts.nodes.shape[1] for restarts in columns)
    nodes, mass = (
        torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])
        for parts in ([restarts.nodes for restarts in columns], [restarts.mass for restarts in columns])
    )
    prior = Restarts(nodes, mass, torch.cat([restarts.last for restarts in columns]))
    walks = personalized_pagerank(
        links.graph, prior=prior, damping=DAMPING, tol=TOL, threads=index.threads, ids=(index.n_entities, links.graph.n)
    )
    by_name, by_fact, by_passage = walks.chunk(3)
    has_names, has_facts = ((restarts.weights > 0).any(1, keepdim=True).float() for restarts in (named, facts))
    either = (has_names + has_facts).clamp(min=1)
    of_names, of_facts = MASS * has_names / either, MASS * has_facts / either
    passage_mass = 1 - MASS * torch.maximum(has_names, has_facts)
    return [of_names * by_name + of_facts * by_fact + passage_mass * by_passage, by_name, by_fact, by_passage]


@dataclass(frozen=True)
class _Weights:
    """Weights of the entities of each question, 0 for most. keys: i64[T], question * n + entity, ascending, with the
    largest integer at the end; values: f64[T]; n: number of entities."""

    keys: np.ndarray
    values: np.ndarray
    n: int

    @classmethod
    def summed(cls, questions: np.ndarray, entities: np.ndarray, weights: np.ndarray, n: int) -> Self:
        """The sums of the weights by question and entity."""
        keys, place = np.unique(np.append(questions * n + entities, np.iinfo(np.int64).max), return_inverse=True)
        return cls(keys, np.bincount(place, np.append(weights, 0.0)), n)

    def part(self, first: int, last: int) -> Self:
        """The weights of the questions from `first` to before `last`, which are numbered from 0."""
        a, b = np.searchsorted(self.keys, [first * self.n, last * self.n])
        keys = np.append(self.keys[a:b] - first * self.n, np.iinfo(np.int64).max)
        return replace(self, keys=keys, values=np.append(self.values[a:b], 0.0))

    def weights(self, questions: np.ndarray, entities: np.ndarray) -> np.ndarray:
        """f64, the weight of each entity for its question; 0 for an entity below 0."""
        keys = questions * self.n + entities
        place = np.searchsorted(self.keys, keys)
        return np.where((self.keys[place] == keys) & (entities >= 0), self.values[place], 0.0)


def _weights_of(seeds: Seeds, n: int) -> _Weights:
    """The weights of seeds. n: number of entities."""
    nodes, weights = seeds.nodes.cpu().numpy(), seeds.weights.cpu().numpy()
    return _Weights.summed(np.repeat(np.arange(len(nodes)), nodes.shape[1]), nodes.ravel(), weights.ravel(), n)


def _columns_by_entities(
    links: Links, rows: np.ndarray, facts: _Weights, named: _Weights, vectors: np.ndarray, near: np.ndarray
) -> list[np.ndarray]:
    """The columns of NAMES from `first 1` on, f[B, c] each. rows: i64[B, c], candidates; facts, named: the weights f
    and m; vectors: f32[B, c, D]; near: f32[B, c], the cosines of the candidates."""
    batch, width = rows.shape
    question = np.repeat(np.arange(batch), width)  # the question of each candidate
    position, entities = _gathered(links.offsets, links.entities, rows.ravel())
    asker, title = question[position], links.title[rows]

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(position, values, minlength=rows.size).reshape(rows.shape)

    def has_title(weights: _Weights) -> np.ndarray:
        return weights.weights(question.reshape(rows.shape), title) > 0

    weights = named.weights(asker, entities)
    known, place = weights > 0, np.broadcast_to(np.arange(width), rows.shape)
    columns = [(place < n).astype(float) for n in _FIRST]
    columns += [total(weights), total(known), has_title(named).astype(float)]
    columns += [total(facts.weights(asker, entities)), (place < ANCHORS).astype(float)]
    mentioned, shared, fresh, alike, beyond = np.zeros(rows.shape), [], [], [], []
    for a in range(ANCHORS):
        other, anchor = place != a, rows[:, min(a, width - 1)]
        pairs = _gathered(links.offsets, links.entities, anchor)
        inside = _Weights.summed(*pairs, np.ones(len(pairs[0])), named.n)
        rare = (inside.weights(asker, entities) > 0) * links.rarity[entities]
        mentioned += other * has_title(inside)
        shared.append(other * np.minimum(total(rare), 2))
        fresh.append(other * np.minimum(total(rare * ~known), 2))
        cosine = np.matmul(vectors, vectors[:, min(a, width - 1), :, None])[..., 0]
        alike.append(other * cosine)
        beyond.append(other * (near - near[:, [min(a, width - 1)]] * cosine))
    return [*columns, mentioned, *shared, fresh[0], *alike[:2], *beyond[:2]]


def _gathered(offsets: np.ndarray, values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(position among `rows`, value) of every value of these rows."""
    first, counts = offsets[rows], offsets[rows + 1] - offsets[rows]
    position = np.repeat(np.arange(len(rows)), counts)
    inside = np.arange(len(position)) - np.repeat(np.cumsum(counts) - counts, counts)
    return position, values[first[position] + inside]


def _pairs(
    links: Links, vectors: torch.Tensor, rows: np.ndarray, queries: Sequence[np.ndarray], named: _Weights,
    parts: Sequence[np.ndarray],
) -> np.ndarray:  # fmt: skip
    """The numbers of PAIRS of each question, f32[B, c, c, 3]. rows: i64[B, c], candidates; vectors: f[R, D] of all
    facts; queries: f32[D] each; named: the weights m; parts: f32[words, c] each, the part of each word of a question in
    the BM25 of the candidates, divided by the highest BM25 of all passages."""
    batch, width = rows.shape
    pairs = np.zeros((batch, width, width, len(PAIRS)), np.float32)
    for shares, part in zip(pairs[..., 2], parts):
        shares[:] = (part == 0).astype(np.float32).T @ part
    position, facts = _gathered(links.fact_offsets, links.facts, rows.ravel())
    nearest = _nearest_facts(position, facts, vectors, queries, width)
    fact, side = np.nonzero(named.weights((nearest.position // width)[:, None], links.ends[nearest.rows]) <= 0)  # U
    asker, end = nearest.position[fact] // width, links.ends[nearest.rows[fact], side]
    entities, column = np.unique(np.append(asker * named.n + end, np.iinfo(np.int64).max), return_inverse=True)
    column = column[:-1]
    # bridge: reach[e, i] is the value of entity e among the facts of candidate i
    reach = np.zeros((len(entities), width), np.float32)
    weight = nearest.cosine.clip(0)[fact] * np.minimum(COMMON * links.rarity[end], 1)
    np.maximum.at(reach.ravel(), column * width + nearest.position[fact] % width, weight.astype(np.float32))
    holder, mentioned = _gathered(links.offsets, links.entities, rows.ravel())
    keys = holder // width * named.n + mentioned
    place = np.searchsorted(entities, keys)
    is_end = entities[place] == keys
    holder, place = holder[is_end], place[is_end]
    turn = np.arange(len(holder)) - np.searchsorted(holder, holder)  # place of an entity in its holder
    bridges = np.zeros((rows.size, width), np.float32)
    for number in range(int(turn.max(initial=-1)) + 1):  # sums in the order of the entities
        bridges[holder[turn == number]] += reach[place[turn == number]]
    pairs[..., 0] = bridges.reshape(batch, width, width).swapaxes(1, 2)
    pairs[..., 1] = _chains(nearest, fact, column, batch, width)
    pairs[:, np.arange(width), np.arange(width)] = 0
    return pairs


class _Facts(NamedTuple):
    """Facts of candidates. position: i64[F], the candidate of each fact, numbered over all questions; rows: i64[F];
    vectors: f32[F, D]; cosine: f32[F], with the question."""

    position: np.ndarray
    rows: np.ndarray
    vectors: np.ndarray
    cosine: np.ndarray


def _nearest_facts(
    position: np.ndarray, facts: np.ndarray, vectors: torch.Tensor, queries: Sequence[np.ndarray], width: int
) -> _Facts:
    """The FACTS nearest facts of each candidate, by (candidate, -cosine, fact). position: ascending, the candidate of
    each of `facts`; width: candidates of a question."""
    stated = vectors[torch.from_numpy(facts).to(vectors.device)].float().cpu().numpy()
    cuts = np.searchsorted(position, np.arange(len(queries) + 1) * width)
    cosine = np.concatenate([stated[a:b] @ query for a, b, query in zip(cuts, cuts[1:], queries)])  # as if asked alone
    order = np.lexsort((facts, -cosine, position))
    starts = np.flatnonzero(np.diff(position, prepend=-1))
    place = np.arange(len(facts)) - np.repeat(starts, np.diff(starts, append=len(facts)))
    nearest = order[place < FACTS]
    return _Facts(position[nearest], facts[nearest], stated[nearest], cosine[nearest])


def _chains(facts: _Facts, fact_of_end: np.ndarray, entity_of_end: np.ndarray, batch: int, width: int) -> np.ndarray:
    """The numbers `chain` of the candidates of each question, f32[B, c, c]. fact_of_end, entity_of_end: the fact of
    each end in U, and its entity, numbered from 0 over all questions."""
    chains = np.zeros((batch, width, width), np.float32)
    n_entities = int(entity_of_end.max(initial=-1)) + 1
    offsets = np.searchsorted(np.sort(entity_of_end), np.arange(n_entities + 1))
    by_entity = fact_of_end[np.argsort(entity_of_end, kind="stable")]
    place, partner = _gathered(offsets, by_entity, entity_of_end)
    fact = fact_of_end[place]
    is_ordered = facts.position[fact] < facts.position[partner]  # each pair of candidates once
    fact, partner = fact[is_ordered], partner[is_ordered]
    for first in range(0, len(fact), _PAIRS_AT_ONCE):
        one, other = fact[first : first + _PAIRS_AT_ONCE], partner[first : first + _PAIRS_AT_ONCE]
        cosine = (facts.vectors[one] * facts.vectors[other]).sum(1)
        lengths = np.sqrt((2 + 2 * cosine).clip(_MIN_OTHER))  # the length of f + g
        highest = ((facts.cosine[one] + facts.cosine[other]) / lengths).clip(0)
        np.maximum.at(chains.ravel(), facts.position[one] * width + facts.position[other] % width, highest)
    return chains + chains.swapaxes(1, 2)


_LOGS = np.array([np.log1p(place) for place in range(ABSENT + 1)])


def _listed(rows: np.ndarray, lists: Sequence[Ranking]) -> list[np.ndarray]:
    """The two feature columns of the lists of one method, f64[B, c] each. rows: i64[B, c]; lists: one a question."""
    sizes = np.array([min(len(ranking.rows), DEPTH) for ranking in lists])
    width = max(int(sizes.max(initial=0)), 1)
    known, scores = np.full((len(lists), width), -1), np.zeros((len(lists), width))
    for row, score, size, ranking in zip(known, scores, sizes, lists):
        row[:size], score[:size] = ranking.rows[:size], ranking.scores[:size]
        score[size:] = min(ranking.scores[:size], default=0.0)  # the score of candidates that are not in the list
    is_same = rows[:, :, None] == known[:, None, :]
    place, has = is_same.argmax(2), is_same.any(2)
    lowest = scores.min(1, keepdims=True)
    return [
        np.where(has, np.take_along_axis(scores, place, 1), lowest) - scores[:, :1],
        _LOGS[np.where(has, place, ABSENT)],
    ]


def _places(values: np.ndarray) -> np.ndarray:
    """log(1 + place) of each value in its row, highest value first, ties in row order."""
    order = np.argsort(-values, axis=1, kind="stable")
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.broadcast_to(np.arange(values.shape[1]), values.shape), 1)
    return np.log1p(places)
