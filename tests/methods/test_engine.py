"""The engine: what a configuration hash covers, budgets, order. Its reader: what is shown, how replies become answers,
packing, failures that stay with their question.
"""

import gc
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

import gpu_rag
from gpu_rag.errors import IndexMismatch, RequestFailed
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.reader import clean_answer
from gpu_rag.settings import merge
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Answer, Question, Reply, Request

QUESTION = "Who designed the Halden Bridge?"
Said = Callable[[Request], "str | Reply | RequestFailed"]


def ask(index: gpu_rag.Index, said: Said, settings: Any, text: str = QUESTION, **options: Any) -> tuple[Answer, Any]:
    context = options.pop("context_tokens", 8192)
    llm = ScriptedLLM(said, context_tokens=context)
    (answer,) = index.answer(text, method=options.pop("method", "dense"), settings=settings, llm=llm, **options)
    return answer, llm


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Marta Orlo", "Marta Orlo"),
        ("  Marta Orlo.\n", "Marta Orlo"),
        ("\n\n Marta Orlo \nShe was born in Tamsin.", "Marta Orlo"),
        ("Short answer: Marta Orlo", "Marta Orlo"),
        ("Answer: Marta Orlo.", "Marta Orlo"),
        ("The answer is: 1807", "1807"),
        ("The answer is Marta Orlo.", "Marta Orlo"),
        ("The answer isn't there", "The answer isn't there"),
        ("Short answer: Answer: 1902.", "1902"),
        ("U.S.", "U.S."),
        ("Washington, D.C.", "Washington, D.C."),
        ("3.14", "3.14"),
        ("<data>\nMarta Orlo.\n</data>", "Marta Orlo"),
        ("Marta Orlo</data>", "Marta Orlo"),
        ("Answer: <data>", ""),
        ("", ""),
        (" \n\t\n", ""),
    ],
)
def test_replies_become_answers(reply: str, answer: str) -> None:
    assert clean_answer(reply) == answer


@pytest.mark.parametrize("reply", ["unknown", "Unknown.", "Answer: UNKNOWN", "", "\n", "None", "I don't know."])
def test_a_reader_that_finds_nothing_leaves_the_question_unsupported(
    index: gpu_rag.Index, fast: Any, reply: str
) -> None:
    answer, _ = ask(index, lambda request: reply, fast)
    assert (answer.status, answer.text, answer.error) == ("unsupported", None, None)
    assert len(answer.evidence) == 5 and answer.usage.llm_calls == 1 + (not reply.strip())  # what it read stays visible


def test_an_answer_that_begins_like_unknown_is_an_answer(index: gpu_rag.Index, fast: Any) -> None:
    answer, _ = ask(index, lambda request: "Unknown Soldier", fast)
    assert (answer.status, answer.text, answer.grounding.status) == ("unsupported", "Unknown Soldier", "unsupported")


def test_passages_are_shown_in_rank_order_as_many_as_the_reader_takes(index: gpu_rag.Index, fast: Any) -> None:
    settings = {**fast, "reader": {"passages": 3, "max_tokens": 17}}
    answer, llm = ask(index, lambda request: "Marta Orlo", settings, k=5)
    (request,) = llm.calls
    prompt = Prompt.read("gpu_rag.program.prompts", "reader")
    blocks = [f"[{i}] {e.title}\n{e.text}" for i, e in enumerate(answer.evidence[:3], 1)]
    assert request.prompt == prompt.render(passages="\n\n".join(blocks), question=QUESTION)
    assert (request.system, request.max_tokens, request.constraint) == (prompt.system, 17, None)
    assert len(answer.evidence) == 5 and answer.usage.cut == 0
    assert answer.trace[-1].verb == "read" and answer.trace[-1].reply_hash


def test_the_collector_is_left_as_it_was(index: gpu_rag.Index, fast: Any) -> None:
    counts = []
    gc.unfreeze()  # what another test of this process may have left
    for frozen in (False, True):
        if frozen:
            gc.freeze()
        try:
            ask(index, lambda request: counts.append(gc.get_freeze_count()) or "Orlo", fast)
            counts.append(gc.get_freeze_count())
        finally:
            gc.unfreeze()
    assert counts[0] and not counts[1] and counts[2] and counts[3]


def test_nothing_found_asks_nobody(index: gpu_rag.Index, fast: Any) -> None:
    answer, llm = ask(index, lambda request: "Marta Orlo", fast, text="xyzzy", method="bm25")
    assert (answer.status, answer.text, answer.evidence) == ("unsupported", None, ())
    assert llm.calls == []


def test_a_prompt_that_never_fits_is_that_question_s_failure(index: gpu_rag.Index, fast: Any) -> None:
    answer, llm = ask(index, lambda request: "Marta Orlo", fast, context_tokens=60)
    assert (answer.status, answer.text, llm.calls) == ("failed", None, [])
    assert answer.error is not None and answer.error["type"] == "ContextOverflow"
    assert "<= 60 together" in answer.error["message"]


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
    {"models": {"decider": "rule"}},
    {"graph": {"pagerank": "torch"}},
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
    rules = merge(fast, {"models": {"decider": "rule"}})
    assert len({config_hash(index, rules, retrieval_only=only) for only in (False, True)}) == 2
    for settings, n in ((fast, 2), (rules, 1)):  # retrieval asks a model only for choices
        assert len({config_hash(index, settings, retrieval_only=True, llm=name) for name in "ab"}) == n
    elsewhere = {**fast, "models": {"embedder": "no-such-folder"}}  # BM25 embeds nothing, and loads nothing for it
    assert config_hash(index, elsewhere, "bm25") == config_hash(index, fast, "bm25")
    before = config_hash(index, fast)
    assert config_hash(build({"d0": []}), fast) != before
    assert config_hash(build(facts), fast) == before


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


def test_the_run_seed_reaches_the_model(index: gpu_rag.Index, fast: Any) -> None:
    seeds = []
    for run_seed in (0, 0, 1):
        llm = ScriptedLLM(said)
        index.answer(list(QUESTIONS), method="dense", settings=merge(fast, {"runtime": {"seed": run_seed}}), llm=llm)
        seeds.append([request.seed for request in llm.calls])
    assert seeds[0] == seeds[1] != seeds[2]
    assert len(set(seeds[0])) == 7  # each question has its own, also when two ask the same


def test_without_a_model_there_is_evidence_and_another_embedder_is_refused(index: gpu_rag.Index, fast: Any) -> None:
    (answer,) = index.answer("Who?", method="dense", settings=fast)  # without a model: evidence alone
    assert (answer.status, answer.text, answer.usage.llm_calls) == ("retrieved", None, 0) and answer.evidence
    built = index.manifest.model("embedder")
    assert built is not None
    built["content_hash"] = "0" * 64
    with pytest.raises(IndexMismatch, match="embedded with another model"):
        index.retrieve(["Who?"], method="dense", settings=fast)
