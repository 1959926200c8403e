"""Share of questions that rules split as a person would: 200 questions of 50 meanings, each said in four ways.

splits.tsv: family, question, hops joined by " | ". A hop lists words of its sub-question, and "#k" for the answer of
hop k. Names are invented. Odd families may choose rules; even ones judge a change, once. splits_further.tsv: 120 more,
of families 101 to 120, written before the rules for clauses, and 201 to 215, written after them; they choose no words.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_rag.text.rules.decomposition import plan_by_rules

DATA = Path(__file__).parent / "data"
ROWS = [line.split("\t") for line in (DATA / "splits.tsv").read_text("utf-8").splitlines()]
FURTHER = [line.split("\t") for line in (DATA / "splits_further.tsv").read_text("utf-8").splitlines()]
_TOKENS = re.compile(r"#\d+|\w+")


def is_right(question: str, hops: str) -> bool:
    """Whether the plan has one step for each hop, in order, with the words and the references of the hop."""
    steps = [set(_TOKENS.findall(step.question.casefold())) for step in plan_by_rules(question).steps]
    wanted = [set(_TOKENS.findall(hop.casefold())) for hop in hops.split(" | ")]
    return len(steps) == len(wanted) and all(
        hop <= step and {t for t in hop if t[0] == "#"} == {t for t in step if t[0] == "#"}
        for hop, step in zip(wanted, steps)
    )


def rows(odd: bool, one_hop: bool) -> list[tuple[str, str]]:
    """(question, hops) of the odd or even families, of one hop or of more."""
    return [(text, hops) for family, text, hops in ROWS if int(family) % 2 == odd and (" | " not in hops) == one_hop]


@pytest.mark.parametrize(("odd", "one_hop", "least"), [(True, False, 0.94), (True, True, 1.0)])
def test_share_split_as_a_person_would(odd: bool, one_hop: bool, least: float) -> None:
    questions = rows(odd, one_hop)
    right = sum(is_right(*row) for row in questions)
    assert right >= least * len(questions), f"{right} of {len(questions)}"


@pytest.mark.parametrize(("one_hop", "least"), [(False, 0.9), (True, 0.9)])
def test_further_questions_are_split_as_a_person_would(one_hop: bool, least: float) -> None:
    questions = [(text, hops) for _, text, hops in FURTHER if (" | " not in hops) == one_hop]
    right = sum(is_right(*row) for row in questions)
    assert right >= least * len(questions), f"{right} of {len(questions)}"
