"""HydraRAG's decisions as values: gold of a perfect decider, replies that are checked, requests that are left."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from answer_notes import noted
from hypothesis import given
from hypothesis import strategies as st
from kb_in_memory import knowledge_base
from memory_index import MemoryIndex

import gpu_rag
from gpu_rag.index.knowledge_base.names import name_key
from gpu_rag.methods.hydrarag import gold
from gpu_rag.methods.hydrarag.asks import TEXT_PATHS
from gpu_rag.methods.hydrarag.evidence import named_first
from gpu_rag.methods.hydrarag.replies import NOT_ANSWERED, Step, TextPath, TextPaths
from gpu_rag.methods.hydrarag.rules import joined_answers
from gpu_rag.methods.hydrarag.state import END_CALLS, MAX_CALLS, SIBLING_CALLS, Analysis, FoundPath, Params, Search
from gpu_rag.models.ask import Packed
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.program.oracle import Gold, Known, Oracle
from gpu_rag.program.run import Run
from gpu_rag.types import Answer, Question, RankedNode

NAMES = ("Ada", "Bern", "Carl", "Dora", "Erik")
ROWS = {name: row for row, name in enumerate(NAMES)}
KB = knowledge_base([(name, name, "entity") for name in NAMES], [("Ada", "knows", "Bern")], embed=HashEmbedder().embed)
INDEX: Any = MemoryIndex(KB)


def known(*answers: str, passages: frozenset[int] = frozenset(), **meta: Any) -> Known:
    return Known(INDEX, passages, Gold(frozenset(), answers, meta))


def path(*names: str, answer: str = "", passages: tuple[int, ...] = (), text_names: tuple[str, ...] = ()) -> FoundPath:
    nodes = tuple(KB.row_of(name) for name in names)
    answers = (KB.row_of(answer),) if answer else ()
    places = tuple((node,) for node in nodes)
    return FoundPath(
        " ".join(names), "kg", "facts", nodes, places, passages=passages, answers=answers, names=text_names
    )


@pytest.mark.parametrize(
    ("given_topics", "expected"),
    [("Ada  Brink", ("Ada Brink",)), ({"m.1": "Ada", "m.2": "Bern"}, ("Ada", "Bern")), (["Ada"], ("Ada",))],
)
def test_gold_topics_are_those_of_the_question(given_topics: Any, expected: tuple[str, ...]) -> None:
    reply = gold.topics(known(topic_entity=given_topics))
    assert reply is not None and reply.topics == expected
    assert gold.topics(known()) is None


def test_a_gold_path_is_the_chain_and_others_are_none() -> None:
    triples = [["Ada_B", "bornIn", "Bern"], ["Bern", "lies_in", "Carl"]]
    chain = gold._chain(triples, ["ada b"])
    assert chain is not None and chain.entities == ("ada b", "Bern", "ANSWER")
    assert chain.relations == ("born in", "lies in") and chain.depth(["ada b"]) == 2
    assert gold._chain(list(reversed(triples)), ["ada b"]) is None and gold._chain([], ["ada b"]) is None


def test_the_best_paths_hold_gold_at_their_answer_place() -> None:
    paths = [path("Ada", "Bern"), path("Ada", "Bern", answer="Bern"), path("Carl", passages=(7,)), path("Dora")]

    def helpful(those: list[FoundPath], by: Known) -> list[int]:
        return [i for i in range(len(those)) if gold.holds_gold(by, i, those)]

    by = known("bern", passages=frozenset({7}))
    assert helpful(paths, by) == [1] and helpful(paths[:1] + paths[2:], by) == [0] and helpful(paths[2:], by) == [0]
    assert helpful(paths[3:], by) == [] and helpful([path(text_names=("BERN",)), paths[3]], by) == [0]


def test_the_gold_answer_is_what_stands_on_the_paths() -> None:
    chosen = [path("Ada", "Bern", answer="Bern"), path(text_names=("Carl",))]
    reply = gold.answer(known("carl", "bern", "erik"), chosen)
    assert reply is not None and (reply.sufficient, reply.answer) == (True, "Carl; Bern")
    assert gold.answer(known("erik"), chosen) == NOT_ANSWERED and gold.answer(known(), chosen) is None


def test_paths_of_sentences_that_were_not_shown_are_left_out() -> None:
    steps = (Step(" Ada ", "knows", "Bern"),)
    reply = TextPaths(tuple(TextPath(number, steps) for number in (1, 2, 3, 99)))
    assert TEXT_PATHS.check is not None
    checked: Any = TEXT_PATHS.check(reply, (0, 2))
    assert [one.sentence for one in checked.paths] == [1, 3] and checked.paths[0].steps[0].subject == "Ada"


def test_the_first_sentences_of_every_document_are_shown_first() -> None:
    assert TEXT_PATHS.show is not None
    slots = TEXT_PATHS.show(Analysis("?", (), (), "i", 1, False, True), ["a: 1", "a: 2", "b: 1"], [0, 1, 0])
    assert slots["sentences"] == Packed(["[1] a: 1", "[2] a: 2", "[3] b: 1"], [0, 1, 0], "\n")


@given(st.lists(st.text("abc ", min_size=1, max_size=200), min_size=1, max_size=12))
def test_an_answer_holds_whole_names_within_its_bound(names: list[str]) -> None:
    text = joined_answers(names)
    n = next(n for n in range(1, len(names) + 1) if "; ".join(names[:n]) == text)
    assert len(text) <= 500 and (n == len(names) or len(text) + 2 + len(names[n]) > 500)
    assert joined_answers(["x" * 600, "y"]) == "x" * 500


@given(st.lists(st.sampled_from(NAMES), unique=True), st.integers(0, 5), st.permutations(NAMES))
def test_the_rule_leaves_the_ranking_and_other_answers_come_first(ranked: list[str], n: int, said: list[str]) -> None:
    nodes = [RankedNode(name, name, "entity", "facts", 1.0) for name in ranked]
    as_ranked = named_first("; ".join(ranked[:n]), nodes, [], KB)
    assert list(as_ranked) == nodes
    unsure = named_first(f"{'; '.join(ranked[:n])} (born in) | Ada; Bern (lives in)", nodes, [], KB)
    assert list(unsure) == nodes
    named = [node.name for node in named_first("; ".join(said[:2]), nodes, [], KB)]
    first = [name for name in said[:2] if name in ranked]
    assert named == [*first, *(name for name in ranked if name not in first)]


def test_a_named_node_of_a_chosen_path_is_an_answer_and_no_other_is() -> None:
    ranked = [RankedNode("Bern", "Bern", "entity", "facts", 1.0)]
    named = named_first("Ada; Erik", ranked, [path("Ada", "Bern", answer="Bern")], KB)
    assert [node.name for node in named] == ["Ada", "Bern"]


def search_after(n_calls: int) -> Search:
    context: Any = SimpleNamespace(usage=SimpleNamespace(llm_calls=n_calls))
    none: Any = None
    return Search(Run(context, none, none, none, none, 5), Params())


@pytest.mark.parametrize(("left", "n_by_model"), [(30, 3), (12, 3), (11, 2), (4, 1), (3, 0)])
def test_siblings_that_could_spend_more_than_is_left_are_by_rule(left: int, n_by_model: int) -> None:
    most = MAX_CALLS - END_CALLS
    search = search_after(most - left)
    siblings = search.siblings(3)
    assert [sibling.run.most_calls for sibling in siblings] == [most] * n_by_model + [0] * (3 - n_by_model)
    assert n_by_model * SIBLING_CALLS <= left and search.run.most_calls == most
    search.documents[3] = 1.0
    assert all(3 not in sibling.documents for sibling in siblings)
    search.release_reserve()
    assert search.run.most_calls == MAX_CALLS


FACTS = [
    *(("Nightfall", "starred actors", f"Actor {i}") for i in range(9)),
    *((f"Actor {i}", "born in", f"Town {i}") for i in range(9)),
    ("Nightfall", "directed by", "Marta Orlo"),
    ("Marta Orlo", "spouse", "Piet Ruyven"),
    ("Piet Ruyven", "native of", "Kerling"),
    ("Kerling", "mayor", "Anna Stroud"),
]
ASKED: list[dict[str, Any]] = [
    {"id": "q1", "question": "where does the husband of the one behind Nightfall come from", "answers": ["Kerling"],
     "topic_entity": "Nightfall", "path": [["Nightfall", "directed by", "Marta Orlo"],
                                           ["Marta Orlo", "spouse", "Piet Ruyven"],
                                           ["Piet Ruyven", "native of", "Kerling"]]},
    {"id": "q2", "question": "who leads the town of Town 3", "answers": ["Anna Stroud"], "topic_entity": "Kerling"},
    {"id": "q3", "question": "where was Actor 4 born", "answers": ["Town 4"], "topic_entity": "Actor 4"},
]  # fmt: skip


def kept(answer: Answer, row: dict[str, Any]) -> bool:
    """Whether a gold answer stands on a path that is left at the end."""
    keys = set(map(name_key, row["answers"]))
    return any(name_key(entity) in keys for entity in answer.pools[-1].entities)


def test_a_perfect_decider_keeps_what_the_rules_lose(tmp_path: Path, fast: Any) -> None:
    (tmp_path / "facts.tsv").write_text("".join("\t".join(fact) + "\n" for fact in FACTS))
    gpu_rag.build((), tmp_path / "ix", kg=[tmp_path / "facts.tsv"], methods=["hydrarag"], settings=fast)
    index = gpu_rag.Index.open(tmp_path / "ix")
    questions = [Question(row["id"], row["question"]) for row in ASKED]
    oracle = Oracle({row["id"]: Gold(frozenset(), tuple(row["answers"]), row) for row in ASKED})
    shares, first = {}, {}
    for name, decider in {"rule": None, "oracle": oracle, "wrong": replace(oracle, p=0.0)}.items():
        answers = index.engine(fast).run("hydrarag", questions, retrieval_only=True, decider=decider).answers
        assert all(answer.error is None for answer in answers)
        shares[name] = [kept(answer, row) for answer, row in zip(answers, ASKED)]
        first[name] = [bool(a.nodes) and a.nodes[0].name in row["answers"] for a, row in zip(answers, ASKED)]
    assert all(shares["oracle"]) and all(first["oracle"]), (shares, first)
    assert sum(shares["rule"]) < 3 and sum(first["wrong"]) < 3
    assert oracle.by_rule <= {"analysis", "query", "refine", "follow_up"}  # without a path nothing tells the chain
    (accepted,) = index.engine(fast).run("hydrarag", questions[:1], retrieval_only=True, decider=oracle).answers
    assert noted(accepted, "topics/oracle") == [("Nightfall",)] and noted(accepted, "phase") == [("initial: accepted",)]
