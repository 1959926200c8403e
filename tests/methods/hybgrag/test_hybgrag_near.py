"""Nodes near to all entities of a question, against the definition in plain Python."""

from collections import defaultdict
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kb_in_memory import knowledge_base
from memory_index import run as run_step

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hybgrag import near
from gpu_rag.methods.hybgrag.near import Entities, near_nodes
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.program.search import Ranking

EMBED = HashEmbedder()
NODES = [(f"n{i:02d}", f"name {i}", ("film", "person")[i % 2]) for i in range(12)]


def plain(kb: KnowledgeBase, asked: Entities, few: int) -> dict[int, int]:
    """The worth of every node."""
    distinct = set(zip(kb.head.tolist(), kb.relation.tolist(), kb.tail.tolist()))
    ends = [(h, r, t) for h, r, t in distinct] + [(t, r, h) for h, r, t in distinct]
    edges, worth = defaultdict(list), defaultdict(int)
    for a, r, b in ends:
        edges[a].append((r, b))
    for group in asked.groups:
        size = sum(len(edges[node]) for node in group)
        next_ = {b for node in group for _, b in edges[node]} - set(asked.barred)
        for node in next_:
            worth[node] += int(near.UNIT / log(3 + size))
        sums = defaultdict(int)
        for between in (node for node in next_ if size <= few and len(edges[node]) <= few):
            for _, b in edges[between]:
                sums[b] += int(near.UNIT / log(3 + len(edges[between])))
        for node, total in sums.items():
            worth[node] += int(near.UNIT / 2 / log(3 + size) * (total / max(sums.values())))
    out = set(asked.barred) | {node for group in asked.groups for node in group}
    wanted = {node: w for node, w in worth.items() if not asked.types or int(kb.node_type[node]) in asked.types}
    return {node: w for node, w in wanted.items() if node not in out}


@st.composite
def cases(draw: st.DrawFn) -> tuple[KnowledgeBase, list[Entities]]:
    node, relation = st.integers(0, 11), st.integers(0, 2)
    edges = draw(st.lists(st.tuples(node, relation, node), min_size=1, max_size=30))
    kb = knowledge_base(NODES, [(f"n{a:02d}", f"r{r}", f"n{b:02d}") for a, r, b in edges], embed=EMBED.embed)
    group = st.lists(node, min_size=1, max_size=2, unique=True).map(tuple)
    vectors = EMBED.embed(["name 1 and r0", "name 2"])
    asked = st.builds(
        Entities,
        st.lists(group, max_size=3).map(tuple),
        st.integers(0, 1).map(lambda i: vectors[i]),
        st.sampled_from([(), (0,), (0, 1)]),
        st.sampled_from([(), (0,), (3, 4)]),
    )
    return kb, draw(st.lists(asked, min_size=1, max_size=4))


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from([3, 500]))
def test_it_is_the_sum_over_entities(case: tuple[KnowledgeBase, list[Entities]], few: int) -> None:
    kb, asked = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "FEW", few)
        together = run(kb, asked)
        assert together == [run(kb, [one])[0] for one in asked]  # in any company
    for one, found in zip(asked, together):
        worth = plain(kb, one, few)
        assert len(found.rows) == min(5, len(worth))
        best = sorted(worth.values(), reverse=True)
        assert np.allclose([worth[node] for node in found.rows], best[: len(found.rows)], rtol=1e-9)
        ties = zip(found.rows, found.scores, found.rows[1:], found.scores[1:])
        assert all((-s, a) < (-t, b) for a, s, b, t in ties if worth[a] == worth[b])


def run(kb: KnowledgeBase, asked: list[Entities]) -> list[Ranking]:
    found: list[Ranking] = run_step(near_nodes, kb, asked, 5)
    return found
