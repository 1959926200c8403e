"""BM25 parameters, damaged files and tokens; scores, order and files by definition: tests/oracle/test_bm25.py."""

import json
import shutil

import numpy as np
import pyarrow as pa
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


def test_bad_parameters():
    for k1, b in ((0, 0.5), (-1, 0.5), (float("nan"), 0.5), (1.2, -0.1), (1.2, 1.1), (float("inf"), 0.5)):
        with pytest.raises(BadInput, match="k1"):
            Bm25.build(TEXTS, k1=k1, b=b)
    with pytest.raises(BadInput, match="k=0"):
        Bm25.build(TEXTS).search(["brass"], 0)


def test_parts_of_words_sum_to_the_scores_of_any_rows():
    index, rows = Bm25.build(TEXTS), np.array([5, 0, 3, 2])
    query = "brass unheard-of lantern brass bell"
    parts = index.parts(query, rows)
    assert parts.shape == (4, 4)  # a word counts as often as the query has it
    assert parts.sum(0) == pytest.approx(index.scores(query)[rows])
    assert (parts[0] == index.scores("brass")[rows]).all() and (parts[3] > 0).tolist() == [True, False, False, True]
    fewer = index.part(np.array([0, 4]))  # "bell" has no passage here
    assert fewer.parts("bell brass", np.array([1, 0])).tolist() == [[0, 0], [0, fewer.scores("brass")[0]]]
    assert index.parts("unheard-of", rows).shape == (0, 4)


def test_an_empty_index_round_trips(tmp_path):
    Bm25.build([]).save(tmp_path)
    assert Bm25.load(tmp_path).search(["brass"], 2)[0].tolist() == [[-1, -1]]


def change(**keys):
    def edit(folder):
        path = folder / VOCABULARY_FILE
        with pa.CompressedInputStream(str(path), "zstd") as file:
            content = json.loads(file.read())
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(json.dumps({**content, **keys}).encode())

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
        (change(format=1), IndexMismatch),
        (change(tokens_version=0), IndexMismatch),
        (change(tokens=["brass"]), IndexCorrupt),
        (change(tokens=["vell", "brass"]), IndexCorrupt),
        (change(tokens=[1]), IndexCorrupt),
        (change(n="6"), IndexCorrupt),
        (change(n=2), IndexCorrupt),
        (swap_arrays("frequency", lambda a: a.astype(np.float64)), IndexCorrupt),
        (swap_arrays("frequency", lambda a: a - 1), IndexCorrupt),
        (swap_arrays("frequency", lambda a: a[:-1].copy()), IndexCorrupt),
        (swap_arrays("lengths", lambda a: a + 1), IndexCorrupt),
        (swap_arrays("lengths", lambda a: a[:-1].copy()), IndexCorrupt),
        (swap_arrays("indices", lambda a: a - 1), IndexCorrupt),
        (swap_arrays("counts", lambda a: a + 1), IndexCorrupt),
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
