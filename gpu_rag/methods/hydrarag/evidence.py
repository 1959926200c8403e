"""The answers of HydraRAG's paths: ranked answer nodes, and the passages that state the paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.state import SURE, FoundPath, Search
from gpu_rag.program.knowledge_base.query import LISTED
from gpu_rag.program.knowledge_base.views import ranked_node
from gpu_rag.types import Evidence, RankedNode

MAX_ANSWERS = 20


Shape = tuple[tuple[object, ...], int, int]


def by_shape(paths: Sequence[FoundPath]) -> dict[Shape, list[int]]:
    """The answers of all paths with the same start and the same relations."""
    answers: dict[Shape, list[int]] = {}
    for path in paths:
        if path.answers:
            answers.setdefault(_shape(path), []).extend(path.answers)
    return answers


def alike(best: FoundPath, shapes: Mapping[Shape, list[int]]) -> list[int]:
    """The answers of the best path, then those of all paths like it. shapes: see `by_shape`."""
    return list(dict.fromkeys((*best.answers, *shapes.get(_shape(best), ())))) if best.answers else []


def _shape(path: FoundPath) -> Shape:
    """The chain or the relations of a path with answers, its first node, and its last node unless that is the answer
    (then -1)."""
    end = path.nodes[-1] if path.answers[0] not in path.nodes[-1:] else -1
    return path.chain or path.relations, path.nodes[0], end


def ranked_nodes(chosen: Sequence[FoundPath], search: Search) -> tuple[RankedNode, ...]:
    """Answer nodes, best first: the answers of a query with operations, alone if these are exact; those of the best
    path and paths like it, then those of the other kept paths, until there are MAX_ANSWERS. Nodes that the question
    rules out do not count."""
    ranked: dict[int, tuple[str, float]] = {}
    query, shapes = search.asked, by_shape(search.paths)
    source = "+".join(dict.fromkeys(path.sources for path in chosen[:1]))
    ranked.update((node, (source, SURE)) for node in query.nodes[:LISTED])
    for number, path in enumerate([] if query.exact and query.nodes else [*chosen, *search.kept]):
        for node in alike(path, shapes):
            if node not in query.barred and len(ranked) < (MAX_ANSWERS if number else LISTED):
                ranked.setdefault(node, (path.sources, path.scores.cross))
    return tuple(ranked_node(search.kb, node, *details) for node, details in ranked.items())


def named_first(
    text: str, ranked: Sequence[RankedNode], chosen: Sequence[FoundPath], kb: KnowledgeBase
) -> tuple[RankedNode, ...]:
    """The nodes that an answer names, then the other ranked nodes. Each name in the answer stands for one node: the
    first ranked node of that name, else the first one on a chosen path. Of alternatives ("A (born in) | B (lives in)")
    only the first counts."""
    remaining, named = list(ranked), list[RankedNode]()
    on_paths = [(node, path) for path in chosen for place in path.places for node in place if node >= 0]
    for name in [text] if kb.named(text) else text.split(" | ")[0].split("; "):
        nodes = kb.named(name)
        ids = {kb.node_ids[node] for node in nodes}
        first = next((node for node in remaining if node.id in ids), None)
        if first is not None:
            remaining.remove(first)
        elif ids.isdisjoint(node.id for node in named):
            on_path = ((node, path) for node, path in on_paths if node in nodes)
            first = next((ranked_node(kb, node, path.sources, path.scores.cross) for node, path in on_path), None)
        named += [first] if first is not None else []
    return (*named, *remaining)[:LISTED]


def evidence_of(chosen: Sequence[FoundPath], search: Search, limit: int) -> tuple[Evidence, ...]:
    """At most `limit` passages: those that state the paths, best path first, then all others that were read, by
    cosine."""
    passages: dict[int, tuple[float, str]] = {}
    for path in [*chosen, *search.kept]:
        for row in path.passages_in(search.kb):
            passages.setdefault(row, (path.scores.cross, "a path that was kept is from it"))
    for row, score in sorted(search.documents.items(), key=lambda item: (-item[1], item[0])):
        passages.setdefault(row, (score, "it speaks of a topic of the question"))
    scores, whys = [score for score, _ in passages.values()], [why for _, why in passages.values()]
    return search.run.different(list(passages), scores, whys, limit)
