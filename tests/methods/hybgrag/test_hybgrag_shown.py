"""HybGRAG's router before a knowledge base with more types and relations than a prompt holds."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kb_in_memory import knowledge_base
from msgspec import to_builtins

import gpu_rag
from gpu_rag.methods.hybgrag.state import Params
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.knowledge_base.query import ALL
from gpu_rag.program.knowledge_base.relations import Relations
from gpu_rag.settings import merge
from gpu_rag.types import Answer, JsonSchema, Request

N = 600
FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none", "decider": "auto"}}
QUESTION = "Which boats were repaired for the yard of Zora Quill?"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    """600 types of one node each and 600 relations; what the question needs stands late in the alphabet."""
    folder = tmp_path_factory.mktemp("shown")
    nodes = [{"id": f"n{i}", "type": f"kind {i:03d}", "name": f"thing {i:03d}"} for i in range(N)]
    nodes += [
        {"id": "z", "type": "zone.wharf", "name": "Zora Quill"},
        {"id": "y", "type": "zone.boats", "name": "Ysop"},
    ]
    edges = [{"src": f"n{i}", "relation": f"link {i:03d}", "dst": f"n{(i + 1) % N}"} for i in range(N)]
    edges.append({"src": "z", "relation": "zone.wharf.repaired_for", "dst": "y"})
    (folder / "skb").mkdir()
    for name, rows in (("nodes", nodes), ("edges", edges)):
        (folder / "skb" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gpu_rag.build((), folder / "ix", skb=folder / "skb", methods=["hybgrag"], settings=FAST)
    return gpu_rag.Index.open(folder / "ix")


Shown = Callable[[int, int], None]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Limits of the types and relations that the router is shown."""

    def at_most(types: int, relations: int) -> None:
        monkeypatch.setattr(Params, "n_types", types)
        monkeypatch.setattr(Params, "n_shown", relations)

    return at_most


def routed(index: gpu_rag.Index, context_tokens: int) -> tuple[Answer, Request]:
    """The answer, and the first request of the router."""
    routes: list[Request] = []

    def say(request: Request) -> str:
        if "You read questions for a knowledge graph" in request.system:
            routes.append(request)
            entity = {"name": "Zora Quill", "type": "zone.wharf", "relations": ["zone.wharf.repaired_for"]}
            entities = [{**entity, "ways": [], "negated": False}]
            return json.dumps({"entities": entities, "sure": True, "operations": to_builtins(ALL), "types": []})
        if isinstance(request.constraint, JsonSchema) or request.constraint is None:
            return "Ysop"
        return request.constraint.options[0]

    llm = ScriptedLLM(say, context_tokens=context_tokens)
    settings = merge(FAST, {"method": {"hybgrag": {"iterations": 1}}})
    (answer,) = index.answer(QUESTION, method="hybgrag", settings=settings, llm=llm)
    assert answer.error is None, answer.error
    used = llm.count_tokens(routes[0].system) + llm.count_tokens(routes[0].prompt)
    assert used <= context_tokens - routes[0].max_tokens
    return answer, routes[0]


def lists(request: Request) -> tuple[list[str], list[str]]:
    """(types, relations) in the prompt; those of the schema are the same."""
    types = re.search(r"^Types: (.*?)(?: \(of 602 types [^)]*\))?$", request.prompt, re.MULTILINE)
    assert types is not None and isinstance(request.constraint, JsonSchema)
    relations = re.findall(r"^- (.*?): (?:kind|zone)", request.prompt, re.MULTILINE)
    entity = json.loads(request.constraint.schema)["properties"]["entities"]["items"]["properties"]
    assert entity["type"]["enum"] == [*types[1].split(", "), ""]
    assert entity["relations"]["items"]["enum"] == relations
    return types[1].split(", "), relations


def told(answer: Answer) -> list[tuple[str, ...]]:
    return [step.chosen for step in answer.trace if step.verb == "hybgrag_shown"]


def test_what_the_question_says_is_shown(index: gpu_rag.Index) -> None:
    answer, request = routed(index, 100_000)
    types, relations = lists(request)
    assert (len(types), len(relations)) == (100, 100)
    assert "zone.wharf.repaired_for" in relations and {"zone.wharf", "zone.boats"} <= set(types)
    assert types == sorted(types) and relations == sorted(relations)
    assert "(of 602 types those" in request.prompt and "(of 601 relations those" in request.prompt
    assert told(answer) == [("types: 100 of 602", "relations: 100 of 601")]
    assert [node.name for node in answer.nodes] == ["Ysop"]


@pytest.mark.parametrize("context_tokens", [3000, 3300, 5000])
def test_no_more_is_shown_than_the_context_takes(index: gpu_rag.Index, shown: Shown, context_tokens: int) -> None:
    shown(1000, 1000)
    answer, request = routed(index, context_tokens)
    types, relations = lists(request)
    assert len(types) < 602 and len(relations) < 601
    assert told(answer) == [(f"types: {len(types)} of 602", f"relations: {len(relations)} of 601")]
    assert "zone.wharf.repaired_for" in relations and {"zone.wharf", "zone.boats"} <= set(types)
    more = routed(index, context_tokens + 400)[1]
    assert len(lists(more)[1]) > len(relations)


def test_few_are_the_likeliest(index: gpu_rag.Index, shown: Shown) -> None:
    """A version that takes the first rows of the lists would show kind 000 and link 000."""
    shown(2, 1)
    _, request = routed(index, 100_000)
    assert lists(request) == (["zone.boats", "zone.wharf"], ["zone.wharf.repaired_for"])


def test_a_context_without_room_for_one_of_each_is_an_error(index: gpu_rag.Index, tmp_path: Path) -> None:
    llm = ScriptedLLM(lambda request: "never", context_tokens=900)
    (answer,) = index.answer(QUESTION, method="hybgrag", settings=FAST, llm=llm)
    assert answer.error is not None and answer.error["type"] == "ContextOverflow" and not llm.calls


def test_words_that_say_a_relation_or_type() -> None:
    kb = knowledge_base(
        [("a", "a", "film"), ("b", "b", "film.director"), ("c", "c", "of")],
        [("a", "film.film.directed_by", "b"), ("a", "birthPlace", "b"), ("a", "/people/person/born_in", "c")],
    )
    said = Relations(kb)

    def names(text: str) -> tuple[list[str], list[str]]:
        types, relations = said.said_in(text)
        return [kb.type_names[row] for row in types], [kb.relation_names[row] for row in relations]

    assert names("Which film was Directed By the director?") == (["film", "film.director"], ["film.film.directed_by"])
    assert names("What is its birth place?") == ([], ["birthPlace"])
    assert names("Who was born in the capital of it?") == ([], ["/people/person/born_in"])
    assert names("Who made it?") == ([], [])
