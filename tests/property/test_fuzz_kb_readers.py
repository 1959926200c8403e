"""The readers of graphs and knowledge bases against thousands of broken files each: no error but ours, no row lost."""

import gzip
import json
import os
import re
from collections import Counter
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broken_files import check_table, lines_from, marked_lines, put, read
from kb_rows import same_edges, same_nodes, same_triples

from gpu_rag.index.stages.knowledge_base.fuse import global_id
from gpu_rag.index.stages.knowledge_base.read import read_source
from gpu_rag.index.work import NamedSource
from gpu_rag.sources.knowledge_graph.triples import HEADERS
from gpu_rag.types import Reject

pytestmark = pytest.mark.slow
N = 500 if os.environ.get("CI") else 10_000

TSV = "head\trelation\ttail\nVell\tlies on\tOrn\nÜnï\tr_1\t🌊\tby hand\nQ1\tp\tQ2\n".encode()
NT = (
    b"# facts\n"
    b'<http://x/Vell> <http://www.w3.org/2000/01/rdf-schema#label> "Vell\\u00e9 \\"q\\""@en-GB .\n'
    b"<http://x/Vell> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <http://x/Town> .\n"
    b"_:b.1 <http://x/p> _:c. # said\n"
    b'<urn:a:b> <http://x/since> "1902"^^<http://www.w3.org/2001/XMLSchema#gYear> .\n'
    b"<http://x/\\u00e9> <http://x/p> <http://x/Vell> .\n"
)
NODES = [
    {"id": "n1", "type": "drug", "name": "Vell", "text": "A drug.", "aliases": ["V", "W"], "other": {"a": 1}},
    {"id": 7, "type": None, "name": "Orn"},
    {"id": "x:🌊"},
]
EDGES = [
    {"src": "n1", "relation": "treats", "dst": 7},
    {"head": "n1", "relation": "in", "tail": "x:🌊", "provenance": "p"},
]
INFO = {"0": {"title": "On graphs", "year": 1999, "of": [{"a": ["b"]}]}, "1": {"name": "Ada", "text": "Who."}}


def held_lines(raw, passed_over):
    """Numbers of the lines that must give something; None where the file cannot be taken apart into lines."""
    marked, lines = marked_lines(raw), raw.split(b"\n")
    return None if marked is None else {number for number in marked if not passed_over(number, lines[number - 1])}


def check_lines(found, raw, passed_over):
    """Each line gives one thing, and only lines do."""
    expected = held_lines(raw, passed_over)
    if expected is None:
        assert len(found) == 1 and found[0].line == 0, (raw, found)
        return
    given = Counter(item.line for item in found)
    assert given.keys() == expected and set(given.values()) <= {1}, (raw, found)


def is_header(number, line):
    fields = tuple(f.strip().lower() for f in line.rstrip(b"\r").decode("utf-8-sig", "replace").split("\t"))
    return number == 1 and fields[:3] in HEADERS and b"\xff" not in line and _decodes(line)


def _decodes(line):
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def is_comment(number, line):
    text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    parts = text.split(b"\r")  # a carriage return alone ends a comment too
    return _decodes(line) and all(re.fullmatch(rb"[ \t]*(#.*)?", part, re.DOTALL) for part in parts)


@pytest.mark.parametrize(
    ("name", "seed", "other", "passed_over"), [("a.tsv", TSV, NT, is_header), ("a.nt", NT, TSV, is_comment)]
)
def test_lines_of_triples(tmp_path, mutator, name, seed, other, passed_over):
    for _ in range(N):
        raw = mutator.raw(seed, [other])
        put(tmp_path / name, raw)
        check_lines(read(same_triples, tmp_path / name), raw, passed_over)


def test_gzip(tmp_path, mutator):
    path = tmp_path / "a.nt.gz"
    for _ in range(N):
        put(path, mutator.raw(gzip.compress(NT, 1)))
        found = read(same_triples, path)
        assert all(isinstance(item, Reject) or item.relation for item in found)


def test_what_was_read_makes_records(tmp_path, mutator):
    """Behind the readers: every triple that was kept becomes an edge between two named records."""
    path = tmp_path / "a.nt"
    for _ in range(N // 4):
        put(path, mutator.raw(NT))
        rejects = []
        found = read_source(NamedSource("a", "kg", path), rejects.append, 1000)
        names, edges = found.names.to_pylist(), found.edges
        for head, relation, tail in zip(edges.head, edges.relation, edges.tail):
            assert names[head] and names[tail] and found.relations[relation][1]
        for id in found.ids.to_pylist():
            global_id(id)


def nothing(number, line):
    return False


@pytest.mark.parametrize(("name", "rows", "reader"), [("nodes", NODES, same_nodes), ("edges", EDGES, same_edges)])
def test_json_lines(tmp_path, mutator, name, rows, reader):
    put(tmp_path / "nodes.jsonl", b"")
    put(tmp_path / "edges.jsonl", b"")
    for _ in range(N):
        raw = lines_from(mutator, rows)
        put(tmp_path / f"{name}.jsonl", raw)
        check_lines(read(reader, tmp_path), raw, nothing)


def test_nodes_between_tabs(tmp_path, mutator):
    put(tmp_path / "edges.tsv", b"")
    seed = b"id\ttype\tname\ttext\nn1\tdrug\tVell\tA drug.\nn2\t\tOrn\n"
    for _ in range(N):
        raw = mutator.raw(seed)
        put(tmp_path / "nodes.tsv", raw)
        found = read(same_nodes, tmp_path)
        expected = held_lines(raw, nothing)
        lines = Counter(item.line for item in found)
        assert expected is None or (expected - {1} <= lines.keys() <= expected and set(lines.values()) <= {1}), raw


def table(rows):
    sink = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def test_parquet(tmp_path, mutator):
    tables = [
        table([{"head": "a", "relation": "r", "tail": "b"}] * 3),
        table([{"src": 1, "relation": "r", "dst": 2}] * 2),
    ]
    path = tmp_path / "a.parquet"
    for _ in range(N):
        raw = mutator.raw(mutator.random.choice(tables), tables)
        put(path, raw)
        found = read(same_triples, path)
        check_table(found, raw)


def arrays(*values):
    sink = BytesIO()
    np.save(sink, np.array(values))
    return sink.getvalue()


def test_starks_layout(tmp_path, mutator):
    files = {
        "node_info.json": json.dumps(INFO).encode(),
        "node_type_dict.json": b'{"0": "paper", "1": "author"}',
        "edge_type_dict.json": b'{"0": "writes"}',
        "edge_index.npy": arrays([1, 0], [0, 1]),
        "edge_types.npy": arrays(0, 0),
        "node_types.npy": arrays(0, 1),
    }
    for name, raw in files.items():
        put(tmp_path / name, raw)
    for _ in range(N):
        name = mutator.random.choice(list(files))
        as_value = name == "node_info.json" and mutator.random.random() < 0.5
        put(tmp_path / name, mutator.dumped(mutator.value(INFO)) if as_value else mutator.raw(files[name]))
        edges = read(same_edges, tmp_path)
        for item in [*read(same_nodes, tmp_path), *edges]:
            assert isinstance(item, Reject) or item.line
        put(tmp_path / name, files[name])
