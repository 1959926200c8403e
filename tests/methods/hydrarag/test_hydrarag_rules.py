"""The rules that stand in for a model in HydraRAG: how many relations a question names, and its topics."""

import pytest

from gpu_rag.methods.hydrarag.rules import chain_by_rules, mentions_by_rules
from gpu_rag.text.rules.relations.hops import n_relations, relation_words

COMMON = relation_words(["directed by", "has genre", "in language", "starred actors", "gender", "place_of_birth"])


@pytest.mark.parametrize(
    ("question", "n"),
    [
        ("what did the Nightfall director direct", 2),
        ("what gender is Nightfall's father", 2),
        ("what are the main languages in Nightfall directed films", 2),
        ("who is listed as director of Nightfall", 1),
        ("what were the release years of the films directed by Nightfall", 2),
        ("when was Nightfall released in which year", 1),
        ("what is the place_of_birth of Nightfall's notable_types", 2),
        ("what city is the capital of Nightfall", 1),
        ("Nightfall", 1),
        ("who acted in the movies directed by the director of Nightfall", 3),
        ("what is the nationality of Nightfall 's parents ?", 2),
    ],
)
def test_relations_are_counted(question: str, n: int) -> None:
    assert n_relations(question, ["nightfall"], COMMON) == n
    assert chain_by_rules(question, ["nightfall"], 4, COMMON).depth(["nightfall"]) == n
    assert chain_by_rules(question, ["nightfall"], 1, COMMON).depth(["nightfall"]) == 1


def test_a_topic_is_taken_out_in_every_way_it_is_written() -> None:
    for written in ("Tears_of_Rain", "tears of rain", "Tears of_Rain"):
        assert n_relations(f"who is the mother of {written}", ["tears of rain"]) == 1
    assert n_relations("who is the mother of the father of it", ["?!"]) == 2  # nothing is left of such a name
    assert n_relations("who is the mother of Tears_of_Rain_Hall", ["tears of rain"]) == 1  # one word, another thing


def test_with_several_topics_the_way_is_one_shorter_and_never_deeper_than_allowed() -> None:
    asked = "who acted in the films directed by the director of Nightfall and Daybreak"
    topics = ["nightfall", "daybreak"]
    assert n_relations(asked, topics) == 3
    assert chain_by_rules(asked, topics, 3).depth(topics) == 2
    assert chain_by_rules(asked, topics, 1).depth(topics) == 1


def test_names_of_common_words_are_topics_where_they_are_written_as_one() -> None:
    assert mentions_by_rules("what is the country of More_Than_Ever 's track_list ?", [], COMMON) == ["more than ever"]
    assert mentions_by_rules("who sang in the film of it", ["film"], COMMON) == ["film"]  # nothing else is left


def test_where_no_name_is_left_the_runs_of_other_words_are_names() -> None:
    assert mentions_by_rules("where was jon p vellin when he died", [], COMMON) == ["jon p vellin"]
    assert mentions_by_rules("where was jon p vellin born", ["vellin"], COMMON) == ["vellin"]  # a name that is known
    assert mentions_by_rules("what genre is it", ["genre"], COMMON) == ["genre"]
