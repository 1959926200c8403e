"""Makes the golden files of HiGraAgent's methods again: python tests/golden/record_higra.py

higra_replies.jsonl, higra_answers.json: what the packaged language model said to some sample questions under each
method, and the answers and plans that this makes. Only questions whose every prompt stays the same when all vectors get
small noise, as another CPU's rounding might cause: they are answered again by replay to find out.

Make them again when a change is meant to alter seeds, rankings, plans or prompts.
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
from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.replay import RecordingLLM
from gpu_rag.sample import corpus_path
from gpu_rag.settings import make_settings
from gpu_rag.types import Answer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import record  # noqa: E402  (beside this file)

REPLIES, ANSWERS = HERE / "higra_replies.jsonl", HERE / "higra_answers.json"
METHODS = ("higra-retriever", "dual-agent", "higra-agent")
LAYERS = ("passage_vectors", "higra_entity_vectors", "higra_relation_vectors")
CANDIDATES = ("q02", "q03", "q07", "q09", "q13", "q16", "q18")
N_ANSWERED = 3


def build(folder: Path) -> gpu_rag.Index:
    """The index of the sample corpus for the three methods."""
    gpu_rag.build(corpus_path(), folder, methods=METHODS, settings=record.SETTINGS)
    return gpu_rag.Index.open(folder)


def brief(answer: Answer) -> dict[str, Any]:
    """What is kept of an answer: text, evidence, tokens, and the dialogue."""
    told = [[step.verb, *step.chosen] for step in answer.trace if step.verb.startswith(("plan", "ask_", "seeker"))]
    return {**record.brief(answer), "dialogue": told}


def answered(engine: Engine, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """{method: {question id: brief answer}}."""
    asked = [question for question in record.questions() if question.id in names]
    return {m: {a.question_id: brief(a) for a in engine.run(m, asked).answers} for m in METHODS}


def _noisy(folder: Path, seed: int) -> Engine:
    """An engine by replay over vectors with noise, and an embedder with noise."""
    generator = np.random.default_rng(seed)
    index = gpu_rag.Index.open(folder)
    for layer in LAYERS:
        held = index.vectors(layer)
        held += torch.from_numpy(generator.normal(0, record.NOISE, held.shape).astype(np.float32))
    plain = index.engine(record.SETTINGS)
    models = record.NoisyModels(plain.models, generator)
    models.llm = lambda: load_llm(f"replay:{REPLIES}")
    return Engine(index, make_settings(record.SETTINGS), models)


def main() -> None:
    """Records, then keeps the questions that noise does not change."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "ix"
        index = build(folder)
        REPLIES.unlink(missing_ok=True)
        llm = RecordingLLM(load_llm("smollm2", device="cpu"), REPLIES)
        found = answered(index.engine(record.SETTINGS, llm=llm), CANDIDATES)
        llm.close()
        noisy = [answered(_noisy(folder, seed), CANDIDATES) for seed in range(record.N_NOISY)]
        sure = [q for q in CANDIDATES if all(n[m][q] == found[m][q] for n in noisy for m in METHODS)][:N_ANSWERED]
        REPLIES.unlink()
        llm = RecordingLLM(load_llm("smollm2", device="cpu"), REPLIES)  # again, without the questions that are not kept
        found = answered(index.engine(record.SETTINGS, llm=llm), sure)
        llm.close()
    ANSWERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{REPLIES.name}, {ANSWERS.name}: {', '.join(sure)} by {', '.join(METHODS)}")


if __name__ == "__main__":
    main()
