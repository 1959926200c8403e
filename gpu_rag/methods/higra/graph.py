"""HiGraAgent's two-layer graph: aligned entities, their relations and links to passages, with look-ups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from gpu_rag.graph.csr import csr_from_edges, row_of_entry
from gpu_rag.graph.ego import CheckedGraph, checked
from gpu_rag.graph.pagerank import PageRankGraph, prepare
from gpu_rag.index.index import Index
from gpu_rag.index.name_table import NameTable, of_one, words_of
from gpu_rag.index.names import normalised, one_array
from gpu_rag.index.titles import titled
from gpu_rag.methods.higra.tables import ints, read_of
from gpu_rag.text.bm25 import Bm25
from gpu_rag.types import CSR, Path


@dataclass(frozen=True)
class HigraGraph:
    """The entity layer and its links to the passages. R relations, N entities, P passages.

    entities: HIGRA_ENTITIES, sorted by id; members are rows of the index's own entity table.
    relations: HIGRA_RELATIONS.
    entity_graph: CSR over the N entities. An entry joins the two ends of a relation; both directions are stored.
    Parallel relations count once, self-loops not at all; no weights.
    full_graph: CSR over the nodes [entities | passages] (passage p is node N + p): the same entries, and one for each
    linked entity and passage, in both directions; no weights.
    links: HIGRA_LINKS, each occurrence of an entity in a passage, with offsets into its text.
    entity_bm25, relation_bm25: over "name | aliases | types" and "subject label object". The vectors of the stages
    higra_entity_vectors and higra_relation_vectors have the same rows, see `Index.vectors`.

    Tensors are on the device of the index.
    """

    entities: pa.Table
    relations: pa.Table
    entity_graph: CSR
    full_graph: CSR
    links: pa.Table
    entity_bm25: Bm25
    relation_bm25: Bm25

    @property
    def n_entities(self) -> int:
        """Number of entities N. Passage row p is node N + p of the full graph."""
        return int(self.entities.num_rows)

    @cached_property
    def checked(self) -> tuple[CheckedGraph, CheckedGraph]:
        """The entity graph and the full graph in the form that graph ops take."""
        return checked(self.entity_graph), checked(self.full_graph)

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """(subjects, objects) of the relations, i64[R]."""
        return ints(self.relations, "subject"), ints(self.relations, "object")

    @cached_property
    def n_passages(self) -> np.ndarray:
        """i64[N]: the number of passages that each entity is linked to."""
        rows = row_of_entry(self.full_graph)
        linked = (rows < self.n_entities) & (self.full_graph.indices >= self.n_entities)
        return np.bincount(rows[linked].cpu().numpy(), minlength=self.n_entities)

    @cached_property
    def relations_by_subject(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(first i64[N + 1], objects i64[R]): the relations with subject e are rows first[e] to first[e + 1]."""
        first = np.searchsorted(ints(self.relations, "subject"), np.arange(self.n_entities + 1)).astype(np.int64)
        device = self.entity_graph.indptr.device
        return torch.from_numpy(first).to(device), torch.from_numpy(ints(self.relations, "object")).to(device)

    @cached_property
    def known_names(self) -> tuple[pa.LargeStringArray, np.ndarray]:
        """(normalised names, then aliases; the entity of each): of equal names the first counts."""
        aliases = self.entities["aliases"].combine_chunks()
        owner = pc.list_parent_indices(aliases).to_numpy()
        names = pa.chunked_array([one_array(self.entities["name"]), one_array(aliases.flatten())])
        return normalised(one_array(names)), np.concatenate([np.arange(self.n_entities), owner])

    @cached_property
    def names(self) -> NameTable:
        """Entity rows by name, and by aliases that belong to only one entity."""
        (known, owner), n = self.known_names, self.n_entities
        also, rows = of_one(known.slice(n), owner[n:], known.slice(0, n))
        names = pa.chunked_array([one_array(self.entities["name"]), also])
        return NameTable.of(names, np.concatenate([np.arange(n), rows]))

    def about(self, row: int) -> frozenset[str]:
        """The words of an entity's types and descriptions, used to tell entities of one name apart."""
        types, texts = (self.entities[name][row].as_py() for name in ("types", "descriptions"))
        return frozenset(words_of(" ".join([*types, *texts])).folded)

    def named(self, text: str) -> tuple[int, ...]:
        """The entities that a question names, ascending. Among entities of one name, the one whose types and
        descriptions share most words with the question wins, then the one in most passages. Names without a capital
        count only if no name has one."""
        text_words = words_of(text)
        matches = self.names.found(text_words)
        words = set(text_words.folded)
        chosen = {
            max(rows, key=lambda row: (len(words & self.about(row)), self.n_passages[row], -row))
            for rows, capital in matches
            if capital or not any(capital for _, capital in matches)
        }
        return tuple(sorted(chosen))


def walk_graph(index: Index) -> PageRankGraph:
    """The full graph for random walks, made once. TITLE_WEIGHT is added to each edge from an entity to a passage with
    its name as title."""

    def load(index: Index) -> PageRankGraph:
        graph = higra_graph(index)
        names, rows = graph.known_names
        return prepare(titled(graph.full_graph, index.passage_titles, names, graph.n_entities, rows))

    return index.loaded("higra_walk", load)


def higra_graph(index: Index) -> HigraGraph:
    """The graph of an index, read once. Raises MissingLayer, IndexCorrupt."""
    return index.loaded("higra", _load)


def _load(index: Index) -> HigraGraph:
    arrays = index.arrays("higra_graph", "graph.safetensors")

    def graph(name: str) -> CSR:
        return CSR(*(torch.from_numpy(arrays[f"{name}_{part}"]).to(index.device) for part in ("indptr", "indices")))

    return HigraGraph(
        entities=read_of(index, "higra_entities"),
        relations=read_of(index, "higra_relations"),
        entity_graph=graph("entity"),
        full_graph=graph("full"),
        links=read_of(index, "higra_links"),
        entity_bm25=index.words("higra_search", "entities"),
        relation_bm25=index.words("higra_search", "relations"),
    )


def graphs_of(relations: pa.Table, links: pa.Table, n_entities: int, n_passages: int) -> dict[str, CSR]:
    """{"entity": the entity graph, "full": the full graph}, built from the tables, see `HigraGraph`."""
    subjects, objects = ints(relations, "subject"), ints(relations, "object")
    src = np.concatenate([subjects, ints(links, "entity")])
    dst = np.concatenate([objects, ints(links, "passage") + n_entities])
    return {
        "entity": csr_from_edges(torch.from_numpy(subjects), torch.from_numpy(objects), n_entities),
        "full": csr_from_edges(torch.from_numpy(src), torch.from_numpy(dst), n_entities + n_passages),
    }


# --- look-ups --------------------------------------------------------------------------------------


def relation_paths(index: Index, rows: Sequence[int], shown: Collection[str]) -> tuple[Path, ...]:
    """Relations as paths of one edge. The passage given is the first shown one that states the relation, else the first
    that states it. shown: ids of passages. An inferred relation has no passage."""
    graph = higra_graph(index)
    part = graph.relations.select(("subject", "label", "object", "passages")).take(pa.array(list(rows), pa.int64()))
    names, paths = graph.entities["name"], []
    for subject, label, object_, passages in zip(*(column.to_pylist() for column in part.columns)):
        ends, ids = (names[subject].as_py(), names[object_].as_py()), [index.passage_ids[p] for p in passages]
        passage = next((id for id in ids if id in shown), ids[0] if ids else "")
        paths.append(Path(f"{ends[0]} - {label} - {ends[1]}", ((ends[0], label, ends[1], passage),), "graph"))
    return tuple(paths)


def passages_of_entities(index: Index) -> dict[int, set[int]]:
    """{entity: rows of its passages}."""

    def load(index: Index) -> dict[int, set[int]]:
        passages: dict[int, set[int]] = {}
        links = higra_graph(index).links
        for entity, passage in zip(links["entity"].to_pylist(), links["passage"].to_pylist()):
            passages.setdefault(entity, set()).add(passage)
        return passages

    return index.loaded("passages of higra's entities", load)


def entity_options(index: Index, rows: Sequence[int]) -> list[str]:
    """Each entity as an option of a choice: its name, types and other names."""
    part = higra_graph(index).entities.select(("name", "types", "aliases")).take(pa.array(list(rows), pa.int64()))
    options = []
    for name, types, aliases in zip(*(column.to_pylist() for column in part.columns)):
        kinds = f" ({', '.join(types)})" if types else ""
        options.append(f"{name}{kinds}" + (f", also {'; '.join(aliases)}" if aliases else ""))
    return options
