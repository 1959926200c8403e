"""Vectors that are mapped from the file, as those of large indexes are: equal rankings, and no copy in memory."""

from pathlib import Path

import pytest

import gpu_rag
from gpu_rag.index import index as index_module
from gpu_rag.types import Question

FAST = {"models": {"embedder": "hash", "llm": "none"}}


@pytest.mark.parametrize("method", ["ppr", "bubblerag", "dense"])
def test_mapped_vectors_rank_as_copied_ones(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=[method], settings=FAST)
    questions = [Question(f"q{i}", text) for i, text in enumerate(("Who built it?", "Where did she live in 1902?"))]

    def ranked() -> list[list[tuple[str, float]]]:
        engine = gpu_rag.Index.open(tmp_path / "ix").engine(FAST)
        answers = engine.run(method, questions, retrieval_only=True).answers
        return [[(evidence.passage_id, evidence.score) for evidence in answer.evidence] for answer in answers]

    copied = ranked()
    monkeypatch.setattr(index_module, "MAPPED_FROM", -1)
    index = index_module.Index.open(tmp_path / "ix")
    assert index.vectors("passage_vectors").numpy().dtype == "float16"
    mapped = ranked()
    for few, many in zip(copied, mapped, strict=True):
        assert [name for name, _ in few] == [name for name, _ in many] and few
        assert [score for _, score in few] == pytest.approx([score for _, score in many], abs=1e-6)
