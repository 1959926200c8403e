"""Vectors of texts by windows: the same whatever the window, resumed where a run died; texts are made when read."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.index import tables
from gpu_rag.index.stages import search
from gpu_rag.index.stages.search import (
    Known,
    TextRows,
    _windows,
    compose,
    embed_blocks,
    embed_new,
    passage_texts,
    triple_texts,
)
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.models.embed.cache import keys_of
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.settings import Settings

TEXTS = [f"name {i} " + "word " * (i * 7 % 23) for i in range(100)]


class Counting(Silent):
    """Counts what is done."""

    n = 0

    def advance(self, n: int, tokens: int = 0) -> None:
        self.n += n


class Dying(HashEmbedder):
    """Fails at its third call; `asked` are the sizes of its calls."""

    def __init__(self, dies: bool) -> None:
        super().__init__()
        self.dies, self.asked = dies, list[int]()

    def embed(self, texts: Any, on_batch: Any = None) -> np.ndarray:
        self.asked.append(len(texts))
        if self.dies and len(self.asked) == 3:
            raise KeyboardInterrupt
        return super().embed(texts, on_batch)


def work(folder: Path, embedder: HashEmbedder, block: int) -> Work:
    chosen = Settings()
    chosen = replace(chosen, index=replace(chosen.index, block=block))
    models: Any = SimpleNamespace(embedder=lambda: embedder, describe=lambda _: {"dim": embedder.dim})
    return Work(folder, folder / "work", {}, chosen, Sources(), models, Counting(), StageReport())


@pytest.mark.parametrize("block", [8, 33, 100, 1000])
def test_vectors_are_those_of_one_call_whatever_the_window(tmp_path: Path, block: int) -> None:
    expected = HashEmbedder().embed(TEXTS).astype(np.float16)
    made = work(tmp_path, HashEmbedder(), block)
    vectors = embed_blocks(made, TextRows(len(TEXTS), lambda rows: TEXTS[rows]))
    assert vectors.dtype == np.float16 and np.array_equal(vectors, expected)
    assert made.progress.n == len(TEXTS)  # type: ignore[attr-defined]
    assert embed_blocks(made, []).shape == (0, 256)


def test_a_run_that_died_goes_on_at_its_window(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        embed_blocks(work(tmp_path, Dying(True), 30), TEXTS)
    again = Dying(False)
    expected = HashEmbedder().embed(TEXTS).astype(np.float16)
    assert np.array_equal(embed_blocks(work(tmp_path, again, 30), TEXTS), expected) and again.asked == [30, 10]
    other = Dying(False)  # windows of another size are not taken for these
    assert np.array_equal(embed_blocks(work(tmp_path, other, 40), TEXTS), expected) and other.asked == [40, 40, 20]


def test_a_run_that_died_goes_on_without_the_vectors_that_it_knew(tmp_path: Path) -> None:
    """The earlier run's vectors may be gone by then: its windows of new texts begin at the same rows as other texts."""
    expected = HashEmbedder().embed(TEXTS).astype(np.float16)
    known = Known(expected, np.where(np.arange(100) % 2, np.arange(100), -1))
    with pytest.raises(KeyboardInterrupt):
        embed_new(work(tmp_path, Dying(True), 20), TEXTS, known)
    assert np.array_equal(embed_blocks(work(tmp_path, HashEmbedder(), 20), TEXTS), expected)
    again = Dying(False)
    made = embed_new(work(tmp_path, again, 20), TEXTS, known)
    tables.write_arrays(tmp_path / "vectors", {"vectors": made})
    assert np.array_equal(tables.read_arrays(tmp_path / "vectors")["vectors"], expected) and again.asked == [10]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3000).map("x".__mul__), max_size=30), st.integers(1, 8))
def test_windows_hold_every_text_once_and_are_bounded(texts: list[str], most: int) -> None:
    windows = list(_windows(texts, most))
    assert [text for window in windows for text in window] == texts
    for window in windows:
        assert 1 <= len(window) <= most and (len(window) == 1 or sum(map(len, window)) <= 256 * most)


def test_texts_are_made_by_range(tmp_path: Path) -> None:
    rows = [
        {"id": str(i), "doc_id": "d", "title": "T" if i % 2 else "", "text": f"text {i}", "start": 0, "end": 1}
        for i in range(9)
    ]
    tables.write_rows(tmp_path / "passages.parquet", tables.PASSAGES, rows)
    passages = passage_texts(tmp_path)
    assert list(passages) == [f"T\ntext {i}" if i % 2 else f"text {i}" for i in range(9)]
    assert passages[3:5] == ["T\ntext 3", "text 4"] and passages[8] == "text 8" and passages[7:99] == passages[7:]
    names = pa.chunked_array([["a", "b"], ["c"]])
    table = pa.table({"subject": [0, 2, 1], "label": ["x", "y", "z"], "object": [2, 2, 0]})
    assert triple_texts(names, table)[:] == ["a x c", "c y c", "b z a"]
    assert triple_texts(names, table)[1:2] == ["c y c"]


class Drawn(HashEmbedder):
    """A few dimensions, drawn for each text."""

    def __init__(self) -> None:
        super().__init__()
        self.dim = 8

    def embed(self, texts: Any, on_batch: Any = None) -> np.ndarray:
        drawn = [np.random.default_rng(list(text.encode())).normal(size=8) for text in texts]
        return np.array([row / np.linalg.norm(row) for row in drawn], np.float32).reshape(-1, 8)


@pytest.fixture
def few_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "N_FITTED", 60)


LABELS = ["", *("is the " * (i % 4) + f"label {i}" for i in range(10))]  # of 0, 2, 4, 6 and 8 words
RELATIONS = [(i * 7 % 30, LABELS[i % 11], i * 11 % 29) for i in range(300)]
PARTS = pa.chunked_array([[f"name {i}" for i in range(20)], [f"name {i}" for i in range(20, 30)]])


def composed(folder: Path, rows: list[tuple[int, str, int]], block: int = 1000) -> np.ndarray:
    subjects, labels, objects = zip(*rows)
    table = pa.table({"subject": subjects, "label": labels, "object": objects})
    made = work(folder, Drawn(), block)
    tables.write_arrays(folder / "vectors", {"vectors": compose(made, "relations", triple_texts(PARTS, table))})
    return tables.read_arrays(folder / "vectors")["vectors"]


def by_least_squares(rows: list[tuple[int, str, int]]) -> np.ndarray:
    """[X; 1] W = [Y; 0] by numpy, for the relations with the smallest hashes."""
    texts = [f"name {subject} {label} name {object_}" for subject, label, object_ in rows]
    subjects, objects = (Drawn().embed([f"name {row[end]}" for row in rows]) for end in (0, 2))
    means = np.array([Drawn().embed(label.split() or [""]).mean(0) for _, label, _ in rows])
    x = np.concatenate([subjects, means, objects, np.ones((len(rows), 1))], 1).astype(np.float64)
    chosen = sorted(range(len(rows)), key=lambda row: int(keys_of(texts[row : row + 1])[0, 0]))[:60]
    y = Drawn().embed(texts)[chosen]
    left, right = np.concatenate([x[chosen], np.eye(25)]), np.concatenate([y, np.zeros((25, 8))])
    made = x @ np.linalg.lstsq(left, right, rcond=None)[0]
    return made / np.linalg.norm(made, axis=1, keepdims=True)


@pytest.mark.usefixtures("few_are_fitted")
def test_vectors_are_composed_as_least_squares_do(tmp_path: Path) -> None:
    made = composed(tmp_path, RELATIONS)
    assert made.dtype == np.float16 and np.allclose(made, by_least_squares(RELATIONS), atol=2e-3)
    exchanged = [(object_, label, subject) for subject, label, object_ in RELATIONS]  # a plausible wrong version
    assert np.abs(made - composed(tmp_path / "wrong", exchanged)).max() > 0.1


@pytest.mark.usefixtures("few_are_fitted")
def test_composed_vectors_depend_on_no_order_or_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, order = composed(tmp_path, RELATIONS), np.random.default_rng(0).permutation(len(RELATIONS))
    monkeypatch.setattr(tables, "ROWS_A_GROUP", 37)
    made = composed(tmp_path / "again", [RELATIONS[row] for row in order], block=9)
    assert made.tobytes() == expected[order].tobytes()
