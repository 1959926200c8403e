"""Names in questions: the entities and passages that a question names, found in the same way for every method.

Names are found word by word, see `index.name_table`; their tables come with the index.
  m(e) = g / passages that name e, for the entities that the question names, scaled to sum to 1; g is COMMON if the
         question writes the name without a capital, else 1: "the spouse" says little, even if it is rare
  t(p) = the passages whose titles the question names, a title's share divided among its passages, scaled to sum to 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_rag.index.index import Index
from gpu_rag.index.name_table import ARRAYS, NAMES, NameTable, Words, words_of
from gpu_rag.index.titles import BRACKET
from gpu_rag.program.walk import Listed, scaled

COMMON = 0.1  # weight of a name without a capital in the question


# --- entities --------------------------------------------------------------------------------------


def entity_names(index: Index) -> NameTable:
    """The index's entities by name, by name without a final bracket, and by aliases that belong to only one entity."""
    return index.loaded("names of entities", lambda index: NameTable(index.arrays("entity_names", NAMES, *ARRAYS)))


def entity_seeds(table: NameTable, texts: Sequence[Words], counts: np.ndarray) -> list[dict[int, float]]:
    """Unscaled m of each text. counts: i64[N], the number of passages of each entity."""
    seeds = []
    for names in table.names_in(texts):
        weights: dict[int, float] = {}
        for rows, capital in names:
            for row in rows:
                weight = (1.0 if capital else COMMON) / (len(rows) * max(int(counts[row]), 1))
                weights[row] = max(weight, weights.get(row, 0.0))
        seeds.append(weights)
    return seeds


# --- titles ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Titles:
    """Passages by the words of their titles, in full and without a final bracket. titles: titles of all passages."""

    table: NameTable
    titles: Sequence[str]

    def hints(self, passage: int) -> frozenset[str] | None:
        """The words in the final bracket of a passage's title; None if it has no bracket."""
        bracket = BRACKET.search(self.titles[passage])
        return frozenset(words_of(bracket[1]).folded) if bracket else None


def title_names(index: Index) -> Titles:
    """The titles of an index that at most MAX_PASSAGES passages share."""
    return index.loaded(
        "names of titles",
        lambda index: Titles(NameTable(index.arrays("title_names", NAMES, *ARRAYS)), index.passage_titles),
    )


def title_seeds(titles: Titles, texts: Sequence[Words]) -> list[dict[int, float]]:
    """Unscaled t of each text, for titles that it writes with a capital. Among titles that differ only in brackets,
    the titles whose bracket shares most words with the question count; if none does, the titles without a bracket."""
    seeds = []
    for text, names in zip(texts, titles.table.names_in(texts)):
        weights: dict[int, float] = {}
        for rows, capital in names:
            if not capital:
                continue
            if len(rows) > 1:
                question_words = set(text.folded)
                hints = [titles.hints(row) for row in rows]
                fit = [(len(question_words & (words or set())), words is None) for words in hints]
                rows = tuple(row for row, fitness in zip(rows, fit) if fitness == max(fit))
            weights.update(dict.fromkeys(rows, 1 / len(rows)))
        seeds.append(weights)
    return seeds


def spread(lists: Sequence[Mapping[int, float]]) -> Listed:
    """The weights of each list, scaled to sum to 1 per row, and their rows; rows are padded with the first entry."""
    width = max(map(len, lists), default=0)
    rows, weights = np.zeros((len(lists), width), np.int64), np.zeros((len(lists), width))
    for row, weight, seeds in zip(rows, weights, lists):
        if seeds:
            row[:], row[: len(seeds)], weight[: len(seeds)] = next(iter(seeds)), list(seeds), list(seeds.values())
    return rows, scaled(weights)
