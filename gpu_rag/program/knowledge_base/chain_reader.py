"""The relations of a knowledge base, prepared for comparison with questions, and the cues of a question for them.

The nodes determine which relation may follow which, so this also works for a graph without types.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from math import log

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
from gpu_rag.text.rules.relations.direction import Side, agree, reads_as_verb, side_of_head
from gpu_rag.text.rules.relations.operators import FORBIDDEN

MAX_CUES, MAX_TEXTS = 7, 256  # cues of a question, and texts whose cues are kept
MAX_FOLLOWS, MAX_TYPES = 4096, 256  # relations, and sets of types, of which the relations behind them are kept
VALUES = 40  # edges looked at to say whether a relation leads to numbers
AGAINST = 0.3  # share that a cue covers of a relation walked against its direction
_MEDIATOR = re.compile(r"[mg]\.[0-9a-z_]+")
_MARKS = (".", "/", "#", ":", "__")
_GROUP = "="  # prefix of a group name, to tell it from a stem
_SHARED, _COMPANY = frozenset({"share", "shares", "shared", "same"}), frozenset({"co", "together"})
CLAUSE = frozenset({"is", "are", "was", "were", "did", "does", "do", "has", "have", "had"})
_BETWEEN = CLAUSE | {"which", "what", "the", "a", "that", "who"}  # between cues of one relation: "starred which actors"
_FOR = frozenset({"for", "against"})
_ASKS = frozenset({"what", "which", "who", "whom", "whose"})
NO_TYPE = frozenset({"when", "where", "how", "why"})
VALUE_OF = {"when": True, "where": False, "who": False, "whom": False, "whose": False}


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
        self.follows = lru_cache(MAX_FOLLOWS)(self._follows)
        self.types_behind = lru_cache(MAX_TYPES)(self._types_behind)
        self.cues = lru_cache(MAX_TEXTS)(self._cues)
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
        asker = next((word for i, word in enumerate(words) if word in VALUE_OF and _asking(words, i)), None)
        return None if asker is None else VALUE_OF[asker]

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
        if any(word in NO_TYPE and _asking(words, i) for i, word in enumerate(words)):
            return set()
        behind = [*words[1:], ""]
        beside = (unit for unit in units_of(text) if unit.at >= start or behind[unit.at] != "#")  # not "the film #"
        units = sorted(beside, key=lambda unit: unit.at < start)  # stable
        return next((types for unit in units if (types := self.types_of(unit))), set())

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
    def denials(self) -> dict[int, Denial]:
        """The relations whose names deny another one ("contraindication"), by row."""
        denials = ((row, denial_of(label, self._stems)) for row, label in enumerate(self._labels))
        return {row: denial for row, denial in denials if denial is not None}

    @cached_property
    def forbidding(self) -> frozenset[int]:
        """The denying relations that say that something does harm ("contraindication"), unlike "off-label use"."""
        return frozenset(row for row in self.denials if any(FORBIDDEN in unit.groups for unit in self.units[row]))

    def rules_out(self, text: str, negated: bool, sure: bool, condition: bool) -> dict[int, bool]:
        """The relations by which a topic rules out nodes, see `opposed`; all that deny others for a condition, a clause
        such as "is not contraindicated in #", and a negated clause that is not understood. text: the clause; negated,
        sure: whether it rules out what it leads to, and whether it is understood. A relation that forbids is always one
        of them, unless the clause asks for it."""
        opposed = self.opposed(text)
        if condition or (negated and not (sure and self.denials.keys() <= opposed.keys())):
            return dict.fromkeys(self.denials, True)
        return dict.fromkeys(self.forbidding, True) if negated else opposed

    def denies(self, text: str) -> bool:
        """Whether a text names a relation that denies another one."""
        return any(denial.by & _expressed(text) for denial in self.denials.values())

    def purpose(self, text: str) -> int:
        """Grade of a clause by its words for what some relation denies: 2 beside the topic "#" ("drugs for #",
        "treats #", "# drugs"), 1 elsewhere, else 0; 3 if it only names another relation."""
        words, denied = words_of(text), {key for denial in self.denials.values() for key in denial.denied}
        if not denied or "#" not in words:
            return 0
        topic, units = words.index("#"), units_of(text)
        says = [unit for unit in units if denied & {unit.stem, *unit.groups}]
        before = any(0 <= topic - unit.at - unit.width <= 1 for unit in says) or not _FOR.isdisjoint(words[:topic][-1:])
        behind = any(unit.at == topic + 1 and (unit in says or self.types_of(unit)) for unit in units)
        others = any(not (unit in says or self.types_of(unit)) for unit in self.cues(text))
        return 2 if before or behind or self.denies(text) else 3 if others else min(len(says), 1)

    def opposed(self, text: str) -> dict[int, bool]:
        """The relations that mean the contrary of a text: relations that deny another one, unless the text names them;
        and if it names a denying relation, the relations that this one denies. Each with whether words of the text say
        so; without them a relation that denies is only unlikely to be asked for."""
        expressed = _expressed(text)
        named = {row for row, denial in self.denials.items() if denial.by & expressed}
        denied = {key for row in named for key in self.denials[row].denied}
        plain_rows = (row for row in range(self.kb.n_relations) if row not in self.denials)
        contrary = {row for row in plain_rows if any(denied & {unit.stem, *unit.groups} for unit in self.units[row])}
        unlikely = {row: bool(self.denials[row].denied & expressed) for row in self.denials.keys() - named}
        return unlikely | dict.fromkeys(contrary, True)

    def _cues(self, text: str) -> tuple[Unit, ...]:
        """The units of a question that name a relation. A unit marked as shared or done together counts twice. Adjacent
        words for one relation ("starred which actors", "release years") count once."""
        words, cues, end = words_of(text), list[Unit](), 0
        twice = {i for i, word in enumerate(words) if word in _SHARED | _COMPANY}
        groups = self.groups | converse_of(self.groups)
        units = [unit for unit in units_of(text) if unit.stem in self._stems or unit.groups & groups]
        silent = spoken_of(units)
        for place, unit in enumerate(units):
            asked = words[max(unit.at - 1, 0)] in ("what", "which")  # "what club is a feeder club of": the second one
            if unit.groups & silent or (asked and any(unit.stem == other.stem for other in units[place + 1 :])):
                continue
            joins_last = cues and cues[-1].groups & unit.groups and set(words[end : unit.at]) <= _BETWEEN
            end = unit.at + unit.width
            if joins_last:
                continue
            cues.append(unit)
            marks = {i for i in twice if 0 < unit.at - i <= 2 or (words[i] == "together" and 0 < i - unit.at <= 2)}
            cues += [unit] * bool(marks)
            twice -= marks
        return tuple(cues[:MAX_CUES])

    def spare(self, text: str) -> list[Unit]:
        """The units of a question that name neither a relation nor a type."""
        cues = {(cue.at, cue.stem) for cue in self.cues(text)}
        return [u for u in units_of(text) if (u.at, u.stem) not in cues and not self.types_of(u)]

    def is_type(self, cue: Unit, words: Sequence[str]) -> bool:
        """Whether a cue stands as the name of a type among the words of a question; "translated" says more than the
        type "translator" does."""
        asked = cue.at > 0 and words[cue.at - 1] in ("what", "which")
        return bool(self.types_of(cue)) and (asked or not reads_as_verb(words, cue.at, cue.width))

    def cover(self, cue: Unit, side: Side, directed: int, meant: float = 0.0) -> list[float]:
        """The degree to which a cue expresses each unit of a relation in a direction. side: side of the cue, where the
        step begins; meant: the degree by meaning alone, whatever its words."""
        relation, is_back = divmod(directed, 2)
        covers, other = [max(says(cue, unit), meant) for unit in self.units[relation]], converse_of(cue.groups)
        turned = [not value and bool(other & unit.groups) for value, unit in zip(covers, self.units[relation])]
        covers = [ALIKE if turns else value for value, turns in zip(covers, turned)]
        if self.either[relation]:
            return covers
        heads = (head.turned() if is_back != turns else head for head, turns in zip(self.heads[relation], turned))
        return [value if agree(side, head) else AGAINST * value for value, head in zip(covers, heads)]


def _expressed(text: str) -> set[str]:
    """The stems and groups of a text."""
    return {key for unit in units_of(text) for key in (unit.stem, *unit.groups)}


def _asking(words: Sequence[str], place: int) -> bool:
    """Whether a word such as "when" asks: it stands first, last, or before a verb, unlike in "when it is used"."""
    return place == 0 or words[place + 1 :][:1] == [] or words[place + 1] in CLAUSE


def _parts(name: str) -> tuple[str, str]:
    """The name of a relation, and its last part: "directed_by" of "film.film.directed_by"."""
    cut = max(0, *(name.rfind(mark) for mark in _MARKS))
    return name, name[cut:].lstrip("./#:_") or name
