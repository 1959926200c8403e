"""The layers of a knowledge base: which records are one thing, and what the tables hold."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kb_in_memory import text_of_edge

import gpu_rag
import gpu_rag.api.indexes  # before `load_method` is replaced
from gpu_rag.index import tables
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.load import load_kb, load_web
from gpu_rag.index.knowledge_base.names import name_key, name_keys, relation_text, standin_text
from gpu_rag.index.knowledge_base.tables import KB_LINKS, KB_RECORDS, KB_SOURCES
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.stages.knowledge_base.columns import Edges, SourceColumns, no_lists
from gpu_rag.index.stages.knowledge_base.edges import relation_names
from gpu_rag.index.stages.knowledge_base.fuse import Fused, fuse, global_id
from gpu_rag.index.stages.knowledge_base.passages import says_something
from gpu_rag.index.stages.knowledge_base.rdf import default_names, local_name
from gpu_rag.index.verify import verify
from gpu_rag.methods.hydrarag.batched.names import match_mentions
from gpu_rag.methods.hydrarag.batched.web import web_provider
from gpu_rag.models.embed.hashing import HashEmbedder

SETTINGS = {"models": {"embedder": "hash", "llm": "none"}}


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def build(out: Path, corpus: Any = (), **options: Any) -> gpu_rag.Index:
    """An index by the hash embedder, found sound."""
    gpu_rag.build(corpus, out, settings=SETTINGS, **options)
    assert verify(out) == []
    return gpu_rag.Index.open(out)


def kb_of(index: gpu_rag.Index) -> KnowledgeBase:
    return index.loaded("kb", load_kb)


def triples(kb: KnowledgeBase) -> list[tuple[str, ...]]:
    return [kb.triple(edge) for edge in range(kb.n_edges)]


def fused(*records: tuple[Any, ...]) -> Fused:
    """Records (source, id, name), and True behind it for a value."""
    source = np.array([record[0] for record in records], np.int32)
    ids, names = (pa.array([record[k] for record in records], pa.large_string()) for k in (1, 2))
    return fuse(ids, names, np.array([len(record) > 3 for record in records], bool), source)


def groups(*records: tuple[int, str, str]) -> list[list[int]]:
    """The groups of records (source, id, name)."""
    found = fused(*records).node.tolist()
    return [[row for row, group in enumerate(found) if group == first] for first in sorted(set(found))]


def test_equal_ids_of_one_kind_are_one_thing_whatever_their_names():
    assert groups((0, "Q1", "Rome"), (1, "http://www.wikidata.org/entity/Q1", "Roma")) == [[0, 1]]
    assert groups((0, "http://x/a", "A"), (1, "http://x/a", "B")) == [[0, 1]]
    assert groups((0, "a", "A"), (1, "a", "B")) == [[0], [1]]  # ids that only their source knows


def test_equal_names_are_one_thing_where_they_are_not_ambiguous():
    assert groups((0, "Q1", "Rome"), (1, "r", "  ROME ")) == [[0, 1]]
    assert groups((0, "a", "New_York"), (1, "b", "new york")) == [[0, 1]]
    assert groups((0, "a", "Rome"), (1, "b", "Rome"), (1, "c", "Rome")) == [[0], [1], [2]]
    assert groups((0, "a", "Rome"), (0, "b", "Rome")) == [[0], [1]]  # homonyms of one source
    assert groups((0, "Q1", "Rome"), (1, "Q2", "Rome")) == [[0], [1]]  # ids of one kind say otherwise
    assert groups((0, "http://x/a", "Rome"), (1, "http://y/a", "Rome")) == [[0, 1]]  # of two kinds they do not
    assert groups((0, "a", "..."), (1, "b", "...")) == [[0], [1]]  # nothing is left of the name


def test_values_are_one_by_id_and_in_the_way_of_no_name():
    value = ('"Rome"', "Rome", True)
    found = fused((0, "a", "Rome"), (0, *value), (1, "b", "Rome"), (2, *value), (2, "c", "Rome"))
    assert (found.node.tolist(), found.ambiguous) == ([0, 1, 0, 1, 0], 0)  # one city, of which "Rome" is said twice
    assert found.links == [(0, 2, "name"), (0, 4, "name"), (1, 3, "id")]
    assert fused((0, *value), (1, '"Rome"@it', "Rome", True)).node.tolist() == [0, 1]


def test_links_are_not_followed_into_a_second_record_of_one_source():
    assert groups((0, "Q1", "Rome"), (1, "Q1", "Roma"), (0, "x", "Roma")) == [[0, 1], [2]]
    found = fused((0, "Q1", "Rome"), (1, "Q1", "Roma"), (0, "x", "Roma"))
    assert (found.links, found.ambiguous) == ([(0, 1, "id")], 1)


def test_three_sources_are_chained():
    found = fused((0, "Q1", "Rome"), (1, "r", "rome"), (2, "Q1", "Roma"))
    assert (found.node.tolist(), found.links) == ([0, 0, 0], [(0, 1, "name"), (0, 2, "id")])


RECORDS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["Q1", "Q2", "x", "y", "http://n/a"]), st.sampled_from("ABC")),
    max_size=9,
    unique_by=lambda record: record[:2],
)


@given(RECORDS)
def test_groups_keep_the_rules(records):
    found = fused(*records)
    members: dict[int, list[int]] = {}
    for row, group in enumerate(found.node.tolist()):
        members.setdefault(group, []).append(row)
    for group, rows in members.items():
        assert group == rows[0]
        assert len({records[row][0] for row in rows}) == len(rows)
        ids = {id for row in rows if (id := global_id(records[row][1]))}
        assert len({kind for kind, _ in ids}) == len(ids)
    for id in ("Q1", "Q2", "http://n/a"):
        assert len({found.node[row] for row, record in enumerate(records) if record[1] == id}) <= 1
    for name in "ABC":  # a name of two sources, one record each, whose ids say nothing, links them
        rows = [row for row, record in enumerate(records) if record[2] == name]
        plain = all(global_id(records[row][1]) is None for row in rows)
        if plain and len({records[row][0] for row in rows}) == len(rows):
            assert len({found.node[row] for row in rows}) <= 1
    assert len(found.links) == len(records) - len(members)


def test_relations_in_words():
    said = ["__music__album__artist", "film.film.directed_by", "birthPlace", "associated with", "http://x/y#isIn", "?"]
    expected = ["music album artist", "film film directed by", "birth place", "associated with", "http x y is in", "?"]
    assert [relation_text(name) for name in said] == expected


def test_a_stand_in_shows_a_dozen_relations_with_three_neighbours():
    out = [(f"r{k:02d}", f"n{j}") for k in range(11) for j in range(5)]
    text = standin_text("The_Loft", "film", out, [("of", "A"), ("in", "B")])
    assert text.startswith("The Loft (film). The Loft r00 n0, n1, n2. The Loft r01 n0, n1, n2.")
    assert text.endswith("A of The Loft.") and text.count(".") == 13


def test_names_that_say_nothing_are_not_searched():
    assert [says_something(name) for name in ("Ab", "1967", "of the", "A-1")] == [False] * 4
    assert [says_something(name) for name in ("Bern", "TP53", "the_loft", "A 12")] == [True] * 4


def test_names_of_iris():
    iris = ["http://dbpedia.org/resource/Marie_Curie", "http://x/a#b%20c", "urn:isbn:12", "http://x/"]
    assert [local_name(iri) for iri in iris] == ["Marie_Curie", "b c", "12", "x"]
    assert default_names(pa.array(iris, pa.large_string()), np.zeros(4, bool), "s").to_pylist() == [
        *map(local_name, iris)
    ]


@given(st.lists(st.text("aZ0_ -.é\u00a0(\t\u2019B)", max_size=8)))
def test_keys_of_many_names_are_those_of_each(names):
    assert name_keys(pa.array(names, pa.large_string())).to_pylist() == [*map(name_key, names)]


def test_relations_with_one_name_are_told_apart_by_their_ids():
    nothing, none = pa.array([], pa.large_string()), np.zeros(0, np.int32)
    relations = [("http://x/in", "in"), ("http://y/in", "in"), ("on", "on")]
    edges = Edges(none, none, none, none)
    one = SourceColumns("a", "kg", [], nothing, nothing, no_lists(0), no_lists(0), edges, relations)
    assert relation_names([one]) == {"http://x/in": "in", "http://y/in": "http://y/in", "on": "on"}


def test_a_file_of_triples_becomes_nodes_and_edges(tmp_path):
    text = "Ada\tborn in\tBern\nAda\tborn in\tBern\tagain\nBern\tcapital_of\tSwitzerland\tby hand\nbad\n"
    index = build(tmp_path / "ix", kg=put(tmp_path / "facts.tsv", text))
    kb = kb_of(index)
    assert (kb.node_ids, kb.type_names, kb.relation_names) == (
        ["Ada", "Bern", "Switzerland"], ["entity"], ["born in", "capital_of"],
    )  # fmt: skip
    assert triples(kb) == [
        ("Ada", "born in", "Bern", "facts.tsv:1"),
        ("Bern", "capital_of", "Switzerland", "facts.tsv:3 (by hand)"),
    ]
    assert [text_of_edge(kb, edge) for edge in range(2)] == ["Ada born in Bern", "Bern capital of Switzerland"]
    counts = index.manifest.stages["kb"].counts
    assert (counts["kb_repeated"], counts["rejects"], index.n_passages) == (1, 1, 0)
    (reject,) = [json.loads(line) for line in (tmp_path / "ix/rejects.jsonl").read_text().splitlines()]
    assert (reject["file"], reject["line"]) == ("facts.tsv", 4) and "fields" in reject["reason"]


def test_labels_types_values_and_blank_nodes_of_rdf(tmp_path):
    ns, rdfs = "http://x/", "http://www.w3.org/2000/01/rdf-schema#label"
    skos, type_ = "http://www.w3.org/2004/02/skos/core#altLabel", "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
    rows = [
        f'<{ns}b> <{rdfs}> "Berne"@fr .', f'<{ns}b> <{rdfs}> "Bern"@en .', f'<{ns}b> <{skos}> "Capital" .',
        f"<{ns}b> <{type_}> <{ns}City> .", f'<{ns}City> <{rdfs}> "city" .', f'<{ns}b> <{ns}isIn> _:x .',
        f'<{ns}b> <{ns}since> "1191" .', f"_:x <{type_}> <{ns}Land> .", f'<{ns}isIn> <{rdfs}> "lies in" .',
    ]  # fmt: skip
    kb = kb_of(build(tmp_path / "ix", kg=put(tmp_path / "g.nt", "\n".join(rows) + "\n")))
    held = {
        id: (n, a, kb.type_names[t]) for id, n, a, t in zip(kb.node_ids, kb.node_names, kb.node_aliases, kb.node_type)
    }
    assert held == {
        f"{ns}b": ("Bern", ["Berne", "Capital"], "city"),
        "_:x@g": ("_:x@g", [], "Land"),
        '"1191"': ("1191", [], "literal"),
    }
    assert [t[:3] for t in triples(kb)] == [("Bern", "lies in", "_:x@g"), ("Bern", "since", "1191")]


@pytest.fixture
def skb(tmp_path: Path) -> Path:
    """Three nodes, two with the same name, one with a document of two passages, one edge without its node."""
    nodes = [
        {"id": "d1", "type": "drug", "name": "Veluxin", "text": "Veluxin is a drug. " * 30},
        {"id": "g1", "type": "gene", "name": "Orlo", "aliases": ["ORL1"]},
        {"id": "x9", "type": "disease", "name": "Orlo"},
    ]
    put(tmp_path / "med/nodes.jsonl", lines(*nodes))
    put(tmp_path / "med/edges.tsv", "d1\ttargets\tg1\nd1\ttreats\tx9\nd1\ttreats\tnobody\n")
    return tmp_path / "med"


def test_a_dump_of_wikidata_has_its_properties_and_types_by_name(tmp_path):
    wd, wdt, rdfs = (
        "<http://www.wikidata.org/entity/{}>",
        "<http://www.wikidata.org/prop/direct/{}>",
        "<http://www.w3.org/2000/01/rdf-schema#label>",
    )
    rows = [
        (wd.format("Q72"), wdt.format("P17"), wd.format("Q39")),
        (wd.format("Q72"), wdt.format("P31"), wd.format("Q515")),
        (wd.format("Q72"), rdfs, '"Z\\u00fcrich"@en'),
        (wd.format("Q72"), rdfs, '"Zurigo"@it'),
        (wd.format("Q39"), rdfs, '"Switzerland"@en'),
        (wd.format("Q515"), rdfs, '"city"@en'),
        (wd.format("P17"), rdfs, '"country"@en'),
        (wd.format("Q72"), "<http://schema.org/description>", '"city in Switzerland"@en'),
        (wd.format("Q72"), "<http://wikiba.se/ontology#sitelinks>", '"187"'),
        (wd.format("Q72"), wdt.format("P2044"), '"408"'),
    ]
    text = "".join(f"{s} {p} {o} .\n" for s, p, o in rows)
    kb = kb_of(build(tmp_path / "ix", kg=put(tmp_path / "wd.nt", text)))
    assert {kb.triple(edge)[:3] for edge in range(kb.n_edges)} == {
        ("Zürich", "country", "Switzerland"), ("Zürich", "P31", "city"), ("Zürich", "P2044", "408"),
    }  # fmt: skip
    (zurich,) = kb.named("Zürich")
    assert kb.type_names[kb.node_type[zurich]] == "city" and kb.node_aliases[zurich] == [] and not kb.named("country")


def test_documents_of_nodes_are_passages(tmp_path, skb):
    settings = {**SETTINGS, "index": {"chunk_words": 70, "overlap_words": 10}}
    gpu_rag.build((), tmp_path / "ix", skb=skb, methods=["dense", "bm25"], settings=settings)
    assert verify(tmp_path / "ix") == []
    index = gpu_rag.Index.open(tmp_path / "ix")
    kb = kb_of(index)
    assert index.passage_ids == ["d1#0", "d1#1"] and index.documents["file"].to_pylist() == ["med/nodes.jsonl"]
    assert [kb.node_passages.values.tolist(), kb.n_own.tolist()] == [[0, 1], [2, 0, 0]]
    assert kb.named("orlo") == [1, 2] and kb.named("orl1", "gene") == [1] and kb.named("Orlo", "drug") == []
    (answer,) = index.retrieve(["Which drug is Veluxin?"], method="dense", settings=SETTINGS)
    assert {e.passage_id for e in answer.evidence} == {"d1#0", "d1#1"}
    (reject,) = [json.loads(line) for line in (tmp_path / "ix/rejects.jsonl").read_text().splitlines()]
    assert (reject["file"], reject["line"]) == ("med/edges.tsv", 3) and "'nobody'" in reject["reason"]


def test_corpus_graphs_and_web_side_by_side(tmp_path, tiny_corpus, skb):
    kg = put(tmp_path / "more.tsv", "Marta Orlo\tdesigned\tHalden Bridge\nVeluxin\tmade in\tTamsin\n")
    web = put(tmp_path / "pages.jsonl", lines({"url": "https://w/1", "title": "Ves", "text": "The Ves is long."}))
    sources = [f"news=documents:{put(tmp_path / 'news/a.txt', 'Kerling and Tamsin meet.')}", f"net=web:{web}"]
    index = build(tmp_path / "ix", tiny_corpus, methods=["dense"], skb=skb, kg=kg, sources=sources)
    kb = kb_of(index)
    expected = [
        ("med", "skb"),
        ("more", "kg"),
        ("extraction",) * 2,
        ("news", "documents"),
        ("documents",) * 2,
        ("net", "web"),
    ]
    assert [(source.name, source.kind) for source in kb.sources] == expected
    (marta,) = kb.named("Marta Orlo")
    assert [kb.sources[s].name for s in kb.node_sources[marta].nonzero()[0]] == ["more", "extraction"]
    (veluxin,) = kb.named("veluxin")
    assert kb.node_sources[veluxin].tolist() == [True] * 3 + [False] * 3  # its document is a passage: extracted too
    assert kb.node_ids[veluxin] == "d1" and len(kb.named("Orlo")) >= 2  # of the first source by name
    rows = {id: row for row, id in enumerate(index.passage_ids)}
    of = {id: kb.sources[kb.passage_source[row]].name for id, row in rows.items()}
    assert [of[id] for id in ("a.txt", "d0", "d1", "med:d1")] == ["news", "documents", "documents", "med"]
    first, last = kb.node_passages.offsets[marta], kb.node_passages.offsets[marta + 1]
    assert {index.passage_ids[row] for row in kb.node_passages.values[first:last]} >= {"d0", "d1"}
    own = [kb.triple(edge) for edge in range(kb.n_edges) if kb.sources[kb.source[edge]].kind == "extraction"]
    assert own and all(where in rows for *_, where in own)
    pages, bm25 = index.loaded("kb_web", load_web)
    assert pages["url"].to_pylist() == ["https://w/1"] and bm25.search(["ves long"], 1)[0][0, 0] == 0
    assert not any("https://w/1" in id for id in rows)  # pages are no passages


def test_ids_that_two_sources_use_for_two_things_stay_two(tmp_path, skb):
    put(tmp_path / "other/nodes.jsonl", lines({"id": "d1", "name": "Wexol", "text": "Another."}))
    put(tmp_path / "other/edges.tsv", "")
    index = build(tmp_path / "ix", skb=[skb, tmp_path / "other"])
    kb = kb_of(index)
    assert [id for id in kb.node_ids if "d1" in id] == ["d1", "other:d1"]
    assert set(index.passage_ids) == {"d1", "other:d1"}
    (wexol,) = kb.named("wexol")
    assert (
        kb.n_own[wexol] == 1 and kb.passage_ids[kb.node_passages.values[kb.node_passages.offsets[wexol]]] == "other:d1"
    )


def test_stand_ins_are_for_nodes_without_passages_alone(tmp_path, skb, monkeypatch):
    from gpu_rag.methods import registry as catalog

    needs = ("kb_name_vectors", "kb_edge_vectors", "kb_relation_vectors", "kb_text_vectors")
    monkeypatch.setattr(catalog, "needs", lambda name: needs)
    index = build(tmp_path / "ix", skb=skb, methods=["x"])
    kb = kb_of(index)
    assert kb.text_row.tolist() == [-1, 0, 1]
    assert kb.texts == ["Orlo (gene). Veluxin targets Orlo.", "Orlo (disease). Veluxin treats Orlo."]
    assert [len(kb.vectors(name)) for name in needs] == [3, 2, 2, 2]


def digest(folder: Path) -> str:
    return Manifest.read(folder).digest()


def test_the_layer_depends_on_the_content_of_the_files_and_on_nothing_else(tmp_path, skb):
    kg = put(tmp_path / "a/facts.tsv", "Ada\tborn in\tBern\n")
    build(tmp_path / "one", kg=kg, skb=skb)
    again = gpu_rag.build((), tmp_path / "one", kg=kg, skb=skb, settings=SETTINGS).report
    assert all(stage.skipped for stage in again.stages.values())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.copytree(skb, tmp_path / "b/med")
    build(tmp_path / "two", kg=tmp_path / "b/facts.tsv", skb=tmp_path / "b/med")
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    put(kg, "Ada\tborn in\tBasel\n")
    changed = gpu_rag.build((), tmp_path / "one", kg=kg, skb=skb, settings=SETTINGS).report
    assert [name for name, stage in changed.stages.items() if not stage.skipped] == ["kb"]


def test_records_and_links_keep_what_each_source_said(tmp_path):
    one = put(tmp_path / "one.tsv", "Rome\tin\tItaly\n")
    two = put(tmp_path / "two.tsv", "ROME\tin\tItaly\n")
    index = build(tmp_path / "ix", kg=[one, two])
    kb, folder = kb_of(index), index.folder("kb")
    assert (kb.node_names, list(kb.node_aliases)) == (["Italy", "Rome"], [[], ["ROME"]])
    assert triples(kb) == [("Rome", "in", "Italy", "one.tsv:1"), ("Rome", "in", "Italy", "two.tsv:1")]
    records = tables.read_table(folder / "kb_records.parquet", KB_RECORDS).to_pylist()
    assert [(r["source"], r["id"], r["node"]) for r in records] == [
        (0, "Italy", 0),
        (0, "Rome", 1),
        (1, "Italy", 0),
        (1, "ROME", 1),
    ]
    links = tables.read_table(folder / "kb_links.parquet", KB_LINKS).to_pylist()
    assert [tuple(link.values()) for link in links] == [(0, 2, "name"), (1, 3, "name")]
    sources = tables.read_table(folder / "kb_sources.parquet", KB_SOURCES)
    assert sources["files"].to_pylist() == [["one.tsv"], ["two.tsv"]]


def test_a_value_that_says_a_name_is_no_topic(tmp_path):
    about = '<http://x/ada> <http://x/{}> "{}" .\n'
    said = [("name", "Ada Lovelace"), ("title", "Ada Lovelace"), ("born", "1815")]
    nt = put(tmp_path / "a.nt", "".join(about.format(*pair) for pair in said) + (
        '<http://x/ada> <http://www.w3.org/2000/01/rdf-schema#label> "Ada Lovelace" .\n'
        "<http://x/ada> <http://x/birthPlace> <http://x/London> .\n"
    ))  # fmt: skip
    tsv = put(tmp_path / "b.tsv", "Ada Lovelace\tfriend of\tCharles Babbage\n")
    index = build(tmp_path / "ix", methods=["hybgrag", "hydrarag"], kg=[nt, tsv])
    kb = kb_of(index)
    value, ada = sorted(kb.named("ada lovelace"), key=lambda row: kb.type_names[kb.node_type[row]] != "literal")
    assert kb.node_sources[ada].all() and kb.node_ids[value] == '"Ada Lovelace"'
    mentions = ["Ada Lovelace", "1815"]
    query = (tuple(mentions), HashEmbedder().embed(mentions))
    (found,) = match_mentions.run(index, [query], ((0, 1), 0.75, 3))
    assert [[match.node for match in some] for some in found] == [[ada], kb.named("1815")]
    for method in ("hybgrag", "hydrarag"):
        settings = {"models": {**SETTINGS["models"]}, "runtime": {"max_live": 4}}
        (answer,) = index.retrieve(["Where was Ada Lovelace born?"], method=method, settings=settings)
        assert answer.nodes and all(node.id != '"Ada Lovelace"' for node in answer.nodes[:1])
        told = [line for step in answer.trace for line in step.chosen if "Ada Lovelace" in line]
        assert told and not any("literal" in line or "Ada Lovelace, Ada" in line for line in told)


def test_two_snapshots_may_have_one_page(tmp_path):
    pages = {name: put(tmp_path / f"{name}.jsonl", lines({"url": "https://w/1", "title": name, "text": f"{name} text"}))
             for name in ("old", "new")}  # fmt: skip
    kg = put(tmp_path / "a.tsv", "a\tb\tc\n")
    sources = [f"{name}=web:{path}" for name, path in pages.items()]
    index = build(tmp_path / "ix", methods=["hydrarag"], kg=kg, sources=sources)
    provider = web_provider(index, "index")
    results = [some[0] for some in provider.search(["old", "new"], 1)]
    assert [page.text for page in provider.read([result.url for result in results])] == ["old text", "new text"]
