"""BM25 against the formula written out, exact order, and files that round-trip byte for byte."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import BadInput, IndexCorrupt, IndexMismatch, StorageError
from gpu_rag.text.bm25 import ARRAYS_FILE, VOCABULARY_FILE, Bm25
from gpu_rag.text.tokens import MAX_TOKEN_CHARS, STOP_WORDS, tokenize

TEXTS = [
    "The lantern maker of Vell sold brass lanterns.",
    "Vell lies on the river Orn.",
    "A brass bell hangs in the tower of Orn.",
    "",
    "The and of.",
    "Lantern lantern lantern brass Vell Orn river bell tower",
]
WORDS = ["vell", "orn", "brass", "lantern", "river", "bell", "tower", "the", "zinc"]
SOME_TEXT = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)


def formula(texts, query, k1=1.2, b=0.75):
    """The score of every text, from the definition, in float64."""
    docs = [tokenize(text) for text in texts]
    mean = sum(map(len, docs)) / len(docs)
    scores = np.zeros(len(docs))
    for token in tokenize(query):
        df = sum(token in doc for doc in docs)
        idf = math.log(1 + (len(docs) - df + 0.5) / (df + 0.5))
        for i, doc in enumerate(docs):
            tf = doc.count(token)
            if tf:
                scores[i] += idf * tf / (tf + k1 * (1 - b + b * len(doc) / mean))
    return scores


def wrong_formula(texts, query):
    """A plausible slip: no discount for long texts."""
    return formula(texts, query, b=0.0)


def check_scores(expected):
    index = Bm25.build(TEXTS)
    for query in ("brass lanterns", "Vell", "river river Orn", "tower of Vell", "zinc"):
        np.testing.assert_allclose(index.scores(query), expected(TEXTS, query), rtol=2e-6, atol=1e-7)


def test_scores_follow_the_formula():
    check_scores(formula)


def test_the_check_of_scores_catches_a_wrong_formula():
    with pytest.raises(AssertionError):
        check_scores(wrong_formula)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(SOME_TEXT, min_size=1, max_size=12), SOME_TEXT, st.sampled_from([(1.2, 0.75), (0.5, 0.0), (2.0, 1.0)]))
def test_scores_follow_the_formula_for_any_texts(texts, query, parameters):
    k1, b = parameters
    index = Bm25.build(texts, k1=k1, b=b)
    expected = formula(texts, query, k1, b) if any(map(tokenize, texts)) else np.zeros(len(texts))
    np.testing.assert_allclose(index.scores(query), expected, rtol=5e-6, atol=1e-7)


def by_definition(scores, k):
    order = sorted((i for i in range(len(scores)) if scores[i] > 0), key=lambda i: (-scores[i], i))[:k]
    ids = order + [-1] * (k - len(order))
    return ids, [scores[i] if i >= 0 else -np.inf for i in ids]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(SOME_TEXT, max_size=30), st.lists(SOME_TEXT, min_size=1, max_size=4), st.integers(1, 40))
def test_search_is_sorted_by_score_then_id(texts, queries, k):
    index = Bm25.build(texts)
    ids, scores = index.search(queries, k)
    assert (ids.dtype, scores.dtype, ids.shape, scores.shape) == (np.int32, np.float32, *[(len(queries), k)] * 2)
    for row, query in enumerate(queries):
        expected_ids, expected_scores = by_definition(index.scores(query), k)
        assert ids[row].tolist() == expected_ids
        assert scores[row].tolist() == expected_scores
        alone = index.search([query], k)
        assert (alone[0][0] == ids[row]).all() and (alone[1][0] == scores[row]).all()


def test_ties_across_position_k_go_to_the_smaller_id():
    index = Bm25.build(["brass"] * 40 + ["river"] * 10)
    assert index.search(["brass"], 7)[0].tolist() == [[0, 1, 2, 3, 4, 5, 6]]


def test_ties_check_catches_a_selection_without_tie_order():
    scores = np.array([1.0] * 40, dtype=np.float32)
    careless = np.argpartition(-scores, 6)[:7][::-1]
    assert careless.tolist() != by_definition(scores, 7)[0]


def test_no_texts_no_tokens_no_match():
    for texts in ([], [""], ["the", "of and"]):
        index = Bm25.build(texts)
        ids, scores = index.search(["brass", ""], 3)
        assert (ids == -1).all() and np.isneginf(scores).all() and index.scores("brass").shape == (len(texts),)


def test_bad_parameters():
    for k1, b in ((0, 0.5), (-1, 0.5), (float("nan"), 0.5), (1.2, -0.1), (1.2, 1.1), (float("inf"), 0.5)):
        with pytest.raises(BadInput, match="k1"):
            Bm25.build(TEXTS, k1=k1, b=b)
    with pytest.raises(BadInput, match="k=0"):
        Bm25.build(TEXTS).search(["brass"], 0)


def test_saved_files_are_the_same_bytes_and_load_the_same_index(tmp_path):
    for name in ("a", "b"):
        Bm25.build(TEXTS, k1=0.9, b=0.4).save(tmp_path / name)
    for file in (ARRAYS_FILE, VOCABULARY_FILE):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    built, loaded = Bm25.build(TEXTS, k1=0.9, b=0.4), Bm25.load(tmp_path / "a")
    assert (loaded.n, loaded.k1, loaded.b) == (6, 0.9, 0.4)
    queries = ["brass lantern", "Orn river", "zinc"]
    for x, y in zip(built.search(queries, 4), loaded.search(queries, 4)):
        assert x.tobytes() == y.tobytes()
    loaded.save(tmp_path / "c")
    assert (tmp_path / "c" / ARRAYS_FILE).read_bytes() == (tmp_path / "a" / ARRAYS_FILE).read_bytes()


def test_an_empty_index_round_trips(tmp_path):
    Bm25.build([]).save(tmp_path)
    assert Bm25.load(tmp_path).search(["brass"], 2)[0].tolist() == [[-1, -1]]


def change(**keys):
    def edit(folder):
        content = json.loads((folder / VOCABULARY_FILE).read_bytes())
        (folder / VOCABULARY_FILE).write_text(json.dumps({**content, **keys}))

    return edit


def cut_arrays(folder):
    raw = (folder / ARRAYS_FILE).read_bytes()
    (folder / ARRAYS_FILE).write_bytes(raw[: len(raw) // 2])


def swap_arrays(name, value):
    def edit(folder):
        from safetensors.numpy import load_file, save_file

        arrays = load_file(folder / ARRAYS_FILE)
        arrays[name] = value(arrays[name])
        save_file(arrays, folder / ARRAYS_FILE)

    return edit


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (cut_arrays, IndexCorrupt),
        (lambda folder: (folder / VOCABULARY_FILE).write_text("{"), IndexCorrupt),
        (lambda folder: (folder / VOCABULARY_FILE).write_text("[]"), IndexCorrupt),
        (lambda folder: (folder / ARRAYS_FILE).unlink(), IndexCorrupt),
        (change(format=2), IndexMismatch),
        (change(tokens_version=0), IndexMismatch),
        (change(tokens=["brass"]), IndexCorrupt),
        (change(tokens=["vell", "brass"]), IndexCorrupt),
        (change(tokens=[1]), IndexCorrupt),
        (change(n="6"), IndexCorrupt),
        (change(n=2), IndexCorrupt),
        (swap_arrays("data", lambda a: a.astype(np.float64)), IndexCorrupt),
        (swap_arrays("data", lambda a: a * np.float32("nan")), IndexCorrupt),
        (swap_arrays("data", lambda a: a[:-1].copy()), IndexCorrupt),
        (swap_arrays("indices", lambda a: a - 1), IndexCorrupt),
        (swap_arrays("indptr", lambda a: a[::-1].copy()), IndexCorrupt),
    ],
)
def test_a_damaged_index_is_refused(tmp_path, damage, error):
    Bm25.build(TEXTS).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(error):
        Bm25.load(tmp_path)


def test_a_disk_that_refuses(tmp_path):
    shutil.rmtree(tmp_path)
    tmp_path.write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot be written"):
        Bm25.build(TEXTS).save(tmp_path)


def test_tokens():
    assert tokenize("The bridges of Mara's town, 1904") == ["bridg", "mara", "town", "1904"]
    assert tokenize("mara\u2019s MARA'S ｍａｒａ") == ["mara"] * 3
    assert tokenize("cafe\u0301 café") == ["café"] * 2
    assert tokenize("snake_case, e-mail; 3.14") == ["snake", "case", "e", "mail", "3", "14"]
    assert tokenize("ICE 4 東京タワー") == ["ice", "4", "東", "京", "タ", "ワ", "ー"]
    assert tokenize("हिन्दी") == ["हिन्दी"]
    assert tokenize("") == tokenize(" \n—!?'") == []
    assert tokenize("x" * 500) == ["x" * MAX_TOKEN_CHARS]
    assert tokenize(" ".join(sorted(STOP_WORDS))) == []
    assert not {"us", "may"} & STOP_WORDS


def test_tokens_from_many_threads_are_the_same():
    from concurrent.futures import ThreadPoolExecutor

    texts = [f"running {i} bridges nationally {i % 7}" for i in range(300)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenize, texts)) == list(map(tokenize, texts))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.text(max_size=200))
def test_tokens_of_any_text(text):
    tokens = tokenize(text)
    assert all(token and not token.isspace() and len(token) <= MAX_TOKEN_CHARS for token in tokens)
    assert tokenize(text.upper().lower()) == tokenize(text.upper())
