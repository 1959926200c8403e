"""scripts/evaluate.py: measures of an answer, halves, tables; whose request it is, and how two tries are counted."""

import numpy as np
from project_scripts import script

from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.types import JsonSchema, Reply, Request

evaluate = script("evaluate")
SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'


def test_a_table_has_means_and_paired_differences() -> None:
    first, second = np.array([[1.0], [0.0], [1.0], [1.0]]), np.array([[0.0], [0.0], [1.0], [0.0]])
    lines = evaluate.compared({"a": first, "b": second}, ["a"], ["hit"])
    assert [line[0] for line in lines] == ["a", "b", "b - a"]
    assert [line[1].split(" [")[0] for line in lines] == ["0.750", "0.250", "-0.500"]


def test_a_request_is_of_the_prompt_whose_static_part_it_holds() -> None:
    prompts = evaluate.product_prompts()
    assert len(prompts) > 30 and len({prompt.system for prompt in prompts.values()}) == len(prompts)
    for name, prompt in prompts.items():
        assert evaluate.prompt_of(Request(f"{prompt.system}\n\nmore", "text"), prompts) == name
    assert evaluate.prompt_of(Request("You sing.", "text"), prompts) == ""


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
