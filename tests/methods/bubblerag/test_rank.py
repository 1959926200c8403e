"""BubbleRAG's ranking by hand: the formula, the dial alpha, the penalty, order without ranking; passages and rules."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gpu_rag.graph.bubble import ALONE, INSIDE, MEETING
from gpu_rag.methods.bubblerag.asks import Grouping, Listed, Sorted, as_groups, as_keywords
from gpu_rag.methods.bubblerag.batched import Tree, TreePassage
from gpu_rag.methods.bubblerag.program import appended
from gpu_rag.methods.bubblerag.rules import BOUND, CONCEPT, NAME, OPEN, Group, Keyword, keywords_by_rules
from gpu_rag.methods.bubblerag.trees import best_trees, missing, score
from gpu_rag.program.search import Ranking

GROUPS = [Group("bridge", (0,), 0.5), Group("designer", (1,), 0.3), Group("born", (2,), 0.2)]
Score = Callable[..., float]


def tree(cost: float, groups: int, kind: int = MEETING, node: int = 0) -> Tree:
    return Tree((node,), groups, cost, 0, kind)


def check_formula(of: Score) -> None:
    """Worked out by hand: e = 2.718281828."""
    plain = {"alpha": 1.0, "intra_penalty": 0.9}
    assert of(tree(0.5, 0b111), GROUPS, **plain) == pytest.approx(1 / (0.5 + 1e-6), rel=1e-12)
    assert of(tree(0.5, 0b001), GROUPS, **plain) == pytest.approx(1 / (0.5 * 2.718281828459045**0.5 + 1e-6), rel=1e-12)
    assert of(tree(0.5, 0b110, INSIDE), GROUPS, **plain) == pytest.approx(0.9 / (0.5 * math.exp(0.5) + 1e-6), rel=1e-12)
    assert of(tree(0.5, 0, ALONE), GROUPS, alpha=2.0, intra_penalty=0.9) == pytest.approx(
        1 / (0.5 * math.exp(2) + 1e-6), rel=1e-12
    )
    assert of(tree(0.0, 0b111), GROUPS, **plain) == pytest.approx(1e6)


def test_the_score_is_the_formula() -> None:
    check_formula(score)
    assert missing(tree(1, 0b101), GROUPS) == pytest.approx(0.3)


def test_scores_that_leave_something_out_are_caught() -> None:
    def without_missing(t: Tree, groups: Sequence[Group], *, alpha: float, intra_penalty: float) -> float:
        return (intra_penalty if t.kind == INSIDE else 1) / (t.cost + 1e-6)

    def counting(t: Tree, groups: Sequence[Group], *, alpha: float, intra_penalty: float) -> float:
        share = 1 - t.groups.bit_count() / len(groups)
        return (intra_penalty if t.kind == INSIDE else 1) / (t.cost * math.exp(alpha * share) + 1e-6)

    def without_penalty(t: Tree, groups: Sequence[Group], *, alpha: float, intra_penalty: float) -> float:
        return score(t, groups, alpha=alpha, intra_penalty=1.0)

    for wrong in (without_missing, counting, without_penalty):
        with pytest.raises(AssertionError):
            check_formula(wrong)


def test_alpha_turns_or_into_and() -> None:
    """One group, near the question, against all groups, further away."""
    near, all_ = tree(0.2, 0b001, node=1), tree(0.4, 0b111, node=2)
    for alpha, first in ((0.0, 1), (1.0, 1), (1.5, 2), (5.0, 2)):
        best = best_trees([near, all_], GROUPS, 1, alpha=alpha, intra_penalty=0.9)
        assert best[0][0].nodes == (first,), alpha
    turn = math.log(2) / 0.5  # where 0.2 exp(0.5 alpha) = 0.4
    for alpha, first in ((turn - 0.01, 1), (turn + 0.01, 2)):
        assert best_trees([near, all_], GROUPS, 1, alpha=alpha, intra_penalty=0.9)[0][0].nodes == (first,)


def test_equal_scores_keep_the_order_and_without_ranking_the_first_connected_ones_come() -> None:
    trees = [tree(0.5, 1, ALONE, 0), tree(0.5, 1, MEETING, 1), tree(0.1, 7, MEETING, 2)]
    options: dict[str, Any] = {"alpha": 1.0, "intra_penalty": 0.9}
    assert [t.nodes[0] for t, _ in best_trees(trees, GROUPS, 3, **options)] == [2, 0, 1]
    assert [t.nodes[0] for t, _ in best_trees(trees, GROUPS, 2, rank=False, **options)] == [1, 2]
    assert [t.nodes[0] for t, _ in best_trees(trees[:1], GROUPS, 2, rank=False, **options)] == [0]
    assert best_trees([], GROUPS, 3, **options) == []


def test_groups_are_ordered_and_their_weights_sum_to_one() -> None:
    def weights(*given: float) -> list[tuple[int, float]]:
        reply = Grouping(tuple(Sorted(str(i), weight, (i + 1, i + 1)) for i, weight in enumerate(given)))
        return [(group.anchors[0], group.weight) for group in as_groups(reply, [10, 11, 12])]

    assert weights(0.2, 0.6, 0.2) == [(11, pytest.approx(0.6)), (10, pytest.approx(0.2)), (12, pytest.approx(0.2))]
    assert weights(0.0, 0.0) == [(10, 0.5), (11, 0.5)] and weights() == []
    assert as_groups(Grouping((Sorted("a", 1.0, (2, 1, 2)),)), [7, 8]) == [Group("a", (8, 7), 1.0)]


def test_a_listed_keyword_that_the_rules_know_is_of_their_kind() -> None:
    rules = [Keyword("Jaws", NAME), Keyword("Where was born?", OPEN)]
    found = as_keywords(Listed(("Where was born?", "director", "Where was born?")), rules)
    assert found == [Keyword("Where was born?", OPEN), Keyword("director", CONCEPT)]


def test_passages_of_trees_come_before_the_nearest_ones() -> None:
    found = [TreePassage(7, 0, 3, 1.0, 0.4), TreePassage(5, 1, 1, 0.5, 0.9)]
    before = Ranking((5, 9), (0.9, 0.8))
    assert appended(found, before, 9) == [(7, 0.4), (5, 0.9), (9, 0.8)]
    assert appended(found, before, 2) == [(7, 0.4), (5, 0.9)]


def test_names_are_extended_to_entities_and_sub_questions_are_bound_or_open() -> None:
    text = "Where was the director of Jump for Glory born?"
    assert keywords_by_rules(text, ["Jump for Glory", "director"], specialise=True) == [
        Keyword("Jump for Glory", NAME),
        Keyword("Who is the director of Jump for Glory?", BOUND),
        Keyword("Where was born?", OPEN),
    ]
    assert keywords_by_rules(text, [], specialise=True)[:2] == [Keyword("glory", NAME), Keyword("jump", NAME)]
    assert keywords_by_rules(text, ["Jump for Glory"], specialise=False) == [
        Keyword("Jump for Glory", NAME),
        Keyword("director"),
        Keyword("born"),
    ]


def test_what_has_no_keyword_is_looked_for_as_a_whole() -> None:
    assert keywords_by_rules("?!", [], specialise=True) == [Keyword("?!", BOUND)]
    assert keywords_by_rules("what is it", [], specialise=False) == [Keyword("what is it", BOUND)]
    assert all(k.kind == CONCEPT for k in keywords_by_rules("which river is long", [], specialise=False))
    many = ", ".join(
        f"Port {name}" for name in ("Abel", "Bono", "Cato", "Dano", "Elmo", "Fado", "Gato", "Hugo", "Igor")
    )
    question = f"Where are {many}, and Port Juno, Port Kilo, Port Lima, Port Mono?"
    assert len(keywords_by_rules(question, [], specialise=True)) <= 12
    long = f"Where was {'a ' * 2000} born?"
    assert max(len(keyword.text) for keyword in keywords_by_rules(long, [], specialise=True)) == 1000
