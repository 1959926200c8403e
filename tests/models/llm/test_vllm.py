"""The vLLM backend around an imitated engine: prompts, replies, sizes, ranking, both faces, options. Needs no vllm."""

from __future__ import annotations

import importlib.util
import json
import queue
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from gpu_rag.errors import ContextOverflow, MissingBackend, ModelError, RequestFailed, UsageError
from gpu_rag.models import packaged, stored
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.llm import load_llm, vllm_service
from gpu_rag.models.llm import vllm as module
from gpu_rag.models.llm.capability import stored_parameters
from gpu_rag.models.llm.constrain import JSON_LAYOUT
from gpu_rag.models.llm.vllm import VllmLLM
from gpu_rag.models.llm.vllm_engine import (
    engine_arguments,
    make_scannable,
    sampling_arguments,
    set_environment,
    window,
    with_layout,
)
from gpu_rag.models.llm.vllm_jobs import Finished, Piece
from gpu_rag.models.llm.vllm_service import EngineDied
from gpu_rag.settings.sections import VllmSettings
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

TEMPLATE = (
    "{% for m in messages %}<|s|>{{ m['role'] }}\n{{ m['content'] }}<|e|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant\n{% if enable_thinking is not false %}<think>{% endif %}{% endif %}"
)
END = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A byte-level tokenizer with a template that thinks aloud unless told not to; no weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    out = tmp_path_factory.mktemp("model")
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=258, special_tokens=["<|e|>", "<|s|>"], initial_alphabet=alphabet)
    raw.train_from_iterator(["a"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|e|>", pad_token="<|e|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    (out / "config.json").write_text("{}")
    return out


class Imitation:
    """Says the prompt's last word backwards, one piece a step; scores a token id by its size."""

    pieces: ClassVar[list[Piece]] = []
    gate: ClassVar[threading.Event] = threading.Event()

    def __init__(self, folder: Path, settings: VllmSettings, *, device: str, threads: int, gpus: str = ""):
        self.dtype, self.max_model_len = "float32", settings.max_model_len or 512
        self.inside: dict[int, Piece] = {}

    def add(self, number: int, piece: Piece) -> None:
        if piece.constraint == JsonSchema("{"):
            raise RequestFailed("vLLM refused the request")
        self.inside[number] = piece
        self.pieces.append(piece)

    def step(self) -> list[tuple[int, Finished]]:
        assert self.gate.wait(60)
        number = min(self.inside)
        piece = self.inside.pop(number)
        if piece.max_tokens == 13:
            raise EngineDied("unlucky")
        if piece.scored:
            return [(number, Finished((7,), "length", 3, {t: -t / 100 for t in piece.scored}))]
        said = list(reversed(piece.ids))[: piece.max_tokens]
        if piece.max_tokens == 99:
            return [(number, Finished(tuple(said), "error", 0))]
        finish = "length" if piece.max_tokens < 5 else "stop"
        return [(number, Finished((*said, END) if finish == "stop" else tuple(said), finish, 16))]

    def abort(self, numbers: list[int]) -> None:
        for number in numbers:
            del self.inside[number]

    def close(self) -> None:
        pass


@pytest.fixture
def llm(folder, monkeypatch):
    monkeypatch.setattr(module, "VllmEngine", Imitation)
    monkeypatch.setattr(vllm_service, "CLOSE_FIRST_S", 0.0)
    Imitation.pieces, Imitation.gate = [], threading.Event()
    Imitation.gate.set()
    monkeypatch.setattr(VllmSettings, "restarts", 1)
    engine = VllmLLM(folder, settings=VllmSettings(load_format="dummy"))
    yield engine
    Imitation.gate.set()
    engine.close()


def test_prompts_are_made_by_the_template_without_thinking(llm):
    llm.complete([Request("be short", "why <|e|>?", max_tokens=4)])
    text = llm._tokenizer.decode(Imitation.pieces[0].ids)
    assert text == "<|s|>system\nbe short<|e|>\n<|s|>user\nwhy <|e|>?<|e|>\n<|s|>assistant\n"
    assert Imitation.pieces[0].ids.count(END) == 2  # the template's own, not the prompt's


def test_replies_are_read_without_their_end_token(llm):
    cut, ended = llm.complete([Request("", "abc", max_tokens=4), Request("", "abc", max_tokens=6)])
    assert (cut.finish_reason, cut.n_generated, cut.n_cached) == ("length", 4, 16)
    assert (ended.finish_reason, ended.n_generated) == ("stop", 6)
    assert ended.text == "assistant\n"[::-1][:6] and ended.n_prompt == len(Imitation.pieces[1].ids)


def test_what_cannot_run_never_reaches_the_engine(llm):
    long = Request("s", "x" * 600, max_tokens=5)
    bad = [long, Request("s", "y", Rank(("", "a"))), Request("s", "y", Rank(("a" * 600,)))]
    replies = llm.complete([*bad, Request("s", "y", JsonSchema("{")), Request("s", "y", max_tokens=99)])
    assert [type(r) for r in replies] == [ContextOverflow, RequestFailed, ContextOverflow, RequestFailed, RequestFailed]
    n = len(llm._chat.head_ids("s")) + 600 + len(llm._chat.tail_ids)
    assert f"{n} prompt and 5 reply tokens" in str(replies[0]) and "<= 512" in str(replies[0])
    assert "refused" in str(replies[3]) and "ended the reply" in str(replies[4])
    assert all(len(piece.ids) < 512 for piece in Imitation.pieces)


def test_rank_is_the_mean_over_tokens_and_counts_them(llm):
    options = ("ab", "b", "ba")
    [reply] = llm.complete([Request("", "which?", Rank(options))])
    ids = llm._chat.prompt_ids(list(options))
    assert reply.scores == pytest.approx([sum(-t / 100 for t in o) / len(o) for o in ids])
    assert (reply.finish_reason, reply.n_generated, reply.n_cached) == ("rank", 0, 3)
    assert reply.n_prompt == len(Imitation.pieces[0].ids) + sum(map(len, ids))
    assert reply.text == options[max(range(3), key=reply.scores.__getitem__)]


def test_both_faces_give_every_request_back_once(llm):
    requests = [Request("", f"number {i}", max_tokens=3 + i % 4) for i in range(150)]
    seen: dict[int, Reply] = {}
    whole = llm.complete(requests, lambda i, reply: seen.setdefault(i, reply))
    assert [seen[i] for i in range(150)] == whole
    for key, request in enumerate(requests):
        llm.submit(key, request)
    with pytest.raises(UsageError, match="key 149"):
        llm.submit(149, requests[0])
    found: dict[int, Reply] = {}
    while llm.n_open:
        found.update(llm.poll(60.0))
    assert [found[i] for i in range(150)] == whole and llm.poll(60.0) == []


def test_abort_and_a_refusal_in_the_streaming_face(llm):
    Imitation.gate.clear()
    llm.submit(1, Request("", "a", max_tokens=3))
    llm.submit(2, Request("", "b", max_tokens=3))
    llm.submit(3, Request("", "x" * 999, max_tokens=3))
    assert [key for key, _ in llm.poll(60.0)] == [3]
    assert llm.poll(0.01) == [] and llm.n_open == 2
    llm.abort(2)
    llm.abort(77)
    Imitation.gate.set()
    found: dict[int, object] = {}
    while llm.n_open:
        found.update(llm.poll(60.0))
    assert isinstance(found[1], Reply) and set(found) == {1, 2}


def test_an_engine_that_dies_for_good_ends_both_faces(llm):
    llm.submit(1, Request("", "a", max_tokens=13))
    found: dict[int, object] = {}
    with pytest.raises(ModelError, match="2 deaths, 1 restarts"):
        while llm.n_open:
            found.update(llm.poll(60.0))
            if 1 in found:  # given up after its second death, which was the engine's last
                assert "twice" in str(found[1])
                llm.submit(2, Request("", "b", max_tokens=3))
    with pytest.raises(ModelError):
        llm.complete([Request("", "a", max_tokens=3)])


def test_an_interrupted_batch_is_aborted(llm):
    def interrupt(i, reply):
        Imitation.gate.clear()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.complete([Request("", f"n{i}", max_tokens=3) for i in range(9)], interrupt)
    Imitation.gate.set()
    llm.complete([Request("", "next", max_tokens=3)])
    end = time.monotonic() + 60
    while any(llm._service._open.values()) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(llm._service._open.values())


def test_tokens_are_counted_while_the_engine_works(llm):
    """The fast tokenizer is shared by threads: one at a time may use it."""
    counts: queue.SimpleQueue[int] = queue.SimpleQueue()
    threads = [threading.Thread(target=lambda: counts.put(llm.count_tokens("a b c " * 50))) for _ in range(8)]
    for thread in threads:
        thread.start()
    llm.complete([Request("", f"n{i}", max_tokens=6) for i in range(64)])
    for thread in threads:
        thread.join()
    assert {counts.get() for _ in threads} == {300}


# --- options ---------------------------------------------------------------------------------------


def test_engine_arguments_of_a_cpu_and_of_gpus(tmp_path):
    cpu = engine_arguments(tmp_path, VllmSettings(), "cpu")
    assert (cpu["kv_cache_memory_bytes"], cpu["max_num_seqs"], cpu["enforce_eager"]) == (2**30, 32, True)
    assert cpu["enable_prefix_caching"] and "max_model_len" not in cpu and cpu["block_size"] == 32
    chosen = VllmSettings(tensor_parallel=4, max_model_len=2048, gpu_memory_utilization=0.5, max_num_seqs=9)
    gpu = engine_arguments(tmp_path, replace(chosen, enforce_eager=True), "cuda")
    assert (gpu["tensor_parallel_size"], gpu["max_model_len"], gpu["gpu_memory_utilization"]) == (4, 2048, 0.5)
    assert gpu["enforce_eager"] and not {"kv_cache_memory_bytes", "block_size"} & set(gpu)
    assert not engine_arguments(tmp_path, VllmSettings(), "cuda")["enforce_eager"]
    assert (window(chosen, "cuda"), window(VllmSettings(), "cpu"), window(VllmSettings(), "cuda")) == (18, 64, 512)


def test_sampling_arguments():
    greedy = sampling_arguments(Piece((1,), 5, 0.0, 77))
    assert greedy == {"max_tokens": 5, "temperature": 0.0, "seed": None, "detokenize": False}
    warm = sampling_arguments(Piece((1,), 1, 0.7, 77, scored=(3, 4)))
    assert (warm["seed"], warm["logprob_token_ids"]) == (77, [3, 4])


def test_json_is_laid_out_as_the_transformers_backend_does():
    from llguidance import LLMatcher

    schema = '{"type":"object","properties":{"é":{"type":"array"}},"required":["é"]}'
    said = json.loads(with_layout(schema))
    assert said.pop("x-guidance") == JSON_LAYOUT and said == json.loads(schema)
    # vLLM gives its own layout as a default only
    assert LLMatcher.grammar_from_json_schema(with_layout(schema), defaults={"whitespace_flexible": False})
    for bad in ("{", "[]", "true"):
        with pytest.raises(ValueError, match=r"."):  # a request refused, not an engine that died
            with_layout(bad)
    assert JSON_LAYOUT["item_separator"] == ", " and JSON_LAYOUT["key_separator"] == ": "  # those of json.dumps


def test_llvmlite_does_not_stop_vllm_that_looks_through_all_modules():
    from llvmlite.binding import ffi

    ffi.lib._fntab.pop("__dict__", None)
    assert not hasattr(vars(ffi.lib), "get")  # what vLLM's start trips over
    make_scannable()
    assert vars(ffi.lib).get("kernel") is None and "llvmlite.binding.ffi" in sys.modules


def test_the_environment_keeps_what_a_user_has_set(monkeypatch):
    for name in ("VLLM_LOGGING_LEVEL", "VLLM_LOGGING_STREAM", "TORCHDYNAMO_DISABLE", "VLLM_ENABLE_V1_MULTIPROCESSING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    import os

    set_environment(VllmSettings(child_process=True), "cuda", 2)
    assert (os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"], os.environ["VLLM_LOGGING_LEVEL"]) == ("1", "DEBUG")
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr" and "TORCHDYNAMO_DISABLE" not in os.environ
    set_environment(VllmSettings(), "cpu", 2)
    assert (os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"], os.environ["TORCHDYNAMO_DISABLE"]) == ("0", "1")
    for name in ("VLLM_LOGGING_STREAM", "TORCHDYNAMO_DISABLE", "VLLM_ENABLE_V1_MULTIPROCESSING"):
        monkeypatch.delenv(name)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed here")
def test_a_machine_without_vllm_says_what_to_install(folder):
    with pytest.raises(MissingBackend, match=r"needs vllm.*gpu-rag\[gpu\].*install_vllm.sh"):
        load_llm(f"vllm:{folder}", settings=VllmSettings(load_format="dummy"))


def test_names_of_models_on_this_disk(folder, tmp_path, monkeypatch):
    packaged.set_cache_dir(tmp_path)
    try:
        assert stored.model_folder(str(folder)) == folder
        for missing in ("nowhere", str(tmp_path), ""):
            with pytest.raises(UsageError, match="no such model on this disk"):
                stored.model_folder(missing)
        with pytest.raises(UsageError, match="gpu-rag models fetch own/name"):
            stored.model_folder("own/name")
        kept = stored.fetched_folder("own/name")
        kept.mkdir(parents=True)
        (kept / "config.json").write_text("{}")
        assert stored.model_folder("own/name") == kept
    finally:
        packaged.set_cache_dir(None)


def test_stored_parameters_are_counted_and_hashes_may_do_without_weights(folder, tmp_path):
    import torch
    from safetensors.torch import save_file

    assert stored_parameters(folder) is None
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7)}, tmp_path / "model.safetensors")
    assert stored_parameters(tmp_path) == 22
    (tmp_path / "model-2.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match="cannot be read"):
        stored_parameters(tmp_path)
    with pytest.raises(ModelError, match="no model weights"):
        folder_hash(folder, 1)
    assert folder_hash(folder, 1, need_weights=False) != folder_hash(folder, 2, need_weights=False)


def test_seed_and_attempt_make_different_numbers(llm):
    base = Request("", "a", max_tokens=3, temperature=1.0, seed=1)
    schema = JsonSchema(json.dumps({"type": "object"}))
    llm.complete([base, replace(base, attempt=1), replace(base, seed=2), base])
    seeds = [piece.seed for piece in Imitation.pieces]
    assert len(set(seeds)) == 3 and seeds[0] == seeds[3]
    llm.complete([replace(base, constraint=schema), replace(base, constraint=Choice(("a",)))])
    assert [piece.constraint for piece in Imitation.pieces[-2:]] == [schema, Choice(("a",))]


def test_text_is_handed_on_as_the_engine_says_its_ids(llm, monkeypatch):
    seen: list[str] = []
    step = Imitation.step

    def slowly(self):
        for piece in self.inside.values():
            for n in range(1, 4):
                piece.on_ids(list(reversed(piece.ids))[:n])
        return step(self)

    monkeypatch.setattr(Imitation, "step", slowly)
    (reply,) = llm.complete([Request("", "abc", max_tokens=6, on_text=seen.append)])
    assert len(seen) == 3 and all(reply.text.startswith(text) for text in seen) and seen[0] != seen[2]
