"""The size of the blocks of a file changes nothing that is read, counted or written."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_rag
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.stages.knowledge_base.read import read_source
from gpu_rag.index.work import NamedSource
from gpu_rag.sources.knowledge_graph import read_kg_blocks
from gpu_rag.sources.lines import LineBlock, read_line_blocks
from gpu_rag.sources.rows import Limits
from gpu_rag.types import Reject

few = settings(max_examples=60, deadline=None)
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 5), st.integers(1, 5))  # bytes, lines, rows
LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
FIELDS = ["Ada", "Bern", "É", "日本", " b", "a  b", "", " ", "\u3000", "x\r", "\x00", "c" * 1001]
TSV = [
    *(f"{head}\tnear\t{tail}" for head in FIELDS for tail in ("Ada", "Thun")),
    "head\trelation\ttail", "Ada\tknows\tBo\tby hand", "Ada\tknows\tBo\t ", "two\tfields", "", " \t ",
    "\ufeffAda\tis\tO",
]  # fmt: skip
NT = [
    "<http://x/a> <http://x/p> <http://x/b> .",
    "<http://x/b> <http://x/p> _:n .",
    f'<http://x/a> <{LABEL}> "Ada"@de .',
    f'<http://x/a> <{LABEL}> "Ada L."@en .',
    f'<http://x/a> <{LABEL}> "A\\u0064a" .',
    f'<http://x/p> <{LABEL}> "stands by" .',
    f"<http://x/a> <{TYPE}> <http://x/Person> .",
    f"<http://x/a> <{TYPE}> _:t .",
    f'<http://x/Person> <{LABEL}> "person" .',
    f'_:n <{LABEL}> " " .',
    '<http://x/a> <http://x/age> "7"^^<http://www.w3.org/2001/XMLSchema#int> .\r',
    "# said",
    "no statement",
]


@contextmanager
def blocks_of(n_bytes: int, n_lines: int, n_rows: int) -> Iterator[None]:
    """Everything that is read or joined at a time is so small."""
    with pytest.MonkeyPatch.context() as patch:
        small = partial(read_line_blocks, block_bytes=n_bytes, block_lines=n_lines)
        patch.setattr("gpu_rag.sources.knowledge_graph.blocks.read_line_blocks", small)
        patch.setattr("gpu_rag.sources.parquet.BATCH_ROWS", n_rows)
        patch.setattr("gpu_rag.sources.knowledge_graph.blocks._TABLE_BYTES", 1)
        patch.setattr("gpu_rag.sources.knowledge_graph.blocks._ROWS", n_rows)
        patch.setattr("gpu_rag.sources.knowledge_base.stark._EDGES", n_rows)
        patch.setattr("gpu_rag.index.stages.knowledge_base.read._NODES", n_rows)
        patch.setattr("gpu_rag.index.stages.knowledge_base.read._MIN_LOOKED_UP", n_rows)
        patch.setattr("gpu_rag.index.stages.knowledge_base.columns._MIN_PENDING", n_rows)
        yield


def what_is_read(source: NamedSource) -> dict[str, Any]:
    """Everything of a source, as plain values."""
    rejects: list[Reject] = []
    found = read_source(source, rejects.append, 1000)
    columns = {name: getattr(found, name).to_pylist() for name in ("ids", "names", "aliases", "types")}
    edges = {name: getattr(found.edges, name).tolist() for name in ("head", "relation", "tail", "line")}
    notes = None if found.edges.note is None else found.edges.note.to_pylist()
    return {**columns, **edges, "notes": notes, "relations": found.relations, "rejects": rejects}


def check_sizes(source: NamedSource, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """The tables of a source, which are equal in blocks of these sizes."""
    expected = what_is_read(source)
    with blocks_of(*sizes):
        assert what_is_read(source) == expected
    return expected


def lines_of(pool: list[str]) -> st.SearchStrategy[bytes]:
    """A file of lines of a pool, some of them no UTF-8, with or without an end behind the last."""
    line = st.one_of(st.sampled_from([text.encode() for text in pool]), st.just(b"\xff\tr\tb"))
    return st.tuples(st.lists(line, max_size=14), st.sampled_from([b"\n", b"\r\n"]), st.sampled_from([b"", b"\n"])).map(
        lambda drawn: drawn[1].join(drawn[0]) + drawn[2]
    )


@few
@given(st.one_of(lines_of(TSV).map(lambda raw: ("a.tsv", raw)), lines_of(NT).map(lambda raw: ("a.nt", raw))), SIZES)
def test_triples_of_text(tmp_path_factory, given, sizes):
    name, raw = given
    path = tmp_path_factory.mktemp("k") / name
    path.write_bytes(raw)
    check_sizes(NamedSource("a", "kg", path), sizes)


@few
@given(st.lists(st.tuples(*[st.sampled_from([*FIELDS, None])] * 4), max_size=12), SIZES)
def test_triples_of_tables(tmp_path_factory, rows, sizes):
    path = tmp_path_factory.mktemp("p") / "a.parquet"
    columns = ("head", "relation", "tail", "provenance")
    pq.write_table(
        pa.table({name: pa.array([r[k] for r in rows], pa.string()) for k, name in enumerate(columns)}), path
    )
    check_sizes(NamedSource("a", "kg", path), sizes)


END = st.sampled_from(["n0", "n1", "n2", "lost", " "])


@few
@given(st.lists(st.tuples(END, END), max_size=12), st.sampled_from(["edges.tsv", "edges.jsonl"]), SIZES)
def test_edges_between_nodes(tmp_path_factory, ends, name, sizes):
    folder = tmp_path_factory.mktemp("s")
    (folder / "nodes.tsv").write_text("n2\tt\tTwo\nn0\tt\tNull\nn1\t\tOne\nn0\tt\tagain\n")
    rows = [{"src": head, "relation": "r", "dst": tail} for head, tail in ends]
    lines = ["\t".join(row.values()) if name == "edges.tsv" else json.dumps(row) for row in rows]
    (folder / name).write_text("".join(f"{line}\n" for line in [*lines, "bad"]))
    expected = check_sizes(NamedSource("s", "skb", folder), sizes)
    assert [r.line for r in expected["rejects"]] == [4, *sorted(r.line for r in expected["rejects"][1:])]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (40, 3, 2), (200, 1000, 5)])
def test_the_digest(tmp_path, sizes):
    """An index of all kinds of files, with labels behind what they name and rows that cannot be used."""
    (tmp_path / "one.tsv").write_text("".join(f"{line}\n" for line in TSV) * 2, encoding="utf-8")
    (tmp_path / "two.nt").write_text("".join(f"{line}\n" for line in NT) * 2)
    (tmp_path / "med").mkdir()
    (tmp_path / "med/nodes.tsv").write_text("".join(f"d{k}\tdrug\tDrug {k}\tIt is {k}.\n" for k in (3, 1, 2)))
    (tmp_path / "med/edges.tsv").write_text("d3\tlike\td1\nd1\tlike\tlost\nd2\tlike\td3\n")
    given = {"kg": [tmp_path / "one.tsv", tmp_path / "two.nt"], "skb": tmp_path / "med"}
    chosen = {"models": {"embedder": "hash", "llm": "none"}}
    gpu_rag.build((), tmp_path / "whole", settings=chosen, **given)
    with blocks_of(*sizes):
        gpu_rag.build((), tmp_path / "parts", settings=chosen, **given)
    whole, parts = (Manifest.read(tmp_path / name) for name in ("whole", "parts"))
    assert parts.stages["kb"].counts == whole.stages["kb"].counts and whole.stages["kb"].counts["rejects"] > 20
    assert parts.digest() == whole.digest()
    rejects = [next((tmp_path / name).glob("stages/*kb-*/rejects.jsonl")).read_text() for name in ("whole", "parts")]
    assert rejects[0] == rejects[1]


def test_a_block_holds_no_more_lines_than_it_may(tmp_path):
    """4 MiB of lines of one letter are two million rejects."""
    (tmp_path / "a.tsv").write_bytes(b"x\n" * 200_000 + b"a\tr\tb")
    blocks = list(read_kg_blocks(tmp_path / "a.tsv"))
    assert max(len(block.rejects) + block.n for block in blocks) == 1 << 16
    assert sum(len(block.rejects) for block in blocks) == 200_000 and blocks[-1].line.tolist() == [200_001]


def test_returns_that_are_not_the_end_of_a_line_cost_no_more_than_other_bytes(tmp_path, takes_linear_time):
    def work(n):
        (tmp_path / "a.tsv").write_bytes(b"\r" * n + b"\na" + b"\r" * n + b"\n")
        (block,) = read_line_blocks(tmp_path / "a.tsv", Limits(), 16 << 20)
        assert isinstance(block, LineBlock) and [block.line(row).text for row in range(len(block.start))] == ["a"]

    takes_linear_time(work, 4 << 20)
