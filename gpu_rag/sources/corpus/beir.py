"""The relevance judgements of a BEIR folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpu_rag.sources.lines import read_lines
from gpu_rag.sources.rows import Limits, shown
from gpu_rag.types import Reject

_HEADER = ["query-id", "corpus-id", "score"]


class Qrels:
    """Judgements of one qrels file: query id -> {document id: score}, in the order of the file."""

    def __init__(self) -> None:
        self.scores: dict[str, dict[str, int]] = {}
        self.lines: dict[str, int] = {}

    def gold_ids(self, query: str) -> tuple[str, ...]:
        """The documents with a score above 0, in the order of the file."""
        return tuple(document for document, score in self.scores.get(query, {}).items() if score > 0)


def read_qrels(path: Path, limits: Limits, into: Qrels) -> Iterator[Reject]:
    """Read lines "query-id TAB corpus-id TAB score" of `path` into `into`; a line that is not so is a Reject.

    A first line with BEIR's header is passed over. A pair judged twice keeps the first score; the second is a Reject.
    """
    for line in read_lines(path, limits):
        if isinstance(line, Reject):
            yield line
            continue
        fields = line.text.rstrip("\t").split("\t")
        if line.number == 1 and fields == _HEADER:
            continue
        problem = _judgement(fields, line.number, into)
        if problem:
            yield Reject(shown(path), line.number, problem)


def _judgement(fields: list[str], number: int, into: Qrels) -> str:
    """Take one line; returns what is wrong with it, or ""."""
    if len(fields) != 3 or not all(fields):
        return f"{len(fields)} fields; expected query-id, corpus-id and score between tabs"
    query, document, score = fields
    if not (score.lstrip("-").isdecimal() and len(score) < 10):
        return f"the score {score[:40]!r} is not an integer"
    judged = into.scores.setdefault(query, {})
    if document in judged:
        return f"{document!r} was already judged for {query!r}"
    judged[document] = int(score)
    into.lines.setdefault(query, number)
    return ""
