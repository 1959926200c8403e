"""HiGraAgent's two-layer graph: aligned entities, their relations and links to passages, with look-ups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from gpu_rag.graph.ego import CheckedGraph, checked
from gpu_rag.graph.pagerank import PageRankGraph
from gpu_rag.index.index import Index
from gpu_rag.index.name_table import ARRAYS, NAMES, NameTable, words_of
from gpu_rag.index.titles import TITLE_WEIGHT
from gpu_rag.index.walk import chosen_entries, host_arrays
from gpu_rag.lazy import torch
from gpu_rag.methods.higra.tables import ints, read_of, take_rows
from gpu_rag.types import CSR, Path

WALK = "walk.safetensors"  # the full graph with the edges of titles, in the stage higra_graph


@dataclass(frozen=True)
class HigraGraph:
    """The entity layer and its links to the passages. R relations, N entities, P passages.

    entity_graph: CSR over the N entities. An entry joins the two ends of a relation; both directions are stored.
    Parallel relations count once, self-loops not at all; no weights.
    full_graph: CSR over the nodes [entities | passages] (passage p is node N + p): the same entries, and one for each
    linked entity and passage, in both directions; no weights.
    The vectors of the stages higra_entity_vectors and higra_relation_vectors have the same rows, see `Index.vectors`,
    and so have the words of higra_search, see `Index.words`: of "name | aliases | types" and "subject label object".
    names: entity rows by name, and by aliases that belong to only one entity.

    Tensors are on the device of the index. Tables are read on first use.
    """

    index: Index
    entity_graph: CSR
    full_graph: CSR
    names: NameTable

    @cached_property
    def entities(self) -> pa.Table:
        """HIGRA_ENTITIES, sorted by id; members are rows of the index's own entity table."""
        return read_of(self.index, "higra_entities")

    @cached_property
    def relations(self) -> pa.Table:
        """HIGRA_RELATIONS."""
        return read_of(self.index, "higra_relations")

    @cached_property
    def links(self) -> pa.Table:
        """HIGRA_LINKS, each occurrence of an entity in a passage, with offsets into its text."""
        return read_of(self.index, "higra_links")

    @property
    def n_entities(self) -> int:
        """Number of entities N. Passage row p is node N + p of the full graph."""
        return self.entity_graph.n

    @cached_property
    def checked(self) -> tuple[CheckedGraph, CheckedGraph]:
        """The entity graph and the full graph in the form that graph ops take."""
        return checked(self.entity_graph), checked(self.full_graph)

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """(subjects, objects) of the relations, i64[R]."""
        table = read_of(self.index, "higra_relations", ("subject", "object"))
        return ints(table, "subject"), ints(table, "object")

    @cached_property
    def n_passages(self) -> np.ndarray:
        """i64[N]: the number of passages that each entity is linked to."""
        ends = self.full_graph.indptr[: self.n_entities + 1], self.entity_graph.indptr
        counts: np.ndarray = (ends[0] - ends[1]).diff().cpu().numpy()
        return counts

    @cached_property
    def rarest(self) -> np.ndarray:
        """i64[P]: the entity of each passage that is in the fewest passages, ties to the lower row; -1 for none."""
        rarest = np.full(self.index.n_passages, -1, np.int64)
        entity, passage = ints(self.links, "entity"), ints(self.links, "passage")
        order = np.lexsort((-entity, -self.n_passages[entity]))  # of equal passages the last one is kept
        rarest[passage[order]] = entity[order]
        return rarest

    @cached_property
    def relations_by_subject(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(first i64[N + 1], objects i64[R]): the relations with subject e are rows first[e] to first[e + 1]."""
        (subjects, objects), device = self.ends, self.entity_graph.indptr.device
        first = np.searchsorted(subjects, np.arange(self.n_entities + 1)).astype(np.int64)
        return torch.from_numpy(first).to(device), torch.from_numpy(objects).to(device)

    def about(self, row: int) -> frozenset[str]:
        """The words of an entity's types and descriptions, used to distinguish entities of one name."""
        (entity,) = take_rows(self.index, "higra_entities", [row], "types", "descriptions")
        return frozenset(words_of(" ".join([*entity["types"], *entity["descriptions"]])).folded)

    def named(self, text: str) -> tuple[int, ...]:
        """The entities that a question names, ascending. Among entities of one name, the one whose types and
        descriptions share most words with the question wins, then the one in most passages. Names without a capital
        count only if no name has one."""
        text_words = words_of(text)
        (matches,) = self.names.names_in([text_words])
        words = set(text_words.folded)
        chosen = {
            rows[0]
            if len(rows) == 1
            else max(rows, key=lambda row: (len(words & self.about(row)), self.n_passages[row], -row))
            for rows, capital in matches
            if capital or not any(capital for _, capital in matches)
        }
        return tuple(sorted(chosen))


def walk_graph(index: Index) -> PageRankGraph:
    """The full graph for random walks. TITLE_WEIGHT is added to each edge from an entity to a passage with its name as
    title."""
    return index.walk("higra_graph", WALK)


def higra_graph(index: Index) -> HigraGraph:
    """The graph of an index, read once. Raises MissingLayer, IndexCorrupt."""
    return index.loaded("higra", _load)


def _load(index: Index) -> HigraGraph:
    n = read_of(index, "higra_entities", ("n_passages",)).num_rows
    parts = graph_parts(host_arrays(walk_graph(index).pull), n)
    entity, full = (
        CSR(*(torch.from_numpy(array).to(index.device) for array in parts[name])) for name in ("entity", "full")
    )
    return HigraGraph(index, entity, full, NameTable(index.arrays("higra_graph", NAMES, *ARRAYS)))


def graph_parts(walk: Mapping[str, np.ndarray], n: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(indptr, indices) of the "entity" graph and of the "full" graph. walk: arrays of the full graph with the edges of
    titles; n: number of entities."""
    entity = chosen_entries(walk, n, lambda column, _: column < n)
    full = chosen_entries(walk, len(walk["indptr"]) - 1, lambda _, weight: weight != TITLE_WEIGHT)
    return {"entity": entity, "full": full}


# --- look-ups --------------------------------------------------------------------------------------


def relation_paths(index: Index, rows: Sequence[int], shown: Collection[str]) -> tuple[Path, ...]:
    """Relations as paths of one edge. The passage given is the first shown one that states the relation, else the first
    that states it. shown: ids of passages. An inferred relation has no passage."""
    paths, relations = [], take_rows(index, "higra_relations", rows, "subject", "label", "object", "passages")
    ends = (row[side] for row in relations for side in ("subject", "object"))
    names = iter([end["name"] for end in take_rows(index, "higra_entities", ends, "name")])
    for row in relations:
        label, ids = row["label"], [index.passage_ids[p] for p in row["passages"]]
        subject, object_ = next(names), next(names)
        passage = next((id for id in ids if id in shown), ids[0] if ids else "")
        paths.append(Path(f"{subject} - {label} - {object_}", ((subject, label, object_, passage),), "graph"))
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


def entity_options(index: Index, rows: Sequence[int], passages: Mapping[int, int]) -> list[str]:
    """Each entity as an option of a choice: its name, types, other names, and the title of its passage, if given."""
    options = []
    for number, row in zip(rows, take_rows(index, "higra_entities", rows, "name", "types", "aliases")):
        kinds = f" ({', '.join(row['types'])})" if row["types"] else ""
        also = f", also {'; '.join(row['aliases'])}" if row["aliases"] else ""
        title = index.passage_titles[passages[number]] if number in passages else ""
        options.append(f"{row['name']}{kinds}{also}" + (f" | {title}" if title else ""))
    return options
