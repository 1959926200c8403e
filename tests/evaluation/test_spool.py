"""Answers of an evaluation stay in a file: equal when read, and none of them in memory."""

import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import gpu_rag
from gpu_rag.evaluation import verify_answers
from gpu_rag.evaluation.compare import compare
from gpu_rag.evaluation.spool import Spool
from gpu_rag.evaluation.verify_answers import BLOCK, AnswerChecker, Difference
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import (
    Answer,
    Evidence,
    Grounding,
    GroundingSentence,
    Pool,
    Question,
    RankedNode,
    Sentence,
    TraceStep,
    Usage,
)
from gpu_rag.types import Path as GraphPath

FULL = Answer(
    "q1", "Who?", "ppr", "answered", "\ud800 Marta",
    (Evidence("p1", "Ves", "A mill.\n", 0, 15, 0.1 + 0.2, "near", "a.pdf", "page 1", {"a": 1, "b": 1.0, "c": True}),),
    (GraphPath("Ves - is - a mill", (("Ves", "is", "a mill", "p1"),), "graph"),),
    (TraceStep(1, "read", 3, ("p1 Ves",), "0123", 0.25),),
    Usage(1, 2, 3, 4, 0.5, fallbacks={"read/rule": 1}), {"type": "E", "message": "m"}, "hash",
    (RankedNode("n", "N", "t", "s", float("-inf")),), (Pool("beam", 2, ("a", "b")),),
    Grounding("supported", (GroundingSentence("p1", 0, 3, (0, 3)), GroundingSentence("p1", 4, 6, None))),
    (Sentence("p1", 0, 3, "Ves", 0.5),), "year > 1", "Who is it?", ("web: down",), "model",
)  # fmt: skip
BARE = Answer("q0", "What?", "ppr", "failed", None)


def test_answers_are_read_as_they_were_added_in_the_order_of_the_questions() -> None:
    spool = Spool(["q0", "q1"])
    for answer in (FULL, BARE):
        spool.add(answer)
    assert list(spool) == [BARE, FULL] and spool[-1] == FULL and spool[:1] == [BARE] and len(spool) == 2
    assert all(
        type(value) is type(FULL.evidence[0].metadata[key]) for key, value in spool[1].evidence[0].metadata.items()
    )


def test_an_evaluation_holds_no_answers(tmp_path: Path) -> None:
    """With 120 questions, 4 open at once, few answers are alive at any time, and none at the end."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": f"d{i}", "text": f"Mill {i} is old."}) + "\n" for i in range(5)))
    given = {"models": {"embedder": "hash", "llm": "none"}, "runtime": {"max_live": 4}}
    gpu_rag.build(corpus, tmp_path / "index", methods=["bm25"], settings=given)
    rows = [
        QuestionRow(Question(f"q{i}", f"Is mill {i % 5} old?"), (f"d{i % 5}",), (), {}, "plain") for i in range(120)
    ]
    alive: list[weakref.ref[Answer]] = []
    counts: list[int] = []

    def watch(method: str, answer: Answer) -> None:
        alive.append(weakref.ref(answer))
        counts.append(sum(ref() is not None for ref in alive))

    engine = gpu_rag.Index.open(tmp_path / "index").engine(given)
    found = compare(engine, ["bm25"], rows, on_answer=watch)
    gc.collect()
    assert len(counts) == 120 and max(counts) <= 12 and not any(ref() for ref in alive)
    assert [answer.question_id for answer in found.answers["bm25"]] == [row.question.id for row in rows]
    assert found.document["methods"]["bm25"]["recall@2"] == 1.0


def test_answers_are_checked_against_replies_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more rows wait for their replies than a block has, and all are looked up."""
    waiting: list[int] = []

    class Checker(AnswerChecker):
        def check(self, raw: Any, row: Any) -> Iterator[Difference]:
            self._answers.append((row["id"], "an answer", []))
            waiting.append(len(self._answers))
            yield Difference(row["id"], "row", "checked")

    monkeypatch.setattr(verify_answers, "AnswerChecker", Checker)
    pairs = (({}, {"id": str(i)}) for i in range(2 * BLOCK + 3))
    checker, differences = verify_answers.check_answers(pairs, cast(Any, None), Path("no-such-file"))
    assert max(waiting) == BLOCK and checker.n_unchecked == len(differences) == 2 * BLOCK + 3
