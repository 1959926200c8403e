"""Paths of the knowledge graphs in words, as real edges, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.batched.facts import FactGraph
from gpu_rag.methods.hydrarag.batched.subgraphs import QuestionGraph
from gpu_rag.methods.hydrarag.state import KINDS, FoundPath

MOST_MEMBERS = 5  # of a cluster that are named in words
MOST_EDGES = 24  # real edges that are listed of a path
MOST_RELATIONS = 4  # of parallel relations that are named


def in_words(
    kb: KnowledgeBase,
    facts: FactGraph,
    graph: QuestionGraph,
    nodes: tuple[int, ...],
    edges: Sequence[int],
    topics: tuple[int, ...],
) -> FoundPath:
    """A path with all members of its clusters: "A - r -> {B; C} <- s - D". edges: of `facts`, one a hop."""
    places = tuple(tuple(graph.members(node)) for node in nodes)
    words, rows, relations = [_place(kb, places[0])], [], []
    kinds: list[frozenset[str]] = []
    for one, other, edge, place in zip(nodes, nodes[1:], edges, places[1:]):
        between = facts.facts_of(edge)
        relations.append(_relations(kb, between, one))
        words += [relations[-1], _place(kb, place)]
        rows.extend(between)
        kinds.append(frozenset(_kind(kb, fact) for fact in between))
        rows.extend(_of_members(facts, places[nodes.index(one)], other, skip=one))
        rows.extend(_of_members(facts, place, one, skip=other))
    rows = list(dict.fromkeys(rows))[:MOST_EDGES]
    names = dict.fromkeys(kb.sources[int(kb.source[fact])].name for fact in rows)
    kind, also = _kinds_of_path(kinds)
    return FoundPath(
        " ".join(words),
        tuple(kb.triple(fact) for fact in rows),
        kind,
        "+".join(names),
        nodes,
        places,
        _passages(kb, rows),
        tuple(relations),
        also=also,
        topics=topics,
    )


def _kinds_of_path(hops: Sequence[frozenset[str]]) -> tuple[str, tuple[str, ...]]:
    """(the kind of the weakest hop, where a hop counts as the best kind that states it; the others that state all)."""
    kind = max((min(hop, key=KINDS.index) for hop in hops), key=KINDS.index, default=KINDS[0])
    return kind, tuple(k for k in KINDS if k != kind and hops and all(k in hop for hop in hops))


def _of_members(facts: FactGraph, place: tuple[int, ...], end: int, skip: int) -> list[int]:
    """The triples between the shown members of a cluster, without `skip`, and a node that all of them are tied to."""
    others = [member for member in place[: MOST_MEMBERS + 1] if member != skip][:MOST_MEMBERS]
    return [fact for member in others for fact in facts.facts_between(member, end)]


def _kind(kb: KnowledgeBase, fact: int) -> str:
    """Facts that were extracted from documents are as reliable as documents."""
    return "kg" if kb.sources[int(kb.source[fact])].kind in ("kg", "skb") else "document"


def _relations(kb: KnowledgeBase, between: list[int], start: int) -> str:
    """The relations of a hop with their direction as seen from `start`."""
    said: dict[bool, dict[str, None]] = {True: {}, False: {}}  # onward, and back
    for fact in between:
        said[int(kb.head[fact]) == start][kb.relation_texts[int(kb.relation[fact])]] = None
    sides = (("- ", said[True], " ->"), ("<- ", said[False], " -"))
    return " and ".join(f"{a}{' / '.join([*names][:MOST_RELATIONS])}{b}" for a, names, b in sides if names)


def _place(kb: KnowledgeBase, members: tuple[int, ...]) -> str:
    names = [kb.node_names[node] for node in members[:MOST_MEMBERS]]
    if len(members) == 1:
        return names[0]
    more = f"; and {len(members) - MOST_MEMBERS} more" if len(members) > MOST_MEMBERS else ""
    return f"{{{'; '.join(names)}{more}}}"


def _passages(kb: KnowledgeBase, rows: list[int]) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for fact in rows:
        lo, hi = int(kb.edge_passages.offsets[fact]), int(kb.edge_passages.offsets[fact + 1])
        found.update(dict.fromkeys(kb.edge_passages.values[lo:hi].tolist()))
    return tuple(found)
