"""Grounding: a labelled set of pairs, rules one by one, and laws that hold for any text."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.text import grounding as module
from gpu_rag.text.figures import one_form
from gpu_rag.text.grounding import MENTIONED, NONE, UNSUPPORTED, _Words, grounding

DATA = Path(__file__).parent / "data"
SETS = {
    n: [json.loads(line) for line in (DATA / f"grounding_{n}.jsonl").read_text("utf-8").splitlines()]
    for n in range(1, 5)
}
# Answers whose words are all there, or need not be: said of another thing, or a verdict on it.
NOT_BY_WORDS = {"elsewhere", "yesno", "choice", "comparison", "count", "negated"}
EVIDENCE = [
    "Marta Orlo was an engineer born in Tamsin on May 12, 1890. She built twenty-one bridges.",
    "The Halden Bridge, designed by M. Orlo, cost 1,200 crowns. It is 310 m long.",
    "The Kerling Bridge opened in 1904. No lamp was lit on it.",
]


def share_unsupported(n: int, held: bool) -> float:
    """The share of the pairs of a set that is marked; of those that evidence does not hold, of what words can tell."""
    pairs = [p for p in SETS[n] if p["held"] is held and (held or p["kind"] not in NOT_BY_WORDS)]
    return Counter(grounding(p["question"], p["answer"], p["evidence"]) for p in pairs)[UNSUPPORTED] / len(pairs)


@pytest.mark.parametrize(("n", "least", "most"), [(1, 0.98, 0.01), (2, 0.91, 0.04), (3, 0.95, 0.01), (4, 0.95, 0.05)])
def test_of_the_labelled_pairs_few_are_judged_wrongly(n: int, least: float, most: float) -> None:
    """The rules were chosen on the first three sets; the fourth was written and looked at after them."""
    assert Counter(pair["held"] for pair in SETS[n]) == {True: 100, False: 100}
    assert share_unsupported(n, held=True) <= most
    assert share_unsupported(n, held=False) >= least


@pytest.mark.parametrize(
    ("question", "answer", "verdict"),
    [
        ("Where was Marta Orlo born?", "Tamsin", MENTIONED),
        ("Where was Marta Orlo born?", "Kerling Abbey", UNSUPPORTED),
        ("Who discovered artemisinin?", "青蒿素", UNSUPPORTED),
        ("When was she born?", "12 May 1890", MENTIONED),
        ("When was she born?", "1890-05-12", MENTIONED),
        ("When was she born?", "13 May 1890", UNSUPPORTED),
        ("How many bridges did she build?", "21", MENTIONED),
        ("How many bridges did she build?", "22", UNSUPPORTED),
        ("What did it cost?", "twelve hundred crowns", MENTIONED),
        ("What did it cost?", "1,300 crowns", UNSUPPORTED),
        ("Who designed it?", "Marta Orlo", MENTIONED),
        ("Who designed it?", "Engineer Piet Orlo", UNSUPPORTED),
        ("Who designed the Halden Bridge?", "The Halden Bridge was designed by Marta Orlo.", MENTIONED),
        ("Who designed the Halden Bridge?", "The Halden Bridge was designed by Piet Ammer.", UNSUPPORTED),
        ("Which bridges?", "Halden Bridge; Kerling Bridge", MENTIONED),
        ("Which bridges?", "Halden Bridge; Ves Bridge", UNSUPPORTED),
        ("Did Marta Orlo build the Halden Bridge?", "yes", MENTIONED),
        ("Did Piet Ammer build the Halden Bridge?", "No", UNSUPPORTED),
        ("Which bridge is longer, the Halden Bridge or the Ves Bridge?", "Halden Bridge", UNSUPPORTED),
        ("Which was first, the Halden Bridge or the Kerling Bridge?", "Kerling Bridge", NONE),
        ("What was lit on it?", "a lamp", UNSUPPORTED),
        ("How long is it?", "0.31 km", NONE),
        ("When did her second bridge open?", "1916", NONE),
        ("Who?", "...", NONE),
        ("What did she build?", "Bridges, a dam and mills", UNSUPPORTED),
        ("Where was Marta Orlo born?", "in Tamsin, behind the old brewery", UNSUPPORTED),
        ("How long is it?", "310 km", UNSUPPORTED),
        ("When was she born?", "on May 12, 1890, in Tamsin", MENTIONED),
        ("When was she born?", "12 June", UNSUPPORTED),
        ("How many bridges did she build?", "7", UNSUPPORTED),
        ("Who designed the Halden Bridge?", "Piet J. Orlo", UNSUPPORTED),
    ],
)
def test_the_rules(question: str, answer: str, verdict: str) -> None:
    assert grounding(question, answer, EVIDENCE) == verdict


def test_a_number_may_have_been_counted_or_added() -> None:
    texts = ["Her works are the Halden Bridge, the Kerling Bridge and a mill. She sold 20 drawings and 55 letters."]
    assert grounding("How many works did she leave?", "3", texts) == NONE
    assert grounding("How many papers did she sell?", "75", texts) == NONE
    assert grounding("How many works did she leave?", "300", texts) == UNSUPPORTED


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2.5 million", "2500000"),
        ("three hundred and twelve", "312"),
        ("the 15th and the fifteenth century", "the 15 and the 15 century"),
        ("Henry VIII", "Henry 8"),
        ("Sept. 3, 10/1962, 2020-13-40", "september 3, october 1962, 2020-13-40"),
        ("12:30 am", "0p30"),
        ("Paweł Żurek, Dvořák", "Pawel Zurek, Dvorak"),
        ("7.4 km", "7p4 kilometre"),
        ("a quarter to eight in the evening, 07:45", "19p45, 7p45"),
        ("Half past 12 at night, half past ten", "0p30, 10p30"),
        ("half a dozen, two dozen", "6, 24"),
    ],
)
def test_figures_in_one_form(text: str, form: str) -> None:
    assert one_form(text) == form


SOME = ["vell", "orlo", "12", "1890", "twenty", "bridge", "no", "Ölrik,", "1.5", "km", "May"]
WORDS = st.lists(st.sampled_from(SOME), max_size=12).map(" ".join)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(WORDS, st.text(max_size=40), st.lists(WORDS, max_size=3))
def test_any_text_has_a_verdict_and_more_evidence_never_unstates_a_name(
    question: str, answer: str, texts: list
) -> None:
    assert grounding(question, answer, texts) in (MENTIONED, UNSUPPORTED, NONE)
    assert grounding("who was it", "Zed", [*texts, "It was Zed."]) == MENTIONED
    assert grounding("who was it", "Zed", texts) == UNSUPPORTED


def test_wrong_rules_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures compared as they are written; terms that need not be near."""
    for name, wrong in (("one_form", lambda text: text), ("_near", lambda terms, text, window=0: bool(terms))):
        monkeypatch.setattr(f"gpu_rag.text.grounding.{name}", wrong)
        module._words.cache_clear()
        with pytest.raises(AssertionError):
            test_of_the_labelled_pairs_few_are_judged_wrongly(4, 0.95, 0.05)
        monkeypatch.undo()
        module._words.cache_clear()


def test_a_word_that_an_answer_repeats_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken server may repeat a word a million times."""
    find, looked_up = _Words.find, []
    monkeypatch.setattr(_Words, "find", lambda words, term, *more: looked_up.append(term) or find(words, term, *more))
    evidence = ["Marta Orlo was born in Tamsin."]
    assert grounding("Where was Marta Orlo born?", "dusk " * 5000, evidence) == UNSUPPORTED
    assert len(looked_up) < 50
