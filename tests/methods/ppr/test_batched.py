"""The search verbs, above all `rank_by_graph`: a dense float64 twin of its formula, equal bits in any batch, ties."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch
from titled import titled

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import PageRankGraph, prepare
from gpu_rag.index.index import Index
from gpu_rag.index.names import TextColumn
from gpu_rag.index.stages.names import names_of_entities, names_of_titles
from gpu_rag.methods.ppr.batched import GraphRanking, Params, rank_by_graph
from gpu_rag.program import walk
from gpu_rag.program.search import Ranking, search_bm25, search_dense, search_hybrid
from gpu_rag.runtime.step import Step
from gpu_rag.text.bm25 import Bm25

Edge = tuple[int, int, float]
Asked = tuple[str, np.ndarray]


@dataclass
class Held:
    """The part of an index that search reads. Vectors f16; edges between nodes [entities | passages]; titles: of the
    first passages, the others have none."""

    points: np.ndarray
    facts: np.ndarray
    ends: tuple[np.ndarray, np.ndarray]
    edges: Sequence[Edge]
    texts: Sequence[str]
    entity_n_passages: np.ndarray
    titles: Sequence[str] = ()
    device: str = "cpu"
    threads: int = 1

    @property
    def n_entities(self) -> int:
        return len(self.entity_n_passages)

    @property
    def n_passages(self) -> int:
        return len(self.points)

    @property
    def entity_rows(self) -> dict[str, int]:
        return {f"ent{row:02d}": row for row in range(self.n_entities)}

    @property
    def entity_ids(self) -> pa.ChunkedArray:
        return pa.chunked_array([list(self.entity_rows)], pa.string())

    @property
    def passage_titles(self) -> TextColumn[str]:
        titles = [*self.titles, *[""] * (self.n_passages - len(self.titles))]
        return TextColumn(pa.chunked_array([titles], pa.string()))

    def arrays(self, stage: str, file: str, *names: str) -> dict[str, np.ndarray]:
        without = pa.table({"name": pa.array([], pa.string()), "aliases": pa.array([], pa.list_(pa.string()))})
        of_titles = stage == "title_names"
        return (
            names_of_titles(self.passage_titles.column) if of_titles else names_of_entities(self.entity_ids, without)
        ).arrays

    @property
    def relation_ends(self) -> tuple[np.ndarray, np.ndarray]:
        return self.ends

    def vectors(self, layer: str) -> torch.Tensor:
        return torch.from_numpy({"passage_vectors": self.points, "relation_vectors": self.facts}[layer]).float()

    def loaded(self, part: str, load: Any) -> Any:
        return load(self)

    @cached_property
    def graph(self) -> PageRankGraph:
        columns = [np.asarray([edge[i] for edge in self.edges]) for i in (0, 1, 2)]
        src, dst = (torch.from_numpy(column.astype(np.int64)) for column in columns[:2])
        weight = torch.from_numpy(columns[2].astype(np.float32))
        csr = csr_from_edges(src, dst, self.n_entities + self.n_passages, weight)
        return prepare(titled(csr, self.passage_titles.column, self.entity_ids, self.n_entities))

    @cached_property
    def bm25(self) -> Bm25:
        return Bm25.build(self.texts)

    def words(self, stage: str, name: str) -> Bm25:
        return self.bm25


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


WORDS = ["zorb", "quix", "plom", "vrax", "drin", "klum", "snog", "frep"]


def random_index(seed: int, n_entities: int = 23, n_facts: int = 31, n_passages: int = 37, dim: int = 48) -> Held:
    """Random vectors around a few topics. Passage 0 and entity 0 are alone; a fifth of the facts has equal ends."""
    g = np.random.default_rng(seed)
    topics = g.normal(size=(5, dim))

    def near_topics(n: int) -> np.ndarray:
        return unit(topics[g.integers(0, 5, n)] + 0.8 * g.normal(size=(n, dim))).astype(np.float16)

    ends = (g.integers(1, max(n_entities, 2), n_facts), g.integers(1, max(n_entities, 2), n_facts))
    ends[1][: n_facts // 5] = ends[0][: n_facts // 5]
    edges = {(min(s, o), max(s, o)): 1.0 for s, o in zip(*(e.tolist() for e in ends)) if s != o}
    for _ in range(3 * n_passages if n_entities else 0):
        edges[int(g.integers(1, n_entities)), n_entities + int(g.integers(1, n_passages))] = 1.0
    for _ in range(n_entities // 4):
        a, b = sorted(g.choice(np.arange(1, n_entities), 2, replace=False).tolist())
        edges.setdefault((a, b), float(np.float32(g.uniform(0.1, 0.5))))
    listed = [(a, b, w) for (a, b), w in sorted(edges.items())]
    texts = [" ".join(g.choice(WORDS, int(g.integers(2, 9)))) for _ in range(n_passages)]
    titled = [f"Ent{e:02d}" + " (film)" * (e % 2) for e in range(1, min(n_entities, n_passages - 12))]
    titles = [*titled, "unheard of", *(["Ent03"] * 11 if n_entities > 3 else [])]  # one of no entity, one of too many
    vectors = near_topics(n_passages), near_topics(n_facts)
    return Held(*vectors, ends, listed, texts, g.integers(1, 9, n_entities), titles[:n_passages])


def questions(index: Held, n: int, seed: int = 9) -> list[Asked]:
    """Vectors near passages; texts of some words, and most with the names of one to three entities."""
    g = np.random.default_rng(seed)
    base = index.points[g.integers(0, index.n_passages, n)].astype(np.float64)
    vectors = unit(base + 0.7 * unit(g.normal(size=base.shape))).astype(np.float32)
    names = list(index.entity_rows)
    texts = []
    for _ in range(n):
        words = g.choice(WORDS, int(g.integers(1, 4))).tolist()
        named = g.choice(names, int(g.integers(0, 4))).tolist() if names else []
        texts.append(f"Which {' '.join([*words, *named])}?")
    return list(zip(texts, vectors))


@dataclass(frozen=True)
class Varied(Params):
    """The parameters with their constants as fields."""

    k: int = 1000
    n_words: int = 8
    entity_mass: float = 0.4
    mention_share: float = 0.3
    word_share: float = 0.2
    prior_temperature: float = 30.0
    fusion: float = 0.1
    tol: float = 1e-9


PARAMS = Varied()
STEPS: dict[str, Step[Any, Any, Any, Any]] = {
    step.name: step for step in (rank_by_graph, search_dense, search_bm25, search_hybrid)
}


def run(index: Held, verb: str, static: tuple[Any, ...], args: Sequence[Any]) -> list[Any]:
    return list(STEPS[verb].run(cast(Index, index), list(args), static))


def rank(index: Held, params: Varied, asked: Sequence[Asked]) -> list[GraphRanking]:
    return run(index, "rank_by_graph", (params, params.k), asked)


def best(scores: np.ndarray, k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


def scaled(x: np.ndarray) -> np.ndarray:
    return x / x.sum() if x.sum() > 0 else x


def fact_weights(index: Held, params: Varied, q: np.ndarray, wrong: str) -> tuple[np.ndarray, list[int]]:
    cosine = index.facts.astype(np.float64) @ q
    facts = best(cosine, params.n_facts)
    f = np.zeros(index.n_entities)
    for entity in range(index.n_entities):
        subjects = [i for i in facts if index.ends[0][i] == entity]
        objects = [i for i in facts if index.ends[1][i] == entity]
        mine = subjects if wrong == "subjects only" else sorted({*subjects, *objects})
        mine = subjects + objects if wrong == "a fact of two equal ends counts twice" else mine
        total = sum(max(cosine[i], 0.0) for i in mine)
        f[entity] = total / (1 if wrong == "sums for means" else max(len(mine), 1))
    return scaled(f), facts


def named_weights(index: Held, text: str, wrong: str) -> np.ndarray:
    m = np.zeros(index.n_entities)
    for name in text.rstrip("?").split():
        if name.startswith("ent"):
            row = int(name[3:])
            m[row] = 1.0 if wrong == "common names count as much" else 1 / index.entity_n_passages[row]
    return scaled(m)


def word_prior(index: Held, params: Varied, text: str, wrong: str) -> np.ndarray:
    """Lucene's BM25 with k1 = 1.2 and b = 0.75, squared, of the best n_words."""
    tokens = [t.split() for t in index.texts]
    mean = np.mean([len(t) for t in tokens])
    scores = np.zeros(len(tokens))
    for word in text.rstrip("?").split():
        df = sum(word in t for t in tokens)
        idf = np.log(1 + (len(tokens) - df + 0.5) / (df + 0.5))
        for i, t in enumerate(tokens):
            tf = t.count(word)
            scores[i] += idf * tf / (tf + 1.2 * (1 - 0.75 + 0.75 * len(t) / mean))
    kept = best(scores, len(tokens) if wrong == "all words count" else params.n_words)
    power = 1 if wrong == "scores not squared" else 2
    return scaled(np.where(np.isin(np.arange(len(tokens)), kept), scores, 0) ** power)


def title_weights(index: Held, text: str, wrong: str) -> np.ndarray:
    said = text.rstrip("?").split()
    t = np.zeros(index.n_passages)
    for passage, title in enumerate(index.titles):
        if title.partition(" (")[0].casefold() in said:
            t[passage] = index.titles.count(title) <= 10 or wrong == "named titles of many passages count"
    return scaled(t)


def teleport(index: Held, params: Varied, asked: Asked, wrong: str) -> tuple[np.ndarray, np.ndarray, list[int]]:
    text, q = asked[0], asked[1].astype(np.float64)
    cosine = index.points.astype(np.float64) @ q
    f, facts = fact_weights(index, params, q, wrong)
    m = named_weights(index, text, wrong)
    w = scaled((1 - params.mention_share) * f + params.mention_share * m)
    if wrong == "names ignored":
        w = f
    words = word_prior(index, params, text, wrong) if wrong != "words ignored" else np.zeros(index.n_passages)
    heat = (1 if wrong == "prior without temperature" else params.prior_temperature) * cosine
    d = np.exp(heat - heat.max())
    d = d if wrong == "prior not normalised" else d / d.sum()
    word_share = params.word_share if words.any() else 0.0
    mass = params.entity_mass if w.any() else 0.0
    if wrong == "entity mass ignored":
        mass = 0.5 if w.any() else 0.0
    r = (1 - word_share) * d + word_share * words
    titles = title_weights(index, text, wrong)
    if params.title_weight and titles.any() and wrong != "named titles ignored":
        r = 0.5 * r + 0.5 * titles
    pi = np.concatenate([mass * w, (1 - mass) * r])
    return pi / pi.sum(), cosine, facts


def dense_pagerank(index: Held, pi: np.ndarray, damping: float, title_weight: float, wrong: str) -> np.ndarray:
    n = index.n_entities + index.n_passages
    adjacency = np.zeros((n, n))
    for a, b, weight in index.edges:
        adjacency[a, b] = adjacency[b, a] = 1.0 if wrong == "weights ignored" else weight
    for passage, title in enumerate(index.titles):
        name = title.partition(" (")[0].casefold()
        real = index.titles.count(title) <= 10 or wrong == "titles of many passages count"
        if name in index.entity_rows and real and wrong != "titles ignored":
            a, b = index.entity_rows[name], index.n_entities + passage
            if wrong == "one direction alone":
                adjacency[a, b] += title_weight
                continue
            kept = 0.0 if wrong == "a title takes the place of a mention" else adjacency[a, b]
            adjacency[a, b] = adjacency[b, a] = kept + title_weight
    degree = adjacency.sum(1)
    # mass on nodes without edges returns to pi
    step = np.where(degree[:, None] > 0, adjacency / np.where(degree, degree, 1)[:, None], pi)
    if wrong == "lost mass spread evenly":
        step = np.where(degree[:, None] > 0, step, 1 / n)
    if wrong == "rows not normalised":
        step = adjacency / degree.max()
    return np.linalg.solve(np.eye(n) - damping * step.T, (1 - damping) * pi)


def minmax(x: np.ndarray) -> np.ndarray:
    return (x - x.min()) / (x.max() - x.min()) if x.max() > x.min() else np.zeros_like(x)


def reference(index: Held, params: Varied, asked: Asked, wrong: str = "") -> tuple[np.ndarray, list[int]]:
    """(score of every passage, seed facts). `wrong` names a plausible mistake to make."""
    pi, cosine, facts = teleport(index, params, asked, wrong)
    p = dense_pagerank(index, pi, 0.5 if wrong == "another damping" else params.damping, params.title_weight, wrong)
    p = p[: index.n_passages] if wrong == "PageRank on the wrong range" else p[index.n_entities :]
    p = np.maximum(p, 1e-12)
    structural = minmax(p if wrong == "no logarithm" else np.log(p))
    return structural + (0 if wrong == "no fusion" else params.fusion) * minmax(cosine), facts


def by_row(ranking: Ranking, n: int) -> np.ndarray:
    assert sorted(ranking.rows) == list(range(n))
    scores = np.empty(n)
    scores[list(ranking.rows)] = ranking.scores
    return scores


def agrees(index: Held, params: Varied, asked: Sequence[Asked], wrong: str = "", atol: float = 1e-4) -> bool:
    """Whether scores and facts are those of the formula; the order is checked in any case."""
    for one, ranking in zip(asked, rank(index, params, asked), strict=True):
        ordered = sorted(zip(ranking.scores, ranking.rows), key=lambda item: (-item[0], item[1]))
        assert list(zip(ranking.scores, ranking.rows)) == ordered
        expected, facts = reference(index, params, one, wrong)
        if list(ranking.facts) != facts:
            return False
        if not np.allclose(by_row(ranking, index.n_passages), expected, atol=atol, rtol=0):
            return False
    return True


VARIANTS: dict[str, dict[str, Any]] = {
    "as is": {},
    "facts alone": {"mention_share": 0.0},
    "names alone": {"mention_share": 1.0},
    "no facts": {"n_facts": 0},
    "more facts and words than there are": {"n_facts": 500, "n_words": 500},
    "all mass on entities": {"entity_mass": 1.0},
    "no mass on entities": {"entity_mass": 0.0},
    "words alone": {"word_share": 1.0},
    "no words": {"word_share": 0.0},
    "no word counts": {"n_words": 0},
    "weak prior": {"prior_temperature": 1.0},
    "no damping": {"damping": 0.0},
    "half damping": {"damping": 0.5},
    "cosine heavy": {"fusion": 2.0},
    "no fusion": {"fusion": 0.0},
    "titles do not count": {"title_weight": 0.0},
    "heavy titles": {"title_weight": 80.0},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_against_the_dense_formula(seed: int, variant: str) -> None:
    index = random_index(seed)
    assert agrees(index, replace(PARAMS, **VARIANTS[variant]), questions(index, 6))


def test_the_default_tolerance_moves_scores_little() -> None:
    index = random_index(3)
    assert agrees(index, replace(PARAMS, tol=1e-6), questions(index, 6), atol=2e-3)


WRONG = [
    "prior not normalised",
    "entity mass ignored",
    "PageRank on the wrong range",
    "prior without temperature",
    "sums for means",
    "subjects only",
    "a fact of two equal ends counts twice",
    "names ignored",
    "common names count as much",
    "words ignored",
    "all words count",
    "scores not squared",
    "weights ignored",
    "lost mass spread evenly",
    "rows not normalised",
    "another damping",
    "no logarithm",
    "no fusion",
    "titles ignored",
    "titles of many passages count",
    "a title takes the place of a mention",
    "one direction alone",
    "named titles ignored",
    "named titles of many passages count",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_dense_formula_tells_wrong_ones_apart(wrong: str) -> None:
    index = random_index(1)
    params = replace(PARAMS, n_facts=20)  # enough for facts of two equal ends beside others
    assert agrees(index, params, questions(index, 8))
    assert not agrees(index, params, questions(index, 8), wrong, atol=1e-3)


def test_a_question_that_no_fact_and_no_word_is_near_goes_by_cosine() -> None:
    index = random_index(4)
    away = replace(index, facts=-np.abs(index.facts))
    asked = [("Which unknown thing?", np.abs(vector)) for _, vector in questions(index, 3)]
    assert all(len(reference(away, PARAMS, one)[1]) == PARAMS.n_facts for one in asked)  # facts, but of cosine < 0
    assert agrees(away, PARAMS, asked)
    without = replace(PARAMS, entity_mass=0.0, word_share=0.0)
    for plain, seeded in zip(rank(away, without, asked), rank(away, PARAMS, asked)):
        assert (plain.rows, plain.scores) == (seeded.rows, seeded.scores)
    assert [r.facts for r in rank(away, replace(PARAMS, n_facts=0), asked)] == [()] * 3


def test_an_index_without_relations_or_without_entities() -> None:
    bare = random_index(5, n_facts=0)
    assert agrees(bare, PARAMS, questions(bare, 3))
    assert all(r.facts == () for r in rank(bare, PARAMS, questions(bare, 3)))
    nothing = random_index(6, n_entities=0, n_facts=0)
    assert nothing.edges == [] and agrees(nothing, PARAMS, questions(nothing, 3))
    by_cosine = replace(PARAMS, k=7, word_share=0.0)
    dense = run(nothing, "search_dense", (7,), [vector for _, vector in questions(nothing, 3)])
    assert [r.rows for r in rank(nothing, by_cosine, questions(nothing, 3))] == [r.rows for r in dense]


def test_a_single_passage_scores_zero() -> None:
    two = random_index(7, n_entities=2, n_facts=1, n_passages=2)
    lone = replace(two, points=two.points[:1], texts=two.texts[:1], edges=[(0, 1, 1.0), (1, 2, 1.0)])
    assert rank(lone, PARAMS, questions(lone, 1))[0].scores == (0.0,)  # a constant row is all zeros


def axes(n: int) -> Held:
    """n equal passages and nothing else; products of their vectors are exact."""
    vectors, none = np.tile(np.asarray([1, 0, 0, 0], np.float16), (n, 1)), np.zeros(0, np.int64)
    return Held(vectors, vectors[:0], (none, none), [], ["zorb"] * n, none)


def test_equal_scores_come_by_row() -> None:
    twins = axes(20)
    (ranking,) = rank(twins, replace(PARAMS, k=6, word_share=0.0), [("zorb", np.asarray([1, 0, 0, 0], np.float32))])
    assert ranking.rows == (0, 1, 2, 3, 4, 5) and set(ranking.scores) == {0.0}
    twins.points[[3, 11]], twins.points[17] = [0, 1, 0, 0], [0.6, 0.8, 0, 0]
    asked = ("zorb", np.asarray([0, 1, 0, 0], np.float32))
    (ranking,) = run(twins, "search_dense", (5,), [asked[1]])
    assert ranking.rows == (3, 11, 17, 0, 1)
    (ranking,) = rank(twins, replace(PARAMS, k=5, damping=0.0, word_share=0.0), [asked])
    assert ranking.rows == (3, 11, 17, 0, 1)
    (ranking,) = run(twins, "search_bm25", (4,), ["zorb"])
    assert ranking.rows == (0, 1, 2, 3) and len(set(ranking.scores)) == 1


def test_twin_passages_come_side_by_side() -> None:
    """Two passages of one vector, in the midst of others."""
    index = random_index(8)
    index.points[29] = index.points[5]
    for ranking in run(index, "search_dense", (37,), [vector for _, vector in questions(index, 5)]):
        place = {row: i for i, row in enumerate(ranking.rows)}
        assert place[29] == place[5] + 1 and ranking.scores[place[5]] == ranking.scores[place[29]]


@pytest.mark.parametrize("k", [7, 50])
def test_k_cuts_the_same_ranking(k: int) -> None:
    index = random_index(2)
    asked = questions(index, 4)
    vectors = [vector for _, vector in asked]
    for whole, cut in zip(rank(index, PARAMS, asked), rank(index, replace(PARAMS, k=k), asked)):
        assert (cut.rows, cut.scores) == (whole.rows[:k], whole.scores[:k])
    for whole, cut in zip(run(index, "search_dense", (37,), vectors), run(index, "search_dense", (k,), vectors)):
        assert (cut.rows, cut.scores) == (whole.rows[:k], whole.scores[:k])


@pytest.mark.parametrize("n_passages", [3, 130])
def test_a_question_has_the_same_bits_in_any_batch(n_passages: int) -> None:
    index = random_index(9, n_passages=n_passages)
    asked = questions(index, 130)
    texts, vectors = [text for text, _ in asked], [vector for _, vector in asked]
    calls: dict[str, tuple[Any, list[Any]]] = {
        "rank_by_graph": ((replace(PARAMS, tol=1e-6), PARAMS.k), asked),
        "search_dense": ((10,), vectors),
        "search_bm25": ((10,), texts),
        "search_hybrid": ((10, 20, 60.0), asked),
    }
    for verb, (static, args) in calls.items():
        whole = run(index, verb, static, args)
        assert len({(r.rows, r.scores) for r in whole}) > 1
        for size in (1, 3, 64, 65):
            for start in (0, 1, 30, 63, 64, 129):
                part = args[start : start + size]
                assert run(index, verb, static, part) == whole[start : start + len(part)], (verb, size, start)
        backwards = run(index, verb, static, args[::-1])
        assert backwards[::-1] == whole, verb


def fused(dense: Sequence[int], words: Sequence[int], constant: float, k: int) -> list[tuple[int, float]]:
    scores: dict[int, float] = {}
    for ranking in (dense, words):
        for place, row in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + 1 / (constant + place)
    return sorted(scores.items(), key=lambda item: (-np.float32(item[1]), item[0]))[:k]


@pytest.mark.parametrize(("depth", "constant", "k"), [(20, 60.0, 10), (4, 60.0, 10), (20, 1.0, 3), (100, 60.0, 100)])
def test_hybrid_is_reciprocal_rank_fusion_of_both(depth: int, constant: float, k: int) -> None:
    index = random_index(3)
    args = questions(index, 5)
    found = run(index, "search_hybrid", (k, depth, constant), args)
    dense = run(index, "search_dense", (depth,), [vector for _, vector in args])
    words = run(index, "search_bm25", (depth,), [text for text, _ in args])
    for ranking, d, w in zip(found, dense, words):
        expected = fused(d.rows, w.rows, constant, k)
        assert list(ranking.rows) == [row for row, _ in expected]
        assert ranking.scores == pytest.approx([score for _, score in expected], rel=1e-6)
        assert [row for row, _ in fused(d.rows, w.rows, constant * 5 + 9, k)] != list(d.rows)[:k]


@pytest.mark.parametrize(
    ("threads", "free", "expected"),
    [(1, 0, 64), (3, 0, 64), (8, 2**40, 256), (8, 64 * 160 * 1000 * 3, 192), (8, 0, 64)],
)
def test_more_threads_rank_more_questions_together_if_memory_allows(
    monkeypatch: pytest.MonkeyPatch, threads: int, free: int, expected: int
) -> None:
    monkeypatch.setattr(walk, "free_bytes", lambda device: free)
    given = Held(
        np.zeros((1000, 2)), np.zeros((0, 2)), (np.zeros(0), np.zeros(0)), [], [], np.zeros(1), threads=threads
    )
    assert walk.walk_tile(cast(Index, given)) == expected
