"""HydraRAG's bounds: neighbourhoods of at most so many nodes, tiles of bytes, composed edge vectors, requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from answer_notes import noted
from hydrarag_case import ask
from kb_in_memory import knowledge_base
from memory_index import MemoryIndex, run

import gpu_rag
from gpu_rag.index.stages.knowledge_base import texts
from gpu_rag.index.verify import verify
from gpu_rag.methods.hydrarag.batched import subgraphs
from gpu_rag.methods.hydrarag.batched.facts import ComposedVectors, ExactVectors, FactChoice, facts_of
from gpu_rag.methods.hydrarag.batched.subgraphs import Order, QuestionGraph, question_graph
from gpu_rag.models.embed.hashing import HashEmbedder

ALL = FactChoice((0,))


def star(n: int, more: list[tuple[str, str, str]]) -> MemoryIndex:
    """A hub with n leaves, and other edges."""
    edges = [("hub", "has", f"leaf {i}") for i in range(n)] + more
    names = sorted({end for s, _, o in edges for end in (s, o)})
    kb = knowledge_base([(name, name, "entity") for name in names], edges, embed=HashEmbedder().embed)
    return MemoryIndex(kb)


def around(index: MemoryIndex, name: str, sought: str, depth: int = 2) -> QuestionGraph:
    kb = index.loaded("kb", lambda _: None)
    (query,) = HashEmbedder().embed([sought])
    seed = kb.row_of(name)
    ((graph),) = run(question_graph, index, [(((seed,), (Order((seed,)),)), query)], ALL, depth)
    assert isinstance(graph, QuestionGraph)
    return graph


def test_a_hub_leads_to_what_is_relevant_and_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    index = star(
        60, [("hub", "painted by", "Ada Brink"), ("hub", "has", "Carl Moss"), ("Ada Brink", "born in", "Bern")]
    )
    kb = index.loaded("kb", lambda _: None)
    whole = around(index, "hub", "who painted the hub")
    assert whole.taken.nodes == kb.n == 64 and whole.n_cut == 0
    monkeypatch.setattr(subgraphs, "MOST_NODES", 9)
    by_relation = around(index, "hub", "painted by")
    names = {kb.node_names[v] for v in by_relation.ball.tolist()}
    assert len(names) <= 9 and {"hub", "Ada Brink", "Bern"} <= names and by_relation.n_cut == 62 - 4
    by_name = around(index, "hub", "Carl Moss", depth=1)
    assert by_name.taken.nodes == 9 and "Carl Moss" in {kb.node_names[v] for v in by_name.ball.tolist()}
    assert around(index, "Bern", "painted by").taken.nodes == 3  # no more than there is space for: as before


def test_tiles_of_bytes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    index = star(9, [("leaf 1", "likes", "leaf 2"), ("leaf 3", "likes", "leaf 4")])
    wanted = [((((v,), (Order((v,)),))), np.zeros(HashEmbedder().dim, np.float32)) for v in range(6)]
    together = run(question_graph, index, wanted, ALL, 2)
    sizes = [(10, 100), (10, 100), (1000, 10**7), (10, 100)]
    assert subgraphs._tiles(sizes) == [(0, 2), (2, 3), (3, 4)] and subgraphs._tiles([]) == []
    monkeypatch.setattr(subgraphs, "TILE_BYTES", 1)
    for one, other in zip(together, run(question_graph, index, wanted, ALL, 2), strict=True):
        assert (one.taken, one.clustered, one.reduced) == (other.taken, other.clustered, other.reduced)
        assert torch.equal(one.nodes, other.nodes) and torch.equal(one.csr.indices, other.csr.indices)
        assert np.array_equal(one.ball, other.ball) and np.array_equal(one.representative, other.representative)


def test_vectors_of_edges_are_composed_of_names_and_relations() -> None:
    index = star(2, [("leaf 0", "likes", "leaf 1"), ("leaf 1", "hates", "leaf 0")])
    kb, facts = index.loaded("kb", lambda _: None), facts_of(index, ALL)  # type: ignore[arg-type]
    assert isinstance(facts.vectors, ExactVectors)
    columns = (torch.from_numpy(column) for column in (kb.head, kb.relation, kb.tail))
    composed = ComposedVectors(
        facts.triples, *columns, kb.vectors("kb_name_vectors"), kb.vectors("kb_relation_vectors")
    )
    made = composed.of(torch.arange(facts.keys.shape[0]))
    names, relations = kb.vectors("kb_name_vectors").numpy(), kb.vectors("kb_relation_vectors").numpy()
    for edge, row in enumerate(made.float().numpy()):
        said = [names[kb.head[f]] + relations[kb.relation[f]] + names[kb.tail[f]] for f in facts.facts_of(edge)]
        mean = sum(one / np.linalg.norm(one) for one in said)
        assert np.allclose(row, mean / np.linalg.norm(mean), atol=1e-3)
    assert max(len(facts.facts_of(edge)) for edge in range(len(made))) == 2
    along = torch.tensor([[2, -1], [0, 2]], dtype=torch.int32)
    rows, vectors = composed.along(along)
    assert rows.tolist() == [[1, -1], [0, 1]] and torch.equal(vectors, made[[0, 2]])


def test_a_large_graph_is_searched_without_vectors_of_its_edges(
    tmp_path: Path, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kg.tsv").write_text(
        "Halden Bridge\tdesigned by\tMarta Orlo\nMarta Orlo\tborn in\tTamsin\nTamsin\ttwin town of\tKerling\n"
    )
    monkeypatch.setattr(texts, "MOST_EXACT", 2)
    gpu_rag.build((), tmp_path / "ix", methods=["hydrarag"], kg=tmp_path / "kg.tsv", settings=fast)
    index = gpu_rag.Index.open(tmp_path / "ix")
    assert index.vectors("kb_edge_vectors").shape[0] == 0 and verify(tmp_path / "ix") == []
    answer = ask(index, fast, "Where was the designer of the Halden Bridge born?")
    assert "Halden Bridge - designed by -> Marta Orlo - born in -> Tamsin" in {path.text for path in answer.paths}
    assert noted(answer, "evidence_subgraph")
