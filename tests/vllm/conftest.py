"""What the tests of real vLLM engines share. Engines take half a minute to start: each fixture starts one, once."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.vllm import VllmLLM
from gpu_rag.settings.sections import VllmSettings

TEMPLATE = (
    "{% for m in messages %}<|s|>{{ m['role'] }}\n{{ m['content'] }}<|e|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
START_S = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is marked; without vllm none of them runs."""
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if missing:
                item.add_marker(pytest.mark.skip(reason="vllm is not installed: scripts/install_vllm.sh"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    """A four-layer Llama without weights, with a byte-level tokenizer: what load_format=dummy needs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    out = tmp_path_factory.mktemp("models") / "tiny"
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|e|>", "<|s|>"], initial_alphabet=alphabet)
    raw.train_from_iterator(["the answer to the question is in the passage"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|e|>", pad_token="<|e|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=0,
    ).save_pretrained(out)
    return out


DUMMY = VllmSettings(load_format="dummy", max_model_len=4096, kv_cache_gib=0.25, max_num_seqs=8, dtype="float32")


@pytest.fixture(scope="session")
def dummy(tiny_folder) -> Iterator[VllmLLM]:
    """Random weights, the engine in a process of its own."""
    llm = VllmLLM(tiny_folder, name="tiny", settings=replace_child(DUMMY))
    yield llm
    llm.close()


def replace_child(settings: VllmSettings) -> VllmSettings:
    """The same engine in a child process."""
    return VllmSettings(**{**vars(settings), "child_process": True})


@pytest.fixture(scope="session")
def small() -> Iterator[VllmLLM]:
    """The packaged model in float32, the engine in this process."""
    settings = VllmSettings(max_model_len=2048, kv_cache_gib=0.5, max_num_seqs=8, dtype="float32")
    llm = load_llm("vllm:smollm2", settings=settings)
    assert isinstance(llm, VllmLLM)
    yield llm
    llm.close()


@pytest.fixture(scope="session")
def server(tiny_folder, tmp_path_factory) -> Iterator[str]:
    """vLLM's own OpenAI server with random weights; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path_factory.mktemp("server") / "log.txt").open("w+")
    words = ["--model", tiny_folder, "--served-model-name", "tiny", "--load-format", "dummy", "--enforce-eager"]
    words += ["--max-model-len", "4096", "--dtype", "float32", "--host", "127.0.0.1", "--port", port]
    words += ["--kv-cache-memory-bytes", 2**28, "--block-size", "32", "--enable-prompt-tokens-details"]
    words += ["--structured-outputs-config", '{"backend": "guidance", "disable_any_whitespace": true}']
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *map(str, words)],
        stdout=log,
        stderr=log,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        yield _address(port, process, Path(log.name))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def _address(port: int, process: subprocess.Popen, log: Path) -> str:
    import httpx

    url, end = f"http://127.0.0.1:{port}/v1", time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{url}/models", timeout=2, trust_env=False).status_code == 200:
                return url
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not start:\n{log.read_text()[-4000:]}")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A .jsonl file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
