"""What a program may say to HiGraAgent's graph: hybrid search over its three kinds of things, and the fused ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.graph.fuse import rrf
from gpu_rag.graph.nearest import on_host
from gpu_rag.index.index import Index
from gpu_rag.methods.higra.graph import HigraGraph, load_higra_graph
from gpu_rag.methods.higra.rank import HigraRank, Seeded, higra_ranker
from gpu_rag.program.legacy import RANK_GRAPH, Call, Executor
from gpu_rag.program.search import Ranking, nearest_rows, rankings
from gpu_rag.settings.ranges import COUNT, RANK_CONSTANT, check_fields
from gpu_rag.text.bm25 import Bm25
from gpu_rag.text.mentions import mentioned_names
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import TopK

SIMILARITIES = ("hybrid", "dense")


@dataclass(frozen=True)
class HigraSearch:
    """Parameters of one search. similarity: hybrid (BM25 and cosine, fused by 1 / (constant + rank)) | dense (cosine).

    depth: how many of each ranking are fused and returned, of relations and passages; n_entities: of entities.
    """

    similarity: str = "hybrid"
    n_entities: int = 20
    depth: int = 100
    constant: float = 60.0

    def __post_init__(self) -> None:
        check_fields(self, similarity=SIMILARITIES, n_entities=COUNT, depth=COUNT, constant=RANK_CONSTANT)


@dataclass(frozen=True)
class HigraFound:
    """What a search found, best first: rows of the three tables. named: entities whose name or alias the text holds.

    Entity scores are scaled so that first in every ranking is 1 (dense: the cosine).
    """

    entities: Ranking
    relations: Ranking
    passages: Ranking
    named: tuple[int, ...]


@dataclass(frozen=True)
class HigraRanking:
    """Relations and passages by fused rank, and how many entities and passages the subgraph held."""

    relations: Ranking
    passages: Ranking
    n_entities: int
    n_passages: int


@dataclass(frozen=True)
class HigraFact:
    """A relation in words, with the ids of the passages that state it (none: inferred) and its origin."""

    subject: str
    label: str
    object: str
    passages: tuple[str, ...]
    origin: str

    @property
    def text(self) -> str:
        """ "subject - label - object"."""
        return f"{self.subject} - {self.label} - {self.object}"


def _similar(
    index: Index, params: HigraSearch, queries: torch.Tensor, texts: Sequence[str], layer: str, words: Bm25, k: int
) -> TopK:
    n = max(1, index.vectors(layer).shape[0])
    k, depth = min(k, n), min(max(k, params.depth), n)
    dense = on_host(nearest_rows(index, layer, queries, k if params.similarity == "dense" else depth))
    if params.similarity == "dense":
        return dense
    ids, scores = words.search(texts, depth)
    by_words = TopK(torch.from_numpy(ids), torch.from_numpy(scores))
    return rrf([dense, by_words], k, constants=[params.constant, params.constant])


def _search_executor(index: Index) -> Executor:
    def run(static: tuple[Any, ...], args: list[tuple[str, np.ndarray]]) -> list[HigraFound]:
        params: HigraSearch = static[0]
        graph, names = index.loaded("higra", load_higra_graph), index.loaded("higra_names", _names)
        texts = [text for text, _ in args]
        queries = torch.from_numpy(np.stack([vector for _, vector in args]).astype(np.float32)).to(index.device)
        found = [
            rankings(_similar(index, params, queries, texts, layer, words, k))
            for layer, words, k in (
                ("higra_entity_vectors", graph.entity_bm25, params.n_entities),
                ("higra_relation_vectors", graph.relation_bm25, params.depth),
                ("passage_vectors", index.bm25, params.depth),
            )
        ]
        best = 2 / (params.constant + 1) if params.similarity == "hybrid" else 1.0
        scaled = [Ranking(e.rows, tuple(score / best for score in e.scores)) for e in found[0]]
        named = [tuple(mentioned_names(text, names)) for text in texts]
        return [HigraFound(*row) for row in zip(scaled, found[1], found[2], named)]

    return Executor(run, "graph", RANK_GRAPH)


def _names(index: Index) -> dict[str, int]:
    """Entity rows by normalised name, then by alias; of several entities the first row counts."""
    table = index.loaded("higra", load_higra_graph).entities
    names: dict[str, int] = {}
    for row, name in enumerate(table["name"].to_pylist()):
        names.setdefault(normalise_name(name), row)
    for row, aliases in enumerate(table["aliases"].to_pylist()):
        for alias in aliases:
            names.setdefault(normalise_name(alias), row)
    return names


def _rank_executor(index: Index, threads: int) -> Executor:
    rank = higra_ranker(index, threads)

    def run(static: tuple[Any, ...], args: list[Seeded]) -> list[HigraRanking]:
        relations, passages, sizes = rank(static[0], args)
        return [HigraRanking(r, p, *n) for r, p, n in zip(rankings(relations), rankings(passages), sizes)]

    return Executor(run, "graph", RANK_GRAPH)


def higra_executors(index: Index, threads: int = 1) -> dict[str, Executor]:
    """The executors of the two verbs. The layers are read when a call first needs them."""
    return {"higra_search": _search_executor(index), "higra_rank": _rank_executor(index, threads)}


class HigraVerbs:
    """HiGraAgent's verbs of one question."""

    index: Index

    async def higra_search(self, text: str, vector: np.ndarray, params: HigraSearch) -> HigraFound:
        """Entities, relations and passages by similarity to a text and its unit vector f32[D]."""
        return await Call("higra_search", (params,), (text, vector))

    async def higra_rank(self, seeds: Sequence[int], found: HigraFound, params: HigraRank) -> HigraRanking:
        """Relations and passages of the subgraph around seed entities, fused with their similarity ranks."""
        args = Seeded(tuple(seeds), found.relations.rows, found.passages.rows)
        return await Call("higra_rank", (params,), args)

    def higra_entity_texts(self, rows: Sequence[int]) -> list[str]:
        """Each entity as an option: its name, types and other names."""
        shown = ("name", "types", "aliases")
        part = self._higra.entities.select(shown).take(pa.array(list(rows), pa.int64()))
        texts = []
        for name, types, aliases in zip(*(part[c].to_pylist() for c in shown)):
            kinds = f" ({', '.join(types)})" if types else ""
            texts.append(f"{name}{kinds}" + (f", also {'; '.join(aliases)}" if aliases else ""))
        return texts

    def higra_facts(self, rows: Sequence[int]) -> list[HigraFact]:
        """Relations in words."""
        graph = self._higra
        shown = ("subject", "label", "object", "passages", "origin")
        part = graph.relations.select(shown).take(pa.array(list(rows), pa.int64()))
        names = graph.entities["name"]
        ids = self.index.passage_ids
        return [
            HigraFact(
                names[row["subject"]].as_py(),
                row["label"],
                names[row["object"]].as_py(),
                tuple(ids[p] for p in row["passages"]),
                row["origin"],
            )
            for row in part.to_pylist()
        ]

    @property
    def _higra(self) -> HigraGraph:
        return self.index.loaded("higra", load_higra_graph)
