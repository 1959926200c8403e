"""Makes the golden files of HydraRAG again: python tests/golden/record_hydrarag.py

hydrarag_replies.jsonl, hydrarag_answers.json: the paths, phases and answers of some sample questions over the knowledge
graph that was extracted from the corpus, where rules answer, and over its documents alone, where the packaged language
model reads what was found; and what it said. Only questions whose paths and prompts stay the same when all vectors get
small noise, as another CPU's rounding might cause.

Make them again when a change is meant to alter topics, paths, pruning or prompts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gpu_rag.types import Answer

sys.path.insert(0, str(Path(__file__).resolve().parent))
import record
from replays import Found, Recording

LAYERS = ("passage_vectors", "kb_name_vectors", "kb_edge_vectors")
RUNS: dict[str, dict[str, Any]] = {
    "all": {"method": {"hydrarag": {"d_max": 2, "w1": 20}}},
    "documents": {"method": {"hydrarag": {"sources": "documents", "phases": 1}}},
}
CANDIDATES = ("q01", "q02", "q03", "q04", "q05", "q06")
N_ANSWERED = 3


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


def by_request(found: Found, question: str) -> tuple[bool, str]:
    """First the questions that the model was asked about."""
    return found["documents"][question]["tokens"][0] == 0, question


RECORDING = Recording("hydrarag", LAYERS, RUNS, CANDIDATES, N_ANSWERED, brief, by_request)

if __name__ == "__main__":
    RECORDING.record()
