"""Scores over knowledge bases: STaRK's definitions on hand cases, answers on paths, and whole comparisons."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kb_in_memory import knowledge_base

import gpu_rag
import gpu_rag.api.indexes  # before `load_method` is replaced
from gpu_rag import evaluate, load_questions
from gpu_rag.cli.eval_command import score_tables
from gpu_rag.errors import BadInput
from gpu_rag.evaluation.kb import owners, pool_shares, score_paths
from gpu_rag.evaluation.metrics import hit_at, recall_at, reciprocal_rank
from gpu_rag.jobs import read_rows, row_of
from gpu_rag.methods import registry as catalog
from gpu_rag.methods.method import Method
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.reader import Support
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Answer, Pool, Question, RankedNode

SETTINGS = {"models": {"embedder": "hash", "llm": "none"}}
PathOf = tuple[str, str, str, str]


# ranking, gold: Hit@1, Hit@5, Recall@20, MRR worked by hand
HAND = [
    ("abc", "a", (1, 1, 1, 1)),
    ("abc", "bc", (0, 1, 1, 1 / 2)),
    ("abc", "bx", (0, 1, 1 / 2, 1 / 2)),
    ("abcdef", "f", (0, 0, 1, 1 / 6)),
    ("abc", "x", (0, 0, 0, 0)),
    ("", "x", (0, 0, 0, 0)),
    ("abcdefghijklmnopqrstuv", "auv", (1, 1, 1 / 3, 1)),  # u and v are behind the twentieth
]


@pytest.mark.parametrize(("ranking", "gold", "expected"), HAND)
def test_starks_measures_by_hand(ranking, gold, expected):
    found = (
        hit_at(ranking, gold, 1),
        hit_at(ranking, gold, 5),
        recall_at(ranking, gold, 20),
        reciprocal_rank(ranking, gold),
    )
    assert found == pytest.approx(expected)


@given(st.permutations("abcdefg"), st.sets(st.sampled_from("abcdefgxyz"), min_size=1), st.integers(1, 8))
def test_measures_are_their_definitions(ranking, gold, k):
    relevant = [item in gold for item in ranking]
    assert hit_at(ranking, sorted(gold), k) == (1.0 if any(relevant[:k]) else 0.0)
    first = relevant.index(True) + 1 if any(relevant) else 0
    assert reciprocal_rank(ranking, sorted(gold)) == (1 / first if first else 0)


def answer(
    text: str | None = None,
    nodes: Sequence[str] = (),
    paths: Sequence[Sequence[PathOf]] = (),
    pools: Sequence[tuple[str, Sequence[str]]] = (),
) -> Answer:
    from gpu_rag.types import Path as AnswerPath

    return Answer(
        "q", "?", "m", "answered", text,
        paths=tuple(AnswerPath("", tuple(edges)) for edges in paths),
        nodes=tuple(RankedNode(name, name, "entity", "kg", 1.0) for name in nodes),
        pools=tuple(Pool(name, len(entities), tuple(entities)) for name, entities in pools),
    )  # fmt: skip


EDGE = ("Ada", "born in", "Bern", "kg.tsv:1")


@pytest.mark.parametrize(
    ("given", "gold", "expected"),
    [
        (answer("The Bern."), ["bern"], (1, 0, 0)),
        (answer("Basel", paths=[[EDGE]]), ["Bern"], (0, 1, 1)),
        (answer("Basel", nodes=["Bern", "Basel"]), ["Bern"], (1, 0, 0)),
        (answer("Bern", nodes=["Basel", "Bern"]), ["Bern"], (0, 0, 0)),
        (answer(None, pools=[("beam", ["Ada", "Bern"])]), ["Bern"], (0, 1, 0)),
        (answer(None, paths=[[EDGE]], pools=[("beam", ["Ada"])]), ["ADA"], (0, 1, 1)),
        (answer(None, paths=[[EDGE]]), ["born in"], (0, 0, 0)),  # a relation is no answer
        (answer(None), ["Bern"], (0, 0, 0)),
    ],
)
def test_answers_on_paths(given, gold, expected):
    found = score_paths(given, gold)
    assert tuple(found.values()) == expected and list(found) == ["hits@1", "answer_on_path", "answer_on_path_pruned"]


def test_shares_of_pools():
    rows = [QuestionRow(Question(str(k), "?"), (), ("Bern",), {}, "jsonl") for k in range(3)]
    held = [answer(pools=[("beam", ["Bern", "x"]), ("llm", ["y"])]), answer(pools=[("beam", ["z"])]), answer()]
    assert pool_shares(list(zip(held, rows))) == {
        "beam": {"n": 2, "share": 0.5, "paths": 1.5}, "llm": {"n": 1, "share": 0.0, "paths": 1.0},
    }  # fmt: skip


def test_owners_of_passages():
    passages = [("p1", "a", "x"), ("p2", "", "y"), ("p3", "b", "z"), ("p4", "b", "w")]
    kb = knowledge_base([("a", "A", "t"), ("b", "B", "t"), ("c", "C", "t")], [], passages=passages)
    assert owners(kb) == {"p1": "a", "p3": "b", "p4": "b"}


def test_rows_have_nodes_and_pools_where_there_are_some_and_old_rows_are_read(tmp_path: Path):
    plain, full = row_of(answer("x")), row_of(answer("x", nodes=["Bern"], pools=[("beam", ["Ada"])]))
    assert "nodes" not in plain and "pools" not in plain
    assert full["nodes"] == [{"id": "Bern", "name": "Bern", "type": "entity", "source": "kg", "score": 1.0}]
    assert full["pools"] == [{"name": "beam", "n_paths": 1, "entities": ["Ada"]}]
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(plain) + "\n" + json.dumps(full) + "\n")
    assert list(read_rows(path)) == [plain, full]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    """A base of three documents and one node without."""
    tmp_path = tmp_path_factory.mktemp("base")
    rows = [{"id": f"n{k}", "name": name, "type": "town", "text": f"{name} {word}."} for k, (name, word) in enumerate(
        [("Bern", "bears"), ("Thun", "lake"), ("Chur", "bishop")]
    )]  # fmt: skip
    (tmp_path / "towns").mkdir()
    rows.append({"id": "n3", "name": "Rhine", "type": "river"})
    (tmp_path / "towns/nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "towns/edges.tsv").write_text("n2\ton\tn3\n")
    gpu_rag.build((), tmp_path / "ix", skb=tmp_path / "towns", methods=["dense", "bm25"], settings=SETTINGS)
    return gpu_rag.Index.open(tmp_path / "ix")


def questions(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_passages_of_documents_rank_their_nodes(index, tmp_path):
    asked = questions(
        tmp_path / "q.jsonl",
        {"id": "1", "question": "Which town has bears?", "answer_ids": [0]},  # the node n0
        {"id": "2", "question": "Where is a lake and a bishop?", "answer_ids": ["n1", "n3"]},
    )
    found = evaluate(index, asked, methods=["bm25"], retrieval_only=True, settings=SETTINGS)
    scores = found.scores["bm25"]
    assert scores["hit@1"][0] == scores["mrr"][0] == 1.0 and scores["recall@20"] == [1.0, 0.5]
    entry = found.document["methods"]["bm25"]
    assert entry["hit@5"] == 1.0 and entry["ci95"]["mrr"] and entry["recall@5"] is None
    assert not {"hits@1", "on_path", "by_hops"} & set(entry)


def test_an_id_of_two_sources_is_found_by_either_node_and_counts_once(tmp_path):
    for folder, name in (("a", "Bern"), ("b", "Thun")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nodes.jsonl").write_text(
            json.dumps({"id": "d1", "name": name, "text": f"{name}."}) + "\n"
        )
        (tmp_path / folder / "edges.tsv").write_text("")
    gpu_rag.build((), tmp_path / "ix", skb=[tmp_path / "a", tmp_path / "b"], methods=["bm25"], settings=SETTINGS)
    asked = questions(tmp_path / "q.jsonl", {"id": "1", "question": "Thun?", "answer_ids": ["d1"]})
    found = evaluate(tmp_path / "ix", asked, methods=["bm25"], retrieval_only=True, settings=SETTINGS)
    assert [found.scores["bm25"][name] for name in ("hit@1", "recall@20", "mrr")] == [[1.0]] * 3


def test_gold_that_is_no_node_is_missed_and_counted(index, tmp_path):
    asked = questions(
        tmp_path / "q.jsonl",
        {"id": "1", "question": "Which town has bears?", "answer_ids": [0, "n9", "n8", "n9"], "answer_types": ["town"]},
        {"id": "2", "question": "Which town has bears?", "answer_ids": [0]},
        {"id": "3", "question": "Which town has bears?", "answers": ["Bern", "Basel"]},
        {"id": "4", "question": "Which town has bears?", "answers": ["the rhine"]},
    )
    found = evaluate(index, asked, methods=["bm25"], retrieval_only=True, settings=SETTINGS)
    assert found.scores["bm25"]["recall@20"] == [1 / 3, 1.0] and found.scores["bm25"]["hit@1"] == [1.0, 1.0]
    assert found.document["gold_missed"] == {"questions": 2, "answers": 3}
    assert "scored as missed: 3 answers of 2 questions" in score_tables(found.document, [5], True)
    whole = questions(tmp_path / "whole.jsonl", {"id": "2", "question": "bears?", "answer_ids": [0]})
    assert (
        "gold_missed" not in evaluate(index, whole, methods=["bm25"], retrieval_only=True, settings=SETTINGS).document
    )


def test_dense_finds_nodes_without_documents_by_the_texts_that_stand_in_for_them(tmp_path):
    (tmp_path / "kg.tsv").write_text("Bern\tcapital of\tSwitzerland\nBern\tlies on\tAare\nOslo\tlies on\tAker\n")
    gpu_rag.build((), tmp_path / "ix", kg=tmp_path / "kg.tsv", methods=["hybgrag"], settings=SETTINGS)
    asked = questions(
        tmp_path / "q.jsonl",
        {"id": "1", "question": "Which town is capital of Switzerland and lies on the Aare?", "answer_ids": ["Bern"]},
    )
    found = evaluate(tmp_path / "ix", asked, methods=["dense"], retrieval_only=True, settings=SETTINGS)
    assert found.scores["dense"]["hit@1"] == [1.0]
    (first,) = found.answers["dense"]
    assert first.nodes[0].name == "Bern" and first.nodes[0].source == "kg" and len(first.nodes) == 5
    llm = ScriptedLLM(lambda request: "Switzerland" if "Bern capital of Switzerland" in request.prompt else "unknown")
    index = gpu_rag.Index.open(tmp_path / "ix")
    (answer,) = index.answer("Bern is the capital of which country?", method="dense", settings=SETTINGS, llm=llm)
    assert (answer.text, answer.status) == ("Switzerland", "answered") and answer.paths[0].source == "standin"


def test_a_set_of_another_base_is_refused(index, tmp_path):
    asked = questions(tmp_path / "q.jsonl", {"id": "1", "question": "?", "answer_ids": ["n9"]})
    with pytest.raises(BadInput, match=r"no answer id is a node.*question 1 with n9"):
        evaluate(index, asked, methods=["bm25"], retrieval_only=True, settings=SETTINGS)


def test_nodes_of_other_types_are_left_out_where_a_question_says_so(index, tmp_path, scripted):
    async def retrieve(question: Question, verbs: Any, params: Any) -> Any:
        nodes = tuple(RankedNode(f"n{k}", "", "", "", -1.0) for k in (3, 1, 0))
        return type("Found", (Support,), {"nodes": nodes})(())

    scripted(retrieve)
    row = {"question": "Which town?", "answer_ids": ["n0"]}
    asked = questions(
        tmp_path / "q.jsonl", {"id": "1", **row}, {"id": "2", **row, "answer_types": ["town"]},
        {"id": "3", **row, "answer_types": ["river", "town"]},
    )  # fmt: skip
    found = evaluate(index, asked, methods=["scripted"], retrieval_only=True, settings=SETTINGS)
    assert found.scores["scripted"]["mrr"] == [1 / 3, 1 / 2, 1 / 3]


@pytest.mark.parametrize(
    ("types", "said"),
    [(["lake"], "not types of the know"), ("town", "not types"), ([], "not types"), (["river"], "of none of the")],
)
def test_answer_types_that_cannot_be_are_refused(index, tmp_path, types, said):
    row = {"id": "1", "question": "?", "answer_ids": ["n0"], "answer_types": types}
    with pytest.raises(BadInput, match=said):
        evaluate(index, questions(tmp_path / "q.jsonl", row), methods=["bm25"], retrieval_only=True, settings=SETTINGS)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripted(retrieve): a method `scripted` that needs the knowledge base alone."""

    def register(retrieve: Any) -> None:
        module = ModuleType("scripted.program")
        params = dataclasses.dataclass(frozen=True)(type("Params", (), {"__annotations__": {}}))
        vars(module).update(Params=params, retrieve=retrieve)
        monkeypatch.setitem(sys.modules, "scripted.program", module)
        monkeypatch.setitem(catalog._installed(), "scripted", catalog.Entry("scripted", Method("scripted", ("kb",))))

    return register


def test_nodes_of_a_method_are_ranked_and_gold_never_reaches_it(index, tmp_path, scripted):
    seen: list[Any] = []

    async def retrieve(question: Question, verbs: Any, params: Any) -> Any:
        seen.append(vars(question))
        nodes = tuple(RankedNode(f"n{k}", "", "", "", 1.0 - k) for k in (1, 1, 0, 3))
        pools = (Pool("beam", 2, ("Chur", "Rhine")),)
        return type("Found", (Support,), {"nodes": nodes, "pools": pools})(())

    scripted(retrieve)
    asked = questions(
        tmp_path / "q.jsonl",
        {"id": "1", "question": "Which?", "answer_ids": ["n0"], "answers": ["Bern"], "topic_entity": "Thun"},
        {"id": "2", "question": "Which river?", "answers": ["The Rhine"], "topic_entity": "Chur", "hops": 1},
        {"id": "3", "question": "Which lake?", "answers": ["Thun"], "topic_entity": "Bern", "hops": 2},
    )
    found = evaluate(index, asked, methods=["scripted", "dense"], retrieval_only=True, settings=SETTINGS)
    entry = found.document["methods"]["scripted"]
    assert (entry["hit@1"], entry["mrr"], entry["recall@20"]) == (0.0, 0.5, 1.0)
    assert (entry["answer_on_path"], entry["answer_on_path_pruned"], entry["hits@1"]) == (0.5, 0.0, None)
    assert entry["on_path"] == {"beam": {"n": 2, "share": 0.5, "paths": 2.0}}
    assert entry["by_hops"] == {
        "1": {"n": 1, "answer_on_path": 1.0, "answer_on_path_pruned": 0.0},
        "2": {"n": 1, "answer_on_path": 0.0, "answer_on_path_pruned": 0.0},
    }
    assert found.document["methods"]["dense"]["answer_on_path"] == 0.0
    assert "answer_on_path" in found.document["paired"]["dense - scripted"]
    assert seen == [
        {"id": str(k), "text": text, "query_time": "", "pages": ()}
        for k, text in ((1, "Which?"), (2, "Which river?"), (3, "Which lake?"))
    ]


def test_questions_of_a_corpus_are_none_of_a_knowledge_base(tiny_corpus, tmp_path):
    gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=["bm25"], settings=SETTINGS)
    asked = questions(tmp_path / "q.jsonl", {"id": "1", "question": "Who?", "answers": ["x"], "answer_ids": ["y"]})
    rows, _ = load_questions(asked)
    found = evaluate(tmp_path / "ix", rows, methods=["bm25"], retrieval_only=True, settings=SETTINGS)
    assert not {"hit@1", "answer_on_path", "on_path"} & set(found.document["methods"]["bm25"])


def test_the_page_of_a_comparison_shows_the_measures_of_the_base(index, tmp_path):
    from gpu_rag.report.evaluation import evaluation_page

    node = {"id": "1", "question": "Which town has bears?", "answer_ids": [0], "hops": 1}
    for rows, shown in (([node], "hit@1"), ([node, {"id": "2", "question": "Who?", "answers": ["Bern"]}], "mrr")):
        asked, _ = load_questions(questions(tmp_path / "q.jsonl", *rows))
        found = evaluate(index, asked, methods=["bm25", "dense"], retrieval_only=True, settings=SETTINGS)
        document_of = dict(zip(index.passage_ids, index.passage_doc_ids))
        page = evaluation_page(found, asked, document_of, "title")
        assert shown in page and ("bm25 hit@1" in page) == (len(rows) == 1)  # the breakdown by hops
