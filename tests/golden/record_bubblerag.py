"""Makes the golden files of BubbleRAG again: python tests/golden/record_bubblerag.py

bubblerag_replies.jsonl, bubblerag_answers.json: what the packaged language model said to some sample questions, once
reading what bubbles by similarity found and once taking every choice itself (one tree, two hops), and the trees and
answers that this makes. Only questions whose every prompt stays the same when all vectors get small noise, as another
CPU's rounding might cause: they are answered again by replay to find out.

Make them again when a change is meant to alter keywords, groups, trees, their growth, passages or prompts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gpu_rag.types import Answer

sys.path.insert(0, str(Path(__file__).resolve().parent))
import record
from replays import Recording

LAYERS = ("passage_vectors", "entity_vectors", "relation_vectors")
RUNS: dict[str, dict[str, Any]] = {
    "similarity": {
        "models": {"decider": "similarity"},
        "method": {"bubblerag": {"rank": "score"}},
        "reader": {"passages": 3},
    },
    "llm": {
        "models": {"decider": "llm"},
        "method": {"bubblerag": {"n_trees": 1, "depth": 2}},
        "constants": {"n_before": 2, "n_neighbours": 5, "max_picks": 2},
        "reader": {"passages": 2},
    },
}
CANDIDATES = ("q01", "q02", "q03", "q05", "q07", "q09", "q12", "q13", "q16", "q18")
N_ANSWERED = 3


def brief(answer: Answer) -> dict[str, Any]:
    """What is kept of an answer: text, what was read, tokens, and each step."""
    told = ("keywords", "groups", "trees", "expand", "enough")
    steps = [[step.verb, step.n_candidates, *step.chosen] for step in answer.trace if step.verb.startswith(told)]
    kept = record.brief(answer)
    return {**kept, "evidence": kept["evidence"][:5], "steps": steps}


RECORDING = Recording("bubblerag", LAYERS, RUNS, CANDIDATES, N_ANSWERED, brief)

if __name__ == "__main__":
    RECORDING.record()
