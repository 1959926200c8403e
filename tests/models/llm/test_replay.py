"""Scripted, recorded and replayed engines."""

import json

import pytest
from recording_llm import RecordingLLM

from gpu_rag.errors import BadInput, RequestFailed
from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.interface import estimate_tokens, request_key
from gpu_rag.models.llm.replay import ReplayLLM
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

REQUESTS = [
    Request("s", "plain\u2028text\nwith lines"),
    Request("s", "choice", Choice(("yes", "no"))),
    Request("s", "rank", Rank(("yes", "no"))),
    Request("s", "json", JsonSchema('{"type":"object"}'), temperature=0.7, seed=3, attempt=1),
]


def script(request: Request) -> str | Reply | RequestFailed:
    match request.constraint:
        case Choice(options) | Rank(options):
            return options[1]
    return RequestFailed("no") if request.prompt == "fails" else Reply("{}", "length", 10, 4, 2)


def test_scripted_replies_by_kind_of_constraint():
    llm = ScriptedLLM(script)
    plain, choice, rank, _ = llm.complete(REQUESTS)
    assert plain == Reply("{}", "length", 10, 4, 2)
    assert (choice.text, choice.finish_reason) == ("no", "stop")
    assert rank == Reply("no", "rank", rank.n_prompt, 0, 0, (-1.0, 0.0))
    assert rank.n_prompt == estimate_tokens("s") + estimate_tokens("rank")
    assert llm.calls == REQUESTS and llm.batches == [4]


def test_estimate_is_high_for_prose():
    assert estimate_tokens("") == 0 and estimate_tokens("a") == 1
    assert estimate_tokens("four words of English") == 7
    assert estimate_tokens("東京") == 2 and estimate_tokens("\ud800") == 1


def test_a_recording_is_replayed_exactly(tmp_path):
    path = tmp_path / "replies.jsonl"
    recorder = RecordingLLM(ScriptedLLM(script, name="original", context_tokens=777, capable=False), path)
    n = recorder.count_tokens("some text")
    said = recorder.complete([*REQUESTS, Request("s", "fails"), REQUESTS[0]])
    recorder.close()
    replay = load_llm(f"replay:{path}")
    assert replay.complete(REQUESTS) == said[:4]
    assert (replay.name, replay.context_tokens, replay.capable) == ("original", 777, False)
    assert replay.count_tokens("some text") == n
    [missing] = replay.complete([Request("s", "fails")])
    assert isinstance(missing, RequestFailed) and "'fails'" in str(missing) and "not on record" in str(missing)
    [other_attempt] = replay.complete(
        [Request("s", "json", REQUESTS[3].constraint, temperature=0.7, seed=3, attempt=2)]
    )
    assert isinstance(other_attempt, RequestFailed) and "attempt 2" in str(other_attempt)


def test_recorded_token_counts_win_over_the_estimate(tmp_path):
    class Counting(ScriptedLLM):
        def count_tokens(self, text: str) -> int:
            return 12345

    recorder = RecordingLLM(Counting(script), tmp_path / "r.jsonl")
    recorder.count_tokens("a text")
    recorder.close()
    replay = ReplayLLM(tmp_path / "r.jsonl")
    assert replay.count_tokens("a text") == 12345 and replay.count_tokens("unasked") == estimate_tokens("unasked")


def test_a_file_by_hand_needs_replies_only_and_its_hash_is_its_content(tmp_path):
    path = tmp_path / "hand.jsonl"
    reply = {"text": "hi", "finish_reason": "stop", "n_prompt": 1, "n_cached": 0, "n_generated": 1}
    path.write_text(json.dumps({"key": request_key(Request("", "hello")), "reply": reply}) + "\n\n")
    replay = ReplayLLM(path)
    assert replay.complete([Request("", "hello")]) == [Reply("hi", "stop", 1, 0, 1)]
    assert replay.capable and replay.context_tokens == 8192 and not ReplayLLM(path, capable=False).capable
    path.write_text(path.read_text() + "\n")
    assert ReplayLLM(path).content_hash != replay.content_hash


@pytest.mark.parametrize("line", ["{", "[]", '{"key": "k", "reply": {"text": 1}}', "{}", '{"of": "x", "tokens": "y"}'])
def test_a_line_that_cannot_be_read_is_named(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"model": {}}\n' + line)
    with pytest.raises(BadInput, match=r"bad\.jsonl:2"):
        ReplayLLM(path)
