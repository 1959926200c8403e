"""The engine: what a configuration hash covers, answers that do not depend on batching, budgets, order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import gpu_rag
from gpu_rag.errors import GpuRagError, IndexMismatch, UsageError
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.settings import merge
from gpu_rag.types import Answer, Question, Request

METHODS = ["dense", "bm25", "hybrid", "ppr"]


def said(request: Request) -> str:
    """Another answer for every prompt and seed."""
    return hashlib.sha256(f"{request.prompt}|{request.seed}".encode()).hexdigest()[:8]


def config_hash(index: gpu_rag.Index, settings: Any, method: str = "ppr", *, llm: str = "a", **options: Any) -> str:
    engine = index.engine(settings, llm=ScriptedLLM(said, name=llm))
    return engine.config_hash(method, **options)


MATTERS = [
    {"method": {"ppr": {"damping": 0.5}}},
    {"method": {"ppr": {"n_facts": 6}}},
    {"reader": {"passages": 4}},
    {"reader": {"max_tokens": 40}},
    {"runtime": {"seed": 1}},
    {"runtime": {"max_calls": 3}},
    {"runtime": {"max_tokens": 300}},
    {"runtime": {"max_seconds": 3.5}},
    {"models": {"decider": "similarity"}},
    {"graph": {"pagerank": "scipy"}},
    {"graph": {"neighbours": "faiss"}},
]
MATTERS_NOT = [
    {"runtime": {"max_live": 3}},
    {"models": {"threads": 2}},
    {"models": {"max_batch": 2}},
    {"index": {"chunk_words": 100}},  # belongs to the index, which is in the hash by its digest
    {"method": {"bubblerag": {"depth": 7}}},
    {"method": {"ppr": {"damping": 0.85}}},  # the default, spelled out
    {"runtime": {"max_seconds": 0}},
    {"graph": {"ops": "torch"}},  # equal bits by every implementation of what ppr runs
    {"graph": {"pagerank": "numba", "neighbours": "torch"}},  # what auto is on a CPU, spelled out
    {"eval": {"judge": "smollm2"}},
]


@pytest.mark.parametrize("change", MATTERS, ids=str)
def test_what_an_answer_depends_on_changes_the_hash(index: gpu_rag.Index, fast: Any, change: Any) -> None:
    assert config_hash(index, fast) != config_hash(index, merge(fast, change))


@pytest.mark.parametrize("change", MATTERS_NOT, ids=str)
def test_what_an_answer_does_not_depend_on_leaves_the_hash(index: gpu_rag.Index, fast: Any, change: Any) -> None:
    assert config_hash(index, fast) == config_hash(index, merge(fast, change))


def test_methods_models_and_indexes_are_in_the_hash(build: Any, facts: Any, fast: Any) -> None:
    index = build(facts)
    assert len({config_hash(index, fast, method) for method in METHODS}) == 4
    assert config_hash(index, fast, llm="a") != config_hash(index, fast, llm="b")
    whole = {config_hash(index, fast, retrieval_only=False), config_hash(index, fast, retrieval_only=True)}
    assert len(whole) == 2
    other = [config_hash(index, fast, retrieval_only=True, llm=name) for name in "ab"]
    assert other[0] == other[1]  # retrieval alone asks no model
    elsewhere = {**fast, "models": {"embedder": "no-such-folder"}}  # BM25 embeds nothing, and loads nothing for it
    assert config_hash(index, elsewhere, "bm25") == config_hash(index, fast, "bm25")
    before = config_hash(index, fast)
    assert config_hash(build({"d0": []}), fast) != before
    assert config_hash(build(facts), fast) == before


def without_seconds(answers: Sequence[Answer]) -> list[Answer]:
    return [
        replace(
            answer,
            usage=replace(answer.usage, llm_s=0, graph_s=0, embed_s=0, wall_s=0),
            trace=tuple(replace(step, s=0) for step in answer.trace),
        )
        for answer in answers
    ]


QUESTIONS = [
    Question(f"q{i}", text)
    for i, text in enumerate(
        [
            "Who designed the Halden Bridge?",
            "Where was the designer of the Halden Bridge born?",
            "Who taught Marta Orlo?",
            "When was the University of Loss founded?",
            "xyzzy",
            "Who was the mayor of Kerling?",
            "Who designed the Halden Bridge?",
        ]
    )
]


@pytest.mark.parametrize("method", METHODS)
def test_the_same_answers_however_many_questions_are_open(index: gpu_rag.Index, fast: Any, method: str) -> None:
    def answers(max_live: int, questions: Sequence[Question] = QUESTIONS) -> list[Answer]:
        settings = merge(fast, {"runtime": {"max_live": max_live}, "models": {"threads": 1 + max_live % 2}})
        llm = ScriptedLLM(said)
        return without_seconds(index.answer(list(questions), method=method, settings=settings, llm=llm))

    one = answers(1)
    assert [answer.question_id for answer in one] == [q.id for q in QUESTIONS]
    assert len({answer.text for answer in one if answer.text}) >= 5
    for max_live in (2, 3, 1000):
        assert answers(max_live) == one
    assert answers(1000, QUESTIONS[::-1])[::-1] == one  # nor on their order
    assert answers(1000, QUESTIONS[3:4]) == one[3:4]  # nor on what else is asked


def test_batches_are_as_large_as_may_be(index: gpu_rag.Index, fast: Any) -> None:
    llm = ScriptedLLM(said)
    index.answer(list(QUESTIONS), method="dense", settings=fast, llm=llm)
    assert llm.batches == [7]
    llm = ScriptedLLM(said)
    index.answer(list(QUESTIONS), method="dense", settings=merge(fast, {"runtime": {"max_live": 3}}), llm=llm)
    assert max(llm.batches) == 3 and sum(llm.batches) == 7


def test_the_run_seed_reaches_the_model(index: gpu_rag.Index, fast: Any) -> None:
    seeds = []
    for run_seed in (0, 0, 1):
        llm = ScriptedLLM(said)
        index.answer(list(QUESTIONS), method="dense", settings=merge(fast, {"runtime": {"seed": run_seed}}), llm=llm)
        seeds.append([request.seed for request in llm.calls])
    assert seeds[0] == seeds[1] != seeds[2]
    assert len(set(seeds[0])) == 7  # each question has its own, also when two ask the same


def test_the_reader_s_passages_are_the_default_limit(index: gpu_rag.Index, fast: Any) -> None:
    for n, settings in ((5, fast), (2, merge(fast, {"reader": {"passages": 2}}))):
        (answer,) = index.answer("Who?", method="dense", settings=settings, retrieval_only=True)
        assert len(answer.evidence) == n


def test_a_budget_ends_its_question_alone(index: gpu_rag.Index, fast: Any) -> None:
    settings = merge(fast, {"runtime": {"max_calls": 2}})  # bm25 needs two calls, dense three
    (cheap,) = index.answer("Who designed the bridge?", method="bm25", settings=settings, llm=ScriptedLLM(said))
    (dear,) = index.answer("Who designed the bridge?", method="dense", settings=settings, llm=ScriptedLLM(said))
    assert cheap.status == "answered" and dear.status == "failed"
    assert dear.error is not None and dear.error["type"] == "BudgetExceeded"


def test_questions_need_ids_of_their_own(index: gpu_rag.Index, fast: Any) -> None:
    twice = [Question("a", "Who?"), Question("a", "Where?")]
    with pytest.raises(GpuRagError, match="two questions have one id; given a"):
        index.answer(twice, method="dense", settings=fast, retrieval_only=True)


def test_reading_needs_a_model_and_the_right_embedder(index: gpu_rag.Index, fast: Any) -> None:
    with pytest.raises(UsageError, match="needs a language model"):
        index.answer("Who?", method="dense", settings=fast)
    built = index.manifest.model("embedder")
    assert built is not None
    built["content_hash"] = "0" * 64
    with pytest.raises(IndexMismatch, match="embedded with another model"):
        index.answer("Who?", method="dense", settings=fast, retrieval_only=True)
