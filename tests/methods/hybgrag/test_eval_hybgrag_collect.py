"""Experiences of HybGRAG are collected on questions with gold nodes, and can be read by the method."""

from __future__ import annotations

import json
from pathlib import Path

from project_scripts import script

import gpu_rag
from gpu_rag.methods.hybgrag.examples import read_examples

FAST = {"models": {"embedder": "hash", "llm": "none"}}
NODES = [
    ("f1", "film", "Harbour of Glass"), ("f2", "film", "Night Ferry"), ("f3", "film", "Salt"),
    ("p1", "person", "Marta Orlo"), ("p2", "person", "Piet Ruyven"), ("g1", "genre", "drama"),
    ("g2", "genre", "comedy"),
]  # fmt: skip
EDGES = [
    ("f1", "directed_by", "p1"), ("f2", "directed_by", "p1"), ("f3", "directed_by", "p2"), ("f1", "has_genre", "g1"),
    ("f2", "has_genre", "g2"), ("f3", "has_genre", "g1"), ("f3", "starred", "p1"),
]  # fmt: skip
QUESTIONS = [
    ("q1", "Which comedy did Marta Orlo direct?", ["f2"]),
    ("q2", "Which drama did Marta Orlo star in?", ["f3"]),
    ("q3", "Which film did Marta Orlo direct with Piet Ruyven?", ["f3"]),
    ("q4", "Which comedy is by Piet Ruyven?", ["g1"]),
]


def test_collected_experiences_are_verified_pairs_that_the_method_reads(tmp_path: Path) -> None:
    skb, out = tmp_path / "skb", tmp_path / "experiences.jsonl"
    skb.mkdir()
    rows = {
        skb / "nodes.jsonl": [dict(zip(("id", "type", "name"), node)) for node in NODES],
        skb / "edges.jsonl": [dict(zip(("src", "relation", "dst"), edge)) for edge in EDGES],
        tmp_path / "q.jsonl": [dict(zip(("id", "question", "answer_ids"), one)) for one in QUESTIONS],
    }
    for path, some in rows.items():
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    gpu_rag.build((), tmp_path / "ix", skb=skb, methods=["hybgrag"], settings=FAST)
    module = script("eval_hybgrag")
    module.collect(str(tmp_path / "ix"), str(tmp_path / "q.jsonl"), out, 5)
    found = read_examples(str(out), "", True)
    assert 1 <= len(found) <= 5 and {e.question for e in found} <= {text for _, text, _ in QUESTIONS}
    assert all(e.feedback is not None for e in found)
    module.collect(str(tmp_path / "ix"), str(tmp_path / "q.jsonl"), out, 1)
    assert read_examples(str(out), "", True) == found[:1]
    index = gpu_rag.Index.open(tmp_path / "ix")
    settings = {**FAST, "method": {"hybgrag": {"experiences": str(out)}}}
    (answer,) = index.answer(QUESTIONS[0][1], method="hybgrag", settings=settings, retrieval_only=True)
    assert answer.error is None and answer.nodes
