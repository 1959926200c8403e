"""HybGRAG's router by rules: the first action, and the answer to each feedback, one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.methods.hybgrag import rules as hybgrag_rules
from gpu_rag.methods.hybgrag.rules import Candidate, first_action, next_action
from gpu_rag.methods.hybgrag.state import HYBRID, TEXT, Action, Fault, Feedback, History, Params
from gpu_rag.program.knowledge_base.names import Linked, masked, mentions
from gpu_rag.program.knowledge_base.query import Topic
from gpu_rag.settings.ranges import MAX_INTEGER

INCORRECT, MISSING, NO_ENTITY, NO_INTERSECTION, WRONG_INTERSECTION, WRONG_MODULE, REJECTED = Fault
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


def test_first_every_plain_name_along_its_nearest_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_action(RANKED, ONE) == BOTH  # not the town, which is read out of the same words
    monkeypatch.setattr(Params, "max_topics", 1)
    assert first_action(RANKED, ONE).topics == (topic("Marta", "directed"),)


def test_first_the_best_candidate_where_no_name_is_plain_and_documents_without_any() -> None:
    assert first_action([NEAR], ONE) == hybrid(topic("Piotr", "starred"))
    assert first_action([], ONE) == Action(TEXT)


def test_sets_of_relations_come_by_rank_and_can_begin_a_walk() -> None:
    found = [t.relations for t in candidate("x", 0, 1, "a", "-b", "c").topics(2)]
    assert found[0] == ("a",) and set(found) == {("a",), ("c",), ("a", "b"), ("a", "c"), ("b", "c")}
    more = [t.relations for t in candidate("x", 0, 1, "a", "-b", "c").topics(MAX_INTEGER)]
    assert more == [*found, ("a", "b", "c")]  # and no set is looked for where there are no more relations
    assert [t.relations for t in candidate("x", 0, 1, "-b", "a").topics(1)] == [("a",)]
    assert [t.relations for t in MARTA.topics(1)] == [("directed",), ("starred",), ("wrote",)]


MARTA_DIRECTED, PIET_STARRED = topic("Marta", "directed"), topic("Piet", "starred")
PIOTR_STARRED = topic("Piotr", "starred")


@pytest.mark.parametrize(
    ("action", "feedback", "ranked", "expected"),
    [
        # an incorrect entity is replaced by the other reading of its words, else by the next, else left out
        (BOTH, Feedback(INCORRECT, ("Piet",)), RANKED, hybrid(MARTA_DIRECTED, PIOTR_STARRED)),
        (hybrid(MARTA_DIRECTED), Feedback(INCORRECT, ("Marta",)), [MARTA, PIET], hybrid(PIET_STARRED)),
        (BOTH, Feedback(INCORRECT, ("Piet",)), [MARTA, PIET], hybrid(MARTA_DIRECTED)),
        # the last entity left out is a search in documents
        (hybrid(PIET_STARRED), Feedback(INCORRECT, ("Piet",)), [PIET], Action(TEXT)),
        # an incorrect relation is left out where another is left, else replaced by the next-ranked
        (
            hybrid(topic("Marta", "directed", "starred")),
            Feedback(INCORRECT, (), (("Marta", "directed"),)),
            RANKED,
            hybrid(topic("Marta", "starred")),
        ),
        (
            hybrid(MARTA_DIRECTED),
            Feedback(INCORRECT, (), (("Marta", "directed"),)),
            RANKED,
            hybrid(topic("Marta", "starred")),
        ),
        # an entity all of whose relations are wrong is left out
        (
            BOTH,
            Feedback(INCORRECT, (), (("Piet", "starred"),)),
            [MARTA, candidate("Piet", 10, 14, "starred")],
            hybrid(MARTA_DIRECTED),
        ),
        # wrong topics are changed at once
        (
            BOTH,
            Feedback(INCORRECT, ("Piet",), (("Marta", "directed"),)),
            RANKED,
            hybrid(topic("Marta", "starred"), PIOTR_STARRED),
        ),
        # a missing entity is the next-ranked of other words
        (hybrid(MARTA_DIRECTED), Feedback(MISSING), RANKED, BOTH),
        (hybrid(PIET_STARRED), Feedback(MISSING), [PIET, NEAR], hybrid(PIET_STARRED, PIOTR_STARRED)),
        # an intersection is mended by leaving an entity out where it has no other relation
        (
            BOTH,
            Feedback(WRONG_INTERSECTION),
            [candidate("Marta", 0, 5, "directed"), candidate("Piet", 10, 14, "starred")],
            hybrid(MARTA_DIRECTED),
        ),
        # the wrong module is switched both ways
        (BOTH, Feedback(WRONG_MODULE), RANKED, Action(TEXT, BOTH.topics)),
        (Action(TEXT, BOTH.topics), Feedback(WRONG_MODULE), RANKED, BOTH),
    ],
)
def test_the_answer_to_each_feedback(
    action: Action, feedback: Feedback, ranked: list[Candidate], expected: Action
) -> None:
    assert after(action, feedback, ranked) == expected


def taken_after(action: Action, feedback: Feedback, n: int) -> list[tuple[Topic, ...]]:
    """The topics of n actions in turn, each answered by the same feedback."""
    history, taken = History("q", [action], [feedback]), []
    for _ in range(n):
        found = next_action(history, RANKED, ONE)
        assert found is not None
        taken.append(found.topics)
        history.actions.append(found)
        history.feedback.append(feedback)
    return taken


def test_what_comes_after_the_same_feedback_again() -> None:
    wrong = Feedback(INCORRECT, (), (("Marta", "directed"),))
    wrote = History("q", [hybrid(MARTA_DIRECTED), hybrid(topic("Marta", "starred"))], [wrong, wrong])
    assert next_action(wrote, RANKED, ONE) == hybrid(topic("Marta", "wrote"))
    town = topic("Marta", "lies on", type="town")
    assert taken_after(Action(TEXT), Feedback(NO_ENTITY), 3) == [(MARTA_DIRECTED,), (PIET_STARRED,), (town,)]
    for kind in (NO_INTERSECTION, WRONG_INTERSECTION):  # mended at its last entity first
        assert taken_after(BOTH, Feedback(kind), 3)[0] == (MARTA_DIRECTED, topic("Piet", "directed"))
    assert after(BOTH, Feedback(REJECTED)) not in (None, BOTH)


def test_a_chain_without_one_of_its_relations_is_no_chain() -> None:
    """The rest has no direction of its own, else each relation would need one."""
    chain = hybrid(Topic("Marta", "person", ("directed", "starred"), ("in", "out")))
    found = after(chain, Feedback(INCORRECT, (), (("Marta", "directed"),)))
    assert found == hybrid(topic("Marta", "starred"))


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


KINDS = tuple(Fault)
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


def test_a_name_is_masked_by_its_type() -> None:
    assert masked("films by Marta Orlo of 1931", 9, 19, "person") == "films by person of 1931"
