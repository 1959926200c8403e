"""Large knowledge bases: every part that works on columns beside the plain way, and how much memory a build takes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_rag
from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.names import standin_text
from gpu_rag.index.knowledge_base.tables import KB_TEXTS
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.stages.knowledge_base import columns as kb_columns
from gpu_rag.index.stages.knowledge_base import edges as kb_edges
from gpu_rag.index.stages.knowledge_base.columns import Interner, lists_of, single_spaced
from gpu_rag.index.stages.knowledge_base.nodes import _own_ids
from gpu_rag.index.stages.knowledge_base.texts import Surroundings, _side
from gpu_rag.index.tables import TableWriter
from gpu_rag.sources.lines import Line, LineBlock, _decoded, read_line_blocks, read_lines
from gpu_rag.sources.rows import Limits
from gpu_rag.types import Reject

few = settings(max_examples=40, deadline=None)
SETTINGS = {"models": {"embedder": "hash", "llm": "none"}}
WORDS = st.sampled_from(["a", "b", "Ada", "É", "a ", "", "日本"])


def text(values: list[str]) -> pa.LargeStringArray:
    return pa.array(values, pa.large_string())


@few
@given(st.lists(st.lists(WORDS, max_size=6), max_size=6), st.integers(0, 4))
def test_strings_are_numbered_as_a_dictionary_numbers_them(columns, pending):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kb_columns, "_MIN_PENDING", pending)  # joined now and then, as large ones are
        interner = Interner()
        for column in columns:
            interner.add(text(column))
        strings, codes = interner.finish()
    numbers: dict[str, int] = {}
    expected = [[numbers.setdefault(value, len(numbers)) for value in column] for column in columns]
    assert ([part.tolist() for part in codes], strings.to_pylist()) == (expected, list(numbers))


@few
@given(st.lists(st.tuples(st.integers(0, 3), WORDS), max_size=12), st.sampled_from([None, 1, 2]))
def test_lists_hold_each_value_of_a_row_once_in_order(pairs, most):
    pairs.sort(key=lambda pair: pair[0])
    found = lists_of(np.array([row for row, _ in pairs], np.int64), text([value for _, value in pairs]), 5, most)
    assert found.to_pylist() == [
        list(dict.fromkeys(value for row, value in pairs if row == wanted))[:most] for wanted in range(5)
    ]


@given(st.lists(st.text(" \t\n\x1c\x85\xa0\u2003\u3000aé", max_size=5)))
def test_white_space_becomes_single_spaces(values):
    assert single_spaced(text(values)).to_pylist() == [" ".join(value.split()) for value in values]


@few
@given(st.lists(st.tuples(st.sampled_from(["x", "y", "b:x", "b:b:x", "c:y"]), st.integers(0, 2)), max_size=9))
def test_ids_that_are_taken_name_their_source_as_if_given_in_turn(records):
    records.sort(key=lambda record: record[1])
    ids, source = text([id for id, _ in records]), np.array([number for _, number in records], np.int32)
    taken: list[str] = []
    for id, number in records:
        while id in taken:
            id = f"{'abc'[number]}:{id}"
        taken.append(id)
    assert _own_ids(ids, source, ["a", "b", "c"]).to_pylist() == taken


LINES = st.lists(st.sampled_from([b"a\tb", b"", b" \t", b"\r", b"x\r\r", b"\xff", b"long " * 4, b"\0", "é".encode()]))


@few
@given(LINES, st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.integers(1, 40))
def test_blocks_of_lines_are_the_lines(tmp_path_factory, lines, end, ends, size):
    path = tmp_path_factory.mktemp("l") / "a.txt"
    path.write_bytes(end.join(lines) + (end if ends else b""))
    limits = Limits(max_line_bytes=12)
    found: list[Line | Reject] = []
    for block in read_line_blocks(path, limits, size):
        assert isinstance(block, LineBlock)
        found += sorted([*map(block.line, range(len(block.start))), *block.rejects], key=number_of)
        for row, alone in enumerate(block.alone):
            assert alone or b"\0" not in block.data[block.start[row] : block.end[row]]
    assert found == list(read_lines(path, limits)) == list(lines_one_by_one(path, limits))


def lines_one_by_one(path: Path, limits: Limits) -> Iterator[Line | Reject]:
    """The plain reference of the readers of lines."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if len(data.rstrip(b"\n")) > limits.max_line_bytes:
                yield Reject(str(path), number, f"the line is longer than max_line_bytes = {limits.max_line_bytes}")
            elif not data.isspace():
                yield _decoded(path, number, data)


def number_of(line: Line | Reject) -> int:
    return line.number if isinstance(line, Line) else line.line


@few
@given(st.lists(st.integers(0, 9), max_size=8))
def test_a_table_in_parts_has_the_bytes_of_the_whole(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_rag.index.tables.ROWS_A_GROUP", 4)
        with TableWriter(folder / "parts", KB_TEXTS) as writer:
            for size in sizes:
                writer.add([np.arange(size, dtype=np.int32), [f"text {row % 3}" for row in range(size)]])
        rows = [row for size in sizes for row in range(size)]
        tables.write_table(folder / "whole", KB_TEXTS, {"node": rows, "text": [f"text {row % 3}" for row in rows]})
    assert (folder / "parts").read_bytes() == (folder / "whole").read_bytes()


EDGES = st.lists(st.tuples(*[st.integers(0, n) for n in (3, 14, 8)]), max_size=60)


@few
@given(EDGES, st.lists(WORDS, min_size=9, max_size=9))
def test_what_stands_in_shows_is_what_all_edges_would_show(edges, names):
    relations = [f"r{row // 2}" for row in range(15)]  # two relations in the same words
    edges = sorted(set(edges))
    head, relation, tail = np.array(edges, np.int32).reshape(-1, 3).T
    kinds, codes = (np.unique(values, return_inverse=True) for values in (relations, names))
    kind = kinds[1][relation].astype(np.int32)
    sides = _side(head, kind, tail, 9), _side(tail, kind, head, 9)
    around = Surroundings(pa.chunked_array([text(names)]), codes[1].astype(np.int32), kinds[0].tolist(), *sides)
    beside = around.pairs(np.arange(9))
    for node in range(9):
        out = [(relations[r], names[t]) for h, r, t in edges if h == node]
        into = [(relations[r], names[h]) for h, r, t in edges if t == node]
        assert standin_text("N", "t", *beside[node]) == standin_text("N", "t", out, into)


def triples(n: int, seed: int = 0) -> Iterator[str]:
    random = np.random.default_rng(seed)
    for head, relation, tail in random.integers(0, (n // 4, 9, n // 4), (n, 3)).tolist():
        yield f"m.{head:x}\tpeople.relation_{relation}\tm.{tail:x}\n"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "kg.tsv"
    path.write_text("".join(triples(3000)))
    return path


def test_edges_sorted_a_stretch_at_a_time_are_the_same_edges(tmp_path, graph, monkeypatch):
    gpu_rag.build((), tmp_path / "one", kg=graph, settings=SETTINGS)
    monkeypatch.setattr(kb_edges, "_AT_ONCE", 100)
    monkeypatch.setattr(kb_edges, "_KEY_BITS", 20)  # too few for one number an edge
    gpu_rag.build((), tmp_path / "parts", kg=graph, settings=SETTINGS)
    assert Manifest.read(tmp_path / "one").digest() == Manifest.read(tmp_path / "parts").digest()


CHILD = """
import sys
from pathlib import Path
import gpu_rag
from gpu_rag.index.memory import watched_memory
folder, settings = Path(sys.argv[1]), {"models": {"embedder": "hash", "llm": "none"}}
gpu_rag.build((), folder / "small-ix", kg=folder / "small.tsv", settings=settings)  # loads what is loaded on first use
with watched_memory() as peak_memory_bytes:
    before = peak_memory_bytes()
    gpu_rag.build((), folder / "large-ix", kg=folder / "large.tsv", settings=settings)
    print(peak_memory_bytes() - before)
"""


@pytest.mark.parametrize(
    ("n", "most"), [(200_000, 130 << 20), pytest.param(1_000_000, 260 << 20, marks=pytest.mark.slow)]
)
def test_memory_of_a_build_is_bounded(tmp_path, n, most):
    """The small graph took 80 to 90 MB, the large one 203; as Python objects the small one's triples would take 180."""
    (tmp_path / "small.tsv").write_text("a\tr\tb\n")
    with (tmp_path / "large.tsv").open("w") as file:
        for seed in range(n // 200_000):
            file.writelines(triples(200_000, seed))
    child = [sys.executable, "-c", CHILD, str(tmp_path)]
    found = subprocess.run(child, check=True, capture_output=True, text=True).stdout
    assert 0 < int(found.split()[-1]) < most
