"""RDF in all its forms: one graph gives one index, and files made to harm cost one Reject."""

import gzip
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kb_rows import rows_of
from pyoxigraph import RdfFormat, parse, serialize

import gpu_rag
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.index.manifest import Manifest
from gpu_rag.sources.knowledge_graph import rdf, read_kg_blocks
from gpu_rag.sources.knowledge_graph.triples import Triple
from gpu_rag.sources.rows import Limits
from gpu_rag.types import Reject

LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
GRAPH = f"""\
<http://x/ada> <{LABEL}> "Ada \\"L.\\" é\\t\\n\\\\ 🌊"@en-GB .
<http://x/ada> <{LABEL}> "Ada"@de .
<http://x/ada> <{TYPE}> <http://x/Person> .
<http://x/ada> <http://x/born> "1815"^^<http://www.w3.org/2001/XMLSchema#gYear> .
<http://x/ada> <http://x/note> "a plain text" .
<http://x/ada> <http://x/knows> _:babbage .
_:babbage <{LABEL}> "Charles Babbage" .
_:babbage <http://x/knows> <http://x/ada> .
<http://x/Person> <{LABEL}> "person" .
"""
FORMS = {
    ".nt": RdfFormat.N_TRIPLES,
    ".nq": RdfFormat.N_QUADS,
    ".ttl": RdfFormat.TURTLE,
    ".trig": RdfFormat.TRIG,
    ".rdf": RdfFormat.RDF_XML,
    ".owl": RdfFormat.RDF_XML,
    ".xml": RdfFormat.RDF_XML,
    ".jsonld": RdfFormat.JSON_LD,
}
CHOSEN = {"models": {"embedder": "hash", "llm": "none"}}
ROOT = '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:e="http://e/">'
NODE = '<rdf:Description rdf:about="http://a"><e:p>1</e:p></rdf:Description>'


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(path: Path, **limits: int) -> tuple[list[Triple], list[Reject]]:
    rows: list[Any] = [row for block in read_kg_blocks(path, Limits(**limits)) for row in rows_of(block)]
    return [row for row in rows if isinstance(row, Triple)], [row for row in rows if isinstance(row, Reject)]


def statements(path: Path) -> set[tuple[str, str, str, str]]:
    found, rejects = read(path)
    assert not rejects and [triple.line for triple in found] == list(range(1, len(found) + 1))
    return {(triple.head, triple.relation, triple.tail, triple.note) for triple in found}


def written(suffix: str) -> bytes:
    """The graph in one of the forms."""
    triples = (quad.triple for quad in parse(GRAPH, RdfFormat.N_TRIPLES))
    return serialize(triples, format=FORMS[suffix]) or b""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("suffix", FORMS)
def test_a_graph_is_the_same_in_every_form(tmp_path, suffix, packed):
    expected = statements(put(tmp_path / "expected.nt", GRAPH))
    assert len(expected) == 9
    raw = written(suffix)
    name = f"a{suffix}.gz" if packed else f"a{suffix.upper()}"
    assert statements(put(tmp_path / name, gzip.compress(raw) if packed else raw)) == expected
    if suffix not in (".nt", ".nq") and not packed:  # marks of lines are looked at as in other files of lines
        assert statements(put(tmp_path / f"bom{suffix}", b"\xef\xbb\xbf" + raw)) == expected


def test_a_graph_gives_the_same_index_in_every_form(tmp_path):
    """With statements in one order, the tables of the knowledge base are equal but for the name of the file."""
    tables = {}
    for suffix in (".nt", ".nq", ".ttl", ".rdf", ".jsonld"):
        (tmp_path / suffix).mkdir()
        source = f"g=kg:{put(tmp_path / suffix / f'g{suffix}', written(suffix))}"
        gpu_rag.build((), tmp_path / suffix / "ix", settings=CHOSEN, sources=[source])
        index = gpu_rag.Index.open(tmp_path / suffix / "ix")
        kb = index.loaded("kb", load_kb)
        nodes = sorted(
            zip(kb.node_ids, kb.node_names, map(tuple, kb.node_aliases), (kb.type_names[t] for t in kb.node_type))
        )
        tables[suffix] = nodes, sorted(kb.triple(edge)[:3] for edge in range(kb.n_edges))
        assert Manifest.read(tmp_path / suffix / "ix").stages["kb"].counts["rejects"] == 0
    nodes, edges = tables[".nt"]
    assert ("_:babbage@g", "Charles Babbage") in {node[:2] for node in nodes}
    assert len(edges) == 4 and all(table == tables[".nt"] for table in tables.values())


def test_names_of_graphs_are_provenance(tmp_path):
    quads = '<http://a> <http://p> "1" <http://g/one> .\n<http://a> <http://p> "2" .\n<http://a> <http://p> "3" _:g .\n'
    trig = '<http://g/one> { <http://a> <http://p> "1" } { <http://a> <http://p> "2" } [] { <http://a> <http://p> "3" }'
    expected = [("http://a", f'"{n}"', note) for n, note in ((1, "http://g/one"), (2, ""), (3, ""))]
    for path in (put(tmp_path / "a.nq", quads), put(tmp_path / "a.trig", trig)):
        found, rejects = read(path)
        assert [(triple.head, triple.tail, triple.note) for triple in found] == expected and not rejects
    gpu_rag.build((), tmp_path / "ix", kg=tmp_path / "a.nq", settings=CHOSEN)
    kb = gpu_rag.Index.open(tmp_path / "ix").loaded("kb", load_kb)
    shown = {kb.triple(edge)[3] for edge in range(3)}
    assert shown == {"a.nq:1 (http://g/one)", "a.nq:2", "a.nq:3"}


def test_blank_nodes_without_a_label_have_the_same_names_each_time(tmp_path):
    text = "@prefix e: <http://e/> . e:a e:p [ e:q ( 1 [] ) ] . _:named e:p [] ."
    path = put(tmp_path / "a.ttl", text)
    first, second = read(path), read(path)
    assert first == second and not first[1]
    labels = {id for triple in first[0] for id in (triple.head, triple.tail) if id.startswith("_:")}
    assert labels == {"_:named", *(f"_:.{n}" for n in range(1, 6))}
    for name, raw in {
        "a.rdf": f'{ROOT}<e:T rdf:about="http://a"><e:p rdf:parseType="Resource"><e:q>1</e:q></e:p></e:T></rdf:RDF>',
        "a.jsonld": '{"@id":"http://a","http://e/p":{"http://e/q":"1"}}',
    }.items():
        found = read(put(tmp_path / name, raw))[0]
        assert {triple.head for triple in found} == {"http://a", "_:.1"} and found == read(tmp_path / name)[0]


def test_relative_iris_are_taken_from_the_name_of_the_file(tmp_path):
    ttl, jsonld = "<#a> <http://p> <b> .", '{"@id":"#a","http://p":{"@id":"b"}}'
    rdf_xml = f'{ROOT}<rdf:Description rdf:about="#a"><e:p rdf:resource="b"/></rdf:Description></rdf:RDF>'
    for name, raw in {"k b.ttl": ttl, "k b.jsonld": jsonld, "k b.rdf": rdf_xml}.items():
        (triple,), rejects = read(put(tmp_path / name, raw))
        assert (triple.head, triple.tail, rejects) == (f"file:///{name.replace(' ', '%20')}#a", "file:///b", [])


def test_a_bad_line_of_nquads_costs_no_other_line(tmp_path):
    bad = ["broken", '<http://a> <http://p> "open .', "<http://a> <http://p> <b> .", "<http://a> <http://p> \xff ."]
    lines = [f'<http://a> <http://p> "{n}" <http://g> .\n{bad[n % 4]}\n'.encode("latin-1") for n in range(40)]
    found, rejects = read(put(tmp_path / "a.nq", b"".join(lines)))
    assert [triple.line for triple in found] == list(range(1, 80, 2))
    assert [reject.line for reject in rejects] == list(range(2, 81, 2))


BROKEN = {
    "a.ttl": ('<http://a> <http://p> "1" .\n<http://a> x:p "2" .\n<http://a> <http://p> "3" .', 1, 2, "x:"),
    "b.ttl": ('<http://a> <http://p> "1" .\n<http://a> <http://p> "2', 1, 2, "end"),
    "a.trig": ('<http://a> <http://p> "1" .\n<http://g> { <http://a> <http://p> ', 1, 2, "nd"),
    "a.rdf": (f"{ROOT}\n{NODE}\n<e:T>", 2, 3, "line 3"),
    "b.rdf": (f"{ROOT}\n{NODE}\n<e:T></e:S></rdf:RDF>", 2, 3, "mismatched tag: line 3"),
    "c.rdf": (f"{ROOT}\n{NODE}\n", 1, 2, "line 3"),  # cut off between elements
    "d.rdf": ("<!doctype html><html><body>Not found</body></html>", 0, 0, "broken"),
    "e.rdf": ("", 0, 0, "broken"),
    "a.jsonld": ('[{"@id":"http://a","http://p":"1"},\n,{}]', 1, 2, "line 2"),
    "b.jsonld": ('[{"@id":"http://a","http://p":"1"}', 1, 1, "array"),
    "f.rdf": (f"{ROOT}{NODE}</rdf:RDF>".encode("utf-16"), 0, 0, "UTF-16"),
    "c.ttl": ('<http://a> <http://p> "1" .\n<http://a> <http://p> "ÿ" .'.encode("latin-1"), 1, 2, "UTF-8"),
    "d.ttl.gz": (gzip.compress(b'<http://a> <http://p> "1" .\n' * 2000)[:-20], None, None, "gzip"),
    "e.ttl": (gzip.compress(b'<http://a> <http://p> "1" .\n'), 0, 0, "gzip"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_document_keeps_the_statements_before_and_is_one_reject(tmp_path, name):
    raw, n_read, line, reason = BROKEN[name]
    found, (reject,) = read(put(tmp_path / name, raw))
    assert n_read is None or (len(found), reject.line) == (n_read, line)
    assert reason in reject.reason and "what follows in this file is not read" in reject.reason


def test_bad_iris_and_long_or_empty_values_cost_their_statement_alone(tmp_path):
    rows = [
        "<http://a> <http://p> <http://c d> .",
        f'<http://a> <http://p> "{"x" * 1001}" .',
        '<http://a> <http://p> "\\u0000" .',
    ]
    rows += ["<http://a> <http://p> <<( <http://a> <http://p> 1 )>> .", f'<http://a> <http://p> "{"é" * 1000}" .']
    found, rejects = read(put(tmp_path / "a.ttl", "\n".join(rows)))
    assert [len(triple.tail) for triple in found] == [1002] and [reject.line for reject in rejects] == [1, 2, 3, 4]
    reasons = ("no absolute IRI", "literal has 1001", "NUL", "is a statement")
    assert all(word in reject.reason for word, reject in zip(reasons, rejects, strict=True))


DOCTYPE = (
    "<!DOCTYPE rdf:RDF [<!ENTITY {}>]>"
    + f'{ROOT}<rdf:Description rdf:about="http://a"><e:p>&x;</e:p></rdf:Description></rdf:RDF>'
)
OUTSIDE = {
    "a.rdf": DOCTYPE.format('x "some text"'),
    "b.rdf": DOCTYPE.format('x SYSTEM "file:///etc/hostname"'),
    "c.rdf": DOCTYPE.format('% x SYSTEM "http://127.0.0.1/x"> %x; <!ENTITY x "y"'),
    "a.jsonld": '{"@context":"http://127.0.0.1/context","@id":"http://a","name":"x"}',
    "b.jsonld": '{"@context":["file:///etc/hostname",{"name":"http://name"}],"@id":"http://a","name":"x"}',
    "c.jsonld": '{"@context":{"@version":1.1,"@import":"context.json"},"@id":"http://a","http://p":"x"}',
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_is_fetched_and_no_entity_is_expanded(tmp_path, monkeypatch, name):
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    put(tmp_path / "context.json", '{"@context":{"name":"http://name"}}')
    found, (reject,) = read(put(tmp_path / name, OUTSIDE[name]))
    assert not found and ("entities" in reject.reason or "context" in reject.reason.lower())


def nested(begin: str, unit: str, n: int) -> str:
    return begin + unit * n


HARMFUL = {
    "a.ttl": (nested("<http://a> <http://p> ", "[ <http://p> ", 300_000), "end"),
    "b.ttl": (nested("<http://a> <http://p> ", "( ", 30_000), "open at once"),
    "c.ttl": (nested('<http://a> <http://p> """', "x" * 1000, 20_000), "too long"),
    "d.ttl": (nested("", " " * 1000, 2_000), "max_line_bytes"),
    "a.rdf": (nested(ROOT, "<e:a><e:b>", 5_000), "elements are open"),
    "b.rdf": (nested(f"{ROOT}<e:a ", "e:b='1' ", 200_000), "tag or comment"),
    "c.rdf": (nested(f"{ROOT}<!--", "> <b> x", 200_000), "tag or comment"),
    "d.rdf": (nested(f"{ROOT}<e:a><e:b>", "x" * 1000, 2_000), "max_line_bytes"),
    "a.jsonld": (nested("", "[", 100_000), "stack"),
    "b.jsonld": (
        nested('{"@graph":[{"@id":"http://a"}', ',{"@id":"http://a","http://p":"1"}', 40_000),
        "max_line_bytes",
    ),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_documents_made_to_exhaust_memory_or_time_are_refused(tmp_path, monkeypatch, name):
    raw, reason = HARMFUL[name]
    monkeypatch.setattr(rdf, "MAX_BRACKETS_DEEP", 20_000 if name == "b.ttl" else rdf.MAX_BRACKETS_DEEP)
    limit = 1 << 20 if reason == "max_line_bytes" else 64 << 20
    _, (reject,) = read(put(tmp_path / name, raw), max_line_bytes=limit)
    assert reason in reject.reason, reject


def test_one_word_for_a_long_iri_does_not_fill_the_memory(tmp_path):
    """Statements of three IRIs of 300,000 characters each, of 10 bytes in the file, are written out a few at a time."""
    path = put(tmp_path / "a.ttl", f"@prefix a: <http://{'x' * 300_000}> .\n" + "a: a: a: .\n" * 200)
    n = largest = 0
    for block in read_kg_blocks(path):
        n, largest = n + len(block.rejects), max(largest, len(block.rejects))
    assert n == 200 and largest < 20


def test_json_ld_takes_arrays_of_any_length_and_graphs_up_to_the_limit(tmp_path):
    nodes = [{"@id": f"http://n/{n}", "http://p": "x" * 100} for n in range(20_000)]
    assert len(read(put(tmp_path / "a.jsonld", json.dumps(nodes)), max_line_bytes=1 << 20)[0]) == 20_000
    graph = {"@context": {"p": "http://p"}, "@graph": [{"@id": f"http://n/{n}", "p": {"@id": "#x"}} for n in range(9)]}
    found, rejects = read(put(tmp_path / "b.jsonld", json.dumps(graph)))
    assert [triple.tail for triple in found] == ["file:///b.jsonld#x"] * 9 and not rejects


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".nq", ".ttl", ".rdf", ".jsonld"])  # .nt and .trig are read as these are
def test_a_million_statements_take_less_than_a_gigabyte(tmp_path, suffix):
    """In a process of its own; what is read is counted, and the peak is of the whole process."""
    rows = (f'<http://x/{n % 250_000}> <http://p/{n % 97}> "Value number {n}"@en .\n' for n in range(1_000_000))
    source = put(tmp_path / "all.nt", "".join(rows))
    path = tmp_path / f"a{suffix}"
    with path.open("wb") as stream:
        serialize((quad.triple for quad in parse(path=source)), stream, FORMS[suffix])
    code = (
        "import re, sys; from pathlib import Path; from gpu_rag.index.work import NamedSource;"
        "from gpu_rag.index.stages.knowledge_base.read import read_source;"
        "found = read_source(NamedSource('a', 'kg', Path(sys.argv[1])), print, 1000);"
        # not ru_maxrss: a process begins with that of the one that forked it
        "peak = re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1];"
        "print(found.edges.n, peak)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    n, peak_kb = map(int, done.stdout.split())
    assert n == 1_000_000 and peak_kb < 1 << 20, peak_kb
