"""vLLM's command line, environment and places, and a model folder served by a stand-in. Needs no vllm."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_rag.errors import ModelError, UsageError
from gpu_rag.models import packaged, stored
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.llm import vllm
from gpu_rag.models.llm.capability import stored_parameters
from gpu_rag.models.llm.http_wire import body
from gpu_rag.models.llm.interface import JSON_LAYOUT
from gpu_rag.models.llm.vllm import STYLE, VllmLLM, environment, options, places, sleeps, visible_gpus, window
from gpu_rag.settings.sections import VllmSettings
from gpu_rag.types import JsonSchema, Reply, Request

STAND_IN = (sys.executable, "-I", str(Path(__file__).with_name("stand_in.py")))
DUMMY = VllmSettings(load_format="dummy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A byte-level tokenizer; no weights."""
    from tiny_tokenizer import byte_tokenizer

    out = tmp_path_factory.mktemp("model")
    byte_tokenizer(["a"], 258).save_pretrained(out)
    (out / "config.json").write_text("{}")
    return out


@pytest.fixture(scope="module")
def llm(folder) -> Iterator[VllmLLM]:
    engine = VllmLLM(folder, name="vllm:tiny", settings=replace(DUMMY, engines=2), command=STAND_IN)
    yield engine
    engine.close()


def test_a_folder_is_served_and_counted_by_its_own_tokenizer(llm):
    requests = [Request("", f"p{i}", max_tokens=5) for i in range(20)]
    assert [reply.text for reply in llm.complete(requests)] == [f"re: p{i}" for i in range(20)]
    assert llm.count_tokens("abc def") == 7 and llm.name == "vllm:tiny"
    accounts = llm.accounts()
    assert [account.name for account in accounts] == ["vLLM server 1", "vLLM server 2"]
    assert sum(account.requests for account in accounts) == 20 and all(account.requests for account in accounts)


def test_the_hash_covers_the_folder_and_the_type_of_the_weights(llm, folder):
    def hash_of(**changes) -> str:
        engine = VllmLLM(folder, settings=replace(DUMMY, **changes), command=STAND_IN)
        engine.close()
        return engine.content_hash

    assert hash_of(max_model_len=2048, max_num_seqs=3, kv_cache_gib=1.0) == llm.content_hash
    assert len({llm.content_hash, hash_of(dtype="float32"), folder_hash(folder, 1, need_weights=False)}) == 3


def words_of(folder: Path, settings: VllmSettings, device: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in options(folder, settings, device):
        if word.startswith("--"):
            found[word] = last = []
        else:
            last.append(word)
    return found


def test_options_of_a_cpu_and_of_gpus(tmp_path):
    cpu = words_of(tmp_path, VllmSettings(), "cpu")
    assert (cpu["--kv-cache-memory-bytes"], cpu["--max-num-seqs"]) == ([str(2**30)], ["32"])
    assert cpu["--enforce-eager"] == [] and cpu["--block-size"] == ["32"] and "--max-model-len" not in cpu
    for words in (cpu, words_of(tmp_path, VllmSettings(), "cuda")):
        assert words["--generation-config"] == ["vllm"] and words["--enable-prefix-caching"] == []
        assert words["--enable-prompt-tokens-details"] == [] and "--api-key" not in words
    chosen = VllmSettings(tensor_parallel=4, max_model_len=2048, gpu_memory_utilization=0.5, max_num_seqs=9)
    gpu = words_of(tmp_path, chosen, "cuda")
    assert (gpu["--tensor-parallel-size"], gpu["--max-model-len"]) == (["4"], ["2048"])
    assert gpu["--gpu-memory-utilization"] == ["0.5"] and "--no-enforce-eager" in gpu
    assert not {"--kv-cache-memory-bytes", "--block-size"} & set(gpu)
    assert (window(chosen, "cuda"), window(VllmSettings(), "cpu"), window(VllmSettings(), "cuda")) == (18, 64, 512)


def test_more_options_come_as_json_and_win(tmp_path):
    given = {"kv_cache_dtype": "fp8", "max_num_seqs": 5, "enable_prefix_caching": False, "lora_modules": ["a", "b"]}
    words = words_of(tmp_path, VllmSettings(arguments=json.dumps({**given, "override": {"a": 1}})), "cuda")
    assert words["--kv-cache-dtype"] == ["fp8"] and words["--max-num-seqs"] == ["5"]
    assert words["--lora-modules"] == ["a", "b"] and words["--override"] == ['{"a": 1}']
    assert "--no-enable-prefix-caching" in words and "--enable-prefix-caching" not in words
    for bad in ("{", "[]", '{"model": "x"}', '{"trust_remote_code": true}', '{"uds": "/x"}', '{"a": 1, "a": 2}'):
        with pytest.raises(UsageError, match=r"vllm\.arguments"):
            options(tmp_path, VllmSettings(arguments=bad), "cuda")
    assert sleeps(VllmSettings(arguments='{"enable_sleep_mode": true}')) and not sleeps(VllmSettings())


def test_the_environment_keeps_what_a_user_has_set(monkeypatch):
    for name in ("VLLM_LOGGING_LEVEL", "TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS", "VLLM_SERVER_DEV_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    gpu = environment(VllmSettings(), "cuda", 2, "4,7")
    assert (gpu["CUDA_VISIBLE_DEVICES"], gpu["VLLM_LOGGING_LEVEL"], gpu["OMP_NUM_THREADS"]) == ("4,7", "DEBUG", "2")
    assert not {"TORCHDYNAMO_DISABLE", "VLLM_SERVER_DEV_MODE"} & set(gpu)
    cpu = environment(VllmSettings(arguments='{"enable_sleep_mode": true}'), "cpu", 2)
    assert (cpu["TORCHDYNAMO_DISABLE"], cpu["VLLM_SERVER_DEV_MODE"]) == ("1", "1") and "CUDA_VISIBLE_DEVICES" not in cpu


@pytest.mark.parametrize(
    ("gpus", "chosen", "expected"),
    [
        (1, {}, [""]),
        (4, {}, ["0", "1", "2", "3"]),
        (4, {"engines": 2}, ["0", "1"]),
        (4, {"tensor_parallel": 2}, ["0,1", "2,3"]),
        (5, {"tensor_parallel": 2}, ["0,1", "2,3"]),
        (4, {"tensor_parallel": 4}, [""]),
        (4, {"engines": 1}, [""]),
        (0, {}, [""]),
    ],
)
def test_each_server_has_gpus_of_its_own(monkeypatch, gpus, chosen, expected):
    monkeypatch.setattr(vllm, "visible_gpus", lambda: [str(i) for i in range(gpus)])
    assert places(VllmSettings(**chosen), "cuda") == expected


def test_places_of_named_gpus_of_too_few_and_of_a_cpu(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 4, 7 ")
    assert visible_gpus() == ["4", "7"] and places(VllmSettings(), "cuda") == ["4", "7"]
    with pytest.raises(UsageError, match="engines=3.*at most 2"):
        places(VllmSettings(engines=3), "cuda")
    assert places(VllmSettings(engines=2), "cpu") == ["", ""]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: B (UUID: y)'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert visible_gpus() == []


def test_json_is_laid_out_as_the_transformers_backend_does():
    from llguidance import LLMatcher

    schema = '{"type":"object","properties":{"é":{"type":"array"}},"required":["é"]}'
    sent = body("m", Request("", "q", JsonSchema(schema)), STYLE)["response_format"]["json_schema"]["schema"]
    # vLLM gives its own layout as a default only
    assert LLMatcher.grammar_from_json_schema(json.dumps(sent), defaults={"whitespace_flexible": False})
    assert sent.pop("x-guidance") == JSON_LAYOUT and sent == json.loads(schema)
    assert JSON_LAYOUT["item_separator"] == ", " and JSON_LAYOUT["key_separator"] == ": "  # those of json.dumps


def test_a_schema_that_is_no_object_fails_alone(llm):
    bad, good = llm.complete([Request("", "a", JsonSchema("{")), Request("", "b")])
    assert not isinstance(bad, Reply) and isinstance(good, Reply)


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
