"""Makes the golden files of BubbleRAG again: python tests/golden/record_bubblerag.py

bubblerag_replies.jsonl, bubblerag_answers.json: what the packaged language model said to some sample questions, once
reading what bubbles by similarity found and once taking every choice itself (one tree, two hops), and the trees and
answers that this makes. Only questions whose every prompt stays the same when all vectors get small noise, as another
CPU's rounding might cause: they are answered again by replay to find out.

Make them again when a change is meant to alter keywords, groups, trees, their growth, passages or prompts.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gpu_rag
from gpu_rag.engine import Engine
from gpu_rag.models.llm import LLM, load_llm
from gpu_rag.models.llm.replay import RecordingLLM
from gpu_rag.sample import corpus_path
from gpu_rag.settings import make_settings, merge
from gpu_rag.types import Answer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import record  # noqa: E402  (beside this file)

REPLIES, ANSWERS = HERE / "bubblerag_replies.jsonl", HERE / "bubblerag_answers.json"
LAYERS = ("passage_vectors", "entity_vectors", "relation_vectors")
RUNS: dict[str, dict[str, Any]] = {
    "similarity": {
        "models": {"decider": "similarity"},
        "method": {"bubblerag": {"rank": "score"}},
        "reader": {"passages": 3},
    },
    "llm": {
        "models": {"decider": "llm"},
        "method": {"bubblerag": {"n_before": 2, "n_trees": 1, "depth": 2, "n_neighbours": 5, "max_picks": 2}},
        "reader": {"passages": 2},
    },
}
CANDIDATES = ("q01", "q02", "q03", "q05", "q07", "q09", "q12", "q13", "q16", "q18")
N_ANSWERED = 3


def settings_of(run: str) -> dict[str, Any]:
    """The settings of one kind of run."""
    return merge(record.SETTINGS, RUNS[run])


def build(folder: Path) -> gpu_rag.Index:
    """The index of the sample corpus for BubbleRAG."""
    gpu_rag.build(corpus_path(), folder, methods=["bubblerag"], settings=record.SETTINGS)
    return gpu_rag.Index.open(folder)


def brief(answer: Answer) -> dict[str, Any]:
    """What is kept of an answer: text, what was read, tokens, and each step."""
    told = ("keywords", "groups", "trees", "expand", "enough")
    steps = [[step.verb, step.n_candidates, *step.chosen] for step in answer.trace if step.verb.startswith(told)]
    kept = record.brief(answer)
    return {**kept, "evidence": kept["evidence"][:5], "steps": steps}


def answered(index: gpu_rag.Index, names: Sequence[str], llm: LLM) -> dict[str, dict[str, Any]]:
    """{run: {question id: brief answer}}."""
    asked = [question for question in record.questions() if question.id in names]
    engines = {run: index.engine(settings_of(run), llm=llm) for run in RUNS}
    return {run: _briefs(engine, asked) for run, engine in engines.items()}


def _briefs(engine: Engine, asked: Sequence[Any]) -> dict[str, Any]:
    return {answer.question_id: brief(answer) for answer in engine.run("bubblerag", asked).answers}


def _noisy(folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """The same by replay, over vectors with noise and an embedder with noise."""
    generator = np.random.default_rng(seed)
    index = gpu_rag.Index.open(folder)
    for layer in LAYERS:
        held = index.vectors(layer)
        held += torch.from_numpy(generator.normal(0, record.NOISE, held.shape).astype(np.float32))
    found = {}
    for run in RUNS:
        models = record.NoisyModels(index.engine(settings_of(run)).models, generator)
        models.llm = lambda: load_llm(f"replay:{REPLIES}")
        asked = [question for question in record.questions() if question.id in CANDIDATES]
        found[run] = _briefs(Engine(index, make_settings(settings_of(run)), models), asked)
    return found


def _recorded(index: gpu_rag.Index, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    REPLIES.unlink(missing_ok=True)
    llm = RecordingLLM(load_llm("smollm2", device="cpu"), REPLIES)
    found = answered(index, names, llm)
    llm.close()
    return found


def main() -> None:
    """Records, then keeps the questions that noise does not change."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "ix"
        index = build(folder)
        found = _recorded(index, CANDIDATES)
        noisy = [_noisy(folder, seed) for seed in range(record.N_NOISY)]
        sure = [q for q in CANDIDATES if all(n[r][q] == found[r][q] for n in noisy for r in RUNS)][:N_ANSWERED]
        found = _recorded(index, sure)  # again, without the questions that are not kept
    ANSWERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{REPLIES.name}, {ANSWERS.name}: {', '.join(sure)}")


if __name__ == "__main__":
    main()
