"""scripts/eval_prompts.py: whose request it is, how two tries are counted, and the table."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

from project_scripts import script

from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.types import Choice, JsonSchema, Reply, Request

eval_prompts = script("eval_prompts")
SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'


def test_a_request_is_of_the_prompt_whose_static_part_it_holds() -> None:
    prompts = eval_prompts.product_prompts()
    assert len(prompts) > 30 and len({prompt.system for prompt in prompts.values()}) == len(prompts)
    for name, prompt in prompts.items():
        assert eval_prompts.prompt_of(Request(f"{prompt.system}\n\nmore", "text"), prompts) == name
    assert eval_prompts.prompt_of(Request("You sing.", "text"), prompts) == ""


def test_a_request_survives_its_row() -> None:
    for form in (JsonSchema(SCHEMA), Choice(("A", "B")), None):
        request = Request("system", "text", form, 40)
        assert eval_prompts.as_request(json.loads(json.dumps(eval_prompts.as_row(request)))) == request


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
    read = eval_prompts.readings(ScriptedLLM(answer), requests, "words", 80)
    assert [kind for kind, _, _ in read] == list(said)
    assert [text for _, _, text in read] == [texts[0] for texts in said.values()]


def test_forms_are_left_to_the_engine_or_written_in_words() -> None:
    request = Request("system", "text", Choice(("A", "B")), 8)
    engine = ScriptedLLM(lambda request: Reply("A", "stop", 1, 0, 1))
    for way in eval_prompts.WAYS:
        assert [kind for kind, _, _ in eval_prompts.readings(engine, [request], way, 80)] == ["exact"]
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
    assert eval_prompts.table(results).splitlines()[2:] == [
        "| hoprag | 100, 100 | 25, 75 |",
        "| index stages | 100, 100 | 0, 75 |",
        "| program | 100, 100 | 100, 100 |",
        "| all | 100, 100 | 42, 83 |",
    ]
    eval_prompts.write_csv(results, tmp_path / "counts.csv")
    with (tmp_path / "counts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert all(sum(int(row[kind]) for kind in eval_prompts.KINDS) == 4 for row in rows)
