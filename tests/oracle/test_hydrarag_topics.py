"""The nodes that a mention may be: its own name before near ones, in every source, against plain loops."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kb_in_memory import knowledge_base
from memory_index import MemoryIndex, run

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.batched.names import match_mentions
from gpu_rag.methods.hydrarag.state import Match
from gpu_rag.models.embed.hashing import HashEmbedder

EMBED = HashEmbedder().embed
NAMES = ["Jaws", "Jaws 2", "jaws", "Jaws 3", "Sharks of Jaws", "Piranha", "JAWS", "Jaws the Shark"]
Found = list[list[tuple[int, tuple[int, ...]]]]


def base(
    names: list[str], left: set[int], right: set[int], aliases: dict[int, list[str]] | None = None
) -> KnowledgeBase:
    """Nodes of these names, each with a loop in the sources that have it."""
    nodes = [(f"n{i:02d}", name, "film", (aliases or {}).get(i, [])) for i, name in enumerate(names)]
    edges = [
        (f"n{i:02d}", "is", f"n{i:02d}", source)
        for source, nodes_of in (("left", left), ("right", right))
        for i in nodes_of
    ]
    return knowledge_base(nodes, edges, embed=EMBED, sources=("left", "right"))


def matches(
    kb: KnowledgeBase, mentions: list[str], sources: tuple[int, ...], threshold: float, k: int
) -> list[list[Match]]:
    query = (tuple(mentions), EMBED(mentions))
    first, again = run(match_mentions, MemoryIndex(kb), [query, query], sources, threshold, k)
    assert first == again
    return first  # type: ignore[no-any-return]


def match(kb: KnowledgeBase, mentions: list[str], threshold: float = 0.3, k: int = 3) -> Found:
    return [[(m.node, m.sources) for m in some] for some in matches(kb, mentions, (0, 1), threshold, k)]


def test_a_source_that_has_the_name_gives_all_nodes_of_it_and_no_near_ones() -> None:
    kb = base(NAMES, {0, 1, 2, 6}, {1, 3, 7})
    (found,) = match(kb, ["Jaws"])
    assert [node for node, _ in found][:3] == [0, 2, 6]  # homonyms of the left source, and not its "Jaws 2"
    assert {node for node, _ in found[3:]} <= {1, 3, 7} and found[3:]  # the right one has near names alone
    assert match(kb, ["Jaws"], k=2)[0][:2] == [(0, (0,)), (2, (0,))]
    assert match(kb, ["Jaws"], threshold=0.999) == [[(0, (0,)), (2, (0,)), (6, (0,))]]
    assert match(kb, ["Moby Dick"], threshold=0.9) == [[]]


def test_an_alias_is_a_name() -> None:
    kb = base(["Peter Benchley's Jaws", "Jaws 2"], {0, 1}, set(), {0: ["Jaws"]})
    (one,) = matches(kb, ["jaws"], (0,), 0.3, 3)
    assert [(m.node, m.cosine) for m in one] == [(0, 1.0)]


def plainly(kb: KnowledgeBase, mention: str, threshold: float, k: int) -> list[int]:
    """The nodes of one mention, from the definition."""
    (query,), names = EMBED([mention]).astype(np.float64), EMBED(kb.node_names).astype(np.float64)
    best: dict[int, float] = {}
    for source in (0, 1):
        own = [node for node in range(kb.n) if kb.node_sources[node, source]]
        same = [node for node in own if kb.node_names[node].casefold() == mention.casefold()]
        near = sorted((-round(float(names[node] @ query), 6), node) for node in own)
        rows = [(1.0, node) for node in same] or [(-minus, node) for minus, node in near if -minus >= threshold]
        best.update({node: cosine for cosine, node in rows[:k]})
    return sorted(best, key=lambda node: (-best[node], node))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_matches_agree_with_loops_and_a_mention_alone_is_that_mention_among_others(seed: int) -> None:
    rng = random.Random(seed)
    names = [rng.choice([*NAMES, "Orca", "The Deep"]) for _ in range(9)]
    sides = [set(rng.sample(range(9), rng.randint(1, 9))) for _ in range(2)]
    kb, k = base(names, *sides), rng.randint(1, 3)
    mentions = rng.sample([*NAMES, "Orca"], 4)
    found = match(kb, mentions, 0.3, k)
    assert [[node for node, _ in some] for some in found] == [plainly(kb, one, 0.3, k) for one in mentions]
    assert [match(kb, [one], 0.3, k)[0] for one in mentions] == found


def test_a_search_by_nearness_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    kb = base(["Jaws", "Jaws 2", "Jaws 3"], {0, 1, 2}, set())
    assert [node for node, _ in match(kb, ["Jaws"])[0]] == [0]
    monkeypatch.setattr(KnowledgeBase, "named", lambda self, name, type=None: [])  # nothing has the name itself
    assert [node for node, _ in match(kb, ["Jaws"])[0]] == [0, 1, 2]
