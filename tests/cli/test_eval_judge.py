"""gpu-rag eval --judge, with a judge behind an address: scores, costs, the check of the judge, kept replies."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.models.llm import http_servers

KEYS = {
    "judge", "judge_exact", "judge_unanswered", "judge_malformed", "judge_failed", "judge_llm_calls",
    "judge_prompt_tokens", "judge_cached_tokens", "judge_generated_tokens",
}  # fmt: skip


def parts(prompt: str) -> tuple[list[str], str]:
    """(right answers, given answer) of what the judge is asked."""
    gold, answer = prompt.split("Right answers:\n")[1].split("\nGiven answer:\n<data>\n")
    return gold.split("\n"), answer.removesuffix("\n</data>")


def grade(prompt: str) -> tuple[int, str]:
    """Correct where a right answer stands in the given one, or the other way round."""
    gold, answer = parts(prompt)
    right = any(one.lower() in answer.lower() or answer.lower() in one.lower() for one in gold)
    return 200, json.dumps({"reason": "", "verdict": "correct" if right else "incorrect"})


@pytest.fixture
def judged(run: Any, cli: Any, index: Path, questions: Path, replay: Path) -> Any:
    """judged(server, "--json"): QUESTIONS answered by recorded replies, judged by a server."""

    def call(server: Any, *options: object, methods: str = "ppr") -> Any:
        llm = (*cli.HASH, "--set", f"models.llm=replay:{replay}", "--set", f"eval.judge={server.spec}")
        return run("eval", index, questions, "--method", methods, "--judge", *llm, *options)

    return call


def check_scores(result: Any) -> None:
    """q1 and q3 are exact, q5 is no answer; q2 and q4 are the judge's: q2 is a longer form, q4 somebody else."""
    assert result.status == 0, result.err
    entry = result.document["methods"]["ppr"]
    assert set(entry) >= KEYS
    assert (entry["em"], entry["judge"]) == (2 / 5, 3 / 5)
    assert (entry["judge_exact"], entry["judge_unanswered"], entry["judge_llm_calls"]) == (2 / 5, 1 / 5, 2 / 5)
    assert (entry["judge_malformed"], entry["judge_failed"]) == (0, 0)
    assert entry["judge_prompt_tokens"] > entry["judge_generated_tokens"] > 0


def test_answers_are_judged_by_the_model_that_is_named(judged, chat_server):
    server = chat_server(grade)
    result = judged(server, "--json")
    check_scores(result)
    judge = result.document["judge"]
    assert judge["model"] == server.spec and judge["capable"] and len(judge["prompt"]) == 16
    assert judge["check"]["planted_right"] == {"n": 5, "right": 5, "unread": 0}
    assert judge["check"]["planted_wrong"] == {"n": 5, "right": 5, "unread": 0}
    assert judge["check"]["exact"] == {"n": 2, "right": 2, "unread": 0}
    assert judge["doubts"] == [] and "trusted" not in result.err
    assert judge["asked"] == sum(server.finished.values()) and max(server.finished.values()) == 1
    assert "verdicts are not kept" in result.err


def test_the_judge_is_the_answering_model_unless_another_is_named(run, cli, index, questions, chat_server):
    server = chat_server(lambda prompt: grade(prompt) if "Right answers:" in prompt else (200, cli.say(prompt)))
    llm = (*cli.HASH, "--set", f"models.llm={server.spec}")
    check_scores(run("eval", index, questions, "--method", "ppr", "--judge", *llm, "--json"))
    assert {"Right answers:" in prompt for prompt in server.finished} == {True, False}


def test_verdicts_are_kept_beside_the_report(judged, chat_server, tmp_path):
    page, server = tmp_path / "eval.html", chat_server(grade)
    first = judged(server, "--json", "--report", page)
    check_scores(first)
    assert "verdicts are not kept" not in first.err and (tmp_path / "eval.html.replies.sqlite").is_file()
    server.forget()
    again = judged(server, "--json", "--report", page)
    check_scores(again)
    assert not server.begun and again.document["judge"]["from_cache"] == again.document["judge"]["asked"] > 0
    assert {k: v for k, v in first.document["methods"]["ppr"].items() if k in KEYS} == {
        k: v for k, v in again.document["methods"]["ppr"].items() if k in KEYS
    }
    words = page.read_text(encoding="utf-8")
    assert "The judge" in words and "planted wrong answers" in words and "difference in" not in words
    assert "the verdicts are not to be trusted" not in words.lower()


def test_all_replies_are_kept_where_it_is_asked_for(run, cli, index, questions, chat_server, tmp_path):
    server = chat_server(lambda prompt: grade(prompt) if "Right answers:" in prompt else (200, cli.say(prompt)))
    given = ("eval", index, questions, "--method", "ppr,dense", "--judge", "--replies", tmp_path / "kept.sqlite")
    llm = (*cli.HASH, "--set", f"models.llm={server.spec}", "--json")
    first = run(*given, *llm)
    check_scores(first)
    server.forget()
    again = run(*given, *llm)
    check_scores(again)
    assert not server.begun
    for name in ("llm_calls", "prompt_tokens", "generated_tokens", "judge_llm_calls", "em", "f1", "judge"):
        for method in ("ppr", "dense"):
            assert again.document["methods"][method][name] == first.document["methods"][method][name] > 0


def test_a_judge_without_verdicts_scores_nothing_and_gives_status_3(judged, chat_server):
    result = judged(chat_server(lambda prompt: (200, "It is correct.")), "--json")
    assert result.status == 3 and "2 of 2 answers have no verdict" in result.err
    entry = result.document["methods"]["ppr"]
    assert (entry["judge"], entry["judge_failed"] + entry["judge_malformed"]) == (2 / 5, 2)  # the exact ones alone
    assert result.document["judge"]["check"]["planted_right"] == {"n": 5, "right": 0, "unread": 5}
    assert "not to be trusted: it was right about 0 of 5 planted right answers" in result.err
    assert judged(chat_server(lambda prompt: (200, "It is correct.")), "--max-failures", "2").status == 0


def test_a_judge_that_cannot_be_reached_is_an_error_before_any_method_runs(judged, chat_server, monkeypatch):
    monkeypatch.setattr(http_servers, "MAX_WAIT_S", 0.01)
    server = chat_server(grade)
    server.close()
    result = judged(server, "--json")
    assert result.status == 1 and result.out == ""
    assert server.spec.split("#")[0] in result.err and "ppr:" not in result.err


def test_a_judge_needs_answers_and_gold(run, cli, index, questions, judged, chat_server):
    result = run("eval", index, questions, "--judge", "--retrieval-only", *cli.NO_LLM)
    assert result.status == 2 and "--retrieval-only leaves no answers to judge" in result.error
    cli.write_rows(questions, [{**row, "answers": []} for row in cli.QUESTIONS])
    result = judged(chat_server(grade))
    assert result.status == 2 and "nothing to judge by" in result.err and "ppr:" not in result.err


def test_a_model_that_is_not_capable_gives_no_score(run, cli, index, questions, replay, tmp_path):
    page = tmp_path / "report.html"
    llm = (*cli.HASH, "--set", f"models.llm=replay:{replay}", "--set", "eval.judge_capable=false")
    result = run("eval", index, questions, "--method", "ppr,dense", "--judge", "--report", page, *llm, "--json").ok
    judge, entry = result.document["judge"], result.document["methods"]["ppr"]
    assert entry["judge"] is None and "judge_llm_calls" not in entry and entry["em"] is not None
    assert (judge["asked"], judge["check"], judge["capable"]) == (0, {}, False)
    assert "not held to be capable of judging and was not asked" in result.err
    assert "not held to be capable of judging and was not asked" in page.read_text(encoding="utf-8")
