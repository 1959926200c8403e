"""Names that stand for several things, under a filter: nothing is looked up by its name alone."""

import json
import random
from pathlib import Path

import pytest

import gpu_rag
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.types import Request

NAMES, TYPES = ("Mercury", "Venus", "Mars", "Pallas"), ("planet", "metal", "god", "")
SETTINGS = {
    "models": {"embedder": "hash", "capable": True}, "index": {"extractor": "llm"},
    "alignment": {"decider": "similarity"},
}  # fmt: skip


def extraction(draw: random.Random) -> str:
    """Entities of which some share a name, and relations between their names."""
    kinds = sorted({(draw.choice(NAMES), draw.choice(TYPES)) for _ in range(draw.randint(1, 5))})
    entities = [
        {"name": name, "aliases": draw.sample(NAMES, 1) if draw.random() < 0.2 else [], "types": [kind] if kind else [],
         "description": ""}
        for name, kind in kinds
    ]  # fmt: skip
    ends = [entity["name"] for entity in entities]
    triples = [[draw.choice(ends), draw.choice(["near", "like"]), draw.choice(ends)] for _ in range(3)]
    return json.dumps({"entities": entities, "triples": triples})


@pytest.mark.parametrize("seed", range(6))
def test_each_part_of_the_index_answers(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    replies = {f"marker{i}x": extraction(draw) for i in range(5)}
    rows = [
        {"id": f"d{i}", "title": "", "text": f"{mark} {' '.join(NAMES)}.", "metadata": {"n": i}}
        for i, mark in enumerate(replies)
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def extract(request: Request) -> str:
        return next(reply for mark, reply in replies.items() if mark in request.prompt)

    given = {"methods": ["higra-retriever"], "settings": SETTINGS, "llm": ScriptedLLM(extract)}
    with gpu_rag.build(tmp_path / "c.jsonl", tmp_path / "ix", **given) as index:
        for where, kept in (("n <= 2", {"d0", "d1", "d2"}), ("n >= 3", {"d3", "d4"}), ("n = 1", {"d1"})):
            result = index.retrieve("What is Mercury near?", method="higra-retriever", where=where, llm="none")
            assert result.error is None and {passage.passage_id for passage in result.evidence} == kept
