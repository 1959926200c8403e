"""A reranker after each method: the order of its scores, its cost, and nothing without it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_cross_encoder import cross_encoder

import gpu_rag
from gpu_rag.evaluation.compare import compare
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.rerank import CrossEncoder
from gpu_rag.program.reader import Support
from gpu_rag.settings import merge
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Answer, Draft, JsonSchema, Question, Request

BORN = "Where was the designer of the Halden Bridge born?"
METHODS = ("dense", "bm25", "hybrid", "ppr", "hoprag", "bubblerag", "higra-retriever", "dual-agent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cross_encoder(tmp_path_factory.mktemp("encoder"), longest=128)


@pytest.fixture
def index(build: Any, facts: Any) -> gpu_rag.Index:
    found: gpu_rag.Index = build(facts, methods=METHODS, named=True)
    return found


def run(index: gpu_rag.Index, method: str, settings: Any, limit: int = 6, **options: Any) -> Answer:
    engine = index.engine(settings, **options)
    (answer,) = engine.run(method, [Question("q", BORN)], limit=limit, retrieval_only="llm" not in options).answers
    assert answer.error is None, answer.error
    return answer


def with_encoder(fast: Any, folder: Path) -> Any:
    return merge(fast, {"models": {"reranker": str(folder)}})


def scores(folder: Path, texts: list[str]) -> list[float]:
    found: list[float] = CrossEncoder(str(folder)).scores([(BORN, text) for text in texts]).tolist()
    return found


def test_passages_come_by_the_scores_of_the_encoder(index: gpu_rag.Index, fast: Any, folder: Path) -> None:
    plain = run(index, "dense", fast).evidence
    score = dict(zip([e.passage_id for e in plain], scores(folder, [f"{e.title}\n{e.text}" for e in plain])))
    best = sorted(score, key=lambda passage: -score[passage])
    assert best != list(score)
    found = run(index, "dense", with_encoder(fast, folder), limit=3).evidence  # three of all six
    assert [e.passage_id for e in found] == best[:3]
    assert [e.score for e in found] == [score[e.passage_id] for e in found]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_it_and_none_without(method: str, index: gpu_rag.Index, fast: Any, folder: Path) -> None:
    plain, found = run(index, method, fast), run(index, method, with_encoder(fast, folder))
    values = [e.score for e in found.evidence]
    assert values == sorted(values, reverse=True)
    assert {e.passage_id for e in plain.evidence} <= {e.passage_id for e in found.evidence}
    noted = [step.n_candidates for step in found.trace if step.verb == "rerank_passages/encoder"]
    assert noted == [len(found.evidence)]
    assert plain.config_hash != found.config_hash
    assert not [step for step in plain.trace if step.verb.startswith("rerank")]


def test_facts_come_by_the_scores_of_the_encoder(index: gpu_rag.Index, fast: Any, folder: Path) -> None:
    plain, found = (
        [path.text for path in run(index, "ppr", settings).paths] for settings in (fast, with_encoder(fast, folder))
    )
    by_text = dict(zip(plain, scores(folder, plain)))
    assert found == sorted(plain, key=lambda text: -by_text[text]) != plain


def test_the_reader_reads_the_best_first(index: gpu_rag.Index, fast: Any, folder: Path) -> None:
    for method in ("dense", "bubblerag", "higra-retriever"):
        for capable in (False, True):
            llm = ScriptedLLM(lambda request: answered(request), capable=capable)
            settings = merge(with_encoder(fast, folder), {"models": {"decider": "rule"}})
            answer = run(index, method, settings, llm=llm)
            (read,) = [request.prompt for request in llm.calls]
            shown = [line[4:] for line in read.splitlines() if line.startswith("[") and line[2] == "]"]
            order = next(step.chosen for step in answer.trace if step.verb == "rerank_passages/encoder")
            assert all(text.startswith(title) for text, title in zip(order, shown)) and len(shown) >= 5


def answered(request: Request) -> str:
    if isinstance(request.constraint, JsonSchema):  # the Librarian
        return json.dumps({"evidence": "x", "answers": ["Tamsin"], "passages": [1]})
    return "Tamsin"


def test_questions_share_batches(index: gpu_rag.Index, fast: Any, folder: Path) -> None:
    questions = [Question(str(i), BORN + " " * i) for i in range(5)]
    stats = index.engine(with_encoder(fast, folder)).run("dense", questions, retrieval_only=True).stats
    assert stats.steps["rerank"].batch_sizes == {5: 1}


def test_the_cost_is_shown(index: gpu_rag.Index, fast: Any, folder: Path, tmp_path: Path, capsys: Any) -> None:
    from gpu_rag.cli.main import main

    rows = [QuestionRow(Question(str(i), BORN), ("d1",), (), {}, "jsonl") for i in range(3)]
    engine = index.engine(with_encoder(fast, folder))
    entry = compare(engine, ["dense"], rows, retrieval_only=True, at=(2,)).document["methods"]["dense"]
    assert (entry["rerank"]["requests"], entry["rerank"]["pairs"]) == (3, 18)
    assert 0 < entry["rerank"]["s"] <= entry["embed_s"]
    plain = compare(index.engine(fast), ["dense"], rows, retrieval_only=True, at=(2,)).document["methods"]["dense"]
    assert set(entry) - set(plain) == {"rerank"}
    questions, words = tmp_path / "q.jsonl", ["--set", "models.embedder=hash", "--set", "models.llm=none"]
    questions.write_text(json.dumps({"id": "q", "question": BORN, "gold_ids": ["d1"]}) + "\n")
    words += ["--method", "ppr", "--set", f"models.reranker={folder}"]
    assert main(["eval", str(index.path), str(questions), *words]) == 0
    assert "ppr, reranked: 2 requests, 11 pairs, " in capsys.readouterr().out  # six passages, five facts
    out = tmp_path / "answers.jsonl"
    assert main(["answer", str(index.path), str(questions), "--out", str(out), *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rerank"]["pairs"] == 11


def test_a_program_of_ones_own_is_left_alone(index: gpu_rag.Index, fast: Any, folder: Path) -> None:
    """An oracle, or any other program that is given in place of the method's, has the limit that was asked for."""
    limits = []

    async def program(question: Question, run: Any, params: Any) -> Draft:
        limits.append((run.limit, run.keep))
        return Draft(None, (), (), "unsupported")

    engine = index.engine(with_encoder(fast, folder))
    engine.run("dense", [Question("q", BORN)], limit=3, retrieval_only=True, program=program)
    assert limits == [(3, 0)] and Support(()).paths == ()
