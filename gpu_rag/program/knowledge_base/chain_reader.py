"""Matching of a question with the relations of a knowledge base: the chains that it may ask for, each with a score.

A question is read as cues: its words that name a relation of the knowledge base (`text.rules.relations`), in their
order from the topic to the answer, which runs outward from the topic on both sides. A chain of relations, each with a
direction, is compared with the cues step by step. Its score is the sum of
  covered    the share of a relation's own words that the cues of its step express, rare words weighing more
  unsaid     < 0, for words of a relation that the cues of its step do not express
  unheard    < 0, for a cue that no step takes; twice if it reverses the question ("should not")
  order      < 0, for cues taken in another order than that of their distance from the topic
  type       whether the chain ends at the type of node that is asked for ("which drugs", "who")
  hops       < 0, for each relation more or less than the question names
  cosine     of the question with its topic masked and the words of the relations
  extracted  < 0, for each relation that was only extracted from texts, in a base that has curated ones
The nodes determine which relation may follow which, so this also works for a graph without types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from math import log
from typing import NamedTuple

import numpy as np

from gpu_rag.graph.reach import EITHER, IN, OUT
from gpu_rag.index.knowledge_base import CURATED, KnowledgeBase
from gpu_rag.index.knowledge_base.names import relation_text
from gpu_rag.program.knowledge_base.query import amount
from gpu_rag.text.rules.relations import (
    ALIKE,
    ASKS_FOR,
    Denial,
    Unit,
    converse_of,
    denial_of,
    says,
    spoken_of,
    units_of,
    words_of,
)
from gpu_rag.text.rules.relations.direction import Side, agree, side_of_head, side_of_topic

BEAM = 60  # chains that are extended
TRIED = 12  # best chains that are walked from the topic
MOST_CUES, MOST_ORDERS, MOST_NAMED = 7, 20, 100
FAR = 100  # larger than the number of words in a question
UNSAID, BACK, UNHEARD, ORDER = 0.5, 0.2, 0.4, 0.05  # BACK: reduces UNSAID for a step back along the previous relation
TYPE, MORE, FEWER, COSINE, STEP = 0.3, 0.4, 0.25, 0.3, 0.05  # MORE, FEWER: hops than named
PREFIX = 0.2  # for a cue of the words before the last part of a name such as "film.film.directed_by"
EXTRACTED = 0.2  # penalty of a relation that only texts state, if others are curated
MOST_FOLLOWS, MOST_TYPES = 4096, 256  # relations, and sets of types, of which the relations behind them are kept
VALUES = 40  # edges looked at to say whether a relation leads to numbers
PLAINLY = 0.75  # share of a relation's words that a question expresses if it plainly names the relation
WHO = 0.5  # share of TYPE for a type that only "who" implies
AGAINST = 0.3  # share that a cue covers of a relation walked against its direction
MEDIATED = 0.4  # reduces UNSAID for a step to or from a node without a name
_MEDIATOR = re.compile(r"[mg]\.[0-9a-z_]+")
_MARKS = (".", "/", "#", ":", "__")
_GROUP = "="  # prefix of a group name, to tell it from a stem
_SHARED, _COMPANY = frozenset({"share", "shares", "shared", "same"}), frozenset({"co", "together"})
_CLAUSE = frozenset({"is", "are", "was", "were", "did", "does", "do", "has", "have", "had"})
_BETWEEN = _CLAUSE | {"which", "what", "the", "a"}  # words between two cues for one relation ("starred which actors")
_ASKS = frozenset({"what", "which", "who", "whom", "whose"})
_NO_TYPE = frozenset({"when", "where", "how", "why"})
_VALUE_OF = {"when": True, "where": False, "who": False, "whom": False, "whose": False}
_SERVES = {
    unit.stem for unit in units_of("works, work for, helps, good, best, effective, useful, play, made, belong, come")
}
DirectedChain = tuple[int, ...]  # directed relations: 2 r from the head of relation r to its tail, 2 r + 1 back


class ChainReader:
    """The relations of a knowledge base, prepared once for comparison with questions."""

    def __init__(self, kb: KnowledgeBase):
        self.kb = kb
        parts = [_parts(name) for name in kb.relation_names]
        self._labels = labels = [
            relation_text(last) if units_of(relation_text(last)) else relation_text(name) for name, last in parts
        ]
        self.units = [units_of(label) for label in labels]
        words = map(words_of, labels)
        self.heads = [[side_of_head(name, u.at, u.width) for u in units] for name, units in zip(words, self.units)]
        self.prefix_units = [units_of(relation_text(name.removesuffix(last))) for name, last in parts]
        counts: dict[str, int] = {}
        for stem in (stem for units in self.units for stem in {unit.stem for unit in units}):
            counts[stem] = counts.get(stem, 0) + 1
        rarity = [[0.2 + log((kb.n_relations + 1) / counts[unit.stem]) for unit in units] for units in self.units]
        self.weights = [np.array(own) / max(sum(own), 1e-9) for own in rarity]
        self.types = [units_of(name) for name in kb.type_names]
        nameless = [row for row, name in enumerate(kb.node_names) if _MEDIATOR.fullmatch(name)]
        curated = np.isin(kb.source, [number for number, source in enumerate(kb.sources) if source.kind in CURATED])
        self.extracted_only = np.full(
            kb.n_relations, bool(curated.any())
        )  # stated by no curated source, if there is one
        self.extracted_only[kb.relation[curated]] = False
        self.mediator = kb.n_types  # an extra type
        self.node_type = kb.node_type.astype(np.int64)
        self.node_type[nameless] = self.mediator
        self.follows = lru_cache(MOST_FOLLOWS)(self._follows)
        self.types_behind = lru_cache(MOST_TYPES)(self._types_behind)
        flat = [unit for units in self.units for unit in units]
        self._stems, self.groups = {u.stem for u in flat}, frozenset(group for u in flat for group in u.groups)
        self._relations_of_key: dict[str, list[int]] = {}  # relations by the stems, and by the groups, of their units
        for row, units in enumerate(zip(self.units, self.prefix_units)):
            for unit in (unit for part in units for unit in part):
                for key in (unit.stem, *(f"{_GROUP}{group}" for group in unit.groups)):
                    self._relations_of_key.setdefault(key, []).append(row)

    @cached_property
    def _at_nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """The directed relations at each node, ascending: those of node v are values[starts[v]:starts[v + 1]]."""
        kb, n = self.kb, max(2 * self.kb.n_relations, 1)
        ends = ((kb.head, 0), (kb.tail, 1))
        direction = np.where(self.either, 0, 1)[kb.relation]
        keys = np.unique(
            np.concatenate([end.astype(np.int64) * n + 2 * kb.relation + back * direction for end, back in ends])
        )
        node, direction = np.divmod(keys, n)
        return np.searchsorted(node, np.arange(kb.n + 1)), direction

    @cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The edges of each relation: those of r are rows[starts[r]:starts[r + 1]]."""
        order = np.argsort(self.kb.relation, kind="stable")
        return np.searchsorted(self.kb.relation[order], np.arange(self.kb.n_relations + 1)), order

    def _follows(self, directed: int) -> np.ndarray:
        """The directed relations that may follow the given one, ascending."""
        kb, (starts, rows) = self.kb, self._edges
        edges = rows[starts[directed // 2] : starts[directed // 2 + 1]]
        both = (kb.head[edges], kb.tail[edges])
        ends = np.unique(np.concatenate(both) if self.either[directed // 2] else both[1 - directed % 2])
        begins, at_nodes = self._at_nodes
        # many nodes have the same relations
        distinct = {at_nodes[a:b].tobytes() for a, b in zip(begins[ends].tolist(), begins[ends + 1].tolist())}
        return np.unique(np.concatenate([np.frombuffer(bits, np.int64) for bits in distinct]))

    @cached_property
    def leads(self) -> list[dict[int, set[int]]]:
        """For each directed relation {type of the start: types of the ends}; a pair of types needs 1 edge in 20."""
        kb, n = self.kb, self.kb.n_types + 1
        types_of_end: list[dict[int, set[int]]] = [{} for _ in range(2 * kb.n_relations)]
        heads, tails = self.node_type[kb.head], self.node_type[kb.tail]
        keys, counts = np.unique((kb.relation.astype(np.int64) * n + heads) * n + tails, return_counts=True)
        edges = np.bincount(kb.relation, minlength=kb.n_relations)
        for key, count in zip(keys.tolist(), counts.tolist()):
            (relation, head), tail = divmod(key // n, n), key % n
            if 20 * count >= edges[relation]:
                types_of_end[2 * relation].setdefault(head, set()).add(tail)
                types_of_end[2 * relation + 1].setdefault(tail, set()).add(head)
        for relation in np.flatnonzero(self.either).tolist():
            for type, targets in types_of_end[2 * relation + 1].items():
                types_of_end[2 * relation].setdefault(type, set()).update(targets)
        return types_of_end

    def _types_behind(self, types: frozenset[int]) -> tuple[np.ndarray, list[frozenset[int]]]:
        """(i32[2 R], sets): the types that each directed relation leads to from nodes of given types, as a place in the
        list of sets, -1 for none."""
        places: dict[frozenset[int], int] = {frozenset(): -1}
        place = np.empty(len(self.leads), np.int32)
        for d, leads in enumerate(self.leads):
            place[d] = places.setdefault(frozenset().union(*(leads.get(type, ()) for type in types)), len(places) - 1)
        return place, list(places)[1:]

    def named_by(self, cues: Sequence[Unit]) -> np.ndarray:
        """bool[2 R]: the directed relations that some cue may name, at least in part."""
        groups = ((cue, cue.groups | converse_of(cue.groups)) for cue in cues)
        keys = {key for cue, names in groups for key in (cue.stem, *(f"{_GROUP}{name}" for name in names))}
        marks = np.zeros((self.kb.n_relations, 2), bool)
        for key in keys:
            marks[self._relations_of_key.get(key, [])] = True
        return marks.ravel()

    @cached_property
    def either(self) -> np.ndarray:
        """bool[R]: relations whose direction means nothing: edges between two types often run both ways, and no verb
        ("influenced") names the relation."""
        kb, n = self.kb, max(self.kb.n_types, 1)
        heads, tails = kb.node_type[kb.head].astype(np.int64), kb.node_type[kb.tail].astype(np.int64)
        keys, counts = np.unique((kb.relation.astype(np.int64) * n + heads) * n + tails, return_counts=True)
        is_edge = keys // n % n != keys % n
        keys, counts = keys[is_edge], counts[is_edge]
        reversed_keys = (keys // (n * n) * n + keys % n) * n + keys // n % n
        place = np.searchsorted(keys, reversed_keys).clip(max=max(len(keys) - 1, 0))
        returned = np.where(keys[place] == reversed_keys, np.minimum(counts, counts[place]), 0) if len(keys) else counts
        both = [np.bincount(keys // (n * n), weights, minlength=kb.n_relations) for weights in (returned, counts)]
        verbs = [any(not (head.noun or head.to == "with") for head in heads) for heads in self.heads]
        return (5 * both[0] > both[1]) & ~np.array(verbs, bool)

    @cached_property
    def pairs(self) -> frozenset[str]:
        """All pairs of neighbouring words in labels of relations, each joined by a space."""
        words = map(words_of, self._labels)
        return frozenset(" ".join(pair) for label in words for pair in zip(label, label[1:]))

    @cached_property
    def to_values(self) -> np.ndarray:
        """bool[2 R]: directed relations that lead to numbers or dates, by most of their first VALUES edges."""
        (starts, rows), kb = self._edges, self.kb
        marks = np.zeros((kb.n_relations, 2), bool)
        for relation in range(kb.n_relations):
            edges = rows[starts[relation] : starts[relation + 1]][:VALUES]
            for back, ends in enumerate((kb.tail[edges].tolist(), kb.head[edges].tolist())):
                amounts = sum(amount(kb.node_names[node]) is not None for node in ends)
                marks[relation, back] = 2 * amounts > len(ends)
        return marks.ravel()

    @cached_property
    def valued(self) -> frozenset[str]:
        """The stems of relations that lead to numbers or dates."""
        return frozenset(unit.stem for row in np.flatnonzero(self.to_values[::2]) for unit in self.units[row])

    def asks_value(self, text: str) -> bool | None:
        """Whether a question asks for a number or a date ("when"), or for none ("where", "who"); None: it does not
        say."""
        words = words_of(text)
        asker = next((word for i, word in enumerate(words) if word in _VALUE_OF and _asking(words, i)), None)
        return None if asker is None else _VALUE_OF[asker]

    def direction(self, directed: int) -> int:
        """IN, OUT or EITHER, for `reachable`."""
        return EITHER if self.either[directed // 2] else IN if directed % 2 else OUT

    def reverse(self, directed: int) -> int:
        """The directed relation that leads back along the given one."""
        return directed if self.either[directed // 2] else directed ^ 1

    def types_of(self, unit: Unit) -> set[int]:
        """The node types that a unit names: all with its word, or else all with a word of its group."""
        scores = [max((says(unit, own) for own in units), default=0.0) for units in self.types]
        return {row for row, score in enumerate(scores) if score and score == max(scores)}

    def asked_types(self, text: str) -> set[int]:
        """The types that a question asks for: named after "what" or "which", implied by "who", or else named first, as
        in "name a label on which"."""
        words = words_of(text)
        start = next((i for i, word in enumerate(words) if word in _ASKS and words[0] not in ASKS_FOR), 0)
        if any(word in _NO_TYPE and _asking(words, i) for i, word in enumerate(words)):
            return set()
        return next((types for unit in units_of(text) if unit.at >= start and (types := self.types_of(unit))), set())

    def unread_of(self, text: str, order: str) -> tuple[str, ...]:
        """The word before the type that a question asks for, if it narrows the type down and is not understood, such as
        "British" in "how many British films". order: the word of an aggregate ("oldest"), which is understood."""
        words, units = words_of(text), units_of(text)
        places = {unit.at: unit for unit in units}
        start = next((unit.at for unit in units if self.types_of(unit)), 0)
        before, known = places.get(start - 1), self.groups | {order, "many"}
        if before is None or before.stem in self._stems or before.groups & known or words[start - 1] in known:
            return ()
        return (
            () if words[max(start - 2, 0)] in ("most", "least") else (words[start - 1],)
        )  # "the most expensive product"

    @cached_property
    def _denials(self) -> dict[int, Denial]:
        """The relations whose names deny another one ("contraindication"), by row."""
        denials = ((row, denial_of(label, self._stems)) for row, label in enumerate(self._labels))
        return {row: denial for row, denial in denials if denial is not None}

    def opposed(self, text: str) -> dict[int, bool]:
        """The relations that mean the contrary of a text: relations that deny another one, unless the text names them;
        and if it names a denying relation, the relations that this one denies. Each with whether words of the text say
        so; without them a relation that denies is only unlikely to be asked for."""
        expressed = {key for unit in units_of(text) for key in (unit.stem, *unit.groups)}
        named = {row for row, denial in self._denials.items() if denial.by & expressed}
        denied = {key for row in named for key in self._denials[row].denied}
        plain_rows = (row for row in range(self.kb.n_relations) if row not in self._denials)
        contrary = {row for row in plain_rows if any(denied & {unit.stem, *unit.groups} for unit in self.units[row])}
        unlikely = {row: bool(self._denials[row].denied & expressed) for row in self._denials.keys() - named}
        return unlikely | dict.fromkeys(contrary, True)

    def cues(self, text: str) -> list[Unit]:
        """The units of a question that name a relation. A unit marked as shared or done together counts twice. Adjacent
        words for one relation ("starred which actors", "release years") count once."""
        words, cues, end = words_of(text), list[Unit](), 0
        twice = {i for i, word in enumerate(words) if word in _SHARED | _COMPANY}
        groups = self.groups | converse_of(self.groups)
        units = [unit for unit in units_of(text) if unit.stem in self._stems or unit.groups & groups]
        silent = spoken_of(units)
        for unit in units:
            if unit.groups & silent:
                continue
            joins_last = cues and cues[-1].groups & unit.groups and set(words[end : unit.at]) <= _BETWEEN
            end = unit.at + unit.width
            if joins_last:
                continue
            cues.append(unit)
            marks = {i for i in twice if 0 < unit.at - i <= 2 or (words[i] == "together" and 0 < i - unit.at <= 2)}
            cues += [unit] * bool(marks)
            twice -= marks
        return cues[:MOST_CUES]

    def cover(self, cue: Unit, side: Side, directed: int) -> list[float]:
        """The degree to which a cue expresses each unit of a relation in a direction. side: of the cue, where the step
        begins."""
        relation, is_back = divmod(directed, 2)
        covers, other = [says(cue, unit) for unit in self.units[relation]], converse_of(cue.groups)
        turned = [not value and bool(other & unit.groups) for value, unit in zip(covers, self.units[relation])]
        covers = [ALIKE if turns else value for value, turns in zip(covers, turned)]
        if self.either[relation]:
            return covers
        heads = (head.turned() if is_back != turns else head for head, turns in zip(self.heads[relation], turned))
        return [value if agree(side, head) else AGAINST * value for value, head in zip(covers, heads)]


def _asking(words: Sequence[str], place: int) -> bool:
    """Whether a word such as "when" asks: it stands first, last, or before a verb, unlike in "when it is used"."""
    return place == 0 or words[place + 1 :][:1] == [] or words[place + 1] in _CLAUSE


def _parts(name: str) -> tuple[str, str]:
    """The name of a relation, and its last part: "directed_by" of "film.film.directed_by"."""
    cut = max(0, *(name.rfind(mark) for mark in _MARKS))
    return name, name[cut:].lstrip("./#:_") or name


def orders_of(cues: Sequence[Unit], words: Sequence[str], topic: int) -> list[tuple[list[int], float]]:
    """The orders in which cues may describe a chain from the topic at a place, with the cost of each.

    Cues on the left are taken outward, and so are cues on the right; both are merged in every way. The order by
    distance, left first, costs nothing. A cue after the verb of the main clause ("the films of # were directed by
    whom") is far.
    """
    verb = next((i for i, word in enumerate(words) if i > topic and word in _CLAUSE), len(words))
    left = [i for i, cue in enumerate(cues) if cue.at < topic][::-1]
    right = [i for i, cue in enumerate(cues) if cue.at >= topic]
    distance = [
        2 * (topic - cue.at - cue.width + 1) if cue.at < topic else 2 * (cue.at - topic) + 1 + FAR * (cue.at > verb)
        for cue in cues
    ]
    orders = []
    for places in combinations(range(len(cues)), len(left)):
        a, b = iter(left), iter(right)
        order = [next(a) if place in places else next(b) for place in range(len(cues))]
        turned = sum(distance[x] > distance[y] for k, x in enumerate(order) for y in order[k + 1 :])
        orders.append((order, ORDER * turned))
    return sorted(orders, key=lambda pair: pair[1])[:MOST_ORDERS]


class _Partial(NamedTuple):
    """A chain that may be extended. types: of its end nodes; n_named: number of its steps to nodes with names; value,
    cover: f64[orders, m + 1], the value, and its part by words, if it has taken the first j cues of an order."""

    chain: DirectedChain
    types: frozenset[int]
    n_named: int
    value: np.ndarray
    cover: np.ndarray


class Reading:
    """One question compared with the relations: the value of each step for each run of cues that it may take.

    types: of the answers, if they are known. is_named: bool[2 R], the directed relations that a cue names; is_allowed:
    bool[2 R], the directed relations that do not contradict the question.
    """

    def __init__(self, reader: ChainReader, text: str, types: frozenset[int] = frozenset()):
        words = words_of(text)
        self.reader, self.cues = reader, reader.cues(text)
        self.orders = orders_of(self.cues, words, words.index("#") if "#" in words else len(words))
        self.sides = [side_of_topic(words, cue.at, cue.width) for cue in self.cues]
        self.wanted, self.asks_value = set(types) or reader.asked_types(text), reader.asks_value(text)
        implied = not types and words[:1] and words[0] in _VALUE_OF
        self.type_worth = TYPE * (WHO if implied else 1.0)
        cue_places = {(cue.at, cue.stem) for cue in self.cues}
        units = [unit for unit in units_of(text) if not reader.types_of(unit)]
        self.says_no_relation = all(unit.stem in _SERVES for unit in units)
        self.spare = sum((u.at, u.stem) not in cue_places and not reader.types_of(u) for u in units_of(text))
        askers = {"what", "which"}  # a word behind them may name a relation or not, as may a type
        free = (
            cue.stem in _NO_TYPE or (words[cue.at - 1 : cue.at] and words[cue.at - 1] in askers) or reader.types_of(cue)
            for cue in self.cues
        )  # fmt: skip
        self.missed = np.array([0.0 if spare else UNHEARD * (1 + cue.marked) for cue, spare in zip(self.cues, free)])
        self.is_named = reader.named_by(self.cues)
        self.is_allowed = np.ones(len(self.is_named), bool)
        self.is_allowed[[d for row in reader.opposed(text) for d in (2 * row, 2 * row + 1)]] = False
        self._best_alone = np.full(len(self.is_named), np.nan)  # highest value of a step over all runs of cues
        self._grid = np.indices((len(self.orders), len(self.cues) + 1))
        self._steps: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def step(self, directed: int) -> tuple[np.ndarray, np.ndarray]:
        """f64[orders, m + 1, m + 1] twice: the value of a step with the cues i to j of an order, and its cover."""
        key = directed if self.is_named[directed] else -1  # all relations without a cue have equal value
        if key in self._steps:
            return self._steps[key]
        reader, m, relation = self.reader, len(self.cues), directed // 2
        weights = reader.weights[relation]
        lines = [reader.cover(cue, side, directed) for cue, side in zip(self.cues, self.sides)]
        covers = np.array(lines).reshape(m, len(weights))
        words = [place for place, cue in enumerate(self.cues) if cue.stem in _NO_TYPE]
        words = words if len(words) < m else []  # "where" and the like need another cue, if there is any
        names_prefix = [any(says(cue, unit) for unit in reader.prefix_units[relation]) for cue in self.cues]
        worth = np.full((len(self.orders), m + 1, m + 1), -np.inf)
        cover = np.zeros_like(worth)
        for o, (order, _) in enumerate(self.orders):
            for i in range(m + 1):
                best, missed, extra = np.zeros(len(weights)), 0.0, 0.0
                worth[o, i, i] = -UNSAID
                for j, cue in enumerate(order[i:], i + 1):
                    if covers[cue].any():
                        best = np.maximum(best, covers[cue])
                    elif names_prefix[cue]:
                        extra = PREFIX
                    else:
                        missed += self.missed[cue]
                    alone = len(words) and all(w in words for w in order[i:j])
                    value = 0.0 if alone else float(best @ weights)
                    cover[o, i, j], worth[o, i, j] = value, value + extra - UNSAID * (1 - value) - missed
        self._steps[key] = worth, cover
        return worth, cover

    def plainly_named(self, least: float) -> list[int]:
        """The directed relations of which the cues express at least the share `least`, and which lead to a value if the
        question asks for one."""
        plain = []
        for d in np.flatnonzero(self.is_named & self.is_allowed).tolist():
            covers = [self.reader.cover(cue, side, d) for cue, side in zip(self.cues, self.sides)]
            share = float(np.max(covers, axis=0) @ self.reader.weights[d // 2])
            if share >= least and self.asks_value in (None, bool(self.reader.to_values[d])):
                plain.append(d)
        return plain

    def _next(
        self, relations: np.ndarray, types: frozenset[int], back: int, cosine: np.ndarray
    ) -> list[tuple[int, frozenset[int]]]:
        """(directed relation, target types) of the steps worth trying from nodes of some types, ascending.

        They are the MOST_NAMED best that a cue names, `back`, and for each set of target types the first BEAM of the
        others and the TRIED nearest to the question. relations: the candidates; cosine: of each relation.
        """
        place, type_sets = self.reader.types_behind(types)
        relations = relations[(place[relations] >= 0) & self.is_allowed[relations]]
        is_named = self.is_named[relations]
        named, is_special = relations[is_named], is_named | (relations == back)
        if len(named) > MOST_NAMED:
            for d in named[np.isnan(self._best_alone[named])].tolist():
                self._best_alone[d] = self.step(d)[0].max()
            named = named[np.argsort(-self._best_alone[named], kind="stable")[:MOST_NAMED]]
        kept, others = [named, relations[is_special & ~is_named]], relations[~is_special]
        for target in np.unique(place[others]):
            same_target = others[place[others] == target]
            if len(same_target) > BEAM:
                nearest = np.argsort(-cosine[same_target // 2], kind="stable")[:TRIED]
                same_target = np.union1d(same_target[:BEAM], same_target[nearest])
            kept.append(same_target)
        return [(d, type_sets[place[d]]) for d in np.sort(np.concatenate(kept)).tolist()]

    def chains(
        self, first: Sequence[int], types: set[int], longest: int, hops: int, cosine: Sequence[float]
    ) -> list[tuple[DirectedChain, float, float]]:
        """(chain, score, cover per step) of chains of at most `longest` relations, best first.

        first: directed relations that may begin a chain; types: of the topic; hops: number of relations that the
        question names; cosine: of each relation.
        """
        m, near = len(self.cues), np.array(cosine)
        unheard = np.array([[self.missed[order[j:]].sum() for j in range(m + 1)] for order, _ in self.orders])
        start = np.full(unheard.shape, -np.inf)
        start[:, 0] = [-cost for _, cost in self.orders]
        beam = [_Partial((), frozenset(types), 0, start, np.zeros_like(start))]
        chains = []
        for _ in range(longest):
            longer = [extended for partial in beam for extended in self._extended(partial, first, near)]
            for partial in longer:
                if self._may_end(partial):
                    score, cover = self._scored(partial, hops, cosine, unheard)
                    chains.append((partial.chain, score, cover))
            longer.sort(key=lambda partial: (-partial.value.max(), partial.chain))
            beam = longer[:BEAM]
        return sorted(chains, key=lambda entry: (-entry[1], entry[0]))

    def _extended(self, partial: _Partial, first: Sequence[int], cosine: np.ndarray) -> Iterator[_Partial]:
        """A chain with each next step that is worth trying. first, cosine: as in `chains`."""
        reader, chain, (rows, columns) = self.reader, partial.chain, self._grid
        relations = reader.follows(chain[-1]) if chain else np.array(first, np.int64)
        back = reader.reverse(chain[-1]) if chain else -1
        diagonal = range(len(self.cues) + 1)  # steps that take no cue
        for d, types in self._next(relations, partial.types, back, cosine):
            worth, share = self.step(d)
            total = partial.value[:, :, None] + worth
            if chain and d == back:
                total[:, diagonal, diagonal] += BACK
            elif reader.mediator in types or reader.mediator in partial.types:
                total[:, diagonal, diagonal] += MEDIATED
            split = total.argmax(1)
            cover = partial.cover[rows, split] + share[rows, split, columns]
            n_named = partial.n_named + (types != {reader.mediator})
            yield _Partial((*chain, d), types, n_named, total[rows, split, columns], cover)

    def _may_end(self, partial: _Partial) -> bool:
        """Whether a chain ends at nodes with names, and at values if and only if the question asks for one."""
        is_value = bool(self.reader.to_values[partial.chain[-1]])
        return partial.types != {self.reader.mediator} and self.asks_value in (None, is_value)

    def _scored(
        self, partial: _Partial, hops: int, cosine: Sequence[float], unheard: np.ndarray
    ) -> tuple[float, float]:
        """(score, cover per step) of a whole chain, see the module. unheard: f64[orders, m + 1], the penalty if the
        chain takes only the first j cues of an order."""
        chain, final = partial.chain, partial.value - unheard
        best = np.unravel_index(int(final.argmax()), final.shape)
        distance = max(MORE * (partial.n_named - hops), FEWER * (hops - partial.n_named))
        score = float(final[best]) - STEP * len(chain) - distance
        score -= EXTRACTED * sum(bool(self.reader.extracted_only[d // 2]) for d in chain)
        score += COSINE * sum(cosine[d // 2] for d in chain) / len(chain)
        if self.wanted:
            score += self.type_worth if partial.types & self.wanted else -self.type_worth
        return score, float(partial.cover[best]) / partial.n_named
