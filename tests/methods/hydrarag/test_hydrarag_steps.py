"""HydraRAG's steps one by one, on a graph and articles made by hand: homonyms, agreement of sources, texts, windows."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from answer_notes import found, noted
from hydrarag_case import ask, build, scripted

import gpu_rag
from gpu_rag.methods.hydrarag.asks import PROMPTS
from gpu_rag.methods.hydrarag.graphs import answer_place, taken_as_topics, window
from gpu_rag.methods.hydrarag.pruning import once
from gpu_rag.methods.hydrarag.state import Analysis, FoundPath, Match, Mention, Params
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.text.bm25 import Bm25
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Answer

TOWNS = [("s1", "Springfield", "town"), ("s2", "Springfield", "town"), ("i", "Illinois", "state")]
PEOPLE = [("a1", "Ada Brink", "person"), ("a2", "Ada Brink", "person"), ("c", "Carl Moss", "person")]
BORN = [("a1", "born in", "s1"), ("a2", "born in", "s2"), ("c", "born in", "s1"), ("s1", "lies in", "i")]
REL = re.compile(r"^(.*) \[(\w+)\]: rel ([\d.]+), reliability [\d.]+, support [\d.]+ \((.*)\), known")
Build = Callable[..., gpu_rag.Index]


@pytest.fixture
def towns(tmp_path: Path, fast: Any) -> Build:
    """towns(nodes, edges): an index of a knowledge base with ids, so that several nodes may have one name."""

    def make(nodes: Any, edges: Any) -> gpu_rag.Index:
        folder = tmp_path / f"kb{len(nodes)}_{len(edges)}"
        folder.mkdir()
        rows = [dict(zip(("id", "name", "type"), node)) for node in nodes]
        (folder / "nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        rows = [dict(zip(("src", "relation", "dst"), edge)) for edge in edges]
        (folder / "edges.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        gpu_rag.build((), folder / "ix", methods=["hydrarag"], skb=folder, settings=fast)
        return gpu_rag.Index.open(folder / "ix")

    return make


@pytest.fixture
def index(tiny_corpus: Path, tmp_path: Path, fast: Any, facts: Any) -> gpu_rag.Index:
    """The six articles with their facts, a graph that states some of these facts as well, and three web pages."""
    graph = [("Marta Orlo", "born in", "Tamsin"), ("Tamsin", "twin town of", "Kerling")]
    pages = {"Tamsin one": "Tamsin is a port.", "Tamsin two": "Tamsin has a pier.", "Tamsin three": "Tamsin is old."}
    return build(tiny_corpus, tmp_path, facts, graph, pages, fast)


def scores(answer: Answer) -> dict[str, tuple[str, float, str]]:
    """Path of the first phase -> (kind, relevance, what supports it)."""
    found = (REL.match(line) for line in noted(answer, "initial/scores")[0])
    return {one[1]: (one[2], float(one[3]), one[4]) for one in found if one}


def pairs(sentences: Sequence[str]) -> list[tuple[str, ...]]:
    """Two by two."""
    return [tuple(sentences[i : i + 2]) for i in range(0, len(sentences), 2)]


def test_a_topic_that_two_nodes_share_weighs_as_one_that_is_one_node(towns: Build, fast: Any) -> None:
    question = "Who was born in Springfield?"
    two = ask(towns([*TOWNS, *PEOPLE], BORN), fast, question)
    kept = [edge for edge in BORN if "s2" not in edge and "a2" not in edge]
    one = ask(towns([TOWNS[0], TOWNS[2], PEOPLE[0], PEOPLE[2]], kept), fast, question)
    assert noted(two, "topics") == [("springfield -> Springfield, Springfield",)]
    path = "Springfield <- born in - {Ada Brink; Carl Moss}"
    assert path in scores(one)
    assert scores(two)[path] == scores(one)[path]  # the other Springfield makes no path less relevant


def test_a_homonym_of_the_topic_may_be_the_answer(towns: Build, fast: Any) -> None:
    index = towns([*TOWNS, *PEOPLE], [*BORN, ("s1", "twin town of", "s2")])
    answer = ask(index, fast, "Which is the twin town of Springfield?", w_max=20)
    twins = [path for path in answer.paths if path.text == "Springfield - twin town of -> Springfield"]
    assert len(twins) == 1 and {node.id for node in answer.nodes} & {"s1", "s2"}


def test_paths_of_one_text_are_one_and_keep_the_answers_of_all(towns: Build, fast: Any) -> None:
    index = towns([*TOWNS, *PEOPLE], [edge for edge in BORN if edge[0] != "c"])
    answer = ask(index, fast, "Who was born in Springfield?")
    texts = [path.text for path in answer.paths]
    assert texts.count("Springfield <- born in - Ada Brink") == 1
    assert {"a1", "a2"} <= {node.id for node in answer.nodes}


def mention(name: str, *nodes: int) -> Mention:
    return Mention(name, tuple(Match(node, 1.0, (0,)) for node in nodes))


def test_topics_of_a_path_are_those_of_its_order() -> None:
    analysis = Analysis("?", (mention("a", 1, 2), mention("b", 7, 8)), (), "", 1, False, True)
    assert taken_as_topics(analysis, (1, 8)) == {1, 8}  # 2 and 7 are other things
    assert taken_as_topics(analysis, (2,)) == {2, 7, 8}  # a path of one topic: what else the question names is known
    assert answer_place((1, 5, 2), taken_as_topics(analysis, (1, 8))) == 2
    assert answer_place((1, 5, 8), taken_as_topics(analysis, (1, 8))) == 1
    assert answer_place((2, 5, 7), taken_as_topics(analysis, (2,))) == 1


def test_a_predicted_answer_is_the_answer_of_its_path() -> None:
    predicted = mention("p", 9, 4)
    assert answer_place((1, 5, 9), {1, 9}) == 1  # what stands between two topics
    assert answer_place((1, 5, 9), {1, 9}, predicted) == 2
    assert answer_place((4, 5, 1), {1, 4}, predicted) == 0
    assert answer_place((1, 5, 9), {1, 4}, predicted) == 2  # 9 is not the reading of this order: an open end as any
    assert answer_place((1, 5), {1}, predicted) == 1  # from the topic alone


def test_once_joins_answers_and_keeps_sources_apart() -> None:
    def path(source: str, *answers: int) -> FoundPath:
        return FoundPath("A - r -> B", "kg", source, (), (), answers=answers)

    found = once([path("one", 3, 4), path("two", 5), path("one", 4, 6)])
    assert [(one.sources, one.answers) for one in found] == [("one", (3, 4, 6)), ("two", (5,))]


def test_a_fact_of_the_graph_that_a_document_states_too_is_verified_by_both(index: Any, fast: Any) -> None:
    question, path = "Where was Marta Orlo born?", "Marta Orlo - born in -> Tamsin"
    both = ask(index, fast, question, sources="facts,extraction", w_max=20)
    assert scores(both)[path][::2] == ("kg", "document") and "document" in noted(both, "verified_by")[0]
    assert "facts+extraction" in {p.source for p in both.paths if p.text == path}
    alone = ask(index, fast, question, sources="facts", w_max=20)
    assert scores(alone)[path][::2] == ("kg", "no other kind") and noted(alone, "verified_by") == [("kg",)]
    assert scores(alone)[path][1] == scores(both)[path][1]  # relevance is the same, verification is not
    read = ask(index, fast, question, sources="extraction", w_max=20)
    assert scores(read)[path][::2] == ("document", "no other kind")  # its own kind is no support


def test_where_no_path_goes_through_all_topics_each_is_searched_alone(index: Any, fast: Any) -> None:
    question = "What do Halden Bridge and University of Loss share?"
    answer = ask(index, fast, question, sources="facts,extraction", d_max=1, phases=1)
    assert noted(answer, "graph/topics_alone") == [("no path goes through all topics",)]
    starts = {path.text.split(" - ")[0] for path in answer.paths}
    assert answer.paths and starts <= {"Halden Bridge", "University of Loss"}
    deeper = ask(index, fast, question, sources="facts,extraction", d_max=2, phases=2)
    assert len(noted(deeper, "evidence_subgraph")) == 3  # at depth 1 twice, then at depth 2 with both
    assert "University of Loss" in found(deeper, "refined found") and "Piet Ruyven" in found(deeper, "refined found")


def test_documents_without_a_topic_are_found_by_dense_search(index: Any, fast: Any) -> None:
    answer = ask(index, fast, "what was founded long ago", sources="documents")
    assert noted(answer, "topics") == [()] and 1 <= len(answer.evidence) <= 3
    assert {path.source for path in answer.paths} <= {"documents"}


def test_each_document_gives_its_w_max_best_sentences_in_the_order_of_the_text(index: Any, fast: Any) -> None:
    def sentences(w_max: int) -> tuple[int, tuple[str, ...]]:
        answer = ask(index, fast, "Where was Marta Orlo born?", sources="documents", w_max=w_max, phases=1)
        (step,) = [step for step in answer.trace if step.verb == "sentences"]
        return step.n_candidates, step.chosen

    def share(values: Sequence[float], sentence: str) -> float:
        pair = next(pair for pair in pairs(both) if sentence in pair)
        return values[both.index(sentence)] / max(values[both.index(one)] for one in pair)

    (n, best), (same, both) = sentences(1), sentences(2)
    assert n == same == len(best) > 1 and len(both) == 2 * n  # every article has two sentences
    assert both[:2] == ("Marta Orlo was an engineer born in Tamsin.", "She studied under Piet Ruyven.")
    query, *vectors = HashEmbedder().embed(["Where was Marta Orlo born", *both])
    near = [float(vector @ query) for vector in vectors]
    words = Bm25.build(both).scores("Where was Marta Orlo born?").tolist()
    assert list(best) == [max(pair, key=lambda s: share(near, s) + share(words, s)) for pair in pairs(both)]


def test_every_sentence_of_a_long_page_is_searched(tiny_corpus: Path, tmp_path: Path, fast: Any, facts: Any) -> None:
    wanted, near = "In Kerling she was baptised.", "Where was Marta Orlo?"  # has the rare word; is nearest by cosine
    text = " ".join([*(f"Line {i} says nothing of Marta Orlo." for i in range(1500)), wanted, near])
    index = build(tiny_corpus, tmp_path, facts, [("Marta Orlo", "lived in", "Tamsin")], {"Long": text}, fast)
    for by, expected in (("both", wanted), ("cosine", near)):
        given: dict[str, Any] = {"sources": "web", "phases": 1, "w_max": 1, "sentences": by}
        answer = ask(index, fast, "Where was Marta Orlo baptised?", **given)
        assert noted(answer, "sentences") == [(expected,)]


def test_sentences_of_all_documents_share_one_request(index: Any, fast: Any) -> None:
    question = "Where was Marta Orlo born, in Tamsin?"
    llm, names = scripted({**REPLIES, "web": None})
    answer = ask(index, fast, question, llm, sources="documents,web", phases=1, selector=False)
    (prompt,) = [call.prompt for name, call in zip(names, llm.calls) if name == "text_paths"]
    (step,) = [step for step in answer.trace if step.verb == "sentences"]
    assert step.n_candidates > 3 and all(f": {sentence}" in prompt for sentence in step.chosen)
    n_tokens = llm.count_tokens(prompt) + llm.count_tokens(Prompt.read(PROMPTS, "text_paths").system)
    small, names = scripted({**REPLIES, "web": None})
    small.context_tokens = 2 * n_tokens - 40  # half of it is for the reply
    ask(index, fast, question, small, sources="documents,web", phases=1, selector=False)
    (shorter,) = [call.prompt for name, call in zip(names, small.calls) if name == "text_paths"]
    titles = [re.findall(r"^\[\d+\] ([^:]+):", text, re.MULTILINE) for text in (prompt, shorter)]
    assert len(titles[1]) < len(titles[0]) and set(titles[1]) == set(titles[0])  # each document still has a sentence


@pytest.mark.parametrize(("hops", "bounded", "topics", "expected"), [
    (2, True, 1, (1, 2)), (2, True, 3, (3, 6)), (1, True, 2, (0, 2)), (3, False, 2, (0, 6)), (3, False, 1, (0, 3)),
])  # fmt: skip
def test_windows_of_lengths(hops: int, bounded: bool, topics: int, expected: tuple[int, int]) -> None:
    assert window(hops, bounded, topics) == expected


CHAIN = {"entities": ["Marta Orlo", "ANSWER"], "relations": ["born in"]}
REPLIES: dict[str, Any] = {  # of a model that is never content
    "sources": {"chosen": ["A"]},
    "select": {"chosen": ["A"]},
    "web": lambda request: request.constraint.options[1],
    "topics": {"topics": ["Marta Orlo"]},
    "analysis": {"subquestions": ["Where was she born?"], **CHAIN},
    "text_paths": {"paths": []},
    "refine": "nothing",
    "refined": {"question": "Where did Piet Ruyven teach?",
                         "entities": ["Piet Ruyven", "ANSWER"], "relations": ["taught at"]},
    "answer": {"reason": "", "settled": [False], "sufficient": False, "answer": ""},
    "answer_last": {"reason": "", "settled": [False], "sufficient": False, "answer": ""},
}  # fmt: skip


def test_the_model_picks_web_results_by_title_and_snippet(index: Any, fast: Any) -> None:
    llm, names = scripted(REPLIES)
    answer = ask(index, fast, "Where was Marta Orlo born, in Tamsin?", llm, sources="web", phases=1, w_max=1)
    (request,) = [call for name, call in zip(names, llm.calls) if name == "web"]
    assert all(f"Tamsin {name}: Tamsin" in request.prompt for name in ("one", "two", "three"))
    second = re.search(r"^B\. Tamsin (\w+):", request.prompt, re.MULTILINE)
    (read,) = noted(answer, "web_pages")
    assert second and len(read) == 1 and read[0].endswith(f"{second[1]}.html")


def test_a_follow_up_brings_new_documents_beside_the_old_ones_and_keeps_the_topics_of_the_graph(
    index: Any, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Params, "documents", 1)
    llm, names = scripted(REPLIES)
    answer = ask(index, fast, "Where was Marta Orlo born?", llm, phases=2, web="none", selector=False)
    first, second = [step for step in answer.trace if step.verb == "sentences"]
    assert first.n_candidates == 1 and second.n_candidates == 2  # hers, and Piet Ruyven's
    around = [told[0] for told in noted(answer, "evidence_subgraph")]
    assert len(around) == 2 and around[0] == around[1]  # the same neighbourhood of the same topic
    texts = [call.prompt for name, call in zip(names, llm.calls) if name == "text_paths"]
    assert "Marta Orlo - born in - ANSWER" in texts[0] and "Piet Ruyven - taught at - ANSWER" in texts[1]
