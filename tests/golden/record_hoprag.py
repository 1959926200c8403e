"""Makes the golden files of HopRAG again: python tests/golden/record_hoprag.py

hoprag_replies.jsonl, hoprag_answers.json: what the packaged language model said to some sample questions, once reading
after a walk by similarity and once choosing every hop itself (a shorter walk), and the walks and answers that this
makes. Only questions whose every prompt stays the same when all vectors get small noise, as another CPU's rounding
might cause: they are answered again by replay to find out.

Make them again when a change is meant to alter questions, edges, walks or prompts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gpu_rag.types import Answer

sys.path.insert(0, str(Path(__file__).resolve().parent))
import record
from replays import Recording

LAYERS = ("passage_vectors", "hop_in_vectors", "hop_vertex_vectors")
RUNS: dict[str, dict[str, Any]] = {
    "similarity": {"models": {"decider": "similarity"}},
    "llm": {
        "models": {"decider": "llm"},
        "method": {"hoprag": {"top_k": 3, "n_hop": 2}},
        "constants": {"n_options": 4},
        "reader": {"passages": 2},
    },
}
CANDIDATES = ("q01", "q02", "q03", "q05", "q07", "q09", "q12", "q13")
N_ANSWERED = 3


def brief(answer: Answer) -> dict[str, Any]:
    """What is kept of an answer: text, evidence, tokens, and the walk."""
    walk = [[step.verb, step.n_candidates, *step.chosen] for step in answer.trace if step.verb.startswith("hop_")]
    return {**record.brief(answer), "walk": walk[:-1]}


RECORDING = Recording("hoprag", LAYERS, RUNS, CANDIDATES, N_ANSWERED, brief)

if __name__ == "__main__":
    RECORDING.record()
