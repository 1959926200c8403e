"""A knowledge base in memory beside networkx and brute force; loaded from an index it is the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kb_in_memory import knowledge_base

import gpu_rag
import gpu_rag.api.indexes  # before `load_method` is replaced
from gpu_rag.errors import BadInput
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.index.knowledge_base.names import name_key
from gpu_rag.index.knowledge_base.scores import node_text, score_nodes
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.types import Ragged

few = settings(max_examples=40, deadline=None)
EMBEDDER = HashEmbedder()
TYPES, RELATIONS, SOURCES = ("person", "city", "entity"), ("likes", "born_in", "knows"), ("a", "b")


def embed(texts: list[str]) -> np.ndarray:
    return EMBEDDER.embed(texts)


@st.composite
def bases(draw: Any) -> KnowledgeBase:
    n = draw(st.integers(1, 7))
    names = draw(st.lists(st.sampled_from(["Ada", "Bern", "ada ", "Cy_D"]), min_size=n, max_size=n))
    nodes = [(f"n{row}", name, TYPES[row % 3]) for row, name in enumerate(names)]
    ends = st.integers(0, n - 1).map(lambda row: f"n{row}")
    edges = draw(st.lists(st.tuples(ends, st.sampled_from(RELATIONS), ends, st.sampled_from(SOURCES)), max_size=14))
    owners = draw(st.lists(st.sampled_from(["", *(node[0] for node in nodes)]), max_size=4))
    passages = [(f"p{k}", owner, f"{names[k % n]} text {k}") for k, owner in enumerate(owners)]
    return knowledge_base(nodes, edges, embed=embed, sources=SOURCES, passages=passages)


def ragged(*lists: list[int]) -> Ragged:
    offsets = torch.tensor(np.cumsum([0, *map(len, lists)]))
    return Ragged(torch.tensor([value for one in lists for value in one], dtype=torch.int64), offsets)


@few
@given(bases(), st.sets(st.sampled_from([0, 1])))
def test_undirected_edges_of_chosen_sources_know_the_edges_behind_them(kb, sources):
    held = kb.paths(tuple(sorted(sources)))
    behind: dict[tuple[int, int], list[int]] = {}
    for edge in range(kb.n_edges):
        head, tail = int(kb.head[edge]), int(kb.tail[edge])
        if kb.source[edge] in sources and head != tail:
            behind.setdefault((min(head, tail), max(head, tail)), []).append(edge)
    csr, found = held.graph.csr, {}
    for node in range(kb.n):
        for entry in range(int(csr.indptr[node]), int(csr.indptr[node + 1])):
            number, other = int(held.graph.edge[entry]), int(csr.indices[entry])
            rows = held.edges.values[held.edges.offsets[number] : held.edges.offsets[number + 1]].tolist()
            found[min(node, other), max(node, other)] = rows
    assert found == behind and held.edges.batch == len(behind)
    assert kb.paths(tuple(sorted(sources))) is held
    assert kb.paths() is kb.paths((0, 1)) and kb.paths((1, 0)) is kb.paths()


def test_a_qualifier_in_brackets_may_be_left_out():
    names = ["gout (disease)", "Mercury", "Mercury (planet)", "Salt (band)", "Salt (film)", "(Hello)"]
    kb = knowledge_base(
        [(name, name, "b" if "b" in name else "a") for name in names], [("Mercury", "r", "gout (disease)")]
    )

    def named(name, *type):
        return [kb.node_names[row] for row in kb.named(name, *type)]

    assert named("Gout") == ["gout (disease)"] and named("salt") == ["Salt (band)", "Salt (film)"]
    assert named("Salt", "b") == ["Salt (band)"] and named("Salt (film)") == ["Salt (film)"]
    assert named("mercury") == ["Mercury", "Mercury (planet)"] and named("Mercury (planet)") == ["Mercury (planet)"]
    assert named("") == [] and named("Hello") == ["(Hello)"]
    keys = {name_key(name) for name in (*names, "gout", "salt")}
    assert kb.keys_of_names() == sorted(keys) and all(map(kb.named, keys))  # "gout" stands in a question


@few
@given(bases())
def test_names_find_all_their_nodes_and_types_theirs(kb):
    for name in ("ADA", "cy d", "nobody", "", "..."):
        same = [row for row in range(kb.n) if name_key(kb.node_names[row]) == name_key(name) != ""]
        assert kb.named(name) == same
        for type in (*TYPES, "none"):
            assert kb.named(name, type) == [row for row in same if kb.type_names[kb.node_type[row]] in (type, "entity")]
            rows = [row for row in range(kb.n) if kb.type_names[kb.node_type[row]] == type]
            assert kb.nodes_of_type(type).tolist() == rows
    assert [kb.row_of(id) for id in kb.node_ids] == list(range(kb.n)) and kb.row_of("?") is None


def slow_score(kb: KnowledgeBase, query: np.ndarray, node: int) -> float:
    """The best of its own passages, else of the first three others, else its stand-in."""
    first, last = kb.node_passages.offsets[node : node + 2].tolist()
    rows = kb.node_passages.values[first:last].tolist()
    rows = rows[: kb.n_own[node]] if kb.n_own[node] else rows[:3]
    vectors = kb.vectors("passage_vectors").numpy()[rows] if rows else kb.vectors("kb_text_vectors").numpy()
    return float(max(vectors @ query)) if rows else float(vectors[kb.text_row[node]] @ query)


@few
@given(bases(), st.lists(st.sampled_from(["Ada text", "Bern likes", "zz"]), min_size=1, max_size=3))
def test_a_node_is_as_near_as_its_best_text_alone_and_in_a_batch(kb, said):
    queries = torch.from_numpy(embed(said))
    lists = [list(range(kb.n))[k:] for k in range(len(said))]
    scores = score_nodes(kb, queries, ragged(*lists))
    expected = [slow_score(kb, queries[k].numpy(), node) for k, nodes in enumerate(lists) for node in nodes]
    assert torch.allclose(scores, torch.tensor(expected, dtype=torch.float64), atol=1e-6)
    alone = [score_nodes(kb, queries[k : k + 1], ragged(nodes)) for k, nodes in enumerate(lists)]
    assert torch.equal(torch.cat(alone), scores)


def test_passages_that_mention_a_node_stand_for_it_three_at_most():
    kb = knowledge_base([("a", "Ada", "x")], [], embed=embed, passages=[(f"p{k}", "a", f"w{k}") for k in range(5)])
    mentioning = KnowledgeBase(**{**vars(kb), "n_own": np.zeros(1, np.int32)})
    query = torch.from_numpy(embed(["w4"]))
    assert float(score_nodes(kb, query, ragged([0]))) == pytest.approx(1)
    assert float(score_nodes(mentioning, query, ragged([0]))) < 0.9  # the fifth is not looked at


def test_a_candidate_that_is_no_node_is_refused():
    kb = knowledge_base([("a", "Ada", "x")], [], embed=embed)
    with pytest.raises(BadInput, match="candidates"):
        score_nodes(kb, torch.from_numpy(embed(["x"])), ragged([1]))


def test_loaded_from_an_index_it_is_what_was_made_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from gpu_rag.methods import registry as catalog

    needs = ("kb_name_vectors", "kb_edge_vectors", "kb_relation_vectors", "kb_text_vectors", "passage_vectors")
    monkeypatch.setattr(catalog, "needs", lambda name: needs)
    nodes = [("a", "Ada", "person"), ("b", "Bern_City", "city"), ("c", "Cy", "city")]
    edges = [("a", "born_in", "b"), ("c", "near", "b"), ("a", "near", "c"), ("b", "near", "b")]
    base = tmp_path / "kg"
    base.mkdir()
    rows = [{"id": id, "name": name, "type": type} for id, name, type in nodes]
    rows[2]["text"] = "A quiet place."
    (base / "nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (base / "edges.tsv").write_text("".join("\t".join(edge) + "\n" for edge in edges))
    chosen = {"models": {"embedder": "hash", "llm": "none"}}
    gpu_rag.build((), tmp_path / "ix", skb=base, methods=["x"], settings=chosen)
    index = gpu_rag.Index.open(tmp_path / "ix")
    held = load_kb(index)
    made = knowledge_base(nodes, edges, embed=embed, sources=["kg"], passages=[("c", "c", "A quiet place.")])
    for name in ("node_ids", "node_names", "node_aliases", "type_names", "relation_names", "relation_texts", "texts"):
        assert list(getattr(held, name)) == list(getattr(made, name)), name
    for name in ("node_type", "node_sources", "head", "relation", "tail", "source", "n_own", "text_row"):
        assert np.array_equal(getattr(held, name), getattr(made, name)), name
    assert held.node_passages.values.tolist() == made.node_passages.values.tolist() == [0]
    assert list(held.provenance) == [where.replace("kg:", "kg/edges.tsv:") for where in made.provenance]
    for layer in needs[:4]:
        assert torch.allclose(held.vectors(layer), made.vectors(layer), atol=1e-3), layer
    queries, all_nodes = torch.from_numpy(embed(["quiet place", "Ada"])), ragged([0, 1, 2], [0, 1, 2])
    ours, theirs = score_nodes(made, queries, all_nodes), score_nodes(held, queries, all_nodes)
    same = torch.tensor([0, 1, 3, 4])  # an index embeds the title with the text
    assert torch.allclose(ours[same], theirs[same], atol=2e-3)
    assert node_text(held, index, 2) == "A quiet place." and node_text(held, index, 0) == held.texts[0]
    assert torch.equal(held.typed.out_node, made.typed.out_node)
