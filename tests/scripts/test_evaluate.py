"""scripts/evaluate.py: measures of an answer, halves, tables; whose request it is, and how two tries are counted."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from project_scripts import script

from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Answer, Choice, JsonSchema, Question, Reply, Request

evaluate = script("evaluate")
SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'


def test_a_run_has_a_method_and_its_parameters() -> None:
    assert evaluate.parse_run("ppr") == ("ppr", {})
    assert evaluate.parse_run("hoprag:entry=vertices,inherit=0") == ("hoprag", {"entry": "vertices", "inherit": 0})


def test_halves_are_apart_and_those_by_id_do_not_depend_on_order() -> None:
    ids = [f"q{i}" for i in range(40)]
    for one, other in (("even", "odd"), ("first", "second")):
        halves = [{id for place, id in enumerate(ids) if evaluate.in_half(half, place, id)} for half in (one, other)]
        assert halves[0] | halves[1] == set(ids) and not halves[0] & halves[1] and min(map(len, halves)) > 10
    assert [evaluate.in_half("odd", 0, id) for id in ids] == [evaluate.in_half("odd", 7, id) for id in ids]
    assert all(evaluate.in_half("", place, id) for place, id in enumerate(ids))


def test_questions_of_paths_have_answers_alone(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "question": "who made [The Film]?", "answers": ["Ann"], "gold_ids": ["p1"]},
        {"id": "b", "question": "who?", "gold_ids": ["p2"]},
    ]
    path = evaluate.write_rows(tmp_path / "questions.jsonl", rows)
    (row,) = evaluate.questions_of("paths", path, "", 0)
    assert (row.question.text, row.gold_ids) == ("who made The Film?", ())
    assert [row.question.id for row in evaluate.questions_of("passages", path, "", 0)] == ["a", "b"]


def test_a_table_has_means_and_paired_differences() -> None:
    first, second = np.array([[1.0], [0.0], [1.0], [1.0]]), np.array([[0.0], [0.0], [1.0], [0.0]])
    lines = evaluate.compared({"a": first, "b": second}, ["a"], ["hit"])
    assert [line[0] for line in lines] == ["a", "b", "b - a"]
    assert [line[1].split(" [")[0] for line in lines] == ["0.750", "0.250", "-0.500"]


def test_an_answer_without_nodes_hits_nothing() -> None:
    row = QuestionRow(Question("q", "who?"), (), ("Ann",), {}, "plain")
    answer = Answer("q", "who?", "hydrarag", "answered", "Ann")
    assert evaluate.of_paths(answer, row) == {"found": 0.0, "end": 0.0, "hit@1": 0.0, "said": 0.0}
    assert evaluate.of_nodes(answer, row) == {"said": 0.0}


def test_a_subset_has_the_passages_of_its_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = tmp_path / "set", tmp_path / "out"
    questions = [{"id": f"q{i}", "gold_ids": [f"p{i}"], "context_ids": [f"p{i + 1}"]} for i in range(9)]
    evaluate.write_rows(folder / "questions.jsonl", questions)
    evaluate.write_rows(folder / "corpus.jsonl", ({"id": f"p{i}", "text": "a\u2028b"} for i in range(12)))
    monkeypatch.setattr("sys.argv", ["evaluate.py", "subset", str(folder), str(out), "--n", "2"])
    evaluate.main()
    drawn = evaluate.read_rows(out / "questions.jsonl")
    wanted = {id for row in drawn for id in (*row["gold_ids"], *row["context_ids"])}
    assert len(drawn) == 2 and {row["id"] for row in evaluate.read_rows(out / "corpus.jsonl")} == wanted


# --- prompts ---------------------------------------------------------------------------------------


def test_a_request_is_of_the_prompt_whose_static_part_it_holds() -> None:
    prompts = evaluate.product_prompts()
    assert len(prompts) > 30 and len({prompt.system for prompt in prompts.values()}) == len(prompts)
    for name, prompt in prompts.items():
        assert evaluate.prompt_of(Request(f"{prompt.system}\n\nmore", "text"), prompts) == name
    assert evaluate.prompt_of(Request("You sing.", "text"), prompts) == ""


def test_a_request_survives_its_row() -> None:
    for form in (JsonSchema(SCHEMA), Choice(("A", "B")), None):
        request = Request("system", "text", form, 40)
        assert evaluate.as_request(json.loads(json.dumps(evaluate.as_row(request)))) == request


def test_two_tries_are_counted_as_one_reply() -> None:
    said = {
        "exact": ['{"n": 1}'],
        "lenient": ['Here: {"n": "1"}'],
        "repaired": ["one", '{"n": 1}'],
        "rule": ["one", "two"],
    }

    def answer(request: Request) -> Reply:
        assert request.constraint is None and SCHEMA in request.system and request.max_tokens <= 80
        return Reply(said[request.prompt.split("\n")[0]][request.attempt], "stop", 1, 0, 1)

    requests = [Request("system", kind, JsonSchema(SCHEMA), 40) for kind in said]
    assert evaluate.readings(ScriptedLLM(answer), requests, "words", 80) == list(said)


def test_forms_are_left_to_the_engine_or_written_in_words() -> None:
    request = Request("system", "text", Choice(("A", "B")), 8)
    engine = ScriptedLLM(lambda request: Reply("A", "stop", 1, 0, 1))
    for way in evaluate.WAYS:
        assert evaluate.readings(engine, [request], way, 80) == ["exact"]
    forced, words = engine.calls
    assert forced == request
    assert words.constraint is None and "A, B" in words.prompt


def test_shares_by_room(tmp_path: Path) -> None:
    def ways(**words: int) -> dict[str, Counter[str]]:
        return {"forced": Counter(exact=4), "words": Counter(words)}

    prompts = {
        "methods/hoprag/choose": ways(exact=1, lenient=2, rule=1),
        "program/reader": ways(exact=4),
        "index/stages/extract": ways(salvaged=1, repaired=2, failed=1),
    }
    results = {"now": {"model": "small", "tokens": 256, "prompts": prompts}}
    assert evaluate.shares_by_room(results).splitlines()[2:] == [
        "| hoprag | 100, 100 | 25, 75 |",
        "| index stages | 100, 100 | 0, 75 |",
        "| program | 100, 100 | 100, 100 |",
        "| all | 100, 100 | 42, 83 |",
    ]
    evaluate.write_counts(results, tmp_path / "counts.csv")
    with (tmp_path / "counts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert all(sum(int(row[kind]) for kind in evaluate.KINDS) == 4 for row in rows)
