#!/usr/bin/env python
"""Compare our backend (VllmLLM.complete over a server, behind CachedLLM) with the offline LLM.generate of vLLM.

Server and offline engine have the same options and take turns over the same prompts. Every repetition has new prompts,
so that both find only the shared head in their prefix caches. Both sides tokenize, generate greedily and turn tokens
into text. Prints a table and, as the last line, one JSON document.

    .venv-vllm/bin/python scripts/bench_vllm.py --prompts 48 --repeats 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.vllm import CPU_BLOCK_TOKENS, VllmLLM, environment, window
from gpu_rag.models.pretrained import load_tokenizer
from gpu_rag.models.set import pick_device
from gpu_rag.models.stored import model_folder
from gpu_rag.settings.sections import VllmSettings
from gpu_rag.types import Reply, Request

SYSTEM = "You tell a short story about what is in the note. Use plain words and go on until you are stopped."


def prompts(n: int, repetition: int, words: int) -> list[str]:
    """Invented notes of about `words` words, which differ in every repetition from the first word on."""
    return [
        " ".join(f"Note {repetition}-{i}-{k}: the {i + k}th boat of harbour {repetition}." for k in range(words // 8))
        for i in range(n)
    ]


def ours(llm: VllmLLM, texts: list[str], max_tokens: int, file: Path) -> dict[str, Any]:
    """Run the prompts through our backend and its reply file."""
    cached = CachedLLM(llm, file)
    requests = [Request(SYSTEM, text, max_tokens=max_tokens) for text in texts]
    began = time.perf_counter()
    replies = cached.complete(requests)
    spent = time.perf_counter() - began
    kept = len(cached)
    cached.file.close()
    good = [reply for reply in replies if isinstance(reply, Reply)]
    assert len(good) == kept == len(texts)
    return {"s": spent, "tokens": sum(reply.n_generated for reply in good), "texts": [r.text for r in good]}


def theirs(llm: Any, parameters: Any, tokenizer: Any, texts: list[str]) -> dict[str, Any]:
    """Run the rendered prompts through LLM.generate."""
    rendered = [
        tokenizer.apply_chat_template(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
            tokenize=False,
            add_generation_prompt=True,
        )
        for text in texts
    ]
    began = time.perf_counter()
    outputs = llm.generate(rendered, parameters, use_tqdm=False)
    spent = time.perf_counter() - began
    made = [output.outputs[0] for output in outputs]
    tokens = sum(len(result.token_ids) - (result.finish_reason == "stop") for result in made)  # without the end token
    return {"s": spent, "tokens": tokens, "texts": [result.text for result in made]}


def compared(ours: dict[str, Any], theirs: dict[str, Any], equal: int) -> dict[str, float]:
    """Generated tokens per second of both sides, and their ratio."""
    rates = {"ours": ours["tokens"] / ours["s"], "theirs": theirs["tokens"] / theirs["s"]}
    return {**rates, "ratio": rates["ours"] / rates["theirs"], "equal_texts": equal}


def main() -> None:
    """Run both sides in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a folder, a fetched repository, or smollm2")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--words", type=int, default=120, help="of a prompt")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device, folder = pick_device(options.device), model_folder(options.model)
    settings = VllmSettings(max_model_len=2048, gpu_memory_utilization=0.4)
    backend = VllmLLM(folder, name=options.model, device=device, settings=settings)
    os.environ.update(environment(settings, device, 1))
    from vllm import LLM, SamplingParams

    same: dict[str, Any] = {"max_model_len": settings.max_model_len, "max_num_seqs": window(settings, device) // 2}
    if device == "cpu":
        same |= {"block_size": CPU_BLOCK_TOKENS, "kv_cache_memory_bytes": 2**30, "enforce_eager": True}
    memory = settings.gpu_memory_utilization
    offline = LLM(model=str(folder), generation_config="vllm", gpu_memory_utilization=memory, **same)
    parameters, tokenizer = SamplingParams(temperature=0.0, max_tokens=options.max_tokens), load_tokenizer(folder)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for repetition in range(options.repeats + 1):  # the first one warms up
            texts = prompts(options.prompts, repetition, options.words)
            file = Path(scratch) / f"{repetition}.sqlite"
            sides: dict[str, Callable[[], dict[str, Any]]] = {
                "ours": partial(ours, backend, texts, options.max_tokens, file),
                "theirs": partial(theirs, offline, parameters, tokenizer, texts),
            }
            order = ["ours", "theirs"] if repetition % 2 else ["theirs", "ours"]
            run = {name: sides[name]() for name in order}
            equal = sum(a == b for a, b in zip(run["ours"].pop("texts"), run["theirs"].pop("texts")))
            if repetition:
                rows.append(compared(run["ours"], run["theirs"], equal))
                print(json.dumps(rows[-1]), flush=True)
    backend.close()
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(json.dumps({**vars(options), "device": device, "medians": medians, "runs": rows}))


if __name__ == "__main__":
    main()
