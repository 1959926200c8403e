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
from gpu_rag.index.stages.search import Known, TextRows, _windows, embed_blocks, embed_new, passage_texts, triple_texts
from gpu_rag.index.work import Silent, Sources, StageReport, Work
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
