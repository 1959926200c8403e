"""Bm25 against Lucene's formula written out in float64; ties, padding, files; wrong versions.

score(q, d) = sum over the terms of q of  ln(1 + (N - df + .5) / (df + .5)) * tf / (tf + k1 (1 - b + b len(d) / avg)).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from refusals import caught, passes

from gpu_rag.errors import GpuRagError
from gpu_rag.graph import postings
from gpu_rag.graph.postings import Postings, best_rows
from gpu_rag.text.bm25 import VOCABULARY_FILE, Bm25
from gpu_rag.text.tokens import stems, stop_words, tokenize, words_of

QUICK = settings(max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
# words that casefolding and the English Snowball stemmer leave as they are, none of them a stop word
WORDS = ["tiger", "velvet", "quartz", "mango", "falcon", "cobalt", "tundra", "apricot", "walnut", "zinc"]


class Lucene:
    """The formula, word by word. Subclasses change one part and are wrong."""

    def __init__(self, texts: Sequence[str], k1: float, b: float) -> None:
        self.docs, self.k1, self.b = [Counter(t.split()) for t in texts], k1, b
        self.n, self.avg = len(texts), np.mean([self.length(d) for d in self.docs]) if texts else 0.0
        self.df = Counter(w for d in self.docs for w in d)

    @classmethod
    def build(cls, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> Lucene:
        return cls(texts, k1, b)

    def length(self, doc: Counter) -> float:
        return sum(doc.values())

    def idf(self, word: str) -> float:
        return math.log(1 + (self.n - self.df[word] + 0.5) / (self.df[word] + 0.5))

    def tf_part(self, tf: float, doc: Counter) -> float:
        return tf / (tf + self.k1 * (1 - self.b + self.b * self.length(doc) / self.avg)) if tf else 0.0

    def scores(self, query: str) -> np.ndarray:
        known = [w for w in query.split() if self.df[w]]
        rows = [sum(self.idf(w) * self.tf_part(d[w], d) for w in known) for d in self.docs]
        return np.array(rows, dtype=np.float32)

    def order(self, scores: np.ndarray) -> list[int]:
        return [i for i in sorted(range(self.n), key=lambda i: (-scores[i], i)) if scores[i] > 0]

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        ids, best = np.full((len(queries), k), -1, np.int32), np.full((len(queries), k), -np.inf, np.float32)
        for row, query in enumerate(queries):
            scores = self.scores(query)
            order = self.order(scores)[:k]
            ids[row, : len(order)], best[row, : len(order)] = order, scores[order]
        return ids, best


def texts_and_query(max_words: int = 12) -> st.SearchStrategy:
    text = st.lists(st.sampled_from(WORDS), min_size=0, max_size=max_words).map(" ".join)
    query = st.lists(st.sampled_from([*WORDS, "unheard"]), min_size=1, max_size=4, unique=True).map(" ".join)
    return st.tuples(st.lists(text, min_size=1, max_size=12).filter(lambda t: any(t)), query)


def check_scores(kind: Any) -> None:
    @QUICK
    @given(texts_and_query(), st.sampled_from([(1.2, 0.75), (0.9, 0.4), (1.5, 0.0), (2.0, 1.0)]))
    def holds(case: Any, settings_: tuple[float, float]) -> None:
        (texts, query), (k1, b) = case, settings_
        got, want = kind.build(texts, k1=k1, b=b).scores(query), Lucene(texts, k1, b).scores(query)
        assert got.dtype == np.float32 and got.shape == (len(texts),)
        assert np.allclose(got, want, rtol=2e-5, atol=1e-6), f"{texts} / {query}: {got} instead of {want}"

    holds()


def check_hand_worked(kind: Any) -> None:
    """Three documents of 2, 4 and 1 words; "tiger" in two of them. avg = 7 / 3."""
    bm25 = kind.build(["tiger mango", "tiger tiger zinc zinc", "mango"])
    idf = math.log(1 + 1.5 / 2.5)
    norm = [1.2 * (0.25 + 0.75 * n / (7 / 3)) for n in (2, 4)]
    assert np.allclose(bm25.scores("tiger"), [idf / (1 + norm[0]), idf * 2 / (2 + norm[1]), 0], rtol=1e-5)
    ids, scores = bm25.search(["tiger", "unheard"], 3)
    assert ids.tolist() == [[1, 0, -1], [-1, -1, -1]]
    assert (scores[0, 2:] == -np.inf).all() and (scores[1] == -np.inf).all()


def check_search(kind: Any) -> None:
    """The best by (-score, id) of `scores`, only those above 0, padded; a query alone as in a batch."""

    @QUICK
    @given(texts_and_query(max_words=4), st.integers(1, 15))
    def holds(case: Any, k: int) -> None:
        texts, query = case
        bm25 = kind.build(texts)
        ids, best = bm25.search([query, "zinc", query], k)
        assert ids.dtype == np.int32 and best.dtype == np.float32 and ids.shape == best.shape == (3, k)
        for row, q in enumerate((query, "zinc", query)):
            scores = bm25.scores(q)
            order = [i for i in sorted(range(len(texts)), key=lambda i: (-scores[i], i)) if scores[i] > 0][:k]
            assert ids[row].tolist() == order + [-1] * (k - len(order)), f"{texts} / {q}"
            assert best[row].tolist() == scores[order].tolist() + [-np.inf] * (k - len(order))
        alone = bm25.search([query], k)
        assert (alone[0][0] == ids[0]).all() and (alone[1][0] == best[0]).all()

    holds()


def check_ties(kind: Any) -> None:
    """Hundreds of documents with the same score: the smallest ids, in order."""
    texts = ["tiger mango", "zinc zinc", "mango tiger"] * 300
    ids, scores = kind.build(texts).search(["tiger", "zinc"], 40)
    assert ids[0].tolist() == [i for i in range(900) if i % 3 != 1][:40]
    assert ids[1].tolist() == list(range(1, 120, 3)) and len(set(scores.ravel().tolist())) == 2


class OnDevice:
    """Words ranked by their postings, as on a GPU."""

    def __init__(self, bm25: Bm25) -> None:
        self.bm25, self.scores = bm25, bm25.scores
        indices, data = torch.from_numpy(bm25.arrays["indices"]), torch.from_numpy(bm25.all_scores())
        self.postings = Postings(bm25.arrays["indptr"], indices, data, bm25.n)

    @classmethod
    def build(cls, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> OnDevice:
        return cls(Bm25.build(texts, k1=k1, b=b))

    def words(self, query: str) -> list[int]:
        return self.bm25.ids(query)

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        top = best_rows(self.postings, [self.words(query) for query in queries], k)
        return top.ids.numpy(), top.scores.numpy()


def check_bits(kind: Any) -> None:
    """Repeated words, empty queries, rows in blocks, queries cut into parts: the bits of bm25s."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(0, 9))) for _ in range(700)]
    queries = [" ".join(rng.choice(WORDS, size)) for size in (1, 2, 0, 5, 9, 3)]
    ids, scores = Bm25.build(texts).search(queries, 3)
    for most in (1, 1500, postings.MAX_ENTRIES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(postings, "MAX_ENTRIES", most)
            got = kind.build(texts).search(queries, 3)
        assert got[0].tolist() == ids.tolist() and got[1].tolist() == scores.tolist()


CHECKS: list[Callable[[Any], None]] = [check_scores, check_hand_worked, check_search, check_ties]


class NoLengthNorm(Lucene):
    def tf_part(self, tf: float, doc: Counter) -> float:
        return tf / (tf + self.k1)


class RobertsonIdf(Lucene):
    def idf(self, word: str) -> float:
        return math.log((self.n - self.df[word] + 0.5) / (self.df[word] + 0.5))


class OldNumerator(Lucene):
    def tf_part(self, tf: float, doc: Counter) -> float:
        return (self.k1 + 1) * super().tf_part(tf, doc)


class DistinctLength(Lucene):
    def length(self, doc: Counter) -> float:
        return len(doc)


class Binary(Lucene):
    def tf_part(self, tf: float, doc: Counter) -> float:
        return super().tf_part(min(tf, 1), doc)


class CollectionFrequency(Lucene):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.df = sum(self.docs, Counter())


class LateTies(Lucene):
    def order(self, scores: np.ndarray) -> list[int]:
        return [i for i in sorted(range(self.n), key=lambda i: (-scores[i], -i)) if scores[i] > 0]


class KeepsZeros(Lucene):
    def order(self, scores: np.ndarray) -> list[int]:
        return sorted(range(self.n), key=lambda i: (-scores[i], i))


class Partitioned(Lucene):
    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        scores = np.stack([self.scores(q) for q in queries])
        ids = np.argpartition(-scores, k, axis=1)[:, :k].astype(np.int32)
        return ids, np.take_along_axis(scores, ids.astype(int), 1)


class CountsOnce(OnDevice):
    def words(self, query: str) -> list[int]:
        return list(dict.fromkeys(super().words(query)))


class OtherOrder(OnDevice):
    def words(self, query: str) -> list[int]:
        return super().words(query)[::-1]


WRONG = [
    (CountsOnce, check_bits),
    (OtherOrder, check_bits),
    (NoLengthNorm, check_scores),
    (NoLengthNorm, check_hand_worked),
    (RobertsonIdf, check_scores),
    (OldNumerator, check_scores),
    (OldNumerator, check_hand_worked),
    (DistinctLength, check_scores),
    (Binary, check_scores),
    (CollectionFrequency, check_scores),
    (LateTies, check_search),
    (LateTies, check_ties),
    (KeepsZeros, check_search),
    (KeepsZeros, check_hand_worked),
    (Partitioned, check_ties),
]


test_wrong_versions_are_caught = caught(WRONG)


test_bm25 = passes([Lucene, Bm25, OnDevice], CHECKS)
test_bits = passes([Bm25, OnDevice], [check_bits])


def test_the_words_of_this_file_are_their_own_tokens() -> None:
    assert [tokenize(w) for w in WORDS] == [[w] for w in WORDS]


def test_texts_are_tokenised() -> None:
    bm25 = Bm25.build(["The Tigers were running", "velvet, and nothing else", "RUN!"])
    assert bm25.search(["a runner's tiger RUNS"], 3)[0].tolist() == [[0, 2, -1]]
    assert bm25.search(["the and of", "", "?!"], 2)[0].tolist() == [[-1, -1]] * 3


MIXED = {
    "Die Brücken der Stadt wurden von Mara Orlo gebaut, und die Mühlen auch": "de",
    "The bridges of the town were built by Mara Orlo, and so were the mills": "en",
    "Los puentes de la ciudad fueron construidos por Mara Orlo": "es",
    "这座桥由玛拉建造": "zh",
}


def test_each_passage_by_its_language_and_a_query_in_all(tmp_path: Path) -> None:
    """The formula over the tokens of each language, in an index of four; a query brings its words in each."""
    languages = ["en", "de", "es", "zh"]
    bm25 = Bm25.build(MIXED, languages=languages, language_of_each=MIXED.values())
    formula = Lucene([" ".join(tokenize(*pair)) for pair in MIXED.items()], 1.2, 0.75)
    queries = {
        "Wer hat die Brücke und eine Mühle gebaut?": "de",
        "Who built the bridge and a mill?": "en",
        "¿Quién construyó el puente de las ciudades?": "es",
        "桥": "zh",
        "Mara Orlo": "en",
    }
    bm25.save(tmp_path)
    loaded = Bm25.load(tmp_path)
    for query, language in queries.items():
        words = [word for word in words_of(query) if word not in stop_words(language)]
        tokens = [token for word in words for token in dict.fromkeys(stems([word], of)[0] for of in languages)]
        expected = formula.scores(" ".join(tokens))
        assert np.allclose(bm25.scores(query), expected, rtol=2e-5), query
        assert (loaded.scores(query) == bm25.scores(query)).all()
        assert (loaded.part(np.array([1, 3])).scores(query) == bm25.scores(query)[[1, 3]]).all()
    assert bm25.search(list(queries), 1)[0].ravel().tolist() == [0, 1, 2, 3, 2]
    assert set(bm25.search(["Did Mara Orlo?"], 4)[0].ravel().tolist()) == {0, 1, 2, -1}, "a name in each language"
    bridge = "eine schöne Brücke"
    assert Bm25.build(MIXED).scores(bridge)[0] == 0 < bm25.scores(bridge)[0], "English endings do not find it"


@QUICK
@given(
    st.lists(st.lists(st.sampled_from(WORDS[:8]), max_size=6), min_size=1, max_size=9),
    st.lists(st.sampled_from(WORDS), max_size=6),
)
def test_coverage_is_the_share_of_idf_of_the_words_that_a_passage_holds(
    texts: list[list[str]], query: list[str]
) -> None:
    twin, rows = Lucene([" ".join(words) for words in texts], 1.2, 0.75), np.arange(len(texts))[::-1]
    total = sum(map(twin.idf, {*query}))  # a word that no text has counts too
    expected = [sum(twin.idf(word) for word in {*query} & {*texts[row]}) / total if total else 0 for row in rows]
    found = Bm25.build([" ".join(words) for words in texts]).coverage(" ".join(query), rows)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_coverage_counts_a_word_once_whatever_its_tokens_in_other_languages() -> None:
    texts = ["Die alten Häuser der Stadt", "The old houses of the city", "Die alten Kirchen"]
    bm25 = Bm25.build(texts, languages=("de", "en"), language_of_each=["de", "en", "de"])
    assert bm25.coverage("alte Häuser", np.arange(3)).tolist()[::2] == [
        1.0,
        pytest.approx(0.47 / (0.47 + 0.98), abs=0.01),
    ]
    assert bm25.part(np.array([2])).coverage("Häuser", np.array([0])).tolist() == [0.0]


def test_english_alone_is_saved_as_ever(tmp_path: Path) -> None:
    texts = ["tiger mango", "zinc"]
    Bm25.build(texts).save(tmp_path / "plain")
    Bm25.build(texts, languages=["en"], language_of_each=["en", "en"]).save(tmp_path / "named")
    assert folder_bytes(tmp_path / "plain") == folder_bytes(tmp_path / "named")
    with pa.CompressedInputStream(str(tmp_path / "plain" / VOCABULARY_FILE), "zstd") as file:
        assert b"languages" not in file.read()


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_save_and_load(tmp_path: Path) -> None:
    texts = ["tiger mango", "tiger tiger zinc zinc", "", "mango apricot walnut", "Straße in Łódź"]
    Bm25.build(texts, k1=0.9, b=0.4).save(tmp_path / "one")
    Bm25.build(list(texts), k1=0.9, b=0.4).save(tmp_path / "two")
    files = folder_bytes(tmp_path / "one")
    assert files == folder_bytes(tmp_path / "two"), "the same corpus gave other bytes"
    assert {Path(name).suffix for name in files} <= {".safetensors", ".zst"}
    loaded, built = Bm25.load(tmp_path / "one"), Bm25.build(texts, k1=0.9, b=0.4)
    for query in ("tiger zinc", "straße", "unheard", "łódź mango"):
        assert (loaded.scores(query) == built.scores(query)).all()
        for a, b in zip(loaded.search([query], 7), built.search([query], 7)):
            assert (a == b).all()
    loaded.save(tmp_path / "three")
    assert folder_bytes(tmp_path / "three") == files


@pytest.mark.parametrize("texts", [[], [""], ["", "the of and"]])
def test_a_corpus_without_words_finds_nothing_or_is_refused(texts: list[str]) -> None:
    try:
        bm25 = Bm25.build(texts)
        ids, scores = bm25.search(["tiger"], 2)
    except GpuRagError:
        return
    assert ids.tolist() == [[-1, -1]] and (scores == -np.inf).all()
    assert bm25.scores("tiger").tolist() == [0.0] * len(texts)
