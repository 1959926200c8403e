"""HiGraAgent's index as a whole: the view of it, statistics, damage that `verify` finds, kills, edits and back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from safetensors.numpy import load_file

import gpu_rag
from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.name_table import NAMES
from gpu_rag.index.verify import verify
from gpu_rag.index.walk import stored, walk_of
from gpu_rag.methods.higra.graph import WALK, HigraGraph, higra_graph
from gpu_rag.methods.higra.merges import FILE, open_merges
from gpu_rag.methods.higra.stages.graph import entity_texts, exact_texts, same_as_exact
from gpu_rag.methods.higra.tables import write
from gpu_rag.methods.registry import stage_checks
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.llm.scripted import ScriptedLLM

FAST = {"models": {"embedder": "hash", "llm": "none"}}
METHODS = ("higra-retriever",)
FACTS = {
    "d0": [["Halden Bridge", "designed by", "Marta Orlo"], ["The Halden Bridge", "crosses", "Ves"]],
    "d1": [["Marta Orlo", "born in", "Tamsin"], ["Marta Orlo", "knows", "Marta Orlo"]],
    "d3": [["Kerling", "lies on", "Ves"], ["the Ves", "flows by", "Kerling"]],
    "d4": [["Tamsin", "is", "port"]],
}


@pytest.fixture
def openie(tmp_path: Path) -> Path:
    path = tmp_path / "openie.jsonl"
    rows = [{"id": id, "entities": ["Ves"] if id == "d0" else [], "triples": facts} for id, facts in FACTS.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def build(once: Any, tiny_corpus: Path, openie: Path, tmp_path: Path) -> Callable[..., Path]:
    """build(name, settings): an index of the facts above; the spellings with "the" are made one. Again: a rebuild."""

    def made(name: str = "ix", **alignment: Any) -> Path:
        settings = {**FAST, "alignment": {"tau": 0.6, "min_cosine": 0.4, "top_words": 2, **alignment}}

        def written(folder: Path) -> None:
            gpu_rag.build(tiny_corpus, folder, methods=METHODS, openie=openie, settings=settings)

        if (tmp_path / name).exists():
            written(tmp_path / name)
        else:
            once(f"higra {settings}", written, tmp_path / name)
        return tmp_path / name

    return made


def view(folder: Path) -> HigraGraph:
    index = gpu_rag.Index.open(folder)
    assert higra_graph(index) is higra_graph(index)
    return higra_graph(index)


def digest(folder: Path) -> str:
    assert verify(folder, stage_checks()) == []
    return Manifest.read(folder).digest()


def test_an_entity_that_did_not_merge_has_the_vector_of_before(build: Callable[..., Path], tmp_path: Path) -> None:
    folder, stages = build(), Manifest.read(build()).stages
    merge, exact, made = (
        folder / stages[name].folder for name in ("higra_merge", "higra_exact", "higra_entity_vectors")
    )
    texts, known, rows = entity_texts(merge), exact_texts(exact), same_as_exact(merge, exact).tolist()
    assert [text if row < 0 else known[row] for row, text in zip(rows, texts)] == texts[:] and -1 in rows
    vectors = load_file(made / "vectors.safetensors")["vectors"]
    assert np.array_equal(vectors, HashEmbedder().embed(texts).astype(np.float16))
    row: dict[str, Any] = {"aliases": [], "types": [], "members": [0]}
    named = [{**row, "id": id, "name": id, "descriptions": words} for id, words in (("a", ["a port"]), ("b", []))]
    write(tmp_path, "higra_exact_entities", [{**entity, "passages": [0]} for entity in named])
    write(tmp_path, "higra_entities", [{**entity, "n_passages": 1} for entity in named])
    assert same_as_exact(tmp_path, tmp_path).tolist() == [-1, 1]  # a wrong version forgets descriptions


def test_the_view_of_a_tiny_corpus(build: Callable[..., Path]) -> None:
    folder = build()
    graph, index = view(folder), gpu_rag.Index.open(folder)
    names = graph.entities["name"].to_pylist()
    assert names == ["Halden Bridge", "Kerling", "Marta Orlo", "port", "Tamsin", "Ves"]
    assert graph.entities["aliases"].to_pylist()[0] == ["The Halden Bridge"]
    facts = {(names[s], names[o]) for s, o in zip(*(graph.relations[end].to_pylist() for end in ("subject", "object")))}
    assert graph.relations["label"].to_pylist() == [
        "crosses", "designed by", "lies on", "born in", "knows", "is", "flows by",
    ]  # fmt: skip
    undirected = nx.Graph([pair for pair in facts if pair[0] != pair[1]])
    assert edges(graph.entity_graph, names) == {frozenset(edge) for edge in undirected.edges}
    passages = [f"p{row}" for row in range(6)]
    linked = {frozenset((names[r["entity"]], passages[r["passage"]])) for r in graph.links.to_pylist()}
    assert edges(graph.full_graph, names + passages) == edges(graph.entity_graph, names) | linked
    assert frozenset(("Tamsin", "p4")) in linked and frozenset(("Ves", "p3")) in linked
    assert graph.entity_graph.weight is None and graph.n_entities == 6
    assert [len(index.vectors(f"higra_{of}_vectors")) for of in ("entity", "relation")] == [6, 7]
    assert graph.index.words("higra_search", "entities").search(["halden bridge"], 1)[0].tolist() == [[0]]
    assert graph.index.words("higra_search", "relations").search(["flows by"], 1)[0].tolist() == [[6]]


def edges(csr: Any, names: list[str]) -> set[frozenset[str]]:
    rows = np.repeat(np.arange(csr.n), np.diff(csr.indptr.numpy()))
    pairs = list(zip(rows.tolist(), csr.indices.tolist()))
    assert {(b, a) for a, b in pairs} == set(pairs) and all(a != b for a, b in pairs)
    return {frozenset((names[a], names[b])) for a, b in pairs}


def test_statistics_are_those_of_the_tables(build: Callable[..., Path]) -> None:
    folder = build()
    found = json.loads((gpu_rag.Index.open(folder).folder("higra_graph") / "statistics.json").read_text())
    assert found["entities"] == {"before": 8, "exact": 8, "semantic": 6}
    assert found["reduction_percent"] == 25.0
    # by passage: two bridges, Orlo and Ves; Orlo and Tamsin; Kerling, Ves and the Ves; Tamsin and port
    assert (found["extracted_entities"], found["extracted_reduction_percent"]) == (11, round(100 * 5 / 11, 3))
    assert found["relations"] == {"before": 7, "extracted": 7, "inferred": 0}
    assert found["degree"]["after"] == {"min": 1, "mean": round(14 / 6, 4), "max": 4}  # 2 relations / entities
    # before: {bridge, orlo, tamsin, port}, {the bridge, ves, kerling, the ves}; after: all six
    assert found["components"] == {"before": 2, "after": 1}
    graph = view(folder)
    pairs = {(row["entity"], row["passage"]) for row in graph.links.to_pylist()}
    assert found["links"]["extracted"] + found["links"]["searched"] == len(pairs)
    assert found["passages_an_entity"]["after"]["mean"] == round(len(pairs) / 6, 4)
    assert sum(found["distributions"]["degree"].values()) == 6
    whole = nx.from_scipy_sparse_array(scipy_of(graph.full_graph))
    assert found["components_with_passages"] == nx.number_connected_components(whole)


def scipy_of(csr: Any) -> Any:
    from scipy.sparse import csr_array

    return csr_array((np.ones(csr.m), csr.indices.numpy(), csr.indptr.numpy()), shape=(csr.n, csr.n))


def test_without_refinement(build: Callable[..., Path]) -> None:
    plain = view(build(refine=False))
    assert plain.n_entities == 8 and set(plain.links["origin"].to_pylist()) == {"extraction"}


def test_a_corpus_without_entities(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "a", "title": "", "text": "nothing here at all"}\n')
    gpu_rag.build(corpus, tmp_path / "ix", methods=METHODS, settings=FAST)
    graph = view(tmp_path / "ix")
    assert graph.n_entities == 0 and graph.full_graph.n == 1 and verify(tmp_path / "ix", stage_checks()) == []


Columns = dict[str, list[Any]]
Change = Callable[[Any], Any]


def each(act: Callable[[list[Any]], Any]) -> Change:
    """Every column altered in place."""
    return lambda columns: [act(values) for values in columns.values()]


def first(**values: Any) -> Change:
    """The first row altered."""
    return lambda columns: [columns[name].__setitem__(0, value) for name, value in values.items()]


def without_extracted(columns: Columns) -> None:
    kept = [row for row, origin in enumerate(columns["origin"]) if origin == "search"]
    columns.update({name: [values[row] for row in kept] for name, values in columns.items()})


def unknown_profile(columns: Columns) -> None:
    for name, value in {"passage": 0, "name": "?", "aliases": [], "types": [], "description": ""}.items():
        columns[name].append(value)


def without_first_entry(arrays: dict[str, np.ndarray]) -> None:
    walk = walk_of(arrays)
    arrays.update(stored(np.maximum(walk["indptr"] - 1, 0), walk["indices"][1:], walk["weight"][1:]))


MERGE, LINKS, MENTIONS = "higra_merge", "higra_links", "higra_mentions"
ENTITIES, RELATIONS, PLACES = "higra_entities.parquet", "higra_relations.parquet", "higra_links.parquet"
VECTORS = "vectors.safetensors"
DAMAGES: dict[str, tuple[str, str, Change, str]] = {
    "entities in disorder": (MERGE, ENTITIES, each(lambda v: v.reverse()), "not sorted and unique"),
    "a lost member": (MERGE, ENTITIES, first(members=[0]), "members were lost"),
    "a member that is none": (MERGE, ENTITIES, first(members=[0, 99]), "that nothing has"),
    "a wrong count": (MERGE, ENTITIES, first(n_passages=5), "not the number of sources"),
    "an entity that became none": (MERGE, "higra_became.parquet", first(entity=99), "not an entity for each"),
    "a source too few": (MERGE, "higra_sources.parquet", each(lambda v: v.pop()), "not the number of sources"),
    "a merge of one": (MERGE, "higra_merges.parquet", first(members=["ves"]), "not a merge of two"),
    "a merge into nothing": (MERGE, "higra_merges.parquet", first(entity="?"), "entity that does not exist"),
    "an end that is none": (LINKS, RELATIONS, first(object=6), "row numbers that nothing has"),
    "an unsure extraction": (LINKS, RELATIONS, first(confidence=0.5), "do not fit"),
    "inferred with a passage": (LINKS, RELATIONS, first(origin="inferred"), "do not fit"),
    "a relation twice": (LINKS, RELATIONS, each(lambda v: v.insert(0, v[0])), "not sorted and unique"),
    "a link beyond the text": (MENTIONS, PLACES, first(end=9999), "outside their passage"),
    "a lost link": (MENTIONS, PLACES, without_extracted, "not the sources"),
    "a link to nothing": (MENTIONS, PLACES, first(entity=66), "row numbers that nothing has"),
    "a lost edge": ("higra_graph", WALK, without_first_entry, "its other direction"),
    "other weights": ("higra_graph", WALK, lambda a: a["weights"].__setitem__(0, 3), "its other direction"),
    "a name of another": ("higra_graph", NAMES, lambda a: a.update(rows=a["rows"][::-1].copy()), "give: rows"),
    "other statistics": (
        "higra_graph", "statistics.json", lambda d: d["entities"].update(semantic=7), "statistics are not those",
    ),
    "vectors too long": (
        "higra_entity_vectors", VECTORS, lambda a: a.update(vectors=a["vectors"] * 2), "not all vectors",
    ),
    "vectors too few": ("higra_entity_vectors", VECTORS, lambda a: a.update(vectors=a["vectors"][1:]), "5 rows for 6"),
    "vectors of another embedder": (
        "higra_relation_vectors", VECTORS, lambda a: a.update(vectors=np.pad(a["vectors"], ((0, 0), (0, 1)))),
        "dimensions for",
    ),
    "an entity in none": ("higra_exact", "higra_exact_entities.parquet", first(members=[1]), "is in none"),
    "a profile of nobody": ("extraction", "profiles.parquet", unknown_profile, "was not extracted there"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_verify_finds(build: Callable[..., Path], plant: Any, name: str) -> None:
    stage, file, change, message = DAMAGES[name]
    folder = build()
    plant(folder, stage, file, change)
    assert any(message in line for line in verify(folder, stage_checks())), verify(folder, stage_checks())


def test_a_triple_may_end_in_an_alias_of_an_entity_of_its_passage(tiny_corpus: Path, tmp_path: Path) -> None:
    """Models write this every day: the alias is a row of the entity table and no member of an entity here."""
    hal = {"name": "Halden Bridge", "aliases": ["Old Hal"], "types": ["bridge"], "description": "a bridge"}
    ves = {"name": "Ves", "aliases": [], "types": ["river"], "description": "a river"}
    said = json.dumps({"entities": [hal, ves], "triples": [["Old Hal", "crosses", "Ves"]]})
    settings = {"models": {"embedder": "hash"}, "index": {"extractor": "llm"}, "alignment": {"refine": False}}
    llm = ScriptedLLM(lambda request: said if "triples" in request.system else "{}")
    gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=METHODS, settings=settings, llm=llm)
    index = gpu_rag.Index.open(tmp_path / "ix")
    assert index.entities["id"].to_pylist() == ["halden bridge", "old hal", "ves"]
    assert higra_graph(index).entities["name"].to_pylist() == ["Halden Bridge", "Ves"]
    assert verify(tmp_path / "ix", stage_checks()) == []


def test_a_forced_merge_is_rejected_by_taking_it_back(build: Callable[..., Path]) -> None:
    folder = build()
    before = digest(folder)
    merges = open_merges(folder)
    merges.force("Tamsin", "port")
    merges.save()
    build()
    merges = open_merges(folder)
    merges.reject([row["id"] for row in merges.log if row["why"] == "forced"])
    assert merges.edits == ()
    merges.save()
    build()
    assert digest(folder) == before


def test_edits_that_mean_nothing_are_refused(build: Callable[..., Path]) -> None:
    folder = build()
    merges = open_merges(folder)
    with pytest.raises(BadInput, match="no merge of this index has this id; given m_0"):
        merges.reject(["m_0"])
    with pytest.raises(BadInput, match="did you mean tamsin"):
        merges.force("Tamsen", "port")
    with pytest.raises(UsageError, match="one entity already"):
        merges.force("the Ves", "Ves")
    with pytest.raises(BadInput, match="no edit has this id"):
        merges.undo(["m_0"])
    for line in ("no json", '{"id": "m", "action": "merge", "members": ["a", "b"]}', '{"id": "m", "action": "force"}'):
        (folder / FILE).parent.mkdir(exist_ok=True)
        (folder / FILE).write_text(line + "\n")
        with pytest.raises(BadInput, match=r"merges.jsonl:1"):
            build()


def test_edits_survive_a_fresh_build(build: Callable[..., Path], tiny_corpus: Path, openie: Path) -> None:
    folder = build()
    merges = open_merges(folder)
    merges.force("Tamsin", "port")
    merges.save()
    gpu_rag.build(tiny_corpus, folder, methods=METHODS, openie=openie, settings=FAST, fresh=True)
    assert [row["why"] for row in open_merges(folder).matching(why="forced")] == ["forced"]
