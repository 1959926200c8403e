"""What a program may say to a knowledge base: names to nodes, relations to nodes, questions to documents.

Nodes and relations are row numbers; names and types are those of the knowledge base. Law: a call returns rows and
scores, at most k for each thing asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.scores import node_text
from gpu_rag.program.knowledge_base.link import Linked, Mention, mentions
from gpu_rag.program.knowledge_base.loaded import HoldsKb
from gpu_rag.program.knowledge_base.reach import Held, Reached, TopicNodes, holding, reach
from gpu_rag.program.knowledge_base.schema import KbSchema
from gpu_rag.program.knowledge_base.search import NearRelations, kb_search, near_names, ranked_relations
from gpu_rag.program.knowledge_base.shown import Shown, shown_names
from gpu_rag.program.knowledge_base.walks import Walk, walk_nodes
from gpu_rag.program.legacy import RANK_GRAPH, RANK_TEXT, Call, Executor
from gpu_rag.program.search import Ranking, rankings
from gpu_rag.program.steps import embed_texts
from gpu_rag.runtime.gather import gather
from gpu_rag.sources.knowledge_base.nodes import LITERAL
from gpu_rag.types import Path, RankedNode

__all__ = ["Held", "KbVerbs", "Linked", "NearRelations", "Reached", "TopicNodes", "kb_executors"]

MAX_HOMONYMS = 64  # nodes of one name and type that are kept
_OWNERS = 8  # of one passage, shown as the evidence of a node


def kb_executors(index: Index, threads: int = 1) -> dict[str, Executor]:
    """The executors of the knowledge-base verbs; it is loaded when it is first asked."""
    get = partial(kb_search, index, threads)

    def named(static: tuple[Any, ...], args: list[tuple[str, str | None]]) -> list[tuple[int, ...]]:
        kb = get().kb
        return [tuple(kb.named(name, type)[:MAX_HOMONYMS]) for name, type in args]

    def near(static: tuple[Any, ...], args: list[tuple[str | None, np.ndarray]]) -> list[Ranking]:
        return near_names(get(), args, *static)

    def mentioned(static: tuple[Any, ...], args: list[str]) -> list[list[tuple[Mention, tuple[int, ...]]]]:
        kb = get().kb
        found = [mentions(text, lambda name: bool(kb.named(name)))[: static[0]] for text in args]
        return [
            [(m, tuple(kb.named(text[m.start : m.end])[:MAX_HOMONYMS])) for m in ms] for text, ms in zip(args, found)
        ]

    def relations(static: tuple[Any, ...], args: list[tuple[Sequence[int], np.ndarray]]) -> list[NearRelations]:
        return ranked_relations(get(), args, *static)

    def shown(static: tuple[Any, ...], args: list[tuple[str, np.ndarray]]) -> list[Shown]:
        return shown_names(index, get(), args, *static)

    def reach_nodes(static: tuple[Any, ...], args: list[tuple[Sequence[TopicNodes], np.ndarray]]) -> list[Reached]:
        found, (radius, k, by_distance) = get(), static
        vectors = found.tensor([vector for _, vector in args])
        asked = [topics for topics, _ in args]
        return reach(found.kb, asked, vectors, radius=radius, k=k, by_distance=by_distance, threads=found.threads)

    def documents(static: tuple[Any, ...], args: list[np.ndarray]) -> list[Ranking]:
        return rankings(get().documents.best(get().tensor(args), static[0]))

    def walks(static: tuple[Any, ...], args: list[Walk]) -> list[tuple[int, ...]]:
        return walk_nodes(get().kb, args, get().threads)

    def held(static: tuple[Any, ...], args: list[tuple[TopicNodes, Sequence[int]]]) -> list[Held]:
        return holding(get().kb, args, radius=static[0], threads=get().threads)

    return {
        "kb_named": Executor(named, "text", RANK_TEXT),
        "kb_near_names": Executor(near, "graph", RANK_GRAPH),
        "kb_mentioned": Executor(mentioned, "text", RANK_TEXT),
        "kb_relations": Executor(relations, "graph", RANK_GRAPH),
        "kb_shown": Executor(shown, "graph", RANK_GRAPH),
        "reach_nodes": Executor(reach_nodes, "graph", RANK_GRAPH, 256),
        "search_documents": Executor(documents, "graph", RANK_GRAPH),
        "kb_walks": Executor(walks, "graph", RANK_GRAPH),
        "kb_held": Executor(held, "graph", RANK_GRAPH, 256),
    }


class KbVerbs(HoldsKb):
    """The knowledge-base verbs of one question."""

    async def match_names(self, name: str, type: str | None, threshold: float) -> tuple[int, ...]:
        """All nodes of a type (None: of any) that bear this name or alias; else those of the nearest name.

        Exact under `name_key`; else by the cosine of the names, if it is at least `threshold`. Homonyms are all kept;
        ascending; () where there is none.
        """
        found: tuple[int, ...] = await Call("kb_named", (), (name, type))
        if found:
            return found
        vector = await embed_texts((name.replace("_", " "),))
        near: Ranking = await Call("kb_near_names", (1, threshold), (type, vector[0]))
        if not near.rows:
            return ()
        same: tuple[int, ...] = await Call("kb_named", (), (self.kb.node_names[near.rows[0]], type))
        return same or near.rows

    async def link_names(self, text: str, phrases: Sequence[str], k: int, threshold: float) -> list[Linked]:
        """At most k entities that a question may speak of: names in it, then the names nearest to `phrases`.

        See `Linked` for the order. Nodes of one name and different types are different entities; values count only
        where nothing else has their name. A phrase whose nearest name has a cosine below `threshold` gives none.
        """
        here: list[tuple[Mention, tuple[int, ...]]] = await Call("kb_mentioned", (k,), text)
        found = [entity for mention, nodes in here for entity in self._linked(nodes, mention)]
        if phrases:
            vectors = await embed_texts(tuple(phrases))
            near = await gather(*(Call("kb_near_names", (1, threshold), (None, vector)) for vector in vectors))
            pairs = [pair for one in near for pair in zip(one.rows, one.scores)]
            alike = await gather(*(Call("kb_named", (), (self.kb.node_names[row], None)) for row, _ in pairs))
            for (row, score), nodes in zip(pairs, alike):
                found += self._linked(nodes or (row,), Mention(0, 0, min(score, 1.0 - 1e-6)))
        best: dict[tuple[str, str], Linked] = {}
        for entity in sorted(found, key=lambda e: -e.score):
            best.setdefault((entity.name, entity.type), entity)
        return list(best.values())[:k]

    def _linked(self, nodes: Sequence[int], mention: Mention) -> list[Linked]:
        kb = self.kb
        by_type: dict[str, list[int]] = {}
        for node in nodes:
            by_type.setdefault(kb.type_names[kb.node_type[node]], []).append(node)
        if len(by_type) > 1:
            by_type.pop(LITERAL, None)  # a value that says the name of a thing is not what the question speaks of
        place = (mention.score, mention.start, mention.end)
        return [Linked(kb.node_names[rows[0]], type, tuple(rows), *place) for type, rows in by_type.items()]

    async def near_relations(self, nodes: Sequence[int], vector: np.ndarray, *, radius: int, k: int) -> NearRelations:
        """The k relations that walks of `radius` steps from the nodes may follow, by (-cosine to a unit vector, row).

        Which relations may follow which is seen by the types of their ends; without nodes all relations are ranked.
        Where none of the k can be the first step, the best that can takes the last place.
        """
        return await Call("kb_relations", (radius, k), (tuple(nodes), vector))

    async def shown_names(self, text: str, vector: np.ndarray, *, n_types: int, n_relations: int) -> Shown:
        """The types and relations that a question most likely needs, at most so many."""
        return await Call("kb_shown", (n_types, n_relations), (text, vector))

    async def reach_nodes(
        self, topics: Sequence[TopicNodes], vector: np.ndarray, *, radius: int, k: int, by_distance: bool
    ) -> Reached:
        """The k best nodes that all topics reach along their relations, see `gpu_rag.program.knowledge_base.reach`."""
        return await Call("reach_nodes", (radius, k, by_distance), (tuple(topics), vector))

    async def search_documents(self, vector: np.ndarray, k: int) -> Ranking:
        """The k nodes whose document, or what stands for it, has the highest cosine to a unit vector."""
        return await Call("search_documents", (k,), vector)

    async def topic_holds(self, topic: TopicNodes, nodes: Sequence[int], *, radius: int) -> Held:
        """What of a topic leads to one of the nodes; for an oracle."""
        return await Call("kb_held", (radius,), (topic, tuple(nodes)))

    async def kb_path(self, starts: Sequence[int], chain: Sequence[int], end: int) -> Path | None:
        """One path from a start along a chain of relations, either way, to the end; of the lowest node at each step."""
        nodes: tuple[int, ...] = await Call("kb_walks", (), Walk(tuple(starts), tuple(chain), end))
        if not nodes:
            return None
        kb = self.kb
        edges = [_edge_row(kb, a, r, b) for a, r, b in zip(nodes, chain, nodes[1:])]
        labels = (kb.relation_names[r] for r in chain)
        text = " -> ".join((kb.node_names[nodes[0]], *labels, kb.node_names[end]))
        source = "+".join(dict.fromkeys(kb.sources[kb.source[e]].name for e in edges))
        return Path(text, tuple(kb.triple(e) for e in edges), source)

    def relation_row(self, name: str) -> int | None:
        """The row of a relation by its name."""
        names = self.kb.relation_names
        at = bisect_left(names, name)
        return at if at < len(names) and names[at] == name else None

    @property
    def kb_schema(self) -> KbSchema:
        """Which types each relation joins."""
        return kb_search(self.index).schema

    def ranked_nodes(self, ranking: Ranking | Reached) -> tuple[RankedNode, ...]:
        """The nodes of a ranking as they stand in an answer."""
        kb = self.kb
        return tuple(
            RankedNode(
                kb.node_ids[row],
                kb.node_names[row],
                kb.type_names[kb.node_type[row]],
                "+".join(kb.sources[s].name for s in np.flatnonzero(kb.node_sources[row])),
                float(score),
            )
            for row, score in zip(ranking.rows, ranking.scores)
        )

    def node_passages(self, nodes: Sequence[int], k: int) -> list[int]:
        """The first k passages of the nodes, in their order: own documents first, then what mentions them."""
        rows = (p for node in nodes for p in self.kb.passages_of(node)[:_OWNERS].tolist())
        return list(dict.fromkeys(rows))[:k]

    def node_text(self, node: int) -> str:
        """What stands for a node in a prompt: its document, passages that mention it, or its edges in words."""
        return node_text(self.kb, self.index, node)


def _edge_row(kb: KnowledgeBase, a: int, relation: int, b: int) -> int:
    """The first edge of a relation between two nodes, from `a` to `b` if there is one; edges are sorted."""
    for head, tail in ((a, b), (b, a)):
        low, high = np.searchsorted(kb.head, [head, head + 1])
        first, last = low + np.searchsorted(kb.relation[low:high], [relation, relation + 1])
        at = first + np.searchsorted(kb.tail[first:last], tail)
        if at < last and kb.tail[at] == tail:
            return int(at)
    raise AssertionError("a walk follows edges of the knowledge base")
