"""Columns of names: look-ups against dictionaries, and normal forms against the function for one name."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.index import names
from gpu_rag.index.names import HashedRows, SortedRows, TextColumn, normalised, one_array, rows_of
from gpu_rag.text.normalise import normalise_name

TEXT = st.text(alphabet="aB1 _-.,'()[]#%éßİ²\u00a0“", max_size=8)


@given(st.lists(TEXT, max_size=20))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_names_are_normalised_as_one_by_one(names: list[str]) -> None:
    column = pa.chunked_array([names[:7], names[7:]], pa.string())
    assert normalised(one_array(column)).to_pylist() == [normalise_name(name) for name in names]


@given(st.lists(TEXT, max_size=12), st.lists(TEXT, max_size=12), st.sampled_from([None, lambda text: len(text) // 4]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_hashed_rows_are_the_rows_of_texts(known: list[str], others: list[str], collide: Callable[[str], int]) -> None:
    column, wanted = (pa.array(texts, pa.large_string()) for texts in (known, known[::-1] + others))
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            patch.setattr(names, "hash", collide, raising=False)
        rows = HashedRows(column).of(wanted)
    assert rows.tolist() == rows_of(wanted, column).tolist()


@pytest.mark.parametrize("wrong", [pc.utf8_lower, pc.utf8_trim_whitespace, lambda names: names])
def test_wrong_normal_forms_are_caught(wrong: Callable[[pa.Array], pa.Array]) -> None:
    names = pa.array(["Ann Orlo", " the  Loft, ", "(Ves)", "Straße"], pa.large_string())
    assert normalised(names).to_pylist() == list(map(normalise_name, names.to_pylist())) != wrong(names).to_pylist()


@given(st.sets(TEXT, max_size=20), TEXT, st.sampled_from([1, 4, 64]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_rows_of_sorted_texts_are_those_of_a_dictionary(texts: set[str], other: str, block: int) -> None:
    ordered = sorted(texts)
    rows, known = SortedRows(pa.chunked_array([ordered[:5], ordered[5:]], pa.string())), dict(zip(ordered, range(99)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "_BLOCK", block)
        assert {text: rows[text] for text in rows} == known and len(rows) == len(known)
        assert rows.get(other) == known.get(other) and (other in rows) == (other in known)


def test_a_column_reads_as_a_list() -> None:
    column: TextColumn[str] = TextColumn(pa.chunked_array([["a", "b"], ["c"]]))
    assert column == ["a", "b", "c"] and (column[1], column[-1], column[1:]) == ("b", "c", ["b", "c"])
    assert column != ["a", "b"] and column.index("c") == 2


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("texts", [[], ["", "a", "é", "中文 x", "", "b" * 99, "𝔘"], ["a", None, "b"]])
@pytest.mark.parametrize("first", [0, 2])
def test_entries_of_a_column_are_its_texts(texts: list[str | None], kind: pa.DataType, first: int) -> None:
    column: TextColumn[str | None] = TextColumn(pa.chunked_array([pa.array(texts, kind)]).slice(first))
    expected = texts[first:]
    assert [column[i] for i in range(len(column))] == expected == column[:]
    assert [column[-i - 1] for i in range(len(column))] == expected[::-1]
    with pytest.raises(IndexError):
        column[len(expected)]


def test_the_first_of_equal_names_counts() -> None:
    wanted, names = pa.array(["b", "x", "a"]), pa.array(["b", "a", "b", "a"])
    assert rows_of(wanted, names).tolist() == [0, -1, 1]


@pytest.mark.parametrize("n_chunks", [0, 1, 3])
def test_entries_taken_together_are_those_taken_one_by_one(n_chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [pa.array([f"{chunk}-{i}" for i in range(5)]) for chunk in range(n_chunks)]
    column: TextColumn[str] = TextColumn(pa.chunked_array(chunks, pa.string()))
    rows = np.array([4, 0, 0, 3, 5 * n_chunks - 1] if n_chunks else [], np.int64)
    assert column.take(rows) == [column[row] for row in rows.tolist()]
    lists: TextColumn[list[str]] = TextColumn(pa.chunked_array([[["a"], [], ["b", "c"]]]))
    monkeypatch.setattr(TextColumn, "__getitem__", lambda self, row: pytest.fail("one by one"))
    assert lists.take(np.array([2, 0, 2])) == [["b", "c"], ["a"], ["b", "c"]]


def test_few_answers_are_kept_though_threads_add_some_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_KEPT", 4)
    rows = SortedRows(pa.chunked_array([["a", "b"]]))
    rows._kept.update({str(number): (0, "a") for number in range(5)})  # as two threads leave it
    assert rows["b"] == 1 and len(rows._kept) == 1
