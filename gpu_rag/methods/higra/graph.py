"""HiGraAgent's two-layer graph as its verbs read it: aligned entities, their relations, and links to passages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.methods.higra.tables import HIGRA_ENTITIES, HIGRA_LINKS, HIGRA_RELATIONS
from gpu_rag.text.bm25 import Bm25
from gpu_rag.types import CSR


@dataclass(frozen=True)
class HigraGraph:
    """The entity layer and its links to the passages. R relations, N entities, P passages.

    entities: HIGRA_ENTITIES, sorted by id; members are rows of the index's own entity table.
    relations: HIGRA_RELATIONS; relation_ends: (subjects, objects), i64[R] rows of `entities`.
    entity_graph: CSR over the N entities: an entry joins the two ends of a relation, both directions stored; parallel
    relations count once, relations of an entity with itself not at all; no weights.
    full_graph: CSR over the nodes [entities | passages] (passage p is node N + p): the same entries, and one for each
    linked entity and passage, both directions; no weights.
    links: HIGRA_LINKS, each occurrence of an entity in a passage, with offsets into its text.
    entity_bm25, relation_bm25: over "name | aliases | types" and "subject label object", as the vectors of the layers
    higra_entity_vectors and higra_relation_vectors, see `Index.vectors`.
    Tensors are on the device of the index.
    """

    entities: pa.Table
    relations: pa.Table
    relation_ends: tuple[np.ndarray, np.ndarray]
    entity_graph: CSR
    full_graph: CSR
    links: pa.Table
    entity_bm25: Bm25
    relation_bm25: Bm25

    @property
    def n_entities(self) -> int:
        """Number of entities N: passage row p is node N + p of the full graph."""
        return int(self.entities.num_rows)


def load_higra_graph(index: Index) -> HigraGraph:
    """The view, for `index.loaded("higra", load_higra_graph)`. Raises MissingLayer, IndexCorrupt."""
    relations = tables.read_table(index.folder("higra_links") / "higra_relations.parquet", HIGRA_RELATIONS)
    arrays = tables.read_arrays(index.folder("higra_graph") / "graph.safetensors")
    ends = (relations["subject"].to_numpy().astype(np.int64), relations["object"].to_numpy().astype(np.int64))
    return HigraGraph(
        entities=tables.read_table(index.folder("higra_merge") / "higra_entities.parquet", HIGRA_ENTITIES),
        relations=relations,
        relation_ends=ends,
        entity_graph=_csr(arrays, "entity", index.device),
        full_graph=_csr(arrays, "full", index.device),
        links=tables.read_table(index.folder("higra_mentions") / "higra_links.parquet", HIGRA_LINKS),
        entity_bm25=Bm25.load(index.folder("higra_search") / "entities"),
        relation_bm25=Bm25.load(index.folder("higra_search") / "relations"),
    )


def _csr(arrays: dict[str, np.ndarray], name: str, device: str) -> CSR:
    held = (torch.from_numpy(arrays[f"{name}_{part}"]).to(device) for part in ("indptr", "indices"))
    return CSR(*held)
