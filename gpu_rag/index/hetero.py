"""An index as one graph with kinds of nodes and edges, for PyG: in memory, and as a folder without pickle.

Node kinds: passage (id, title) and, if there are entities, entity (name); `x` holds the vectors of a kind if the index
has them (f32). Edge kinds: (entity, relation, entity) with `label` i64, an index into the texts `labels`; (entity,
mentioned_in, passage), once per pair; (entity, synonym, entity) with `edge_weight`, the cosine. The folder has
`graph.json` and `graph.safetensors`; a tensor is named KIND/ATTRIBUTE or LEFT/NAME/RIGHT/ATTRIBUTE.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_rag.errors import BadInput, IndexCorrupt, MissingBackend
from gpu_rag.index import tables
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.index import Index

FORMAT, VERSION = "gpu-rag graph", 1
VECTORS = {"passage": "passage_vectors", "entity": "entity_vectors"}

Attributes = dict[str, Any]  # a numpy array, or a list of texts
EdgeType = tuple[str, str, str]


@dataclass
class HeteroGraph:
    """A graph with kinds of nodes and edges. nodes: kind -> attributes, with "num_nodes" an int; edges: (kind, name,
    kind) -> attributes, with edge_index i64[2, E]. Other attributes are arrays or lists of texts."""

    nodes: dict[str, Attributes] = field(default_factory=dict)
    edges: dict[EdgeType, Attributes] = field(default_factory=dict)


def hetero_graph(index: Index, vectors: bool = True) -> HeteroGraph:
    """Graph of an index, from its stages; with or without vectors."""
    graph = HeteroGraph()
    graph.nodes["passage"] = {
        "num_nodes": index.n_passages, "id": list(index.passage_ids), "title": index.passages["title"].to_pylist(),
    }  # fmt: skip
    if "entities" in index.stages:
        graph.nodes["entity"] = {"num_nodes": index.n_entities, "name": list(index.entity_names)}
        written = index.relations["label"].to_pylist()
        labels = sorted(set(written))
        number = {label: i for i, label in enumerate(labels)}
        graph.edges["entity", "relation", "entity"] = {
            "edge_index": np.stack(index.relation_ends), "labels": labels,
            "label": np.array([number[label] for label in written], np.int64),
        }  # fmt: skip
    if "mentions" in index.stages:
        pairs = np.stack([index.mentions[name].to_numpy().astype(np.int64) for name in ("entity", "passage")])
        graph.edges["entity", "mentioned_in", "passage"] = {"edge_index": np.unique(pairs, axis=1)}
    if "synonyms" in index.stages:
        synonyms = index.table("synonyms", "synonyms.parquet", tables.SYNONYMS)
        ends = np.stack([synonyms[name].to_numpy().astype(np.int64) for name in ("left", "right")])
        graph.edges["entity", "synonym", "entity"] = {"edge_index": ends, "edge_weight": synonyms["score"].to_numpy()}
    for kind, stage in VECTORS.items() if vectors else ():
        if kind in graph.nodes and stage in index.stages:
            graph.nodes[kind]["x"] = index.vectors(stage).float().cpu().numpy()
    return graph


def to_hetero_data(graph: HeteroGraph) -> Any:
    """torch_geometric.data.HeteroData with the same kinds and attributes. Raises MissingBackend."""
    if find_spec("torch_geometric") is None:
        raise MissingBackend("PyG is not installed", do="pip install torch-geometric, or 'gpu-rag[gpu]'")
    data = import_module("torch_geometric.data").HeteroData()
    for kind, attributes in (*graph.nodes.items(), *graph.edges.items()):
        for name, value in attributes.items():
            if isinstance(value, np.ndarray):
                value = torch.from_numpy(np.require(value, requirements=["C", "W"]))
            setattr(data[kind], name, value)
    return data


def write_hetero(graph: HeteroGraph, out: Path) -> list[Path]:
    """Write the folder `out`, which must not exist. Returns the files written."""
    nodes = {kind: _described(attributes) for kind, attributes in graph.nodes.items()}
    edges = [{"type": list(parts), **_described(attributes)} for parts, attributes in graph.edges.items()]
    named = {**graph.nodes, **{"/".join(parts): attributes for parts, attributes in graph.edges.items()}}
    arrays = {
        f"{prefix}/{name}": value
        for prefix, attributes in named.items()
        for name, value in attributes.items()
        if isinstance(value, np.ndarray)
    }
    described = {"format": FORMAT, "version": VERSION, "nodes": nodes, "edges": edges}
    with storage_errors(out):
        out.mkdir(parents=True)
        (out / "graph.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
    tables.write_arrays(out / "graph.safetensors", arrays)
    return [out / "graph.json", out / "graph.safetensors"]


def _described(attributes: Attributes) -> dict[str, Any]:
    """Attributes for the JSON: names of arrays, and other values unchanged."""
    plain = {name: value for name, value in attributes.items() if not isinstance(value, np.ndarray)}
    return {"plain": plain, "arrays": sorted(set(attributes) - set(plain))}


def read_hetero(folder: Path) -> HeteroGraph:
    """Read a folder of `write_hetero`. Raises BadInput for another folder, IndexCorrupt for a damaged one."""
    try:
        described = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput("no exported graph", given=f"{folder}: {error}", expected="what --format pyg wrote") from error
    given = described.get("format"), described.get("version")
    if given != (FORMAT, VERSION):
        raise BadInput("another format of graph", given=given, expected=f"{FORMAT} {VERSION}")
    arrays = tables.read_arrays(folder / "graph.safetensors")
    graph = HeteroGraph()
    for kind, entry in described["nodes"].items():
        graph.nodes[kind] = _attributes(entry, kind, arrays)
    for entry in described["edges"]:
        left, name, right = entry["type"]
        attributes = graph.edges[left, name, right] = _attributes(entry, "/".join(entry["type"]), arrays)
        for ends, kind in zip(attributes["edge_index"], (left, right)):
            if ends.size and not 0 <= ends.min() <= ends.max() < graph.nodes.get(kind, {}).get("num_nodes", 0):
                raise IndexCorrupt("an edge has no end", given=f"{folder}: {left} {name} {right}")
    return graph


def _attributes(entry: dict[str, Any], prefix: str, arrays: dict[str, np.ndarray]) -> Attributes:
    missing = [name for name in entry["arrays"] if f"{prefix}/{name}" not in arrays]
    if missing:
        raise IndexCorrupt("an array of the graph is missing", given=f"{prefix}/{missing[0]}")
    return {**entry["plain"], **{name: arrays[f"{prefix}/{name}"] for name in entry["arrays"]}}
