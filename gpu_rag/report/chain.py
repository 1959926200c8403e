"""The chain of a question: its gold passages, the facts that connect them, and their rank in each method.

It is shown as a tree for a terminal (`chain_text`). The gold passages must be known.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_rag.text.sentences import split_sentences
from gpu_rag.types import Answer

if TYPE_CHECKING:
    from gpu_rag.index.index import Index

Fact = tuple[int, str, int]  # entity row, label, entity row

_COLUMNS = 100  # per line in the terminal
DEPTH = 5  # passages of each method that are searched


@dataclass(frozen=True)
class Stop:
    """A passage of the chain: its parent stop (-1: the question), the facts that lead to it, and its relevant
    sentences.

    ranks: by method, from 1; None if the method did not return the passage.
    """

    title: str
    parent: int
    facts: tuple[str, ...]
    sentences: tuple[str, ...]
    ranks: dict[str, int | None]


def chain_of(
    index: Index, gold_ids: Sequence[str], gold_answers: Sequence[str], answers: Mapping[str, Answer]
) -> list[Stop]:
    """The stops of a question, in the order of its gold documents. answers: by method.

    The sentences of a stop support the first method's answer, or have a gold answer. The parent of a stop is the latest
    earlier stop with a fact about an entity that both passages mention. Preferred are entities that name this stop and
    not the parent, then entities whose facts reach the titles, then rare entities. Without such a fact the parent is
    the question.
    """
    rows = [index.passage_doc_ids.index(gold) for gold in gold_ids]
    titles = [index.passages["title"][row].as_py() for row in rows]
    facts, mentioned = _facts(index, rows), _mentioned(index, rows)
    support = {(s.passage_id, s.start) for s in next(iter(answers.values())).support}
    ranked = {method: [e.passage_id for e in answer.evidence[:DEPTH]] for method, answer in answers.items()}
    stops = []
    for n, row in enumerate(rows):
        joined = ((parent, _joining(index, titles, facts, mentioned, parent, n)) for parent in reversed(range(n)))
        parent, leading = next((candidate for candidate in joined if candidate[1]), (-1, ()))
        passage = index.passage_ids[row]
        text = index.passages["text"][row].as_py()
        sentences = tuple(
            " ".join(text[start:end].split())
            for start, end in split_sentences(text)
            if (passage, start) in support or any(gold in text[start:end] for gold in gold_answers)
        )
        ranks = {method: ids.index(passage) + 1 if passage in ids else None for method, ids in ranked.items()}
        stops.append(Stop(titles[n], parent, leading, sentences, ranks))
    return stops


def _facts(index: Index, rows: Sequence[int]) -> list[list[Fact]]:
    """The facts extracted from each passage."""
    facts: dict[int, list[Fact]] = {row: [] for row in rows}
    for fact in index.relations.to_pylist():
        for row in facts.keys() & set(fact["passages"]):
            facts[row].append((fact["subject"], fact["label"], fact["object"]))
    return [facts[row] for row in rows]


def _mentioned(index: Index, rows: Sequence[int]) -> list[set[int]]:
    """The entities that each passage mentions."""
    entities: dict[int, set[int]] = {row: set() for row in rows}
    for mention in index.mentions.to_pylist():
        if mention["passage"] in entities:
            entities[mention["passage"]].add(mention["entity"])
    return [entities[row] for row in rows]


def _joining(
    index: Index,
    titles: Sequence[str],
    facts: Sequence[Sequence[Fact]],
    mentioned: Sequence[set[int]],
    parent: int,
    place: int,
) -> tuple[str, ...]:
    """The facts that lead from one passage to another through an entity that both mention; () if there are none."""
    names = index.entity_names

    def about(entity: int, where: int) -> list[tuple[bool, str]]:
        """The best fact of a passage about an entity, with False if it connects the entity to the title."""
        ends = [(fact, {fact[0], fact[2]} - {entity}) for fact in facts[where] if entity in (fact[0], fact[2])]
        candidates = [(not any(names[e] in titles[where] for e in others), fact) for fact, others in ends]
        return [(apart, f"{names[s]} - {label} - {names[o]}") for apart, (s, label, o) in sorted(candidates)[:1]]

    def far(entity: int) -> tuple[bool, int, int, str]:
        name, leading = names[entity], [*about(entity, parent), *about(entity, place)]
        elsewhere = name not in titles[place] or name in titles[parent]
        apart = 2 - sum(not apart for apart, _ in leading)
        return elsewhere, apart, int(index.entity_n_passages[entity]), name

    shared = [e for e in mentioned[parent] & mentioned[place] if names[e] not in titles[parent] and about(e, parent)]
    if not shared:
        return ()
    bridge = min(shared, key=far)
    leading = [*about(bridge, parent), *([] if names[bridge] in titles[place] else about(bridge, place))]
    return tuple(fact for _, fact in leading)


def _ranks(stop: Stop) -> str:
    return ", ".join(f"{method} {rank or '-'}" for method, rank in stop.ranks.items())


def _depth(stops: Sequence[Stop], number: int) -> int:
    return 0 if number < 0 else 1 + _depth(stops, stops[number].parent)


def chain_text(question: str, answer: str, stops: Sequence[Stop]) -> str:
    """The chain as a text tree."""
    lines = textwrap.wrap(question, _COLUMNS)
    for number, stop in enumerate(stops):
        indent = "   " * _depth(stops, number)
        lead = indent[:-3] + "└─ "
        for n, fact in enumerate(stop.facts):
            lines += textwrap.wrap(
                fact, _COLUMNS, initial_indent=lead if n == 0 else indent, subsequent_indent=indent + "  "
            )
        lines.append(f"{indent if stop.facts else lead}[{stop.title}]   rank: {_ranks(stop)}")
        for sentence in stop.sentences:
            lines += textwrap.wrap(sentence, _COLUMNS, initial_indent=indent + "> ", subsequent_indent=indent + "  ")
    return "\n".join([*lines, f"answer: {answer}   (-: not among the first {DEPTH})"])
