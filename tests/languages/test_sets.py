"""The question sets in several languages: the same passages, questions and golds in each."""

import json
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LANGUAGES = sorted(path.stem for path in HERE.glob("??.jsonl"))


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_set_has_the_ids_and_golds_of_the_english_one(language: str) -> None:
    passages, questions = _rows(language), _rows(f"questions_{language}")
    assert [row["id"] for row in passages] == [f"p{n:03}" for n in range(1, 301)]
    assert len({row["text"] for row in passages}) == len({row["title"] for row in passages}) == 300
    english = [(row["id"], row["gold_ids"]) for row in _rows("questions_en")]
    assert [(row["id"], row["gold_ids"]) for row in questions] == english and len(english) == 30
    assert all(row["question"].strip() and row["answer"].strip() for row in questions)
    assert {gold for row in questions for gold in row["gold_ids"]} <= {row["id"] for row in passages}


def test_each_question_has_five_near_distractors() -> None:
    """A near distractor holds a name that the question shares with its first gold passage."""
    texts = {row["id"]: f"{row['title']} {row['text']}" for row in _rows("en")}
    for row in _rows("questions_en"):
        gold = texts[row["gold_ids"][0]]
        words = re.findall(r"\b(?:[A-Z]\w+|krell|marrin|tolleball)", row["question"][1:])
        names = [name for name in words if name in gold]
        near = {key for key, text in texts.items() if any(name in text for name in names)} - set(row["gold_ids"])
        assert len(near) >= 5, row["id"]


def test_no_text_is_that_of_another_language() -> None:
    texts: dict[str, str] = {}
    for language in LANGUAGES:
        rows = [row["text"] for row in _rows(language)] + [row["question"] for row in _rows(f"questions_{language}")]
        for text in rows:
            assert texts.setdefault(text, language) == language, text
