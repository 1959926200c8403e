"""Makes the golden files of HydraRAG again: python tests/golden/record_hydrarag.py

hydrarag_replies.jsonl, hydrarag_answers.json: the paths, phases and answers of some sample questions over the knowledge
graph that was extracted from the corpus, where rules answer, and over its documents alone, where the packaged language
model reads what was found; and what it said. Only questions whose paths and prompts stay the same when all vectors get
small noise, as another CPU's rounding might cause.

Make them again when a change is meant to alter topics, paths, pruning or prompts.
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

REPLIES, ANSWERS = HERE / "hydrarag_replies.jsonl", HERE / "hydrarag_answers.json"
LAYERS = ("passage_vectors", "kb_name_vectors", "kb_edge_vectors")
PARAMS: dict[str, dict[str, Any]] = {"all": {"d_max": 2, "w1": 20}, "documents": {"sources": "documents", "phases": 1}}
CANDIDATES = ("q01", "q02", "q03", "q04", "q05", "q06")
N_ANSWERED = 3


def settings(run: str) -> dict[str, Any]:
    """Those of the other golden runs, with a smaller search."""
    return merge(record.SETTINGS, {"method": {"hydrarag": PARAMS[run]}})


def build(folder: Path) -> gpu_rag.Index:
    """The index of the sample corpus for HydraRAG."""
    gpu_rag.build(corpus_path(), folder, methods=["hydrarag"], settings=record.SETTINGS)
    return gpu_rag.Index.open(folder)


def brief(answer: Answer) -> dict[str, Any]:
    """What is kept of an answer: text, evidence, tokens, phase, topics, and the paths."""
    kept = ("topics", "phase", "verified_by")
    steps = {step.verb: list(step.chosen) for step in answer.trace if step.verb in kept}
    paths = [[path.text, path.source] for path in answer.paths]
    return {
        **record.brief(answer),
        **steps,
        "paths": paths,
        "nodes": [node.name for node in answer.nodes[:3]],
    }


def answered(index: gpu_rag.Index, names: Sequence[str], llm: LLM) -> dict[str, Any]:
    """{run: {question id: brief answer}}."""
    return {run: _briefs(index.engine(settings(run), llm=llm), names) for run in PARAMS}


def _briefs(engine: Engine, names: Sequence[str]) -> dict[str, Any]:
    asked = [question for question in record.questions() if question.id in names]
    return {answer.question_id: brief(answer) for answer in engine.run("hydrarag", asked).answers}


def _noisy(folder: Path, seed: int) -> dict[str, Any]:
    """The same by replay, over vectors with noise and an embedder with noise."""
    generator = np.random.default_rng(seed)
    index = gpu_rag.Index.open(folder)
    for layer in LAYERS:
        held = index.vectors(layer)
        held += torch.from_numpy(generator.normal(0, record.NOISE, held.shape).astype(np.float32))
    found = {}
    for run in PARAMS:
        models = record.NoisyModels(index.engine(settings(run)).models, generator)
        models.llm = lambda: load_llm(f"replay:{REPLIES}")
        found[run] = _briefs(Engine(index, make_settings(settings(run)), models), CANDIDATES)
    return found


def _recorded(index: gpu_rag.Index, names: Sequence[str]) -> dict[str, Any]:
    REPLIES.unlink(missing_ok=True)
    llm = RecordingLLM(load_llm("smollm2", device="cpu"), REPLIES)
    found = answered(index, names, llm)
    llm.close()
    return found


def main() -> None:
    """Records, then keeps the questions that noise does not change, first those that the model was asked about."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "ix"
        index = build(folder)
        found = _recorded(index, CANDIDATES)
        noisy = [_noisy(folder, seed) for seed in range(record.N_NOISY)]
        sure = [q for q in CANDIDATES if all(n[run].get(q) == found[run][q] for n in noisy for run in PARAMS)]
        sure = sorted(sure, key=lambda q: (found["documents"][q]["tokens"][0] == 0, q))[:N_ANSWERED]
        found = _recorded(index, sure)  # again, without the questions that are not kept
    ANSWERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{REPLIES.name}, {ANSWERS.name}: {', '.join(sure)}")


if __name__ == "__main__":
    main()
