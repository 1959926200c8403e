"""HydraRAG, step II: paths along the chains of relations that a question asks for.

A beam by cosine loses these paths among thousands of walks. A chain that the question clearly states ranks before paths
that are only near by cosine; a chain that it may state gets a small bonus on its cosine. With several topics, the
chains must meet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gpu_rag.methods.hydrarag.batched.facts import FactChoice
from gpu_rag.methods.hydrarag.batched.walked import worded_paths
from gpu_rag.methods.hydrarag.state import LIKELY, SURE, Analysis, FoundPath, Mention, Search, Sources
from gpu_rag.program.knowledge_base.chains import Asked, AskedChain, asked_chains
from gpu_rag.program.knowledge_base.walks import Walk, walk_nodes
from gpu_rag.runtime.gather import gather
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.relations.hops import n_relations

N_CHAINS, N_PATHS = 3, 30  # chains walked if none is sure, and paths per chain


async def asked_paths(analysis: Analysis, sources: Sources, search: Search) -> list[FoundPath]:
    """Paths from the topics along the chains that the question asks for. The chains are noted in the trace."""
    mentions = [mention for mention in analysis.mentions if mention.matches]
    if not mentions or not sources.graphs:
        return []
    asked = [_asked(analysis, mention, search.relation_words) for mention in mentions]
    read = await gather(*(asked_chains(one, search.params.d_max, N_CHAINS) for one in asked))
    known = [(one.nodes, found.chains) for one, found in zip(asked, read) if found.chains]
    lines = [f"{'asked' if c.sure else 'perhaps'}: {c.text(search.kb)}" for _, chains in known for c in chains]
    search.run.note("relations_asked", len(lines), tuple(dict.fromkeys(lines)))
    if not known:
        return []
    walks = _met(known) if len(known) > 1 else []
    if not walks:
        nodes, chains = max(known, key=lambda one: one[1][0].score)
        sure = chains[0].sure and len(mentions) == 1
        bonus = SURE if sure else LIKELY
        for chain in chains[: 1 if sure else N_CHAINS]:
            walks += [([_walk(nodes, chain, end)], bonus) for end in chain.ends[:N_PATHS]]
    ways = await gather(*(gather(*map(walk_nodes, some)) for some, _ in walks))
    choice = FactChoice(sources.graphs, search.params.draw)
    topics = tuple(node for nodes, _ in known for node in nodes)
    found = [(_joined(some), some[0][-1], bonus) for some, (_, bonus) in zip(ways, walks) if all(some)]
    found = [one for one in found if len(set(one[0])) == len(one[0])] or found  # no path that returns, unless all do
    paths = await gather(*(worded_paths((way, topics), choice) for way, _, _ in found))
    return [
        replace(path, answers=(end,), asked=bonus) for path, (_, end, bonus) in zip(paths, found) if path is not None
    ]


def _asked(analysis: Analysis, topic: Mention, common: frozenset[str]) -> Asked:
    text = normalise_name(analysis.question.replace("_", " "))
    for mention in analysis.mentions:
        name = re.escape(normalise_name(mention.text.replace("_", " ")))
        text = re.sub(rf"(?<!\w){name}(?!\w)", "#" if mention is topic else "", text)
    exact = tuple(match.node for match in topic.matches if match.cosine >= 1.0)
    return Asked(text, exact or topic.nodes, n_relations(analysis.question, [topic.text], common))


def _walk(nodes: tuple[int, ...], chain: AskedChain, end: int) -> Walk:
    return Walk(nodes, chain.relations, end, chain.ways)


def _met(known: Sequence[tuple[tuple[int, ...], tuple[AskedChain, ...]]]) -> list[tuple[list[Walk], float]]:
    """Walks from the first two topics to the nodes where both of their best chains end."""
    (nodes, (one, *_)), (others, (other, *_)) = known[:2]
    ends = [end for end in one.ends if end in other.ends]
    bonus = SURE if one.sure and other.sure and len(known) == 2 else LIKELY
    return [([_walk(nodes, one, end), _walk(others, other, end)], bonus) for end in ends[:N_PATHS]]


def _joined(ways: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The nodes along the first walk, then back along the other walks to their topics."""
    return (*ways[0], *(node for way in ways[1:] for node in way[-2::-1]))
