"""Support over the steps of a question: chains, comparisons, and wrong rules that the pairs must catch."""

from pathlib import Path

import pytest

from gpu_rag.text import stepwise
from gpu_rag.text.stepwise import _same_country, supporting_steps
from gpu_rag.text.supporting import supporting

PASSAGES = (
    ("Black Bread (film)", "Black Bread is a 1951 Danish film directed by Ott Ves."),
    ("Salt", "Salt is a film directed by Ilse Brandt and set in Hollin. It was released in 1949."),
    ("Ott Ves (director)", "Ott Johan Ves (3 May 1902, in Tamsin – 9 June 1970, in Brask) was a Danish director."),
    ("Ilse Brandt", "Ilse Brandt (1 July 1911 – 4 August 1960) was a Finnish writer. She taught Ott Ves."),
    ("Hollin", "It lies on the river Ouda."),
    ("Corin Blythe", "Corin Blythe was born in Hollin."),
)
PAIRS = [
    ("Where was the director of Black Bread born?", "Tamsin", "Brask", [2, 0]),
    ("What is the place of death of the director of Black Bread?", "Brask", "Tamsin", [2, 0]),
    ("When did the director of Salt die?", "4 August 1960", "9 June 1970", [3, 1]),
    ("What is the place of birth of the director of Black Bread?", "Tamsin", "Ott Johan Ves", [2, 0]),
    ("On which river does the birthplace of Corin Blythe lie?", "Ouda", "Hollin", [4, 5]),
    ("Which film came out first, Black Bread or Salt?", "Salt", "Black Bread", [1, 0]),
    ("Which film has the director who was born earlier, Black Bread or Salt?", "Black Bread", "Salt", [3, 2, 1, 0]),
    ("Are Ott Ves and Ilse Brandt from the same country?", "no", "yes", [3, 2]),
    ("What is the nationality of the director of Salt?", "Finnish", "Danish", [3, 1]),
]


def supported_pairs() -> list[tuple[bool, bool]]:
    return [tuple(bool(supporting_steps(q, a, PASSAGES)) for a in (right, wrong)) for q, right, wrong, _ in PAIRS]


@pytest.mark.parametrize(("question", "right", "wrong", "numbers"), PAIRS)
def test_the_steps_support_the_right_answer_alone(question, right, wrong, numbers):
    spans = supporting_steps(question, right, PASSAGES)
    assert [span.passage for span in spans] == numbers
    assert supporting_steps(question, wrong, PASSAGES) == ()


def test_a_question_of_one_step_or_without_evidence_is_not_judged():
    assert supporting_steps("Who directed Black Bread?", "Ott Ves", PASSAGES) is None
    assert supporting_steps("Where was the director of Rust born?", "Tamsin", PASSAGES) is None


def test_a_chain_needs_each_of_its_passages():
    question = "Where was the director of Black Bread born?"
    for number in (0, 2):
        fewer = tuple(passage for n, passage in enumerate(PASSAGES) if n != number)
        assert not supporting_steps(question, "Tamsin", fewer)


# "yes" or "no", question, answer, passages: a bridge that the sentence states, or denies, plans, or states of another.
CHAINS = [
    line.split("\t") for line in (Path(__file__).parent / "data/support_chains.tsv").read_text("utf-8").splitlines()
]


def chain_holds(question: str, answer: str, *passages: str) -> bool:
    return bool(supporting_steps(question, answer, [tuple(passage.split(": ", 1)) for passage in passages]))


def test_a_bridge_needs_a_sentence_that_states_its_relation(monkeypatch):
    assert [chain for chain in CHAINS if chain_holds(*chain[1:]) is not (chain[0] == "yes")] == []
    monkeypatch.setattr(stepwise, "_states", lambda *_: True)
    assert sum(chain_holds(*chain[1:]) for chain in CHAINS if chain[0] == "no") > 20


@pytest.mark.parametrize(
    ("country", "adjective", "same"),
    [
        *[
            ("mexico", "mexican", True),
            ("china", "chinese", True),
            ("sweden", "swedish", True),
            ("iraq", "iraqi", True),
        ],
        *[("germany", "german", True), ("nigeria", "nigerian", True), ("niger", "nigerian", False)],
        *[("dominica", "dominican", False), ("dominican republic", "dominican", False), ("romania", "roman", False)],
        *[("austria", "australian", False), ("guinea-bissau", "guinean", False), ("indiana", "indian", False)],
    ],
)
def test_a_country_is_known_by_an_adjective_that_is_formed_from_it_alone(country, adjective, same):
    assert _same_country(country, adjective) is same


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        ("Kelm Works closed in 1931. It was founded in 1902.", "Kelm Works"),
        ("Kelm Works was founded by Hans Orlo and closed in 1902.", None),
        ("Kelm Works closed in 1902.", None),
    ],
)
def test_a_year_counts_only_beside_the_event_that_is_asked_for(first, answer):
    passages = (("Kelm Works", first), ("Brask Motors", "Brask Motors was founded in 1920."))
    options = ("Kelm Works", "Brask Motors")
    question = "Which company was founded first, Kelm Works or Brask Motors?"
    supported = [option for option in options if supporting_steps(question, option, passages)]
    assert supported == ([answer] if answer else [])


@pytest.mark.parametrize("answer", ["1970-06-09", "9 June 1970", "June 9, 1970", "09.06.1970"])
def test_dates_of_one_day_support_each_other_in_any_form(answer):
    for form in ("9 June 1970", "June 9, 1970", "1970-06-09"):
        text = f"Ott Ves died on {form}."
        (span,) = supporting("When did Ott Ves die?", answer, [("Ott Ves", text)])
        assert text[slice(*span.answer)] == form
    for form in ("8 June 1970", "1970-06-08", "1970-09-06"):
        assert not supporting("When did Ott Ves die?", answer, [("Ott Ves", f"Ott Ves died on {form}.")])


@pytest.mark.parametrize("name", ["supporting", "_titles", "decide"])
def test_wrong_rules_are_caught(name, monkeypatch):
    expected = supported_pairs()
    original = getattr(stepwise, name)
    wrong = {
        "supporting": lambda *arguments: original(*arguments) or (stepwise.Span(0, 0, 1, (0, 1)),),
        "_titles": lambda *_: ["Salt"],
        "decide": lambda compared, answers: original(compared, answers[::-1]),
    }
    monkeypatch.setattr(stepwise, name, wrong[name])
    assert supported_pairs() != expected
