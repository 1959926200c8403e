"""Scores of one question: of retrieved documents or nodes, and exact match and token F1 of an answer."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

SPECIAL = frozenset({"yes", "no", "noanswer"})  # answers that are right only as a whole
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def ranked_documents(doc_ids: Sequence[str]) -> list[str]:
    """The documents of a passage ranking, each at the rank of its best passage."""
    return list(dict.fromkeys(doc_ids))


def recall_at(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    """|top k intersect gold| / |gold|, over distinct documents. `gold` is not empty."""
    wanted = set(gold)
    return len(wanted.intersection(ranking[:k])) / len(wanted)


def whole_at(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    """1 when the top k contain every gold document (the whole chain of a multi-hop question), else 0."""
    return float(set(gold) <= set(ranking[:k]))


def hit_at(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    """1 when one of the top k is gold, else 0 (STaRK's Hit@k)."""
    return float(not set(gold).isdisjoint(ranking[:k]))


def reciprocal_rank(ranking: Sequence[str], gold: Sequence[str]) -> float:
    """1 / the rank of the first gold item, from 1; 0 if none is ranked. Its mean is STaRK's MRR."""
    wanted = set(gold)
    return next((1 / place for place, item in enumerate(ranking, 1) if item in wanted), 0.0)


def retrieval_f1_at(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    """Harmonic mean of precision (over the at most k retrieved) and recall of the top k."""
    shown, wanted = ranking[:k], set(gold)
    hits = len(wanted.intersection(shown))
    return 2 * hits / (len(shown) + len(wanted)) if hits else 0.0


def normalise_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, single spaces (the SQuAD convention)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str | None, gold: Sequence[str]) -> float:
    """1 when the normalised answer equals one of the normalised gold answers, else 0."""
    return float(answer is not None and normalise_answer(answer) in {normalise_answer(g) for g in gold})


def token_f1(answer: str | None, gold: Sequence[str]) -> float:
    """The best token F1 over the gold answers; yes / no / noanswer count only when equal."""
    if answer is None:
        return 0.0
    return max((_pair_f1(normalise_answer(answer), normalise_answer(g)) for g in gold), default=0.0)


def truthfulness(answer: str | None, answered: bool, gold: Sequence[str], right: bool | None = None) -> float:
    """CRAG's three-way score: 1 for a right answer, 0 for a missing one, -1 for a wrong one.

    answered: whether the answer counts (an unsupported one is missing). right: a judge's verdict; without one an answer
    is right if it equals a gold answer after normalisation.
    """
    if not answered or answer is None or not answer.strip():
        return 0.0
    return 1.0 if (bool(exact_match(answer, gold)) if right is None else right) else -1.0


def _pair_f1(answer: str, gold: str) -> float:
    if (answer in SPECIAL or gold in SPECIAL) and answer != gold:
        return 0.0
    common = sum((Counter(answer.split()) & Counter(gold.split())).values())
    return 2 * common / (len(answer.split()) + len(gold.split())) if common else 0.0
