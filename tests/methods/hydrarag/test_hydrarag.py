"""HydraRAG over six articles, a small knowledge graph and a web snapshot: by rules, and by scripted models."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from answer_notes import found, noted
from hydrarag_case import ask, build, scripted

import gpu_rag
from gpu_rag.cli.trace_text import trace_text
from gpu_rag.errors import BadInput, RequestFailed, UsageError
from gpu_rag.evaluation.verify_answers import AnswerChecker
from gpu_rag.jobs import row_of
from gpu_rag.methods.hydrarag import program
from gpu_rag.methods.hydrarag.analysis import by_chain
from gpu_rag.methods.hydrarag.batched.subgraphs import Order
from gpu_rag.methods.hydrarag.graphs import answer_place, orders_of
from gpu_rag.methods.hydrarag.replies import chain_of
from gpu_rag.methods.hydrarag.rules import mentions_by_rules
from gpu_rag.methods.hydrarag.state import Chain, FoundPath, Match, Mention, Params
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.settings import merge
from gpu_rag.sources.web.cached import FAILED_S, MAX_AGE_S, CachedProvider
from gpu_rag.sources.web.types import WebPage, WebResult
from gpu_rag.text.rules.relations.hops import relation_words
from gpu_rag.types import Answer

BORN = "Where was the designer of the Halden Bridge born?"
GRAPH = [
    ("Halden Bridge", "designed by", "Marta Orlo"),
    ("Halden Bridge", "planned by", "Marta Orlo"),
    ("Marta Orlo", "born in", "Tamsin"),
    ("Marta Orlo", "studied under", "Piet Ruyven"),
    ("Tamsin", "twin town of", "Kerling"),
    ("Kerling", "lies on", "Ves"),
    ("Halden Bridge", "crosses", "Ves"),
]
PAGE = "Tamsin is a port. Marta Orlo was born in Tamsin. The Halden Bridge was designed by Marta Orlo."


@pytest.fixture
def index(tiny_corpus: Path, tmp_path: Path, fast: Any, facts: Any) -> gpu_rag.Index:
    return build(tiny_corpus, tmp_path, facts, GRAPH, {"Tamsin": PAGE}, fast)


def retrieve(index: gpu_rag.Index, fast: Any, **params: Any) -> Answer:
    return ask(index, fast, BORN, **params)


def differences(index: gpu_rag.Index, answer: Answer) -> list[str]:
    row = json.loads(json.dumps(row_of(answer)))
    return [f"{d.where}: {d.what}" for d in AnswerChecker(index).check(row, row)]


def test_topics_by_rule_are_names_and_no_words_of_relations() -> None:
    common = relation_words(["directed_by", "has genre", "starred actors"])
    known = ["director", "some mother's son", "movies", "son"]
    asked = "who acted in the movies directed by the director of Some Mother's Son"
    assert mentions_by_rules(asked, known, common) == ["some mother's son"]
    assert mentions_by_rules("the director of drama", ["director", "drama"], common) == ["drama"]
    assert mentions_by_rules("who is the director", ["director"], common) == ["director"]  # nothing else is left
    assert mentions_by_rules("what is the gender of john_smith 's father ?", ["john smith"], common) == ["john smith"]


def test_a_chain_gives_order_depth_and_ends() -> None:
    mentions = [Mention("a", (Match(1, 1.0, (0,)),)), Mention("b", (Match(2, 1.0, (0,)),))]
    chain = chain_of(["B", "x", "answer", "A"], ["r", "s", "t"], ["a", "b"])
    assert chain == Chain(("b", "x", "ANSWER", "a"), ("r", "s", "t")) and chain.text == "b - r - x - s - ANSWER - t - a"
    made = by_chain("?", mentions, chain, (), chain.text)
    assert ([m.text for m in made.mentions], made.depth, made.opens, made.closes) == (["b", "a"], 2, False, False)
    behind = by_chain("?", mentions, Chain(("a", "b", "ANSWER"), ("r", "s")), (), "")
    assert (behind.depth, behind.opens, behind.closes) == (2, False, True)
    before = by_chain("?", mentions, Chain(("ANSWER", "a", "b"), ("r", "s")), (), "")
    assert (before.depth, before.opens, before.closes) == (2, True, False)
    for entities, relations in ((["a"], []), (["a", "ANSWER", "ANSWER"], ["r", "s"]), (["a", "ANSWER"], [])):
        assert chain_of(entities, relations, ["a"]) is None
    assert chain_of(["Answer", "ANSWER"], ["r"], ["answer"]) == Chain(("answer", "ANSWER"), ("r",))  # a topic's name
    unknown = Chain(("a", "ANSWER"), ("related to",))
    assert by_chain("?", mentions, unknown, (), "what of a").indicator == "what of a"


def test_orders_take_every_choice_of_nodes_best_first_and_no_node_twice() -> None:
    orders = orders_of([[1, 2], [3, 1]], False, True)
    assert orders == tuple(Order(topics, False, True) for topics in ((1, 3), (2, 3), (2, 1)))
    assert [answer_place(nodes, {1, 9}) for nodes in ((1, 2, 3), (3, 1, 9), (1, 5, 6, 9), (1, 9))] == [2, 0, 1, None]


def test_by_rules_the_answer_stands_on_a_path_and_says_which_kinds_verify_it(index: Any, fast: Any) -> None:
    answer = retrieve(index, fast)
    assert answer.paths and "Tamsin" in found(answer, "initial w2") | found(answer, "refined w2")
    assert {"kg", "document", "web"} == set(noted(answer, "sources")[0])
    assert set(noted(answer, "verified_by")[0]) <= {"kg", "document", "web"} and noted(answer, "verified_by")[0]
    (size,) = noted(answer, "evidence_subgraph")[:1]
    assert size[0].startswith("neighbourhood: ") and size[1].startswith("clustered: ")
    assert answer.evidence and all(e.why for e in answer.evidence)
    assert differences(index, answer) == []


def test_sources_can_be_left_out_and_the_others_find_the_same(index: Any, fast: Any) -> None:
    whole = retrieve(index, fast, w1=10_000)
    alone = retrieve(index, fast, w1=10_000, sources="facts")
    assert noted(alone, "sources") == [("kg",)] and all(path.source == "facts" for path in alone.paths)
    assert found(alone, "initial found") <= found(whole, "initial found")
    texts = retrieve(index, fast, sources="documents,web")
    assert not noted(texts, "evidence_subgraph") and {p.source for p in texts.paths} <= {"documents", "web"}
    assert noted(retrieve(index, fast, web="none"), "sources")[0] == ("kg", "document")
    for method in ("hydrarag", "hydrarag-e"):  # refused before the run, not in every question
        settings = merge(fast, {"method": {method: {"sources": "facts,moon"}}})
        with pytest.raises(UsageError, match="unknown source of hydrarag; given moon; expected facts"):
            index.retrieve([BORN], method=method, settings=settings)


def test_a_source_left_out_leaves_the_unpruned_paths_of_the_others(
    index: Any, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part of a path over several graphs that the others state alone remains; documents keep their topics."""
    names, joined = kb_of(index).node_names, {frozenset((s, o)) for s, _, o in GRAPH}

    async def unpruned(analysis: Any, paths: Any, query: Any, name: str, search: Any) -> list[FoundPath]:
        found.extend(paths)
        return await pruned(analysis, paths, query, name, search)

    def paths_of(kind: str, sources: str) -> set[tuple[str, ...]]:
        found.clear()
        retrieve(index, fast, w1=10_000, phases=1, sources=sources)
        return {tuple(names[v] for v in p.nodes) if kind == "facts" else (p.text,) for p in found if kind in p.sources}

    pruned, found = program.pruned, list[FoundPath]()
    monkeypatch.setattr(program, "pruned", unpruned)
    graph = {path for path in paths_of("facts", "all") if all(frozenset(p) in joined for p in pairwise(path))}
    assert len(graph) > 2 and paths_of("facts", "facts") == graph == paths_of("facts", "facts,documents,web")
    for kind in ("documents", "web"):
        texts = paths_of(kind, "all")
        assert texts and all(paths_of(kind, sources) == texts for sources in (f"facts,{kind}", kind)), kind


CHAIN = {"entities": ["Halden Bridge", "designer", "ANSWER"], "relations": ["designed by", "born in"]}
REPLIES: dict[str, Any] = {
    "topics": {"topics": ["Halden Bridge"]},
    "analysis": {"subquestions": ["Who designed it?", "Where was that person born?"], **CHAIN},
    "text_paths": {
        "paths": [{"sentence": 1, "steps": [{"subject": "Marta Orlo", "relation": "born in", "object": "Tamsin"}]}]
    },
    "refine": "Marta Orlo designed the bridge; she was born in Tamsin.",
    "refined": {
        "question": "Where was Marta Orlo born?", "entities": ["Marta Orlo", "ANSWER"], "relations": ["born in"],
    },
    "predict": {
        "predictions": [
            {"answer": "Tamsin", **CHAIN},
            {"answer": "Nowhere at all", "entities": ["Halden Bridge", "ANSWER"], "relations": ["is"]},
        ]
    },
    "answer": {"reason": "", "settled": [True, True], "sufficient": True, "answer": "Tamsin"},
    "answer_last": {"reason": "", "settled": [True, False], "sufficient": False, "answer": "Tamsin"},
}  # fmt: skip
NO = {"reason": "", "settled": [False, False], "sufficient": False, "answer": ""}


def tried(index: gpu_rag.Index, fast: Any, changed: dict[str, Any] | None = None, **params: Any) -> Any:
    """(answer, requests, names of their prompts) of a model that says REPLIES, with changes."""
    llm, names = scripted({**REPLIES, **(changed or {})})
    return ask(index, fast, BORN, llm, **params), llm.calls, names


def test_an_accepted_answer_ends_the_search_in_the_first_phase(index: Any, fast: Any) -> None:
    answer, calls, names = tried(index, fast)
    assert (answer.text, answer.status) == ("Tamsin", "answered") and noted(answer, "phase") == [("initial: accepted",)]
    assert names.count("answer") == 1 and "refined" not in names
    assert answer.nodes[0].name == "Tamsin"
    for name, request in zip(names, calls):
        assert request.temperature == (0.4 if name in ("topics", "analysis", "query", "text_paths") else 0.0), name
    assert differences(index, answer) == []


def test_three_phases_follow_one_another_until_an_answer_is_accepted(index: Any, fast: Any) -> None:
    answer, _, _ = tried(index, fast, {"answer": [NO, REPLIES["answer"]]})
    assert noted(answer, "phase") == [("refined: accepted",)]
    assert noted(answer, "follow_up/model")[0][0] == "Where was Marta Orlo born?"
    answer, _, names = tried(index, fast, {"answer": [NO, NO, REPLIES["answer"]]})
    assert noted(answer, "phase") == [("predicted: accepted",)] and noted(answer, "predictions") == [("Tamsin",)]
    assert "Tamsin" in found(answer, "predicted w1")
    assert [name for name in names if name in ("refined", "predict")] == ["refined", "predict"]


def test_without_an_accepted_answer_all_paths_are_pruned_together(index: Any, fast: Any) -> None:
    answer, _, names = tried(index, fast, {"answer": NO})
    assert noted(answer, "phase") == [("together: answered with what there is",)] and answer.text == "Tamsin"
    assert names.count("answer") == 3 and names.count("answer_last") == 1
    assert found(answer, "together found") >= found(answer, "initial found")
    answer, _, names = tried(index, fast, {"answer": NO, "answer_last": NO}, phases=1)
    assert (answer.text, answer.status) == (None, "unsupported") and names.count("answer") == 1


def test_switches_of_the_paper_reach_the_requests(index: Any, fast: Any) -> None:
    _, _, names = tried(index, fast, refinement=False, selector=False)
    assert "refine" not in names and "sources" not in names
    answer, _, names = tried(index, fast, {"sources": {"chosen": ["A"]}})
    assert "refine" in names and names.count("sources") == 1
    assert {p.source for p in answer.paths} <= {"facts", "extraction", "facts+extraction", "extraction+facts"}


def test_hydrarag_e_keeps_one_of_parallel_relations(index: Any, fast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def between(method: str, seed: int) -> set[str]:
        monkeypatch.setattr(Params, "seed", seed)
        answer = retrieve(index, fast, method=method, sources="facts", w_max=20)
        return {r for p in answer.paths for s, r, o, _ in p.edges if (s, o) == ("Halden Bridge", "Marta Orlo")}

    assert between("hydrarag", 0) == {"designed by", "planned by"}
    drawn = [between("hydrarag-e", seed) for seed in range(5)]
    assert all(len(one) == 1 for one in drawn) and set.union(*drawn) == {"designed by", "planned by"}


def test_a_source_that_fails_is_missing_and_the_others_answer(
    index: Any, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = retrieve(index, fast, sources="facts,extraction,documents")
    dead = retrieve(index, fast, web="http://127.0.0.1:9")  # nobody listens
    assert (dead.status, dead.paths, dead.nodes) == (whole.status, whole.paths, whole.nodes) and dead.paths
    assert [line.split(";")[0] for line in dead.missing] == ["web: the search server did not answer"]
    assert noted(dead, "missing") == [dead.missing] and row_of(dead)["missing"] == list(dead.missing)
    assert whole.missing == () and "missing" not in row_of(whole)
    assert "\nmissing   web: " in trace_text(row_of(dead))
    settings = merge(fast, {"method": {"hydrarag": {"web": "http://127.0.0.1:9", "sources": "web"}}})
    (alone,) = index.retrieve([BORN], method="hydrarag", settings=settings)
    assert alone.status == "failed" and alone.error is not None and alone.error["type"] == "RequestFailed"

    async def refused(*given: Any) -> None:
        raise BadInput("too many paths")

    monkeypatch.setattr("gpu_rag.methods.hydrarag.program.explore_graphs", refused)
    texts = retrieve(index, fast)
    assert texts.paths and texts.missing == ("kg: too many paths",)


class CountingWeb:
    """A provider of one page; what it was asked is kept. ok: whether it answers."""

    name = "counting"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ok = True

    def search(self, queries: Sequence[str], k: int) -> list[list[WebResult] | RequestFailed]:
        self.asked += queries
        return [[WebResult("http://w/1", "Tamsin", "a port")] if self.ok else RequestFailed("dead") for _ in queries]

    def read(self, urls: Sequence[str]) -> list[WebPage]:
        self.asked += urls
        return [WebPage(url, "Tamsin", PAGE) for url in urls]

    def close(self) -> None:
        """Nothing is open."""


def test_a_query_is_sent_once_and_a_page_is_read_once_a_run(
    index: Any, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = CountingWeb()
    monkeypatch.setattr("gpu_rag.methods.hydrarag.batched.web.open_web", lambda location: CachedProvider(web))
    answer, _, names = tried(index, fast, {"answer": NO}, web="http://w", selector=False)
    assert names.count("answer") == 3 and len(noted(answer, "web_pages")) >= 3  # three phases, two predictions
    assert sorted(web.asked) == sorted({BORN, "Where was Marta Orlo born?", "http://w/1"})


def test_what_failed_is_sent_again_after_a_while_and_old_pages_make_space(monkeypatch: pytest.MonkeyPatch) -> None:
    web, now = CountingWeb(), [0.0]
    cached = CachedProvider(web, clock=lambda: now[0])
    web.ok = False
    assert [type(one) for one in cached.search(["a", "a", "b"], 3)] == [RequestFailed] * 3 and web.asked == ["a", "b"]
    web.ok, now[0] = True, FAILED_S - 1
    assert isinstance(cached.search(["a"], 3)[0], RequestFailed) and web.asked == ["a", "b"]
    now[0] = FAILED_S + 1
    assert cached.search(["a"], 3) == [[WebResult("http://w/1", "Tamsin", "a port")]] and len(web.asked) == 3
    now[0] = MAX_AGE_S - 1
    assert cached.search(["a"], 3) and len(web.asked) == 3 and cached.search(["a"], 2) and len(web.asked) == 4
    now[0] += MAX_AGE_S
    assert cached.search(["a"], 3) and len(web.asked) == 5
    monkeypatch.setattr("gpu_rag.sources.web.cached.MAX_CHARS", 400)
    web.asked.clear()
    cached.read(["p1", "p2", "p3"])
    cached.read(["p3", "p1"])
    assert web.asked == ["p1", "p2", "p3", "p1"]
