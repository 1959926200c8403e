"""HybGRAG's router by rules: the first action, and the answer to each feedback, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.methods.hybgrag import rules as hybgrag_rules
from gpu_rag.methods.hybgrag.rules import Candidate, first_action, next_action
from gpu_rag.methods.hybgrag.state import (
    HYBRID,
    INCORRECT,
    MISSING,
    NO_ENTITY,
    NO_INTERSECTION,
    REJECTED,
    TEXT,
    WRONG_INTERSECTION,
    WRONG_MODULE,
    Action,
    Feedback,
    History,
    Params,
    Topic,
)
from gpu_rag.program.knowledge_base.names import Linked, masked, mentions
from gpu_rag.settings.ranges import MOST_INTEGER

ONE = Params(n_relations=1)


def candidate(name: str, start: int, end: int, *relations: str, score: float = 3.0, type: str = "person") -> Candidate:
    """All relations can be the first step, but for those that begin with "-"."""
    pairs = tuple((r.removeprefix("-"), not r.startswith("-")) for r in relations)
    return Candidate(Linked(name, type, (1,), score, start, end), pairs)


MARTA = candidate("Marta", 0, 5, "directed", "starred", "wrote")
PIET = candidate("Piet", 10, 14, "starred", "directed")
TOWN = candidate("Marta", 0, 5, "lies on", type="town")
NEAR = candidate("Piotr", 0, 0, "starred", score=0.9)
RANKED = [MARTA, PIET, TOWN, NEAR]


def topic(name: str, *relations: str, type: str = "person") -> Topic:
    return Topic(name, type, relations)


def after(action: Action, feedback: Feedback, ranked: list[Candidate] = RANKED, params: Params = ONE) -> Action | None:
    return next_action(History("q", [action], [feedback]), ranked, params)


def hybrid(*topics: Topic) -> Action:
    return Action(HYBRID, topics)


BOTH = hybrid(topic("Marta", "directed"), topic("Piet", "starred"))


# --- the first action ------------------------------------------------------------------------------


def test_first_every_plain_name_along_its_nearest_relation() -> None:
    assert first_action(RANKED, ONE) == BOTH  # not the town, which is read out of the same words
    assert first_action(RANKED, Params(max_topics=1)).topics == (topic("Marta", "directed"),)


def test_first_the_best_candidate_where_no_name_is_plain_and_documents_without_any() -> None:
    assert first_action([NEAR], ONE) == hybrid(topic("Piotr", "starred"))
    assert first_action([], ONE) == Action(TEXT)


def test_sets_of_relations_come_by_rank_and_can_begin_a_walk() -> None:
    found = [t.relations for t in candidate("x", 0, 1, "a", "-b", "c").topics(2)]
    assert found[0] == ("a",) and set(found) == {("a",), ("c",), ("a", "b"), ("a", "c"), ("b", "c")}
    more = [t.relations for t in candidate("x", 0, 1, "a", "-b", "c").topics(MOST_INTEGER)]
    assert more == [*found, ("a", "b", "c")]  # and no set is looked for where there are no more relations
    assert [t.relations for t in candidate("x", 0, 1, "-b", "a").topics(1)] == [("a",)]
    assert [t.relations for t in MARTA.topics(1)] == [("directed",), ("starred",), ("wrote",)]


# --- each feedback ---------------------------------------------------------------------------------


def test_an_incorrect_entity_is_replaced_by_the_other_reading_of_its_words() -> None:
    found = after(BOTH, Feedback(INCORRECT, ("Piet",)))
    assert found == hybrid(topic("Marta", "directed"), topic("Piotr", "starred"))
    other = after(hybrid(topic("Marta", "directed")), Feedback(INCORRECT, ("Marta",)), [MARTA, PIET])
    assert other == hybrid(topic("Piet", "starred"))


def test_an_incorrect_entity_without_a_replacement_is_left_out() -> None:
    assert after(BOTH, Feedback(INCORRECT, ("Piet",)), [MARTA, PIET]) == hybrid(topic("Marta", "directed"))


def test_the_last_entity_left_out_is_a_search_in_documents() -> None:
    assert after(hybrid(topic("Piet", "starred")), Feedback(INCORRECT, ("Piet",)), [PIET]) == Action(TEXT)


def test_what_was_called_wrong_does_not_come_back() -> None:
    history = History("q", [BOTH], [Feedback(INCORRECT, ("Piet",))])
    for _ in range(20):
        action = next_action(history, RANKED, ONE)
        if action is None:
            break
        assert "Piet" not in {t.entity for t in action.topics}
        history.actions.append(action)
        history.feedback.append(Feedback(WRONG_MODULE))
    else:
        raise AssertionError("it never ends")


def test_an_incorrect_relation_is_left_out_where_another_is_left() -> None:
    action = hybrid(topic("Marta", "directed", "starred"))
    assert after(action, Feedback(INCORRECT, (), (("Marta", "directed"),))) == hybrid(topic("Marta", "starred"))


def test_an_incorrect_relation_is_replaced_by_the_next_ranked() -> None:
    action = hybrid(topic("Marta", "directed"))
    wrong = Feedback(INCORRECT, (), (("Marta", "directed"),))
    assert after(action, wrong) == hybrid(topic("Marta", "starred"))
    history = History("q", [action, hybrid(topic("Marta", "starred"))], [wrong, wrong])
    assert next_action(history, RANKED, ONE) == hybrid(topic("Marta", "wrote"))


def test_an_entity_all_of_whose_relations_are_wrong_is_left_out() -> None:
    only = candidate("Piet", 10, 14, "starred")
    found = after(BOTH, Feedback(INCORRECT, (), (("Piet", "starred"),)), [MARTA, only])
    assert found == hybrid(topic("Marta", "directed"))


def test_wrong_topics_are_changed_at_once() -> None:
    wrong = Feedback(INCORRECT, ("Piet",), (("Marta", "directed"),))
    assert after(BOTH, wrong) == hybrid(topic("Marta", "starred"), topic("Piotr", "starred"))


def test_a_missing_entity_is_the_next_ranked_of_other_words() -> None:
    found = after(hybrid(topic("Marta", "directed")), Feedback(MISSING))
    assert found == hybrid(topic("Marta", "directed"), topic("Piet", "starred"))
    assert after(hybrid(topic("Piet", "starred")), Feedback(MISSING), [PIET, NEAR]) == hybrid(
        topic("Piet", "starred"), topic("Piotr", "starred")
    )


def test_no_entity_tries_each_candidate_alone() -> None:
    history = History("q", [Action(TEXT)], [Feedback(NO_ENTITY)])
    taken = []
    for _ in range(3):
        action = next_action(history, RANKED, ONE)
        assert action is not None
        taken.append(action.topics)
        history.actions.append(action)
        history.feedback.append(Feedback(NO_ENTITY))
    assert taken == [
        (topic("Marta", "directed"),),
        (topic("Piet", "starred"),),
        (topic("Marta", "lies on", type="town"),),
    ]


@pytest.mark.parametrize("kind", [NO_INTERSECTION, WRONG_INTERSECTION])
def test_an_intersection_is_mended_at_its_last_entity_first(kind: str) -> None:
    history = History("q", [BOTH], [Feedback(kind)])
    taken = []
    for _ in range(3):
        action = next_action(history, RANKED, ONE)
        assert action is not None
        taken.append(action.topics)
        history.actions.append(action)
        history.feedback.append(Feedback(kind))
    marta = topic("Marta", "directed")
    assert taken[0] == (marta, topic("Piet", "directed"))  # its next-ranked relation
    without = after(BOTH, Feedback(kind), [candidate("Marta", 0, 5, "directed"), candidate("Piet", 10, 14, "starred")])
    assert without == hybrid(marta)


def test_the_wrong_module_is_switched_both_ways() -> None:
    assert after(BOTH, Feedback(WRONG_MODULE)) == Action(TEXT, BOTH.topics)
    assert after(Action(TEXT, BOTH.topics), Feedback(WRONG_MODULE)) == BOTH


def test_simple_feedback_changes_something() -> None:
    assert after(BOTH, Feedback(REJECTED)) not in (None, BOTH)


# --- never twice, and to the end -------------------------------------------------------------------

KINDS = (NO_ENTITY, NO_INTERSECTION, MISSING, WRONG_INTERSECTION, WRONG_MODULE, REJECTED, INCORRECT)
RELATIONS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)


@st.composite
def rankings(draw: st.DrawFn) -> list[Candidate]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, 3)) * 5
        score = draw(st.sampled_from([0.9, 1.1, 2.1, 3.1]))
        end = start + 4 if score > 1 else start
        found.append(candidate(f"e{number}", start, end, *draw(RELATIONS), score=score))
    return found


@settings(max_examples=150, deadline=None)
@given(rankings(), st.data())
def test_no_action_twice_whatever_the_critic_says(ranked: list[Candidate], data: st.DataObject) -> None:
    params = Params(n_relations=data.draw(st.integers(1, 2)))
    first = first_action(ranked, params)
    history, keys = History("q"), []
    action: Action | None = first
    for _ in range(400):
        if action is None:
            break
        keys.append(action.key)
        history.actions.append(action)
        kind = data.draw(st.sampled_from(KINDS)) if len(keys) < 12 else REJECTED
        entities = tuple(t.entity for t in action.topics[:1]) if kind == INCORRECT else ()
        history.feedback.append(Feedback(kind, entities))
        action = next_action(history, ranked, params)
    assert action is None and len(keys) == len(set(keys))
    assert "text" in keys  # documents are searched in the end


def test_a_version_that_forgets_earlier_actions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plausible wrong look-back: only the last action counts as taken."""
    monkeypatch.setattr(hybgrag_rules.History, "seen", lambda self, action: action.key == self.actions[-1].key)
    history = History("q", [BOTH, Action(TEXT, BOTH.topics)], [Feedback(WRONG_MODULE)] * 2)
    assert next_action(history, RANKED, ONE) == BOTH


# --- names in a question ---------------------------------------------------------------------------

KNOWN = {"halden bridge", "halden", "marta orlo", "bridge", "drama", "of the", "x", "o'hara", "krl2"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Who built the Halden Bridge?", ["Halden Bridge", "Halden", "Bridge"]),
        ("a drama by Marta Orlo's sister", ["Marta Orlo", "drama"]),
        ("x of the O'Hara", ["O'Hara"]),
        ("genes near KRL2, and drama", ["KRL2", "drama"]),
        ("", []),
    ],
)
def test_names_in_a_question_by_how_plain_they_are(text: str, expected: list[str]) -> None:
    found = mentions(text, lambda name: name.casefold() in KNOWN)
    assert [text[m.start : m.end] for m in found] == expected
    assert [m.score for m in found] == sorted((m.score for m in found), reverse=True)


def test_tiers_of_names() -> None:
    text = "a drama at Halden Bridge"
    scores = {text[m.start : m.end]: int(m.score) for m in mentions(text, lambda name: name.casefold() in KNOWN)}
    assert scores == {"Halden Bridge": 3, "drama": 2, "Halden": 1, "Bridge": 1}


def test_a_name_is_masked_by_its_type() -> None:
    assert masked("films by Marta Orlo of 1931", 9, 19, "person") == "films by person of 1931"
