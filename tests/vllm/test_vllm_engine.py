"""A real engine with random weights, in a process of its own: what holds whatever the model says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace

import jsonschema
import pytest

from gpu_rag.errors import ContextOverflow, ModelError, RequestFailed, UsageError
from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.interface import StreamingLLM
from gpu_rag.models.llm.vllm import VllmLLM
from gpu_rag.settings.sections import VllmSettings
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

SYSTEM = "You answer from the passage, shortly, and in the language of the question. " * 4
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"kind": {"enum": ["red", "blue"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["kind", "n"],
        "additionalProperties": False,
    }
)


def ask(prompt: str, constraint=None, **changes) -> Request:
    return replace(Request(SYSTEM, prompt, constraint, max_tokens=24), **changes)


def submit_until_running(llm: VllmLLM, requests: list[Request], n_running: int) -> None:
    """Submit requests under their places as keys; returns when the engine has this many of them."""
    for key, request in enumerate(requests):
        llm.submit(key, request)
    end = time.monotonic() + 60
    while len(llm._service._all[0]._running) < n_running:
        assert time.monotonic() < end, "the engine did not get them"
        time.sleep(0.002)


def drain(llm: StreamingLLM) -> list[tuple[int, Reply | RequestFailed]]:
    found, end = [], time.monotonic() + 200
    while llm.n_open and time.monotonic() < end:
        found += llm.poll(1.0)
    assert not llm.n_open
    return found


# --- replies ---------------------------------------------------------------------------------------


def test_greedy_replies_repeat_and_are_counted(dummy):
    requests = [ask(f"question {i}", max_tokens=4 + i) for i in range(12)]
    seen: dict[int, Reply] = {}
    replies = dummy.complete(requests, lambda i, reply: seen.setdefault(i, reply))
    assert [seen[i] for i in range(12)] == replies
    assert [reply.text for reply in dummy.complete(requests)] == [reply.text for reply in replies]
    for request, reply in zip(requests, replies):
        assert (reply.finish_reason, reply.n_generated) == ("length", request.max_tokens) or (
            reply.finish_reason == "stop" and reply.n_generated < request.max_tokens
        )
    assert "length" in {reply.finish_reason for reply in replies}
    assert dummy.complete([]) == []


def test_an_engine_accounts_for_its_work_and_has_no_sleep_on_a_cpu(dummy, tiny_folder):
    [before] = dummy.accounts()
    replies = dummy.complete([ask(f"account {i}") for i in range(30)])
    dummy.sleep()  # not started for it: nothing happens
    [now] = dummy.accounts()
    assert (now.requests - before.requests, now.name) == (30, "vLLM engine 1")
    assert now.generated_tokens - before.generated_tokens == sum(reply.n_generated for reply in replies)
    assert now.prompt_tokens - before.prompt_tokens == sum(reply.n_prompt for reply in replies)
    assert now.busy_s > before.busy_s and now.queue_s > before.queue_s  # 8 at a time
    assert now.preemptions is not None and (now.failures, now.retries) == (before.failures, before.retries)
    sleepy = VllmSettings(load_format="dummy", arguments='{"enable_sleep_mode": true}')
    with pytest.raises(ModelError, match="Sleep mode is not supported"):
        VllmLLM(tiny_folder, settings=sleepy)


def test_the_second_request_finds_the_prefix_of_the_first(dummy):
    request = replace(ask("where?"), system="Another system text, long enough for several blocks of tokens. " * 6)
    [first] = dummy.complete([request])
    [second] = dummy.complete([replace(request, prompt="and when?")])
    n_head = len(dummy._chat.head_ids(request.system))
    assert first.n_cached == 0 and n_head - 32 <= second.n_cached <= n_head and second.n_cached > 64


def test_sampling_depends_on_seed_and_attempt_not_on_company(dummy):
    request = ask("red", temperature=1.0, seed=11)
    others = [ask(f"other {i}", temperature=1.0, seed=i) for i in range(5)]
    [alone] = dummy.complete([request])
    assert dummy.complete([*others, request])[-1].text == alone.text
    variants = [replace(request, seed=seed, attempt=attempt) for seed in (11, 12) for attempt in (0, 1)]
    assert len({reply.text for reply in dummy.complete(variants)}) == 4


def test_json_is_valid_under_the_schema(dummy):
    # random weights write a token a character, so up to 24 and the end
    room = {"max_tokens": 40}
    requests = [
        ask(f"red {i}", JsonSchema(SCHEMA), temperature=t, seed=i, **room) for i in range(4) for t in (0.0, 1.5)
    ]
    for reply in dummy.complete(requests):
        assert reply.finish_reason == "stop" and "\n" not in reply.text
        jsonschema.validate(json.loads(reply.text), json.loads(SCHEMA))
    [cut] = dummy.complete([ask("red", JsonSchema(SCHEMA), max_tokens=2)])
    assert (cut.finish_reason, cut.n_generated) == ("length", 2)


@pytest.mark.parametrize("options", [("yes", "no"), ("A", "AB", "ABC"), ('say "x"\\', "two\nlines", "naïve 東京")])
def test_choice_is_exactly_one_option(dummy, options):
    requests = [ask(f"q {i}", Choice(options), temperature=2.0, seed=i, max_tokens=60) for i in range(6)]
    replies = dummy.complete(requests)
    assert {reply.text for reply in replies} <= set(options)
    assert {reply.finish_reason for reply in replies} == {"stop"}


def test_what_cannot_run_fails_alone(dummy):
    too_long = ask("red " * 4000)
    bad = [ask("a", JsonSchema('{"type": 5}')), ask("a", JsonSchema("{")), too_long, ask("a", Rank(("", "b")))]
    replies = dummy.complete([*bad, ask("good")])
    assert [type(reply) for reply in replies] == [
        RequestFailed,
        RequestFailed,
        ContextOverflow,
        RequestFailed,
        Reply,
    ]
    n = len(dummy._chat.head_ids(SYSTEM)) + dummy.count_tokens(too_long.prompt) + len(dummy._chat.tail_ids)
    assert f"{n} prompt and 24 reply tokens" in str(replies[2]) and "<= 4096" in str(replies[2])


def test_what_the_packer_fills_always_fits(dummy):
    prompt = "red door " * 1200
    while dummy.count_tokens(SYSTEM) + dummy.count_tokens(prompt) + 10 > dummy.context_tokens:
        prompt = prompt[: -9 * 20]
    [reply] = dummy.complete([ask(prompt, max_tokens=10)])
    assert isinstance(reply, Reply)


# --- the streaming face ----------------------------------------------------------------------------


def test_requests_are_admitted_while_others_run(dummy):
    submit_until_running(dummy, [ask("a long one", max_tokens=1500), ask("a long one too", max_tokens=1450)], 2)
    dummy.submit(2, ask("a short one", max_tokens=2))
    order = [key for key, _ in drain(dummy)]
    assert order == [2, 1, 0]
    with pytest.raises(UsageError, match="key 5"):
        dummy.submit(5, ask("x"))
        dummy.submit(5, ask("x"))
    drain(dummy)


def test_an_aborted_request_comes_out_once_and_stops(dummy):
    submit_until_running(dummy, [ask("for ever", max_tokens=3500)], 1)
    dummy.submit(1, ask("short", max_tokens=3))
    dummy.abort(99)
    dummy.abort(0)
    found = dict(drain(dummy))
    assert isinstance(found[0], RequestFailed) and "aborted" in str(found[0]) and isinstance(found[1], Reply)
    assert not dummy._service._all[0]._running  # nothing of it is still being made


def test_an_interrupted_batch_leaves_nothing_behind(dummy):
    def interrupt(i, reply):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dummy.complete([ask("short", max_tokens=2), ask("long", max_tokens=3500)], interrupt)
    [reply] = dummy.complete([ask("next", max_tokens=3)])
    assert isinstance(reply, Reply) and not dummy._service._all[0]._running


def test_the_cache_keeps_what_the_engine_says_under_both_faces(dummy, tmp_path):
    cached = CachedLLM(dummy, tmp_path / "replies.sqlite")
    requests = [ask(f"kept {i}", max_tokens=5) for i in range(6)]
    for key, request in enumerate(requests):
        cached.submit(key, request)
    fresh = dict(drain(cached))
    assert len(cached) == 6 and not any(reply.from_cache for reply in fresh.values())
    again = cached.complete(requests)
    assert again == [replace(fresh[key], from_cache=True) for key in range(6)]
    cached.file.close()  # the engine stays open for other tests


# --- identity and options --------------------------------------------------------------------------


def test_the_hash_covers_what_determines_replies(dummy, tiny_folder, monkeypatch):
    from gpu_rag.models.llm import vllm as module

    class Started:
        def __init__(self, folder, settings, **_):
            self.dtype = {"auto": "bfloat16"}.get(settings.dtype, settings.dtype)
            self.max_model_len = settings.max_model_len or 8192

        def close(self) -> None:
            pass

    monkeypatch.setattr(module, "VllmEngine", Started)

    def hash_of(**changes) -> str:
        base = {"load_format": "dummy", "dtype": "float32", "max_model_len": 4096}
        llm = VllmLLM(tiny_folder, settings=VllmSettings(**{**base, **changes}))
        llm.close()
        return llm.content_hash

    same = [{}, {"max_model_len": 2048}, {"max_num_seqs": 3}, {"child_process": True}, {"kv_cache_gib": 1.0}]
    assert {hash_of(**changes) for changes in same} == {dummy.content_hash}
    hashes = {hash_of(), hash_of(dtype="auto")}
    monkeypatch.setattr(VllmSettings, "seed", 1)  # of random weights
    assert len({*hashes, hash_of()}) == 3


def test_models_and_options_that_do_not_exist(tiny_folder, tmp_path):
    with pytest.raises(UsageError, match="no such model on this disk.*gpu-rag models fetch some/where"):
        load_llm("vllm:some/where")
    with pytest.raises(UsageError, match="unknown options.*tensor"):
        load_llm(f"vllm:{tiny_folder}", tensor=2)
    with pytest.raises(ModelError, match="did not start"):
        settings = VllmSettings(load_format="dummy", max_model_len=100_000, kv_cache_gib=0.001)
        VllmLLM(tiny_folder, settings=settings)


# --- death: last, since it replaces the engine -------------------------------------------------------


def engine_processes() -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "EngineCor" in line]


def test_a_killed_engine_process_is_replaced_and_the_requests_go_on(dummy):
    requests = [ask(f"survivor {i}", max_tokens=60) for i in range(4)]
    before = [reply.text for reply in dummy.complete(requests)]
    [old] = engine_processes()
    os.kill(old, signal.SIGSTOP)  # however fast it is, it ends none of them
    submit_until_running(dummy, requests, 1)
    os.kill(old, signal.SIGKILL)
    found = dict(drain(dummy))
    assert [found[key].text for key in range(4)] == before
    assert [one.failures for one in dummy.accounts()] == [1]
    assert old not in engine_processes() and len(engine_processes()) == 1
