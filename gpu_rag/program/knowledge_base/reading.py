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
Words of the question that name no relation are one more cue, which names the relations nearest to the question.
  extracted  < 0, for each relation that was only extracted from texts, in a base that has curated ones
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from gpu_rag.program.knowledge_base.chain_reader import CLAUSE, NO_TYPE, VALUE_OF, ChainReader
from gpu_rag.text.rules.relations import Unit, says, units_of, words_of
from gpu_rag.text.rules.relations.direction import reads_as_verb, side_of_topic

BEAM = 60  # chains that are extended
TRIED = 12  # best chains that are walked from the topic
MAX_ORDERS, MAX_NAMED = 20, 100
FAR = 100  # larger than the number of words in a question
UNSAID, BACK, UNHEARD, ORDER = 0.5, 0.2, 0.4, 0.05  # BACK: reduces UNSAID for a step back along the previous relation
TYPE, MORE, FEWER, COSINE, STEP = 0.3, 0.4, 0.25, 0.3, 0.05  # MORE, FEWER: hops than named
PREFIX = 0.2  # for a cue of the words before the last part of a name such as "film.film.directed_by"
EXTRACTED = 0.2  # penalty of a relation that only texts state, if others are curated
PLAINLY = 0.75  # share of a relation's words that a question expresses if it plainly names the relation
WHO = 0.5  # share of TYPE for a type that only "who" implies
MEDIATED = 0.4  # reduces UNSAID for a step to or from a node without a name
_SERVES = {
    unit.stem for unit in units_of("works, work for, helps, good, best, effective, useful, play, made, belong, come")
}
MEANT = "~"  # the stem of a cue for the words that name no relation
MEANS, NEAR, SPREAD = 0.6, 0.3, 0.12  # for that cue: cover of the nearest relation, least cosine, reach below it
DirectedChain = tuple[int, ...]  # directed relations: 2 r from the head of relation r to its tail, 2 r + 1 back


def words_without_cue(reader: ChainReader, text: str) -> list[str]:
    """The words of a question that may mean a relation, if none of its words names one."""
    words, asks = words_of(text), _SERVES | NO_TYPE | VALUE_OF.keys()
    for cue in reader.cues(text):
        says_all = any(len(units) == 1 and says(cue, units[0]) for units in reader.units)
        if cue.stem not in NO_TYPE and (says_all or not reader.is_type(cue, words)):
            return []
    return [" ".join(words[u.at : u.at + u.width]) for u in reader.spare(text) if u.stem not in asks]


def orders_of(cues: Sequence[Unit], words: Sequence[str], topic: int) -> list[tuple[list[int], float]]:
    """The orders in which cues may describe a chain from the topic at a place, with the cost of each.

    Cues on the left are taken outward, and so are cues on the right; both are merged in every way. The order by
    distance, left first, costs nothing. A cue after the verb of the main clause ("the films of # were directed by
    whom") is far.
    """
    verb = next((i for i, word in enumerate(words) if i > topic and word in CLAUSE), len(words))
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
    return sorted(orders, key=lambda pair: pair[1])[:MAX_ORDERS]


class _Partial(NamedTuple):
    """A chain that may be extended. types: types of its end nodes; n_named, n_extracted: numbers of its steps to nodes
    with names, and by relations that were only extracted; cosine: sum of the cosines of its relations;
    value, cover: f64[orders, m + 1], the value, and its part by words, if it has taken the first j cues of an order."""

    chain: DirectedChain
    types: frozenset[int]
    n_named: int
    n_extracted: int
    cosine: float
    value: np.ndarray
    cover: np.ndarray


class _Steps(NamedTuple):
    """Steps worth trying after a chain. directed: i64[n], relations, ascending; types: types of their target nodes;
    targets: bool[n, 3], whether nodes without a name are among these, and alone, and whether a wanted type is."""

    directed: np.ndarray
    types: list[frozenset[int]]
    targets: np.ndarray


class Reading:
    """One question compared with the relations: the value of each step for each run of cues that it may take.

    types: types of the answers, if they are known. is_named: bool[2 R], the directed relations that a cue names;
    is_allowed: bool[2 R], the directed relations that do not contradict the question. by_meaning: whether words that
    name no relation are a cue. hops: number of relations that the question
    names; cosines: cosines of each relation, which say what the words without a cue mean, if there are fewer cues than
    hops; near: the relations among which the nearest is meant.
    """

    def __init__(
        self,
        reader: ChainReader,
        text: str,
        types: frozenset[int],
        hops: int,
        cosines: Sequence[float],
        near: Sequence[int],
    ):
        words = words_of(text)
        self.reader, self.cues, self.cosines = reader, reader.cues(text), np.array(cosines)
        units = [unit for unit in units_of(text) if not reader.types_of(unit)]
        spare = reader.spare(text)
        self.near, self.meant = near, _meant(self.cosines, near)
        if spare and self.meant.any() and sum(cue.stem not in NO_TYPE for cue in self.cues) < hops:
            self.cues = tuple(sorted([*self.cues, _spare_cue(spare, words)], key=lambda cue: cue.at))
        self.orders = orders_of(self.cues, words, words.index("#") if "#" in words else len(words))
        self.sides = [side_of_topic(words, cue.at, cue.width) for cue in self.cues]
        self.wanted, self.asks_value = set(types) or reader.asked_types(text), reader.asks_value(text)
        self.implied = not types and bool(words[:1]) and words[0] in VALUE_OF
        self.type_worth = TYPE * (WHO if self.implied else 1.0)
        self.says_no_relation = all(unit.stem in _SERVES for unit in units)
        self.spare = len(spare)
        askers = {"what", "which"}  # a word behind them may name a relation or not, as may a type
        names_type = [reader.is_type(cue, words) for cue in self.cues]
        free = (words[max(cue.at - 1, 0)] in askers or of_type for cue, of_type in zip(self.cues, names_type))
        self.names_type = names_type
        self.missed = np.array(
            [
                UNHEARD * (1 + cue.marked) * (cue.stem not in {MEANT, *NO_TYPE} and not f)
                for cue, f in zip(self.cues, free)
            ]
        )
        self.is_named = reader.named_by(self.cues)
        self.by_meaning = any(cue.stem == MEANT for cue in self.cues)
        if self.by_meaning:
            self.is_named |= np.repeat(self.meant > 0, 2)
        self.is_allowed = np.ones(len(self.is_named), bool)
        self.is_allowed[[d for row in reader.opposed(text) for d in (2 * row, 2 * row + 1)]] = False
        self._best_alone = np.full(len(self.is_named), np.nan)  # highest value of a step over all runs of cues
        self._steps: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._following: dict[tuple[DirectedChain, frozenset[int]], _Steps] = {}

    def step(self, directed: int) -> tuple[np.ndarray, np.ndarray]:
        """f64[orders, m + 1, m + 1] twice: the value of a step with the cues i to j of an order, and its cover."""
        key = directed if self.is_named[directed] else -1  # all relations without a cue have equal value
        if key in self._steps:
            return self._steps[key]
        reader, m, relation = self.reader, len(self.cues), directed // 2
        weights = reader.weights[relation]
        lines = [
            reader.cover(cue, side, directed, self.meant[relation] * (cue.stem == MEANT))
            for cue, side in zip(self.cues, self.sides)
        ]
        covers = np.array(lines).reshape(m, len(weights))
        words = [place for place, cue in enumerate(self.cues) if cue.stem in NO_TYPE]
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
            pairs = [(cue, side) for cue, side, of_type in zip(self.cues, self.sides, self.names_type) if not of_type]
            none = [0.0] * len(self.reader.units[d // 2])
            covers = [self.reader.cover(cue, side, d) for cue, side in pairs] or [none]
            share = float(np.max(covers, axis=0) @ self.reader.weights[d // 2])
            if share >= least and self.asks_value in (None, bool(self.reader.to_values[d])):
                plain.append(d)
        return plain

    def _next(self, partial: _Partial, first: Sequence[int]) -> _Steps:
        """The steps worth trying after a chain: the MAX_NAMED best that a cue names, the step back, and for each set of
        target types the first BEAM of the others and the TRIED nearest to the question. first: as in `chains`."""
        key = partial.chain[-1:], partial.types
        if key in self._following:
            return self._following[key]
        reader, last = self.reader, partial.chain[-1:]
        relations = reader.follows(*last) if last else np.array(first, np.int64)
        place, type_sets = reader.types_behind(partial.types)
        relations = relations[(place[relations] >= 0) & self.is_allowed[relations]]
        is_named = self.is_named[relations]
        named, is_special = relations[is_named], is_named | (relations == self._back(partial))
        if len(named) > MAX_NAMED:
            for d in named[np.isnan(self._best_alone[named])].tolist():
                self._best_alone[d] = self.step(d)[0].max()
            named = named[np.argsort(-self._best_alone[named], kind="stable")[:MAX_NAMED]]
        kept, others = [named, relations[is_special & ~is_named]], relations[~is_special]
        for target in np.unique(place[others]):
            same_target = others[place[others] == target]
            if len(same_target) > BEAM:
                nearest = np.argsort(-self.cosines[same_target // 2], kind="stable")[:TRIED]
                same_target = np.union1d(same_target[:BEAM], same_target[nearest])
            kept.append(same_target)
        directed, nameless = np.sort(np.concatenate(kept)), {reader.mediator}
        targets = [(nameless <= types, nameless == types, bool(types & self.wanted)) for types in type_sets]
        rows = place[directed]
        steps = _Steps(directed, [type_sets[row] for row in rows], np.array(targets, bool).reshape(-1, 3)[rows])
        if last:  # `first` differs from topic to topic
            self._following[key] = steps
        return steps

    def _back(self, partial: _Partial) -> int:
        return self.reader.reverse(partial.chain[-1]) if partial.chain else -1

    def chains(
        self, first: Sequence[int], types: set[int], longest: int, hops: int
    ) -> list[tuple[DirectedChain, float, float]]:
        """(chain, score, cover per step) of the TRIED best chains of at most `longest` relations, best first.

        first: directed relations that may begin a chain; types: types of the topic; hops: number of relations that the
        question names.
        """
        m = len(self.cues)
        unheard = np.array([[self.missed[order[j:]].sum() for j in range(m + 1)] for order, _ in self.orders])
        start = np.full(unheard.shape, -np.inf)
        start[:, 0] = [-cost for _, cost in self.orders]
        beam = [_Partial((), frozenset(types), 0, 0, 0.0, start, np.zeros_like(start))]
        chains = list[tuple[DirectedChain, float, float]]()
        for _ in range(longest):
            beam, ended = self._extended(beam, first, unheard, hops)
            chains += ended
        return sorted(chains, key=lambda entry: (-entry[1], entry[0]))[:TRIED]

    def _extended(
        self, beam: Sequence[_Partial], first: Sequence[int], unheard: np.ndarray, hops: int
    ) -> tuple[list[_Partial], list[tuple[DirectedChain, float, float]]]:
        """The BEAM best chains with one more step, and the TRIED best that may end with it, as in `chains`. unheard:
        f64[orders, m + 1], the penalty if a whole chain takes only the first j cues of an order."""
        nexts = [self._next(partial, first) for partial in beam]
        parent = np.repeat(np.arange(len(beam)), [len(steps.directed) for steps in nexts])
        if not len(parent):
            return [], []
        directed = np.concatenate([steps.directed for steps in nexts])
        is_mediated, is_nameless, is_wanted = np.concatenate([steps.targets for steps in nexts]).T
        is_back = directed == np.array([*map(self._back, beam)])[parent]
        is_mediated = is_mediated | np.array([self.reader.mediator in partial.types for partial in beam])[parent]
        # relations without a cue have equal values
        kind = np.where(self.is_named[directed], directed + 1, 0) * 3 + np.where(is_back, 2, is_mediated)
        keys = parent * (3 * len(self.is_named) + 3) + kind
        _, rows, place = np.unique(keys, return_index=True, return_inverse=True)
        of_row = parent[rows]
        worth, share = map(np.array, zip(*map(self.step, directed[rows].tolist())))  # f64[places, orders, m + 1, m + 1]
        before, covered = (np.array(parts)[of_row] for parts in zip(*(partial[5:] for partial in beam)))
        total, diagonal = before[..., None] + worth, range(len(self.cues) + 1)
        extra = np.array([0.0, MEDIATED, BACK])[kind[rows] % 3]  # of steps that take no cue
        total[..., diagonal, diagonal] += extra[:, None, None]
        split = total.argmax(2)
        value, share = (np.take_along_axis(part, split[:, :, None], 2)[:, :, 0] for part in (total, share))
        cover = np.take_along_axis(covered, split, 2) + share
        final = (value - unheard).reshape(len(value), -1)
        last = final.argmax(1)[:, None]
        ends = (np.take_along_axis(part, last, 1)[:, 0] for part in (final, cover.reshape(final.shape)))
        whole, covers = (part[place] for part in ends)
        relation, (n_named, n_extracted, cosine) = directed // 2, np.array([partial[2:5] for partial in beam])[parent].T
        n_named = n_named + ~is_nameless
        n_extracted = n_extracted + self.reader.extracted_only[relation]
        cosine = cosine + self.cosines[relation]
        length, types = len(beam[0].chain) + 1, [own for steps in nexts for own in steps.types]
        score = whole - STEP * length - np.maximum(MORE * (n_named - hops), FEWER * (hops - n_named))
        score = score - EXTRACTED * n_extracted + COSINE * cosine / length
        if self.wanted:
            score += np.where(is_wanted, self.type_worth, -self.type_worth)
        may_end = ~is_nameless
        if self.asks_value is not None:
            may_end &= self.reader.to_values[directed] == self.asks_value
        rank = np.argsort(sorted(range(len(beam)), key=lambda n: beam[n].chain))[parent]
        by_value, by_score = (np.lexsort((directed, rank, -worths)) for worths in (value.max((1, 2))[place], score))
        chosen, ended = by_value[:BEAM], by_score[may_end[by_score]][:TRIED]
        columns = n_named[chosen], n_extracted[chosen], cosine[chosen], value[place[chosen]], cover[place[chosen]]

        def chains(rows: np.ndarray) -> list[DirectedChain]:
            return [(*beam[n].chain, d) for n, d in zip(parent[rows].tolist(), directed[rows].tolist())]

        longer = [*map(_Partial, chains(chosen), (types[row] for row in chosen), *columns)]
        return longer, [*zip(chains(ended), score[ended].tolist(), (covers[ended] / n_named[ended]).tolist())]


def _meant(cosines: np.ndarray, near: Sequence[int]) -> np.ndarray:
    """f64[R]: the degree to which a question may mean each relation, by its cosines. near: see `Reading`."""
    nearest = cosines[list(near)].max(initial=0.0)
    return MEANS * np.clip(1 - (nearest - cosines) / SPREAD, 0, 1) * (nearest >= NEAR)


def _spare_cue(spare: Sequence[Unit], words: Sequence[str]) -> Unit:
    """The cue for words that name no relation: at the verb nearest to the topic, or else at the nearest word."""
    topic = words.index("#") if "#" in words else len(words)
    verbs = [unit for unit in spare if reads_as_verb(words, unit.at, unit.width)]
    nearest = min(verbs or spare, key=lambda unit: abs(unit.at - topic))
    return Unit(MEANT, frozenset(), nearest.at, nearest.width)
