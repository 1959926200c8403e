"""Makes the golden files of HybGRAG again: python tests/golden/record_hybgrag.py

hybgrag_replies.jsonl, hybgrag_answers.json: what the packaged language model said to some sample questions, once
reading after a loop by rules and once judging the references itself, and the refinement paths and answers that this
makes. The knowledge base is what is extracted from the sample corpus. Only questions whose every prompt stays the same
when all vectors get small noise, as another CPU's rounding might cause: they are answered again by replay to find out.

Make them again when a change is meant to alter the knowledge base, the rules, the critic or prompts.
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

REPLIES, ANSWERS = HERE / "hybgrag_replies.jsonl", HERE / "hybgrag_answers.json"
LAYERS = ("passage_vectors", "kb_name_vectors", "kb_relation_vectors", "kb_text_vectors")
WALKS: dict[str, dict[str, Any]] = {
    "similarity": {"models": {"decider": "similarity"}, "reader": {"passages": 2}},
    "llm": {
        "models": {"decider": "llm"},
        "method": {"hybgrag": {"iterations": 3, "n_references": 1, "n_examples": 2}},
        "reader": {"passages": 2},
    },
}
CANDIDATES = ("q01", "q02", "q03", "q05", "q07")
N_ANSWERED = 3


def settings_of(walk: str) -> dict[str, Any]:
    """The settings of one kind of run."""
    return merge(record.SETTINGS, WALKS[walk])


def build(folder: Path) -> gpu_rag.Index:
    """The index of the sample corpus for HybGRAG."""
    gpu_rag.build(corpus_path(), folder, methods=["hybgrag"], settings=record.SETTINGS)
    return gpu_rag.Index.open(folder)


def brief(answer: Answer) -> dict[str, Any]:
    """What is kept of an answer: text, evidence, tokens, nodes, and the refinement path."""
    told = [[step.verb, step.n_candidates, *step.chosen] for step in answer.trace if step.verb.startswith("hybgrag_")]
    nodes = [node.id for node in answer.nodes[:5]]
    return {**record.brief(answer), "nodes": nodes, "path": told[:-1]}


def answered(index: gpu_rag.Index, names: Sequence[str], llm: LLM) -> dict[str, dict[str, Any]]:
    """{run: {question id: brief answer}}."""
    asked = [question for question in record.questions() if question.id in names]
    engines = {walk: index.engine(settings_of(walk), llm=llm) for walk in WALKS}
    return {walk: _briefs(engine, asked) for walk, engine in engines.items()}


def _briefs(engine: Engine, asked: Sequence[Any]) -> dict[str, Any]:
    return {answer.question_id: brief(answer) for answer in engine.run("hybgrag", asked).answers}


def _noisy(folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """The same by replay, over vectors with noise and an embedder with noise."""
    generator = np.random.default_rng(seed)
    index = gpu_rag.Index.open(folder)
    for layer in LAYERS:
        held = index.vectors(layer)
        held += torch.from_numpy(generator.normal(0, record.NOISE, held.shape).astype(np.float32))
    found = {}
    for walk in WALKS:
        models = record.NoisyModels(index.engine(settings_of(walk)).models, generator)
        models.llm = lambda: load_llm(f"replay:{REPLIES}")
        asked = [question for question in record.questions() if question.id in CANDIDATES]
        found[walk] = _briefs(Engine(index, make_settings(settings_of(walk)), models), asked)
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
        sure = [q for q in CANDIDATES if all(n[w][q] == found[w][q] for n in noisy for w in WALKS)][:N_ANSWERED]
        found = _recorded(index, sure)  # again, without the questions that are not kept
    ANSWERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{REPLIES.name}, {ANSWERS.name}: {', '.join(sure)}")


if __name__ == "__main__":
    main()
