"""The gold answers and verdicts of the fresh questions."""

import importlib.util
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

import gpu_rag
from gpu_rag.types import Answer, RankedNode


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fresh_score", Path(__file__).parent / "score.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


score = loaded()
GRAPH = score.Graph(
    [
        ("Ann", "sued", "Bob", ""),
        ("Cy", "sued", "Bob", ""),
        ("Bob", "sued", "Di", ""),
        ("Ann", "age", "9", ""),
        ("Cy", "age", "10", ""),
        ("Ann", "lives in", "Ude", "old 2001-02-03"),
        ("Ann", "lives in", "Vow", "new 2011-02-03"),
    ]
)


@pytest.mark.parametrize(
    ("expression", "gold"),
    [
        (["<", "sued", "Bob"], {"ann", "cy"}),
        ([">", "sued", "$b"], {"di"}),
        (["-", "sued", "Bob"], {"ann", "cy", "di"}),
        (["minus", ["<", "sued", "Bob"], "Ann"], {"cy"}),
        (["no", "age", ["or", "Ann", "Di"]], {"di"}),
        (["more", "age", "9", ["any"]], {"cy"}),  # as numbers: as texts "10" is less
        (["less", "age", "10", ["any"]], {"ann"}),
        (["max", "age", ["<", "sued", "Bob"]], {"cy"}),
        (["most", "<", "sued", ["or", "Bob", "Di"]], {"bob"}),
        (["latest", "lives in", "Ann"], {"vow"}),
        (["at", "old", [">", "lives in", "Ann"]], {"ude"}),
        (["and", "Ann", "Cy"], set()),
        (["count", ["<", "sued", "Bob"]], 2),
    ],
)
def test_gold_follows_the_edges(expression: object, gold: object) -> None:
    assert GRAPH.gold(expression, {"b": "Bob"}) == gold


@pytest.mark.parametrize(
    ("gold", "status", "text", "nodes", "verdict"),
    [
        ({"ann"}, "retrieved", None, "Ann Bob", "right"),
        ({"ann"}, "answered", None, "Bob Ann", "wrong answered"),
        ({"ann", "bob"}, "retrieved", None, "Bob Ann Cy", "right"),
        ({"ann", "bob"}, "answered", None, "Bob Ann Cy Di Eve", "wrong answered"),  # F1 4 / 7
        ({"ann", "bob"}, "answered", "Bob; Ann", "", "right"),
        (2, "answered", "2", "", "right"),
        (2, "retrieved", None, "Ann Bob", "wrong retrieved"),
        (set(), "unsupported", None, "", "right"),
        (set(), "retrieved", None, "Ann", "wrong retrieved"),
        ({"ann"}, "unsupported", None, "Ann", "refused"),
    ],
)
def test_a_verdict_is_of_what_the_row_shows(
    gold: object, status: str, text: str | None, nodes: str, verdict: str
) -> None:
    asked = {"id": "q", "graph": "g", "kind": "k", "question": "?", "gold": gold, "harm": {"bob"}}
    ranked = tuple(RankedNode(name, name, "person", "s", 1.0) for name in nodes.split())
    row = score.judged(asked, Answer("q", "?", "hydrarag", status, text, nodes=ranked))
    assert row["verdict"] == verdict
    assert row["offered"] == ("Bob" in nodes + (text or ""))
    assert row["harmful"] == (status != "unsupported" and (nodes or text or "").startswith("Bob"))


def test_invented_questions_have_gold_unless_they_have_no_answer() -> None:
    kinds: Counter[str] = Counter()
    for graph in score.INVENTED.split(","):
        for row in score.questions_of(graph, score.Graph(score.edges_of(graph, Path()))):
            assert bool(row["gold"]) == (row["kind"] != "unanswerable"), row
            kinds[row["kind"]] += 1
    assert sum(kinds.values()) == 1304


def test_a_count_is_said_without_a_model_and_an_unread_negation_never(tmp_path: Path) -> None:
    graph = score.Graph(score.edges_of("harbour", tmp_path))
    score.build("harbour", score.edges_of("harbour", tmp_path), tmp_path, tmp_path)
    asked = ["How many vessels does Aldermoor Lines operate?", "How many firms did not many from Pellham outbid?"]
    asked.append("How many wooden vessels does Aldermoor Lines operate?")
    with gpu_rag.Index.open(tmp_path / "harbour.index") as index:
        for method in ("hybgrag", "hydrarag"):
            counted, unread, narrower = index.answer(asked, method=method, llm="none")
            assert (counted.status, counted.text) == ("answered", "2")
            assert {node.type for node in counted.nodes} == {"vessel"}
            assert (unread.status, unread.text) == ("unsupported", None) and "not" in unread.unread
            assert (narrower.status, narrower.text, narrower.unread) == ("unsupported", None, ("wooden",))
            assert ours(index, method, WHOLE.keys()) == [graph.gold(gold, {}) for gold in WHOLE.values()]


FIRMS = ["<", "type", "firm"]
WHOLE = {  # questions of all things of a type, or with the answer among its topics
    "Which firms has nobody outbid?": ["minus", FIRMS, [">", "outbid", FIRMS]],
    "Which vessels have a tonnage above 20000?": ["more", "tonnage", "20000", ["<", "type", "vessel"]],
    "What is the oldest firm?": ["min", "year of foundation", FIRMS],
    "Which has the larger workforce, Jarrow Bulk or Hollin Reefers?": [
        "max", "workforce", ["or", "Jarrow Bulk", "Hollin Reefers"]
    ],
    "Who hired more people, Northsound Barges or Jarrow Bulk?": [
        "most", ">", "hired", ["or", "Northsound Barges", "Jarrow Bulk"]
    ],
}  # fmt: skip


def ours(index: gpu_rag.Index, method: str, questions: Iterable[str]) -> list[set[str]]:
    answers = index.answer(list(questions), method=method, llm="none")
    return [{node.name.casefold() for node in answer.nodes} for answer in answers]
