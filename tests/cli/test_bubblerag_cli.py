"""BubbleRAG by the command line: index, ask, answer, verify-answers, explain, eval, on an index that `ppr` made too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_rag import Index
from gpu_rag.models.llm.replay import RecordingLLM
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.types import Choice, JsonSchema, Question, Request

Run = Callable[..., Any]


def reply(request: Request, say: Callable[[str], str]) -> str:
    """A capable model that finds nothing to pick, so that rules and similarity take over; it reads well."""
    if isinstance(request.constraint, Choice):
        return request.constraint.options[0]
    if isinstance(request.constraint, JsonSchema):
        key = next(k for k in ("chosen", "keywords", "changes", "groups") if f'"{k}"' in request.constraint.schema)
        return json.dumps({key: []})
    return say(request.prompt.rsplit("Question: ", 1)[1])


@pytest.fixture
def recorded(index: Path, tmp_path: Path, cli: Any) -> str:
    """The setting of a model whose replies to all questions are on record."""
    path = tmp_path / "bubble_replies.jsonl"
    llm = RecordingLLM(ScriptedLLM(lambda request: reply(request, cli.say)), path)
    asked = [Question(row["id"], row["question"]) for row in cli.QUESTIONS]
    Index.open(index).answer(asked, method="bubblerag", settings={"models": {"embedder": "hash"}}, llm=llm)
    return f"models.llm=replay:{path}"


def test_an_index_for_ppr_serves_and_answers_hold_against_corpus_and_index(
    run, cli, index, questions, recorded, tiny_corpus, tmp_path
):
    out = tmp_path / "answers.jsonl"
    options = [*cli.HASH, "--set", recorded]
    done = run("answer", index, questions, "--method", "bubblerag", "--out", out, *options)
    assert done.status == 0, done.err
    rows = {row["id"]: row for row in cli.read_rows(out)}
    assert rows["q1"]["answer"] == "Hugo Brandt" and rows["q5"]["status"] == "unsupported"
    steps = [step["verb"] for step in rows["q1"]["trace"]]
    assert steps[:2] == ["pre_retrieval", "enough/llm"] and {"keywords/rules", "groups/rules"} <= set(steps)
    assert any(edge for path in rows["q1"]["paths"] for edge in path["edges"])
    checked = run("verify-answers", out, index, "--corpus", tiny_corpus)
    assert checked.status == 0, checked.out + checked.err
    told = run("explain", out, "q1")
    assert told.status == 0 and "evidence graphs: the first of" in told.out and "\npaths\n" in told.out
    again = run("answer", index, questions, "--method", "bubblerag", "--out", out, *options)
    assert again.status == 0 and "5 from an earlier run" in again.out
    streamed = tmp_path / "streamed.jsonl"
    options += ["--set", "runtime.driver=streaming"]
    assert run("answer", index, questions, "--method", "bubblerag", "--out", streamed, *options).status == 0
    assert {r["id"]: (r["answer"], r["paths"]) for r in cli.read_rows(streamed)} == {
        name: (row["answer"], row["paths"]) for name, row in rows.items()
    }
    damaged = [json.loads(line) for line in out.read_text().splitlines()]
    damaged[0]["paths"][0]["edges"][0][0] = "Nobody"
    assert run("verify-answers", cli.write_rows(tmp_path / "damaged.jsonl", damaged), index).status != 0


def test_ask_and_eval(run, cli, index, questions, recorded):
    asked = run("ask", index, cli.QUESTIONS[0]["question"], "--method", "bubblerag", "--explain", *cli.HASH, "--set",
                recorded)  # fmt: skip
    assert asked.status == 0, asked.err
    assert "Hugo Brandt" in asked.out and "groups of anchors with their weights, by rules out of" in asked.out
    scored = run("eval", index, questions, "--method", "dense,bubblerag", "--retrieval-only", "--at", "2,5", "--json",
                 *cli.NO_LLM)  # fmt: skip
    assert scored.status == 0, scored.err
    assert (
        set(scored.document["methods"]) == {"dense", "bubblerag"} and "bubblerag - dense" in scored.document["paired"]
    )
    wrong = run("eval", index, questions, "--method", "bubblerag", "--retrieval-only", *cli.NO_LLM, "--set",
                "method.bubblerag.passages=sideways")  # fmt: skip
    assert wrong.status == 2 and "fused | trees" in wrong.error
