"""Files of triples and knowledge bases: what is read, and what becomes a Reject with its line and reason."""

import gzip
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kb_rows import same_edges, same_nodes, same_triples
from pyoxigraph import Literal, NamedNode

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.stages.knowledge_base.rdf import literal_parts
from gpu_rag.sources.knowledge_graph.rdf import statement_of
from gpu_rag.sources.knowledge_graph.triples import Triple
from gpu_rag.sources.lines import Line
from gpu_rag.sources.named import all_sources, named_source
from gpu_rag.sources.rows import RowError
from gpu_rag.types import Reject

XSD = "http://www.w3.org/2001/XMLSchema#"


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def split(rows: Any) -> tuple[list[Any], list[tuple[int, str]]]:
    """(what was read, (line, reason) of each Reject)."""
    found = list(rows)
    return [r for r in found if not isinstance(r, Reject)], [(r.line, r.reason) for r in found if isinstance(r, Reject)]


def test_tsv_rows_header_provenance_and_gzip(tmp_path):
    text = "head\trelation\ttail\nAda\tborn in\tBern\tby hand\n\nA B\tr\tC\r\n"
    expected = [Triple("Ada", "born in", "Bern", 2, "by hand"), Triple("A B", "r", "C", 4)]
    assert split(same_triples(put(tmp_path / "a.tsv", text))) == (expected, [])
    assert split(same_triples(put(tmp_path / "a.tsv.gz", gzip.compress(text.encode())))) == (expected, [])


def test_every_bad_line_of_a_tsv_is_a_reject_and_the_others_are_read(tmp_path):
    lines = ["a\tr", "a\tr\tb\tc\td", "a\t \tb", "\tr\tb", "a\tr\t" + "x" * 1001, "a\x00\tr\tb", "ok\tr\tok"]
    raw = "\n".join(lines).encode() + b"\na\tr\t\xff\n"
    found, rejects = split(same_triples(put(tmp_path / "a.tsv", raw)))
    assert found == [Triple("ok", "r", "ok", 7)]
    assert [line for line, _ in rejects] == [1, 2, 3, 4, 5, 6, 8]
    reasons = ("2 fields", "5 fields", "relation is empty", "head has 0", "tail has 1001", "NUL", "not UTF-8")
    assert all(word in reason for word, (_, reason) in zip(reasons, rejects, strict=True))


def test_a_line_that_is_too_long_and_a_broken_gzip_are_rejects(tmp_path):
    rows = same_triples(put(tmp_path / "a.tsv", "a\tr\tb\n" + "x" * 5000 + "\nc\tr\td\n"), max_line_bytes=100)
    found, rejects = split(rows)
    assert ([t.head for t in found], [line for line, _ in rejects]) == (["a", "c"], [2])
    whole = gzip.compress(b"a\tr\tb\n" * 5000)
    found, rejects = split(same_triples(put(tmp_path / "b.tsv.gz", whole[: len(whole) // 2])))
    assert len(rejects) == 1 and "gzip" in rejects[0][1]


def test_missing_and_unknown_files_are_named_at_once(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        same_triples(tmp_path / "none.tsv")
    with pytest.raises(BadInput, match=r"not known.*\.tsv"):
        same_triples(put(tmp_path / "a.csv", "a,b,c"))


def one(head, relation, tail):
    return Triple(head, relation, tail, 1)


def parsed(line):
    return statement_of(Line(1, line))


def literal_id(text, language=None, datatype=None):
    """A value in canonical N-Triples."""
    kind = {"language": language} if language else {"datatype": NamedNode(datatype)} if datatype else {}
    return str(Literal(text, **kind))


GOOD = {
    "<http://a/b> <http://p> <urn:c> .": one("http://a/b", "http://p", "urn:c"),
    " _:x1.y\t<http://p>_:z. # said": one("_:x1.y", "http://p", "_:z"),
    '<http://a> <http://p> "x" .': one("http://a", "http://p", literal_id("x")),
    '<http://a> <http://p> "é\\u00e9\\U0001F30A\\t\\"\\\\"@en-GB .': one(
        "http://a", "http://p", literal_id('éé🌊\t"\\', "en-gb")
    ),
    f'<http://a> <http://p> "7"^^<{XSD}integer> .': one("http://a", "http://p", literal_id("7", "", f"{XSD}integer")),
    f'<http://a> <http://p> "7"^^<{XSD}string>.': one("http://a", "http://p", literal_id("7")),
    "<http://a/\\u00e9> <http://p> <http://c> .": one("http://a/é", "http://p", "http://c"),
    "<http://a/%zz> <http://p> <http://c:port> .": one("http://a/%zz", "http://p", "http://c:port"),
    "<http://a> <http://p> <http://c> .#": one("http://a", "http://p", "http://c"),
    "# a comment": None,
    "   ": None,
}
BAD = {
    "<http://a> <http://p> <http://c>": "dot",
    "<http://a> <http://p> <http://c> . x": "subject",
    "<http://a> <http://p> <http://c> .\r<http://a> <http://p> <http://d> .": "2 statements",
    "<http://a> <http://p> <http://c> <http://graph> .": "dot",
    "<a> <http://p> <http://c> .": "subject is no absolute IRI",
    "<http://a> _:p <http://c> .": "predicate",
    '"x" <http://p> <http://c> .': "subject",
    "<http://a b> <http://p> <http://c> .": "subject is no absolute IRI",
    "<http://a> <http://p> 'x' .": "column 23",
    '<http://a> <http://p> "x .': "columns 23",
    '<http://a> <http://p> "a\\x" .': "escape",
    '<http://a> <http://p> "\\uD83D" .': "uD83D",
    '<http://a> <http://p> "\\U00110000" .': "U00110000",
    '<http://a> <http://p> "\\u0000" .': "NUL",
    "<http://a/\\u0020> <http://p> <http://c> .": "subject is no absolute IRI",
    '<http://a> <http://p> "x"@ .': "language",
    '<http://a> <http://p> "x"^^<b> .': "datatype is no absolute IRI",
    f"<http://a/{'x' * 1000}> <http://p> <http://c> .": "subject has 1009",
    f'<http://a> <http://p> "{"x" * 1001}" .': "literal has 1001",
    "_:.a <http://p> <http://c> .": "blank node",
    "<http://a> <http://p> .": "object",
    "<http://a> <http://p> <<( <http://a> <http://p> <http://c> )>> .": "object is a statement",
}


@pytest.mark.parametrize("line", GOOD)
def test_ntriples_that_are_right(tmp_path, line):
    assert parsed(line) == GOOD[line]
    read = [GOOD[line]] if GOOD[line] else []
    assert same_triples(put(tmp_path / "a.nt", f"\n{line}\n")) == [replace(triple, line=2) for triple in read]


@pytest.mark.parametrize("line", BAD)
def test_ntriples_that_are_wrong_say_where(tmp_path, line):
    with pytest.raises(RowError, match=re.escape(BAD[line])):
        parsed(line)
    (reject,) = same_triples(put(tmp_path / "a.nt", f"\n{line}\n"))
    assert reject.line == 2 and BAD[line] in reject.reason


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=40), st.booleans())
def test_a_literal_reads_as_what_was_written(text, escaped):
    written = "".join(f"\\U{ord(c):08X}" for c in text) if escaped else literal_id(text)[1:-1]
    found = parsed(f'<urn:a> <urn:p> "{written}" .')
    assert found is not None and found.tail == literal_id(text)
    assert literal_parts(pa.array([found.tail], pa.large_string()))[0].to_pylist() == [text]


def test_every_character_of_a_canonical_line_is_cut_out_as_the_parser_reads_it(tmp_path):
    codes = [*range(1, 0x300), *range(0x1FF0, 0x2100), *range(0xFDC0, 0xFE00), *range(0xFFF0, 0x10010), 0x10FFFF]
    rows = [f"<urn:a> <urn:p> {Literal(chr(code) + '-' + chr(code))} ." for code in codes]
    rows += [row.replace("\\u", "\\U0000") for row in rows]  # the same texts in another form
    found = same_triples(put(tmp_path / "a.nt", "\n".join(rows)))
    assert [triple.tail for triple in found] == [str(Literal(chr(code) + "-" + chr(code))) for code in codes] * 2
    labels = [f"_:x{chr(code)}y <urn:p> _:{chr(code)}x ." for code in codes if chr(code) not in "\r\n"]
    assert same_triples(put(tmp_path / "b.nt", "\n".join(labels)))  # read alike, whether they are labels or not


def test_equal_literals_have_one_id_and_others_another(tmp_path):
    texts = ['"7"', '"7"@en', f'"7"^^<{XSD}integer>', '"\\""', '"\\\\"', f'"7"^^<{XSD}string>', '"\\u0037"', '"7"@EN']
    put(tmp_path / "a.nt", "".join(f"<urn:a> <urn:p> {text} .\n" for text in texts))
    ids = [triple.tail for triple in same_triples(tmp_path / "a.nt")]
    assert len(set(ids)) == 5 and ids[5:] == [ids[0], ids[0], ids[1]]


@pytest.mark.parametrize(
    ("begin", "unit"), [("<", "\\u0041"), ('<urn:a> <urn:p> "\\', "\\\\"), ("_:", "a."), ("", "<urn:a>")]
)
def test_ntriples_made_to_be_slow_are_not(begin, unit, takes_linear_time):
    def work(n):
        with pytest.raises(RowError):
            parsed(begin + unit * (n // len(unit)))

    takes_linear_time(work, 160_000)


@pytest.mark.parametrize("names", [("head", "relation", "tail"), ("subject", "predicate", "object")])
def test_parquet_triples(tmp_path, names):
    columns = {names[0]: ["a", "b", None], names[1]: ["r", "r", "r"], names[2]: [1, 2, 3]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found, rejects = split(same_triples(tmp_path / "a.parquet"))
    assert found == [Triple("a", "r", "1", 1), Triple("b", "r", "2", 2)]
    assert [line for line, _ in rejects] == [3]


def test_parquet_with_other_columns_or_types_is_one_reject(tmp_path):
    pq.write_table(pa.table({"head": ["a"], "tail": ["b"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"head": ["a"], "relation": [1.5], "tail": ["b"]}), tmp_path / "b.parquet")
    put(tmp_path / "c.parquet", b"PAR1")
    for name, word in (("a", "expected head"), ("b", "relation has the type"), ("c", "")):
        found, rejects = split(same_triples(tmp_path / f"{name}.parquet"))
        assert found == [] and len(rejects) == 1 and word in rejects[0][1]


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


NODES = [
    {"id": "n1", "type": "drug", "name": "Aspirin", "text": "A drug.", "aliases": ["ASA"], "other": 1},
    {"id": 2, "type": None, "name": None},
    {"id": "n1", "name": "again"},
    {"name": "no id"},
    {"id": "n3", "type": 7},
    {"id": "n4", "text": " "},
]


def check_nodes(found: list[Any], rejects: list[tuple[int, str]]) -> None:
    assert [(n.id, n.name, n.type, n.text, n.aliases) for n in found] == [
        ("n1", "Aspirin", "drug", "A drug.", ("ASA",)),
        ("2", "2", "entity", "", ()),
        ("n4", "n4", "entity", "", ()),
    ]
    assert [line for line, _ in rejects] == [3, 4, 5] and "line 1" in rejects[0][1]


def test_nodes_of_json_lines(tmp_path):
    put(tmp_path / "nodes.jsonl", lines(NODES))
    put(tmp_path / "edges.jsonl", lines([{"src": "n1", "relation": "treats", "dst": 2}, {"src": "n1", "dst": "n4"}]))
    check_nodes(*split(same_nodes(tmp_path)))
    found, rejects = split(same_edges(tmp_path))
    assert found == [Triple("n1", "treats", "2", 1)] and rejects[0][0] == 2 and "relation" in rejects[0][1]


def test_nodes_of_tables(tmp_path):
    put(tmp_path / "nodes.tsv", "n1\tdrug\tAspirin\tA drug.\n2\t\t\nx\ty\tz\tt\tu\n")
    put(tmp_path / "kg.tsv", "n1\ttreats\t2\n")
    found, rejects = split(same_nodes(tmp_path))
    assert [(n.id, n.type, n.name, n.text) for n in found] == [
        ("n1", "drug", "Aspirin", "A drug."),
        ("2", "entity", "2", ""),
    ]
    assert rejects == [(3, "5 fields; expected id, type, name, text between tabs")]
    put(tmp_path / "nodes.tsv", "name\tid\nAspirin\tn1\n")
    assert [(n.id, n.name) for n in split(same_nodes(tmp_path))[0]] == [("n1", "Aspirin")]
    (tmp_path / "nodes.tsv").unlink()
    table = {"id": [1, 2], "name": ["a", "b"], "aliases": [["x"], None]}
    pq.write_table(pa.table(table), tmp_path / "nodes.parquet")
    assert [(n.id, n.name, n.aliases) for n in split(same_nodes(tmp_path))[0]] == [("1", "a", ("x",)), ("2", "b", ())]


def test_a_text_that_is_too_long_is_a_reject(tmp_path):
    put(tmp_path / "nodes.jsonl", lines([{"id": "a", "text": "x" * 101}, {"id": "b", "text": "x" * 100}]))
    put(tmp_path / "edges.tsv", "")
    found, rejects = split(same_nodes(tmp_path, max_document_chars=100))
    assert [n.id for n in found] == ["b"] and "max_document_chars" in rejects[0][1]


def test_folders_that_are_no_knowledge_base_say_what_is_missing(tmp_path):
    with pytest.raises(BadInput, match="no folder"):
        same_nodes(tmp_path / "none")
    with pytest.raises(BadInput, match="without nodes"):
        same_nodes(tmp_path)
    put(tmp_path / "nodes.jsonl", "")
    with pytest.raises(BadInput, match="without edges"):
        same_edges(tmp_path)
    put(tmp_path / "edges.tsv", "")
    put(tmp_path / "kg.tsv", "")
    with pytest.raises(BadInput, match="edges.tsv and kg.tsv"):
        same_edges(tmp_path)


def put_stark(folder: Path) -> None:
    info = {"0": {"title": "On graphs", "abstract": "Long.", "year": 1999}, "1": {"name": "Ada"}, "2": {"name": 3}}
    put(folder / "node_info.json", json.dumps(info))
    put(folder / "edge_type_dict.json", json.dumps({"0": "writes"}))
    put(folder / "node_type_dict.json", json.dumps({"0": "paper", "1": "author"}))
    np.save(folder / "edge_index.npy", np.array([[1, 1], [0, 2]]))
    np.save(folder / "edge_types.npy", np.array([0, 7]))
    np.save(folder / "node_types.npy", np.array([0, 1, 1]))


def test_starks_layout_in_json_and_numpy(tmp_path):
    put_stark(tmp_path)
    found, rejects = split(same_nodes(tmp_path))
    assert [(n.id, n.name, n.type) for n in found] == [
        ("0", "On graphs", "paper"),
        ("1", "Ada", "author"),
        ("2", "2", "author"),
    ]
    assert (found[0].text, rejects) == ("title: On graphs\nabstract: Long.\nyear: 1999", [])
    found, rejects = split(same_edges(tmp_path))
    assert found == [Triple("1", "writes", "0", 1)] and rejects == [(2, "edge_type_dict.json has no type 7")]


def test_pickles_of_stark_are_refused_unopened(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "opened",))

    put(tmp_path / "node_info.pkl", pickle.dumps(Trap()))
    with pytest.raises(BadInput, match=r"pickles.*json\.dump"):
        same_nodes(tmp_path)
    put_stark(tmp_path)
    np.save(tmp_path / "edge_types.npy", np.array([Trap(), Trap()], dtype=object))
    found, rejects = split(same_edges(tmp_path))
    assert found == [] and "no NumPy array" in rejects[0][1]
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(
    ("file", "content", "word"),
    [
        ("edge_index.npy", b"\x93NUMPY", "no NumPy array"),
        ("edge_types.npy", None, "shape"),
        ("edge_type_dict.json", b"[]", "expected an object"),
        ("edge_type_dict.json", b'{"0": 1.5}', "expected a string"),
    ],
)
def test_broken_files_of_stark_are_one_reject(tmp_path, file, content, word):
    put_stark(tmp_path)
    if content is None:
        np.save(tmp_path / file, np.zeros(3, np.int64))
    else:
        put(tmp_path / file, content)
    found, rejects = split(same_edges(tmp_path))
    assert found == [] and len(rejects) == 1 and word in rejects[0][1]


def test_a_numpy_header_that_promises_more_than_the_file_holds_costs_nothing(tmp_path):
    put_stark(tmp_path)
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1000000000000), }".ljust(117) + b"\n"
    put(tmp_path / "edge_index.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    found, rejects = split(same_edges(tmp_path))
    assert found == [] and "no NumPy array" in rejects[0][1]


def test_sources_are_named_after_their_files_or_as_asked(tmp_path):
    kg, folder = put(tmp_path / "facts.tsv.gz", gzip.compress(b"")), tmp_path / "prime"
    folder.mkdir()
    put(folder / "nodes.jsonl", "")
    put(folder / "edges.tsv", "")
    found = all_sources([kg], [folder], [named_source(f"x=kg:{kg}"), named_source(f"y=kg:{folder}")])
    assert [(s.name, s.kind) for s in found] == [("facts", "kg"), ("prime", "skb"), ("x", "kg"), ("y", "skb")]
    with pytest.raises(BadInput, match=r"taken.*facts"):
        all_sources([kg, kg])
    with pytest.raises(BadInput, match=r"taken.*extraction"):
        all_sources([], [], [named_source(f"extraction=kg:{kg}")])
    with pytest.raises(BadInput, match="does not exist"):
        all_sources([], [], [named_source(f"w=web:{tmp_path / 'none'}")])


@pytest.mark.parametrize("text", ["x", "=kg:a", "a=kg", "a=other:b", "a=kg:", "kg:a", "a,b=kg:y"])
def test_a_source_that_cannot_be_read_shows_the_form(text):
    with pytest.raises(UsageError, match="NAME=kg:PATH"):
        named_source(text)
