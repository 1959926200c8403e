"""A small sample corpus with questions, for the demonstration and for tests.

The corpus holds 75 short articles of our own on real people, places, works and voyages, in five clusters that meet:
the physics of radioactivity, composers of Leipzig and Vienna, Renaissance Florence and Milan, pioneers of computing,
and sea and polar exploration. Articles name one another's titles, and some share a surname on purpose. The 30
questions need two to four of the articles joined; `gold_ids` lists these in hop order.

Both files are JSON lines in UTF-8. A corpus row is {id, title, text}, where id is "p_" and the first 12 hex digits of
the SHA-1 of title, newline, text. A question row is {id, question, answers, hops, type, gold_ids}; type is "bridge"
(two hops), "chain" (three or four) or "comparison".
"""

from importlib.resources import files
from pathlib import Path

__all__ = ["corpus_path", "questions_path"]


def corpus_path() -> Path:
    """The file of the sample corpus: 75 JSON lines of {id, title, text}."""
    return Path(str(files(__name__) / "corpus.jsonl"))


def questions_path() -> Path:
    """The file of the sample questions: 30 JSON lines of {id, question, answers, hops, type, gold_ids}."""
    return Path(str(files(__name__) / "questions.jsonl"))
