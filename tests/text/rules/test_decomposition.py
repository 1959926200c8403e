"""Questions taken apart by rules: plans worked by hand, questions that must stay whole, comparisons, references."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.text.rules.decomposition import MAX_STEPS, features, fill, plan_by_rules, references
from gpu_rag.text.rules.decomposition.compare import DIFFERENT, LEAST, MOST, SAME, Compared, compared, decide

# A question, and below it the steps that it becomes; a step depends on those that it names.
CASES = """
Where was the engineer who designed the Halden Bridge born?
  Who is the engineer who designed the Halden Bridge? Where was #1 born?
When was the town that Marta Orlo left flooded by the Ves?
  What is the town that Marta Orlo left? When was #1 flooded by the Ves?
In which city was the discoverer of the comet after which Kerling is named an organist?
  What is the comet after which Kerling is named? Who is the discoverer of #1? In which city was #2 an organist?
What currency is used in the country Tamsin is located in?
  What is the country Tamsin is located in? What currency is used in #1?
Which river flows through the town where Piet Ruyven died?
  What is the town where Piet Ruyven died? Which river flows through #1?
Who taught the woman to whom Hugo Brandt was briefly engaged?
  Who is the woman to whom Hugo Brandt was briefly engaged? Who taught #1?
Did the painter whose brother founded Loss ever marry?
  Who is the painter whose brother founded Loss? Did #1 ever marry?
The Ves, in the county where Kerling is located, is part of what river system?
  What is the county where Kerling is located? The Ves, in #1, is part of what river system?
Who was the captain of the ship built in Tamsin?
  What is the ship built in Tamsin? Who was the captain of #1?
In which town was the composer of the first opera ever given at Loss Hall born?
  What is the first opera ever given at Loss Hall? Who is the composer of #1? In which town was #2 born?
Who is the spouse of the director of Bread for Salt?
  Who is the director of Bread for Salt? Who is the spouse of #1?
Which instrument did the father of the discoverer of four moons of Jupiter play?
  Who is the discoverer of four moons of Jupiter? Who is the father of #1? Which instrument did #2 play?
Where did the author of On the Art of Bridges study?
  Who is the author of On the Art of Bridges? Where did #1 study?
At which school did the librettist of Così fan tutte teach?
  Who is the librettist of Così fan tutte? At which school did #1 teach?
Which river runs through the capital of France?
  What is the capital of France? Which river runs through #1?
Where was the performer of Salt Road (1991 song) born?
  Who is the performer of Salt Road (1991 song)? Where was #1 born?
Who is the spouse of Grey Port's main director?
  Who is Grey Port's main director? Who is the spouse of #1?
What is the oldest church in Marta Orlo's city of birth?
  What is Marta Orlo's city of birth? What is the oldest church in #1?
Where was Anna Vole, Duchess of Lorn's mother born?
  Who is Anna Vole, Duchess of Lorn's mother? Where was #1 born?
Did the mayor of Kerling visit the founder of Loss?
  Who is the founder of Loss? Who is the mayor of Kerling? Did #2 visit #1?
Which bridge was built first, Halden Bridge or Ves Bridge?
  When was Halden Bridge built? When was Ves Bridge built?
Which film has the director who was born later, Grey Port or The Salt Road?
  Who is the director of Grey Port? Who is the director of The Salt Road? When was #1 born? When was #2 born?
Are Kerling and Tamsin located in the same county?
  In which county was Kerling located? In which county was Tamsin located?
Were the mayor of Kerling and the founder of Loss born in the same year?
  Who is the mayor of Kerling? Who is the founder of Loss? In which year was #1 born? In which year was #2 born?
Was Marta Orlo born in the same town as the designer of Ves Hall?
  Who is the designer of Ves Hall? In which town was Marta Orlo born? In which town was #1 born?
Do Lake Orm and Lake Tiss lie in different counties?
  In which counties does Lake Orm lie? In which counties does Lake Tiss lie?
Is Kerling in a different county from Tamsin?
  In which county is Kerling? In which county is Tamsin?
A midshipman led an expedition. In which year was the wreck of its flagship found?
  A midshipman led which expedition? In which year was the wreck of #1's flagship found?
Someone stole the Ves Crown: how many years did he spend in prison?
  Who stole the Ves Crown? How many years did #1 spend in prison?
Marta Orlo lived in a village. Which river flows there?
  Marta Orlo lived in which village? Which river flows in #1?
Loss was bought by a company founded in which year?
  Loss was bought by which company? #1 was founded in which year?
Marta Orlo painted a bridge in which whose statue stands?
  Marta Orlo painted which bridge? In #1 whose statue stands?
Hugo Brandt founded a choir whose hall has what nickname?
  Hugo Brandt founded which choir? What is #1's hall? #2 has what nickname?
Tamsin lies in a county with how many lakes?
  Tamsin lies in which county? #1 has how many lakes?
When did the man die who built the Halden Bridge?
  Who is the man who built the Halden Bridge? When did #1 die?
Who taught whoever designed the Halden Bridge?
  Who is the person who designed the Halden Bridge? Who taught #1?
What money do they use where Marta Orlo grew up?
  What is the place where Marta Orlo grew up? What money do they use in #1?
By whom was the team that Zed Orlo manages founded?
  What is the team that Zed Orlo manages? By whom was #1 founded?
Which country owns the airline serving Kerling?
  What is the airline serving Kerling? Which country owns #1?
Loss film director spouse?
  Who is the director of Loss film? Who is the spouse of #1?
Tungsten's discoverer died of what?
  Who is Tungsten's discoverer? #1 died of what?
Of what did the discoverer of tungsten die?
  Who is the discoverer of tungsten? Of what did #1 die?
How tall is the stadium of Marta Orlo's club?
  What is Marta Orlo's club? What is the stadium of #1? How tall is #2?
"""

WHOLE = [
    "What is the capital of France?",
    "Who is the director of Bread for Salt?",
    "Who is Marta Orlo's mother?",
    "Who wrote The Lord of the Rings?",
    "When was the University of Loss founded?",
    "When did the Battle of Hastings take place?",
    "How many people live in the city of Paris?",
    "How did the discovery of penicillin change medicine?",
    "When did the construction of the Eiffel Tower begin?",
    "What happened at the end of the war?",
    "What is the height of the tallest tower in Chicago?",
    "Where was Ludwig van Beethoven born?",
    "When was the film Jaws released?",
    "Which ship did Robert Vole command on the voyage to Tamsin?",
    "Who won the chess championship in the month of May?",
    "What is the name of the airport in Kerling?",
    "Why is the sky blue?",
    "Kerling",
    "",
    "What was the name of the founder of Loss?",
    "What is the date of Marta Orlo's wedding?",
    "In which year did Marta Orlo become the wife of Piet Ruyven?",
    "Grey Port is a film made by which studio?",
    "Marta Orlo built a mill in which year?",
    "Marta Orlo wrote Loss. Where was she born?",
    "A general won the Ves Cup. When was it first held?",
    "Do you know where Marta Orlo lives?",
    "What is the height of the hill known as Old Tom?",
]


@pytest.mark.parametrize(("question", "steps"), [line.split("\n") for line in re.split(r"\n(?=\S)", CASES.strip())])
def test_plans_worked_by_hand(question: str, steps: str) -> None:
    plan = plan_by_rules(question)
    expected = [step.strip() for step in re.findall(r"[^?]+\?", steps)]
    named = [tuple(sorted({int(number) for number in re.findall(r"#(\d+)", step)})) for step in expected]
    assert [(step.question, step.depends_on) for step in plan.steps] == list(zip(expected, named))
    assert [step.id for step in plan.steps] == list(range(1, len(plan.steps) + 1))


@pytest.mark.parametrize("question", WHOLE)
def test_questions_that_ask_for_one_thing_stay_whole(question: str) -> None:
    plan = plan_by_rules(question)
    assert [(step.question, step.depends_on, step.phrase) for step in plan.steps] == [(question, (), "")]
    assert plan.compared is None


def test_features_are_what_the_plan_was_made_of() -> None:
    found = features("In which city was the discoverer of the comet after which Kerling is named an organist?")
    assert found == [
        "relative clause: the comet after which Kerling is named",
        "of-phrase: the discoverer of the comet after which Kerling is named",
    ]
    assert features("Who was the captain of the ship built in Tamsin?") == [
        "reduced relative clause: the ship built in Tamsin"
    ]
    assert features("Who is the spouse of Grey Port's main director?") == ["possessive: Grey Port's main director"]
    assert features("Which bridge was built first, A or B?") == ["comparison: A | B"]
    assert features("Why is the sky blue?") == []
    assert features("Ann Orlo has a boat; who built it?") == ["statement: Ann Orlo has which boat"]


def test_the_subject_is_the_first_name() -> None:
    assert plan_by_rules("Where was the designer of the Halden Bridge born?").subject == "Halden Bridge"
    assert plan_by_rules("Why is the sky blue?").subject == ""


def test_references_and_filling() -> None:
    assert references("Did #2 visit #1 or #2?") == (1, 2)
    assert references("Is C#1 a key? #1a #") == (1,)
    assert fill("Did #2 visit #1 and #10?", {1: "Loss", 2: "#1"}) == "Did #1 visit Loss and #10?"


@pytest.mark.parametrize(
    ("how", "answers", "expected"),
    [
        (LEAST, ("3 May 1904", "4 May 1904"), "A"),
        (MOST, ("3 May 1904", "December 1903"), "A"),
        (LEAST, ("1931", "it opened on 2 June 1931"), "A"),  # a year alone counts as its beginning
        (LEAST, ("1,904 m", "980 m"), "B"),
        (MOST, ("in 12", "in 980 AD"), "B"),
        (LEAST, ("1931", "1931"), None),
        (LEAST, ("long ago", "1931"), None),
        (SAME, ("Hong Kong", " hong kong."), "yes"),
        (SAME, ("Norway", "Sweden"), "no"),
        (DIFFERENT, ("Norway", "Sweden"), "yes"),
        (DIFFERENT, ("Norway", "norway"), "no"),
    ],
)
def test_two_answers_decide_a_comparison(how: str, answers: tuple[str, str], expected: str | None) -> None:
    assert decide(Compared(how, ("A", "B"), ("?", "?")), answers) == expected


def test_what_is_no_comparison() -> None:
    for text in ("Which town is on the Ves?", "Kerling or Tamsin?", "Are Kerling and Tamsin ports?", "Are both?", ""):
        assert compared(text) is None


def test_a_long_question_is_left_whole() -> None:
    text = "Who is the father of " * 500 + "Marta Orlo?"
    assert len(plan_by_rules(text).steps) == 1 and compared(text) is None


_WORDS = """the a of who that which where Halden Bridge Marta Orlo's father director #1 , ? was did born in by named is
( ) ' and or first same country from X's 1904 designed ship built ; . a it its in there with whoever someone what how"""
_PIECES = st.sampled_from(_WORDS.split())


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECES, max_size=40))
def test_any_words_give_a_sound_plan(words: list[str]) -> None:
    text = " ".join(words)
    plan = plan_by_rules(text)
    assert 1 <= len(plan.steps) <= MAX_STEPS
    known: set[int] = set()
    for step in plan.steps:
        made = set(step.depends_on)
        assert made <= known  # what is asked needs earlier answers only
        known.add(step.id)
    assert plan == plan_by_rules(text)
    assert len(features(text)) <= MAX_STEPS
