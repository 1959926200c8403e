"""Texts of nodes as passages, in columns: against cutting and naming them one document after the other."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kb_in_memory import edge_text, text_of_edge
from kb_rows import read_nodes

import gpu_rag
from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index import tables
from gpu_rag.index.stages.knowledge_base.texts import edge_texts, names_in_words
from gpu_rag.index.stages.node_documents import cut
from gpu_rag.index.stages.passages import read_passages
from gpu_rag.index.verify import verify
from gpu_rag.index.work import NamedSource, Sources
from gpu_rag.settings import IndexSettings, Settings
from gpu_rag.text.chunk import chunk_spans
from gpu_rag.types import Reject

SMALL = IndexSettings(chunk_words=8, overlap_words=2)
WORDS = ["a", "Bern.", "é", " ", "\n", "\u3000", "\u00a0", "x" * 70, "日本", "x本xค", "“q”", ". ", "\x1c"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=24).map("".join).filter(lambda text: not text.isspace())


def check_cut(texts: list[str]) -> None:
    owner, pieces, start, end = cut(pa.array(texts, pa.large_string()), SMALL)
    expected = [(row, text[s:e], s, e) for row, text in enumerate(texts) for s, e in chunk_spans(text, 8, 2)]
    assert list(zip(owner.tolist(), pieces.to_pylist(), start.tolist(), end.tolist())) == expected


@given(st.lists(TEXTS, max_size=6))
def test_texts_are_cut_as_each_alone(texts: list[str]) -> None:
    check_cut(texts)


def test_an_overlap_that_cannot_be_is_an_error_for_whole_texts_too() -> None:
    with pytest.raises(UsageError, match="overlap"):
        cut(pa.array(["one"], pa.large_string()), IndexSettings(chunk_words=8, overlap_words=8))


@dataclass
class Pieces:
    """One document and its passages, as rows, and the source and node that it is of."""

    document: dict[str, Any]
    passages: list[dict[str, Any]]
    source: str
    node: str


def pieces_of(sources: Sources, settings: Settings) -> Iterator[Pieces | Reject]:
    for found in read_passages(sources, settings):
        if isinstance(found, Reject):
            yield found
            continue
        documents, passages, origins = (found[name].to_pylist() for name in ("documents", "passages", "origins"))
        for document, origin in zip(documents, origins, strict=True):
            own = [row for row in passages if row["doc_id"] == document["id"]]
            yield Pieces(document, own, origin["source"], origin["node"])


def base(folder: Path, nodes: list[tuple[str, str]]) -> NamedSource:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"id": id, "name": f"N {id}", "text": text}) for id, text in nodes]
    (folder / "nodes.jsonl").write_text("\n".join(rows))
    (folder / "edges.tsv").write_text("")
    return NamedSource(folder.name, "skb", folder)


def in_turn(sources: Sources, corpus: list[tuple[str, str]], index: IndexSettings) -> tuple[list[Any], list[str]]:
    """(documents with their passages, nodes that are lost), by the rule: a free id, else "SOURCE:ID", else none."""
    documents, taken, found, lost = set[str](), set[str](), list[Any](), list[str]()

    def claim(id: str, text: str) -> bool:
        spans = chunk_spans(text, index.chunk_words, index.overlap_words)
        ids = [id] if len(spans) == 1 else [f"{id}#{k}" for k in range(len(spans))]
        if id in documents or not taken.isdisjoint(ids):
            return False
        documents.add(id)
        taken.update(ids)
        found.append((id, [(part, text[s:e], s, e) for part, (s, e) in zip(ids, spans)]))
        return True

    for id, text in corpus:
        claim(id, text)
    for source in sources.of_kind("skb"):
        for node in read_nodes(source.path):
            if (
                not isinstance(node, Reject)
                and node.text
                and not any(claim(id, node.text) for id in (node.id, f"{source.name}:{node.id}"))
            ):
                lost.append(node.id)
    return found, lost


IDS = st.sampled_from(["a", "b", "a#0", "a#1", "s:a", "s:a#1", "t:a", "a#1#0"])
NODES = st.lists(st.tuples(IDS, st.sampled_from(["", "one two", "w " * 12 + "z."])), max_size=7)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    NODES,
    NODES,
    st.lists(st.tuples(IDS, st.sampled_from(["one", "w " * 12])), max_size=3, unique_by=lambda row: row[0]),
)
def test_ids_are_given_away_in_turn(tmp_path: Path, left: Any, right: Any, corpus: Any) -> None:
    named = (base(tmp_path / "s", left), base(tmp_path / "t", right))
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in corpus))
    sources = Sources(corpus=(path,) if corpus else (), named=named)
    given_rows = list(pieces_of(sources, Settings(index=SMALL)))
    found = [row for row in given_rows if not isinstance(row, Reject)]
    of_nodes = [row for row in given_rows if isinstance(row, Reject) and "taken by other documents" in row.reason]
    kept = [
        (row.document["id"], path_text)
        for row in found
        if not row.node
        for path_text in [dict(corpus)[row.document["id"]]]
    ]
    expected, lost = in_turn(sources, kept, SMALL)
    columns = ("id", "text", "start", "end")
    assert [(row.document["id"], [tuple(p[c] for c in columns) for p in row.passages]) for row in found] == expected
    assert [row.id for row in of_nodes] == lost


def test_lost_documents_stop_a_strict_build(tmp_path: Path) -> None:
    named = (base(tmp_path / "s", [("s:a", "x"), ("a", "y")]), base(tmp_path / "u/s", [("a", "z"), ("s:a", "w")]))
    with pytest.raises(BadInput, match="taken by other documents"):
        list(read_passages(Sources(named=named, strict=True), Settings()))


def test_tables_are_those_of_rows_written_at_once(tmp_path: Path) -> None:
    """By `write_rows` of the rows that reading one by one gives: equal bytes."""
    texts = [(f"n{k * 7 % 500:03d}", "" if k % 3 else f"Node {k}. " * (1 + k % 40)) for k in range(500)]
    base(tmp_path / "s", texts)
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"id": f"m{k}", "text": "Some text."}) + "\n" for k in range(50))
    )
    settings_ = {"models": {"embedder": "hash", "llm": "none"}, "index": {"chunk_words": 20, "overlap_words": 5}}
    gpu_rag.build(tmp_path / "c.jsonl", tmp_path / "i", methods=["bm25"], skb=tmp_path / "s", settings=settings_)
    assert verify(tmp_path / "i") == []
    index = gpu_rag.Index.open(tmp_path / "i")
    sources = Sources(corpus=(tmp_path / "c.jsonl",), named=(NamedSource("s", "skb", tmp_path / "s"),))
    index_settings = IndexSettings(chunk_words=20, overlap_words=5)
    rows = [row for row in pieces_of(sources, Settings(index=index_settings)) if not isinstance(row, Reject)]
    passages = sorted((part for row in rows for part in row.passages), key=lambda part: part["id"])
    documents = sorted((row.document for row in rows), key=lambda row: row["id"])
    written = {
        "passages": (tables.PASSAGES, passages),
        "lines": (tables.LINES, passages),
        "documents": (tables.DOCUMENTS, documents),
    }
    for name, (schema, held) in written.items():
        tables.write_rows(tmp_path / "x.parquet", schema, held)
        assert (index.folder("passages") / f"{name}.parquet").read_bytes() == (tmp_path / "x.parquet").read_bytes()
    origins = pq.read_table(index.folder("passages") / "origins.parquet").to_pylist()
    assert origins == sorted(
        ({"document": row.document["id"], "source": row.source, "node": row.node} for row in rows),
        key=lambda row: row["document"],
    )


NAMES = st.text("a_ \u00a0\tB", max_size=5).filter(bool)


@given(st.lists(NAMES, max_size=6))
def test_names_in_words(names: list[str]) -> None:
    expected = [edge_text(name, "r", "x").removesuffix(" r x") for name in names]
    assert names_in_words(pa.array(names, pa.large_string())).to_pylist() == expected


def test_texts_of_edges_are_those_of_the_base(tmp_path: Path) -> None:
    from gpu_rag.index.knowledge_base.load import load_kb

    rows = [f"node_{k % 7}  x\tbirthPlace.{k % 3}\tNode{k % 5}" for k in range(40)]
    (tmp_path / "f.tsv").write_text("\n".join(rows))
    gpu_rag.build((), tmp_path / "i", kg=tmp_path / "f.tsv", settings={"models": {"embedder": "hash", "llm": "none"}})
    index = gpu_rag.Index.open(tmp_path / "i")
    kb = index.loaded("kb", load_kb)
    texts = edge_texts(index.folder("kb"))
    expected = [text_of_edge(kb, edge) for edge in range(kb.n_edges)]
    assert len(texts) == kb.n_edges > 20 and list(texts) == expected
    assert texts[3:9] == expected[3:9] and texts[-1] == expected[-1] and texts[np.int64(2)] == expected[2]
    assert texts[len(texts) :] == [] and expected[0] in texts
    with pytest.raises(IndexError):
        texts[len(texts)]
