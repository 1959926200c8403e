"""gpu-rag tune: what it prints and keeps, what `auto` is then, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.methods.hybgrag.tune import Collected

FAST = ("--set", "method.fused.bubblerag=false")


@pytest.fixture
def many(cli: Any, tmp_path: Path) -> Path:
    rows = [{**row, "id": f"{row['id']}-{at}"} for at in range(10) for row in cli.QUESTIONS]
    found: Path = cli.write_rows(tmp_path / "many.jsonl", rows)
    return found


def test_tune_then_auto(run: Any, cli: Any, index: Path, many: Path, tmp_path: Path) -> None:
    ask = ("ask", index, cli.QUESTIONS[0]["question"], "--method", "auto", "--json", *cli.NO_LLM)
    before = run(*ask)
    assert before.document["method"] == "fused" and "auto: fused" in before.err, "the best that the index was built for"
    digest = run("verify", index, "--digest").out
    found = run("tune", index, many, "--among", "bm25,ppr", *FAST, *cli.NO_LLM)
    assert found.status == 0, found.err
    assert "50 questions; fused and auto are cross-validated" in found.out and "fused - ppr" in found.out
    chosen = found.out.split("auto: ")[-1].split()[0]
    assert chosen in ("bm25", "ppr", "fused") and f"kept in {index / 'tuned.json'}" in found.out
    assert run("verify", index, "--digest").out == digest
    answered = run("answer", index, many, "--method", "auto", "--out", tmp_path / "a.jsonl", "--limit", 3, *cli.NO_LLM)
    assert answered.status == 0, answered.err
    assert {row["method"] for row in cli.read_rows(tmp_path / "a.jsonl")} == {chosen}
    assert run(*ask).document["method"] == chosen
    scored = run("eval", index, many, "--method", "auto,ppr,fused", "--retrieval-only", "--json", *FAST, *cli.NO_LLM)
    assert scored.document["methods"]["auto"]["recall@5"] == scored.document["methods"][chosen]["recall@5"]


def test_fused_alone_leaves_the_choice_as_it_is(run: Any, cli: Any, index: Path, many: Path) -> None:
    found = run("tune", index, many, "--method", "fused", "--json", *FAST, *cli.NO_LLM)
    assert found.document["method"] is None and set(found.document["recall"]) == {
        "ppr", "fused", "fused as shipped", "auto",
    }  # fmt: skip
    assert '"auto"' not in (index / "tuned.json").read_text()


def test_few_questions_and_methods_that_cannot_run_are_refused(
    run: Any, cli: Any, index: Path, many: Path, questions: Path
) -> None:
    found = run("tune", index, questions, *cli.NO_LLM)
    assert found.status == 2 and "too few questions to tune with; given 5 with gold_ids" in found.err
    found = run("tune", index, many, "--among", "hoprag", *cli.NO_LLM)
    assert found.status == 2 and "lacks what hoprag needs" in found.err
    assert not (index / "tuned.json").exists()


def test_examples_of_hybgrag_are_shown_and_kept(
    run: Any, cli: Any, index: Path, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run("tune", index, many, "--method", "hybgrag", *cli.NO_LLM)
    assert found.status != 0 and "lacks what hybgrag needs" in found.err
    monkeypatch.setattr("gpu_rag.methods.registry.check_stages", lambda *given: None)
    found = run("tune", index, many, "--method", "hybgrag", "--among", "ppr", *cli.NO_LLM)
    assert found.status == 2 and "--among is only for methods that learn a choice" in found.err
    found = run("tune", index, many, "--method", "hybgrag", *cli.NO_LLM)
    assert found.status == 2 and "examples of hybgrag are for a language model that decides" in found.err
    examples: dict[str, Any] = {"routes": [], "validations": [], "experiences": []}
    measures = {"hit@1": 0.25, "mrr": 0.5}
    document = {
        "n": 20, "judged": 10, "collected": {"routes": 3}, "before": measures, "after": measures,
        "gain": {name: {"diff": 0.0, "low": 0.0, "high": 0.0} for name in measures}, "changed": True, "method": None,
    }  # fmt: skip
    for kept in (None, examples):
        outcome = Collected(document, kept)
        monkeypatch.setattr("gpu_rag.methods.hybgrag.tune.collect", lambda engine, rows, outcome=outcome: outcome)
        found = run("tune", index, many, "--method", "hybgrag", *cli.NO_LLM)
        assert found.status == 0 and "20 questions: 3 routes; judged on 10" in found.out and "0.250" in found.out
        assert (index / "tuned.json").exists() == (kept is not None)
    assert json.loads((index / "tuned.json").read_text())["hybgrag"] == examples
