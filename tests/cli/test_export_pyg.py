"""gpu-rag export --format pyg, load_pyg and Index.to_pyg: the graph of the tables, without pickle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gpu_rag
from gpu_rag.errors import BadInput, IndexCorrupt, MissingBackend, UsageError
from gpu_rag.graph import interop


@pytest.fixture
def exported(run, index, tmp_path):
    out = tmp_path / "graph"
    result = run("export", index, "--format", "pyg", "--out", out, "--json")
    assert result.status == 0, result.err
    names = ["graph.json", "graph.safetensors"]
    files = [{"path": str(out / name), "bytes": (out / name).stat().st_size} for name in names]
    assert result.document == {"format": "pyg", "files": files}
    return out


def check(data, index: Path, tables) -> None:
    assert data.validate() and data.node_types == ["passage", "entity"]
    assert data["passage"].id == [row["id"] for row in tables["passages"]]
    assert data["passage"].title == [row["title"] for row in tables["passages"]]
    assert data["entity"].name == [row["name"] for row in tables["entities"]]
    assert (data["passage"].num_nodes, data["entity"].num_nodes) == (len(tables["passages"]), len(tables["entities"]))
    relation = data["entity", "relation", "entity"]
    labels = [relation.labels[i] for i in relation.label.tolist()]
    wanted = [(row["subject"], row["label"], row["object"]) for row in tables["relations"]]
    assert list(zip(relation.edge_index[0].tolist(), labels, relation.edge_index[1].tolist())) == wanted
    mentions = data["entity", "mentioned_in", "passage"].edge_index.T.tolist()
    assert [tuple(pair) for pair in mentions] == sorted({(row["entity"], row["passage"]) for row in tables["mentions"]})
    synonyms = data["entity", "synonym", "entity"]
    assert list(zip(*synonyms.edge_index.tolist(), synonyms.edge_weight.tolist())) == [
        (row["left"], row["right"], row["score"]) for row in tables["synonyms"]
    ]
    held = gpu_rag.Index.open(index).vectors("passage_vectors")
    assert data["passage"].x.dtype == torch.float32 and torch.equal(data["passage"].x, held)


def test_files_and_memory_hold_the_tables(exported, index, tables):
    pytest.importorskip("torch_geometric")
    data = gpu_rag.load_pyg(exported)
    check(data, index, tables)
    check(gpu_rag.Index.open(index).to_pyg(), index, tables)
    data["entity", "relation", "entity"].edge_index = data["entity", "relation", "entity"].edge_index.flip(0)
    with pytest.raises(AssertionError):  # a lost direction
        check(data, index, tables)


def test_writing_needs_no_pyg_and_reading_says_what_is_missing(exported, monkeypatch):
    monkeypatch.setattr(interop, "find_spec", lambda name: None)
    with pytest.raises(MissingBackend, match="PyG is not installed; pip install torch-geometric"):
        gpu_rag.load_pyg(exported)


def test_an_index_without_entities_exports_its_passages(run, cli, tiny_corpus, tmp_path):
    pytest.importorskip("torch_geometric")
    assert run("index", tiny_corpus, "--out", tmp_path / "words", "--for", "bm25", *cli.NO_LLM).status == 0
    assert run("export", tmp_path / "words", "--format", "pyg", "--out", tmp_path / "w").status == 0
    data = gpu_rag.load_pyg(tmp_path / "w")
    assert (data.node_types, data.edge_types, data["passage"].num_nodes) == (["passage"], [], 6)


def test_nothing_is_overwritten_and_damage_is_found(run, index, exported, tmp_path):
    assert run("export", index, "--format", "pyg", "--out", exported).status == 2
    with pytest.raises(BadInput, match="no exported graph"):
        gpu_rag.load_pyg(tmp_path / "nothing")
    described = json.loads((exported / "graph.json").read_text(encoding="utf-8"))
    one = {"plain": {"num_nodes": 1}, "arrays": []}
    for change, error, match in (
        ({"version": 99}, BadInput, "another format of graph"),
        ({"nodes": {**described["nodes"], "entity": one}}, IndexCorrupt, "no end"),
        ({"nodes": {"passage": {**one, "arrays": ["y"]}}}, IndexCorrupt, "array of the graph is missing"),
    ):
        (exported / "graph.json").write_text(json.dumps({**described, **change}), encoding="utf-8")
        with pytest.raises((UsageError, IndexCorrupt), match=match) as raised:
            gpu_rag.load_pyg(exported)
        assert isinstance(raised.value, error)
    (exported / "graph.json").write_text(json.dumps(described), encoding="utf-8")
    (exported / "graph.safetensors").write_bytes(b"x" * 40)
    with pytest.raises(IndexCorrupt, match="arrays of the index cannot be read"):
        gpu_rag.load_pyg(exported)
