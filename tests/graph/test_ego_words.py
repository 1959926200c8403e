"""Balls as bits against the balls of `ego_balls`, which has its own oracle; and who is asked for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged

from gpu_rag.graph import ego
from gpu_rag.graph import ego as ego_words
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import balls_by_words, ego_balls
from gpu_rag.types import CSR, Ragged

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
Balls = Callable[[CSR, Ragged, int, torch.Tensor | None], Ragged]


def same(one: Ragged, other: Ragged) -> None:
    assert one.values.dtype == other.values.dtype == torch.int32
    assert torch.equal(one.values, other.values) and torch.equal(one.offsets, other.offsets)


def check(balls: Balls, csr: CSR, seeds: Ragged, radius: int, lo: int) -> None:
    allowed = torch.arange(csr.n) >= lo
    same(balls(csr, seeds, radius, None), ego_balls(csr, seeds, radius))
    same(balls(csr, seeds, radius, allowed), ego_balls(csr, seeds, radius, include=[(lo, csr.n)]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[CSR, Ragged, int, int]:
    n = draw(st.integers(1, 9))
    node = st.integers(0, n - 1)
    edges = torch.tensor(draw(st.lists(st.tuples(node, node), max_size=20)), dtype=torch.int64).reshape(-1, 2).T
    csr = csr_from_edges(edges[0], edges[1], n, undirected=draw(st.booleans()), drop_self_loops=False)
    seeds = draw(st.lists(st.lists(node, max_size=3), max_size=5))
    return csr, ragged(seeds), draw(st.integers(0, 4)), draw(st.integers(0, n))


@QUICK
@given(cases())
def test_the_same_balls(case: tuple[CSR, Ragged, int, int]) -> None:
    check(balls_by_words, *case)


def large() -> tuple[CSR, Ragged, int, int]:
    r = np.random.default_rng(0)
    ends = torch.from_numpy(r.integers(0, 200, (2, 400)))
    seeds = ragged([r.integers(0, 200, k).tolist() for k in r.integers(0, 4, 330)])
    return csr_from_edges(ends[0], ends[1], 200, undirected=False), seeds, 3, 40


def test_many_questions_fill_words_and_tiles() -> None:
    assert large()[1].batch > ego_words.TILE
    check(balls_by_words, *large())


def against_the_edges(csr: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None) -> Ragged:
    return balls_by_words(ego_words.pull_of(csr), seeds, radius, allowed)


def one_hop_less(csr: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None) -> Ragged:
    return balls_by_words(csr, seeds, radius - 1, allowed)


def through_everything(csr: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None) -> Ragged:
    return balls_by_words(csr, seeds, radius, None)


@pytest.mark.parametrize("wrong", [against_the_edges, one_hop_less, through_everything])
def test_checks_catch(wrong: Balls) -> None:
    with pytest.raises(AssertionError):
        check(wrong, *large())


def test_a_gpu_with_triton_is_asked_for_words(monkeypatch: pytest.MonkeyPatch) -> None:
    csr, seeds, radius, _ = large()
    asked: list[int] = []

    def spy(graph: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None) -> Ragged:
        asked.append(radius)
        return balls_by_words(graph, seeds, radius, allowed)

    monkeypatch.setattr(ego, "balls_by_words", spy)
    ego_balls(csr, seeds, radius, implementation="torch")
    assert asked == []
    by = {"loops": "triton", "ops": "torch"}
    monkeypatch.setattr(ego, "pick_implementation", lambda *given, family="ops": by[family])
    same(ego_balls(csr, seeds, radius, implementation="torch"), balls_by_words(csr, seeds, radius, None))
    assert asked == [radius]
    ego_balls(csr, seeds, radius, limit=3, implementation="torch")
    assert asked == [radius], "a limit needs the hops in order"
