"""Makes the golden files of HybGRAG again: python tests/golden/record_hybgrag.py

hybgrag_replies.jsonl, hybgrag_answers.json: what the packaged language model said to some sample questions, once
reading after a loop by rules and once judging the references itself, and the refinement paths and answers that this
makes. The knowledge base is what is extracted from the sample corpus. Only questions whose every prompt stays the same
when all vectors get small noise, as another CPU's rounding might cause: they are answered again by replay to find out.

Make them again when a change is meant to alter the knowledge base, the rules, the critic or prompts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gpu_rag.types import Answer

sys.path.insert(0, str(Path(__file__).resolve().parent))
import record
from replays import Recording

LAYERS = ("passage_vectors", "kb_name_vectors", "kb_relation_vectors", "kb_text_vectors")
RUNS: dict[str, dict[str, Any]] = {
    "similarity": {"models": {"decider": "similarity"}, "reader": {"passages": 2}},
    "llm": {
        "models": {"decider": "llm"},
        "method": {"hybgrag": {"iterations": 3, "n_examples": 2}},
        "constants": {"n_references": 1},
        "reader": {"passages": 2},
    },
}
CANDIDATES = ("q01", "q02", "q03", "q05", "q07")
N_ANSWERED = 3


def brief(answer: Answer) -> dict[str, Any]:
    """What is kept of an answer: text, evidence, tokens, nodes, and the refinement path."""
    told = [[step.verb, step.n_candidates, *step.chosen] for step in answer.trace if step.verb.startswith("hybgrag_")]
    nodes = [node.id for node in answer.nodes[:5]]
    return {**record.brief(answer), "nodes": nodes, "path": told[:-1]}


RECORDING = Recording("hybgrag", LAYERS, RUNS, CANDIDATES, N_ANSWERED, brief)

if __name__ == "__main__":
    RECORDING.record()
