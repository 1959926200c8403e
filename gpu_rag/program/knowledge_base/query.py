"""A small algebra of questions over a knowledge base, the same for rules and models, and its exact execution.

A query has topics, each with the relations that lead from it to the answer; the answers of a topic may be ruled out
(`negated`). Its operations say how the answers of several topics are joined (all of them, or `either`), which things
are left out, which values of the answers are compared with a number or a date, and what is asked of them: all, how
many, or the first or last by a value. A topic without relations is an answer itself ("which is older, A or B"), and
the name `ANYTHING` stands for all things of a type ("in no band"), `OTHERS` for those that the query does not name
("in no other band").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from msgspec import Meta, Struct, field

from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.ragged import ragged_of_keys, ragged_of_lists, row_of_value
from gpu_rag.graph.reach import EITHER, IN, OUT, reachable
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.names import TextColumn
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of, relation_row
from gpu_rag.runtime.step import batched
from gpu_rag.text.figures import MONTHS, one_form
from gpu_rag.text.rules.relations import Unit, converse_of, says, units_of
from gpu_rag.text.rules.relations.operators import COUNTED, TIMES, Aggregate, Compare, Operators
from gpu_rag.types import Path, Ragged

DIRECTIONS = {"out": OUT, "in": IN, "either": EITHER}  # directions of the steps of a chain
ANYTHING = "any"  # the name of a topic that stands for all nodes of its type, or of the graph if it has no type
OTHERS = "other"
STATED_BY, STATED_ON = "(stated by)", "(stated on)"  # the source and the date of a fact, as if they were relations
LISTED = 100  # nodes of an exact answer that a row lists
MAX_VALUES = 3  # things that a query leaves out, and values that it compares
_SHARE = 2  # a relation gives the values of nodes if one in _SHARE of them has a value by it
DATED = re.compile(r"\(.*?(\d{4}-\d\d(?:-\d\d)?)\)")  # the note in the provenance of an edge
_YEAR = re.compile(r"-?\d{1,4}")
_DAY = re.compile(rf"(?:(\d{{1,2}}) )?({'|'.join(MONTHS)}) (\d{{1,4}})")
_AMOUNT = re.compile(r"[^\w-]?(-?\d+(?:p\d+)?)(?: ?%| \w+)?")


class Topic(Struct, frozen=True):
    """An entity that a question names, and the relations that lead from it towards the answer; () if the entity is an
    answer itself.

    type: "" for any; ways: out, in or either for each relation, if the relations form one chain in this order; (): any
    order is allowed.
    negated: whether the nodes that they lead to are ruled out.
    """

    entity: Annotated[str, Meta(min_length=1)] = field(name="name")
    type: str
    relations: tuple[str, ...]
    ways: tuple[Literal["out", "in", "either"], ...] = ()
    negated: bool = False

    @property
    def directions(self) -> tuple[int, ...]:
        """The ways in the form of `graph.reach`."""
        return tuple(DIRECTIONS[word] for word in self.ways)

    def text(self) -> str:
        """ "entity (type) along relation, relation", each relation walked back with "backwards"."""
        ways = self.ways or ("out",) * len(self.relations)
        steps = (f"{relation}{' backwards' * (word == 'in')}" for relation, word in zip(self.relations, ways))
        along = f" along {', '.join(steps)}" if self.relations else ""
        return f"{'not ' * self.negated}{self.entity} ({self.type}){along}"

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for topics with the same retrieval."""
        relations = self.relations if self.ways else frozenset(self.relations)
        return (self.entity.casefold(), self.type, relations, self.ways, self.negated)


Name = Annotated[str, Meta(min_length=1, max_length=200)]


class Constraint(Struct, frozen=True):
    """A comparison of a value of an answer, by a relation, with a number or a date. most, least: the value included."""

    relation: str
    compare: Compare
    value: Annotated[str, Meta(max_length=200)]


class Operations(Struct, frozen=True):
    """Operations on the answers of the topics. without: names of nodes that are not answers; by: for `first` and `last`
    the relation that orders the answers, by its values, or by the number of its edges if it has none."""

    either: bool = False
    without: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=MAX_VALUES)] = ()
    constraints: Annotated[tuple[Constraint, ...], Meta(max_length=MAX_VALUES)] = ()
    aggregate: Aggregate = ""
    by: str = ""

    def lines(self) -> tuple[str, ...]:
        """Each operation in words."""
        compared = (f"{constraint.relation} {constraint.compare} {constraint.value}" for constraint in self.constraints)
        aggregated = f"{self.aggregate}{f' by {self.by}' * bool(self.by)}"
        return (
            *(["either topic"] if self.either else []), *(f"without {name}" for name in self.without),
            *compared, *([aggregated] if self.aggregate else []),
        )  # fmt: skip


ALL = Operations()


class Query(Struct, frozen=True):
    """A question as a query. sure: whether the question plainly says the relations; if not, several entries of one
    entity are alternatives, the likeliest first. types: types of the answers, () for any."""

    entities: tuple[Topic, ...]
    sure: bool
    operations: Operations = ALL
    types: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the answers are simply the nodes that all topics lead to."""
        return self.operations == ALL and all(topic.relations and not topic.negated for topic in self.entities)


# --- execution --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A topic in the graph. nodes: nodes of its name; relations, ways: as in `Topic`, by row; anything: whether its
    name is `ANYTHING` or `OTHERS`; others: `OTHERS`."""

    nodes: tuple[int, ...]
    relations: tuple[int, ...]
    ways: tuple[int, ...] = ()
    negated: bool = False
    anything: bool = False
    others: bool = False


@dataclass(frozen=True)
class Plan:
    """A query in the graph. without: nodes; types: types of the answers, () for any."""

    parts: tuple[Part, ...]
    operations: Operations = ALL
    without: tuple[int, ...] = ()
    types: tuple[int, ...] = ()


@dataclass(frozen=True)
class Solved:
    """The nodes that answer a query, ascending. barred: nodes that the query rules out; ascending."""

    nodes: tuple[int, ...]
    barred: tuple[int, ...] = ()


@batched(GRAPH, name="kb_solve")
@trusted()
def solve(index: Index, plans: list[Plan]) -> list[Solved]:
    """The nodes that answer each query, exactly.

    An answer is at the end of the chain of every topic that is not negated (with `either`, of one such topic), at the
    end of no negated topic's chain, and is not itself a named topic with relations. If some answers have the wanted
    types, the others do not count. A topic without ways leads along each of its relations, either way. If all topics
    are negated, the other nodes at the end of their last relations are the answers.
    """
    return _solved(index, plans)


def _solved(index: Index, plans: Sequence[Plan]) -> list[Solved]:
    kb = kb_of(index)
    n, width = max(kb.n, 1), max((len(plan.parts) for plan in plans), default=0) + 1
    parts = [(q * width + p, part) for q, plan in enumerate(plans) for p, part in enumerate(_without_named(plan))]
    chains = [(key, part.nodes, *chain) for key, part in parts for chain in _chains(part)]
    starts = ragged_of_lists([nodes for _, nodes, _, _ in chains], kb.device)
    relations = ragged_of_lists([relations for _, _, relations, _ in chains], kb.device)
    directions = ragged_of_lists([directions for _, _, _, directions in chains], kb.device)
    ends = reachable(kb.typed, starts, relations, Ragged(directions.values, relations.offsets), threads=index.threads)

    def tensor(values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=kb.device)

    of_chain = tensor(key for key, *_ in chains)
    reached = torch.unique(of_chain[row_of_value(ends)] * n + ends.values.long())  # (question, part, node)
    ruled_out = torch.isin(reached // n, tensor(key for key, part in parts if part.negated))
    keys = reached // n // width * n + reached % n  # (question, node)
    hits, count = torch.unique(keys[~ruled_out], return_counts=True)
    hits = hits[count >= tensor(map(_needed, plans))[hits // n]]
    rest_keys = (q * n + node for q, plan in enumerate(plans) if not _needed(plan) for node in _rest(kb, plan))
    hits = torch.cat([hits, tensor(rest_keys)]).unique()
    left_out = tensor(q * n + node for q, plan in enumerate(plans) for node in plan.without)
    asked_of = ((key, part) for key, part in parts if part.relations and not part.anything)
    topics = tensor(key // width * n + node for key, part in asked_of for node in part.nodes)
    barred = torch.cat([keys[ruled_out], left_out]).unique()
    hits = hits[~torch.isin(hits, torch.cat([barred, topics]))]
    kept, excluded = (_lists(ragged_of_keys(keys_of, len(plans), n)) for keys_of in (hits, barred))
    answers = (_valued(kb, index, plan, _of_types(kb, plan, nodes)) for plan, nodes in zip(plans, kept))
    return [Solved(nodes, tuple(gone.tolist())) for nodes, gone in zip(answers, excluded)]


def _without_named(plan: Plan) -> list[Part]:
    """The parts of a plan. Those that stand for other things have no node of a name."""
    named = {node for part in plan.parts if not part.anything for node in part.nodes}
    return [
        replace(part, nodes=tuple(node for node in part.nodes if node not in named)) if part.others else part
        for part in plan.parts
    ]


def _chains(part: Part) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    if part.ways or not part.relations:
        return [(part.relations, part.ways)]
    return [((relation,), (EITHER,)) for relation in part.relations]


def _needed(plan: Plan) -> int:
    """The number of topics that an answer must belong to; 0 if all are negated."""
    positive = sum(not part.negated for part in plan.parts)
    return min(positive, 1) if plan.operations.either else positive


def _rest(kb: KnowledgeBase, plan: Plan) -> list[int]:
    """The nodes at the end of the last relations of a query whose topics are all negated."""
    ends = [np.zeros(0, np.int64)]
    for part in plan.parts:
        for relations, directions in (chain for chain in _chains(part) if chain[0]):
            rows = np.flatnonzero(kb.relation == relations[-1])
            ends += [side[rows] for side, direction in ((kb.tail, OUT), (kb.head, IN)) if directions[-1] & direction]
    nodes = np.unique(np.concatenate(ends))
    if plan.types:
        nodes = nodes[np.isin(kb.node_type[nodes], plan.types)]
    result: list[int] = nodes.tolist()
    return result


def _lists(ragged: Ragged) -> list[np.ndarray]:
    values, offsets = ragged.values.cpu().numpy().astype(np.int64), ragged.offsets.tolist()
    return [values[a:b] for a, b in zip(offsets, offsets[1:])]


def _of_types(kb: KnowledgeBase, plan: Plan, nodes: np.ndarray) -> np.ndarray:
    """The nodes of the wanted types, or all if there is none of them."""
    wanted = nodes[np.isin(kb.node_type[nodes], plan.types)]
    return wanted if len(wanted) else nodes


def _valued(kb: KnowledgeBase, index: Index, plan: Plan, nodes: np.ndarray) -> tuple[int, ...]:
    """The nodes whose values meet the constraints; of these the first or the last, if that is asked."""
    stating = _stating(kb, plan, nodes)
    for constraint in plan.operations.constraints:
        if constraint.relation == STATED_BY:
            is_equal = [source.name == constraint.value for source in kb.sources]
            wanted = constraint.compare != "unequal"
            nodes = nodes[np.isin(nodes, [v for v, e in stating if is_equal[kb.source[e]] == wanted])]
            continue
        owners, values, _ = values_of(index, constraint.relation)
        nodes = nodes[np.isin(nodes, owners[_meets(values, constraint)])]
    if plan.operations.by == STATED_ON:
        dates = [(date[1], v) for v, e in stating if (date := DATED.search(kb.provenance[e]))]
        outermost = min if plan.operations.aggregate == "first" else max
        asked = outermost((date for date, _ in dates), default="")
        nodes = nodes[np.isin(nodes, [v for date, v in dates if date == asked])] if dates else nodes
    elif plan.operations.aggregate in ("first", "last") and plan.operations.by:
        sign = -1 if plan.operations.aggregate == "last" else 1
        owners, values, _ = values_of(index, plan.operations.by)
        mine = np.isin(owners, nodes)
        owners, values = owners[mine], sign * values[mine]
        nodes = np.unique(owners[values == values.min()]) if len(values) else owners
    return tuple(nodes.tolist())


def _stating(kb: KnowledgeBase, plan: Plan, nodes: np.ndarray) -> list[tuple[int, int]]:
    """(node, edge) pairs, if the query asks who states the answers or when: the edges of the last step whose relation
    the source states, or has dates, on the chains that lead to the nodes; of the last step if there is none."""
    by = [constraint.value for constraint in plan.operations.constraints if constraint.relation == STATED_BY]
    if not by and plan.operations.by != STATED_ON:
        return []
    own = [number for number, source in enumerate(kb.sources) if source.name in by]
    pairs, wanted = list[tuple[int, int]](), set(nodes.tolist())
    for part in (part for part in plan.parts if part.ways and not part.negated):
        place, states = len(part.ways) - 1, False
        while place and not states:
            rows = np.flatnonzero(kb.relation == part.relations[place])
            dated = (DATED.search(kb.provenance[row]) is not None for row in rows.tolist())
            states = bool(np.isin(kb.source[rows], own).any()) if by else any(dated)
            place -= not states
        walked = [(node, -1) for node in part.nodes]
        for step, (relation, way) in enumerate(zip(part.relations, part.ways)):
            ends: dict[int, list[tuple[int, int]]] = {}
            for start, edge, end in _edges_from(kb, relation, way, [node for node, _ in walked]):
                ends.setdefault(start, []).append((end, edge))
            longer = ((end, new if step == place else edge) for node, edge in walked for end, new in ends.get(node, ()))
            walked = list(dict.fromkeys(longer))
        pairs += [pair for pair in walked if pair[0] in wanted]
    return pairs


def _edges_from(kb: KnowledgeBase, relation: int, way: int, starts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(start, edge, end) for each step along a relation from some nodes."""
    rows = np.flatnonzero(kb.relation == relation)
    for start, end, bit in ((kb.head, kb.tail, OUT), (kb.tail, kb.head, IN)):
        kept = rows[np.isin(start[rows], starts)] if way & bit else rows[:0]
        yield from zip(start[kept].tolist(), kept.tolist(), end[kept].tolist())


def has_dates(index: Index) -> bool:
    """Whether some statement of the knowledge base has a date."""
    notes = kb_of(index).provenance
    column = notes.column if isinstance(notes, TextColumn) else pa.array(notes, pa.string())
    return bool(pc.any(pc.match_substring_regex(column, DATED.pattern)).as_py())


def _meets(values: np.ndarray, constraint: Constraint) -> np.ndarray:
    """bool per value. A year stands for the whole year."""
    value = amount(constraint.value)
    if value is None:
        return np.zeros(len(values), bool)
    values = np.floor(values) if value == int(value) and _YEAR.fullmatch(constraint.value) else values
    tests = {"equal": values == value, "unequal": values != value, "less": values < value, "more": values > value}
    return tests.get(constraint.compare, values <= value if constraint.compare == "most" else values >= value)


def amount(text: str) -> float | None:
    """The number of a text that is a number or a date, else None. A date is its year and the part of it that is over.

    >>> amount("1,200"), amount("1904-07-01"), amount("July 1904"), amount("Ann")
    (1200.0, 1904.5, 1904.5, None)
    """
    plain = one_form(text.strip()).casefold()
    if date := _DAY.fullmatch(plain):
        return int(date[3]) + MONTHS.index(date[2]) / 12 + (int(date[1] or 1) - 1) / 372
    number = _AMOUNT.fullmatch(plain)
    return float(number[1].replace("p", ".")) if number else None


def values_of(index: Index, relation: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """(nodes i64, values f64, is_count), cached: the amounts at the ends of a relation's edges, and the nodes at the
    other ends. An end of a relation has amounts if most of its nodes are some. is_count: neither has; the value of a
    node is its number of neighbours by it."""
    return index.loaded(f"values {relation_row(kb_of(index), relation)}", lambda index: _values(kb_of(index), relation))


def _values(kb: KnowledgeBase, relation: str) -> tuple[np.ndarray, np.ndarray, bool]:
    row = relation_row(kb, relation)
    edges = np.flatnonzero(kb.relation == (-1 if row is None else row))
    owners, values = [np.zeros(0, np.int64)], [np.zeros(0)]
    for own, other in ((kb.head, kb.tail), (kb.tail, kb.head)):
        names, place = np.unique(other[edges], return_inverse=True)
        amounts = [amount(kb.node_names[node]) for node in names.tolist()]
        known = np.array([value is not None for value in amounts], bool)[place] if len(names) else np.zeros(0, bool)
        known &= 2 * known.sum() >= len(known)  # a film may be called 300
        owners.append(own[edges][known].astype(np.int64))
        values.append(np.array([value or 0.0 for value in amounts])[place][known] if len(names) else np.zeros(0))
    if sum(map(len, values)):
        return np.concatenate(owners), np.concatenate(values), False
    ends = np.stack([kb.head[edges], kb.tail[edges]]).astype(np.int64)
    nodes, counts = np.unique(np.unique(np.hstack([ends, ends[::-1]]), axis=1)[0], return_counts=True)
    return nodes, counts.astype(np.float64), True


def count_path(query: Query, n: int) -> Path:
    """A path that explains a count: n answers to a query."""
    lines = (*(topic.text() for topic in query.entities), *query.operations.lines())
    return Path(f"{n} answers: {'; '.join(lines)}", (), "count")


def part_of(kb: KnowledgeBase, topic: Topic, nodes: Sequence[int] = ()) -> Part:
    """A topic in the graph; unknown relations are left out. nodes: nodes of its name, which may stand for others."""
    is_any = topic.entity in (ANYTHING, OTHERS)
    rows = tuple(row for name in topic.relations if (row := relation_row(kb, name)) is not None)
    ways = topic.directions if len(topic.ways) == len(rows) else ()
    if is_any:
        nodes = (kb.nodes_of_type(topic.type) if topic.type else np.arange(kb.n)).tolist()
    return Part(tuple(nodes), rows, ways, topic.negated, is_any, topic.entity == OTHERS)


def type_rows(kb: KnowledgeBase, types: Iterable[str]) -> tuple[int, ...]:
    """The rows of types by name; unknown names are left out."""
    return tuple(row for row, name in enumerate(kb.type_names) if name in types)


@batched(GRAPH, name="kb_contrary")
def contrary_nodes(index: Index, queries: list[tuple[tuple[int, ...], frozenset[int], bool]]) -> list[dict[int, int]]:
    """For each query (nodes, relations, alone): {neighbour that these relations join with the nodes: one of them}.
    alone: without those that other relations join with them too."""
    kb = kb_of(index)
    graph, n, width = kb.typed, max(kb.n, 1), max(kb.n_relations, 1)
    own = ragged_of_lists([nodes for nodes, _, _ in queries], kb.device)
    question, against = row_of_value(own), [q * width + row for q, (_, rows, _) in enumerate(queries) for row in rows]
    keys, rows = [question[:0]], [question[:0]]
    for position, edge, relation, other in graph.edges_at(own.values):
        keys.append(question[position] * n + other[edge].long())
        rows.append(question[position] * width + relation[edge].long())
    key, row = torch.cat(keys), torch.cat(rows)
    contrary = torch.isin(row, torch.tensor(against, dtype=torch.int64, device=kb.device))
    alone = torch.tensor([alone for _, _, alone in queries], dtype=torch.bool, device=kb.device)
    contrary &= ~(torch.isin(key, key[~contrary]) & alone[key // n])
    by_question: list[dict[int, int]] = [{} for _ in queries]
    for node, relation in sorted(zip(key[contrary].tolist(), row[contrary].tolist())):
        by_question[node // n].setdefault(node % n, relation % width)
    return by_question


# --- the rule ---------------------------------------------------------------------------------------


@batched(GRAPH, name="kb_operations")
def operations_of(index: Index, queries: list[tuple[Operators, Plan]]) -> list[tuple[Operations, tuple[str, ...]]]:
    """(operations, unread words) for the operators of each question, whose topics are in a plan without operations.

    "How many" asks for a count, unless the answers are numbers. A value is compared by the relation that the words
    before it name, among the relations that give values to the answers. If they name none, it is compared by the only
    relation with dates, or the only one with other numbers. "More" and "most" may count the edges of a relation without
    values.
    """
    kb, results = kb_of(index), []
    bare = [replace(plan, operations=Operations(either=spoken.either)) for spoken, plan in queries]
    for (spoken, plan), solved in zip(queries, _solved(index, bare)):
        unread, constraints = list(spoken.unread), []
        ordered = spoken.aggregate in ("first", "last")
        valued = _valued_by(kb, index, solved.nodes) if spoken.comparisons or ordered else {}
        for comparison in spoken.comparisons[:MAX_VALUES]:
            limit = amount(comparison.value)
            is_date = limit is None or 1000 <= limit < 2200
            relation = _named(valued, comparison.words, is_date, not is_date)
            if relation:
                constraints.append(Constraint(relation, comparison.compare, comparison.value))
            else:
                unread.append(comparison.value)
        order_by = _named(valued, spoken.words, spoken.order in TIMES, spoken.order in COUNTED) if ordered else ""
        if ordered and not order_by:
            unread.append(spoken.order)
        aggregate = "" if ordered and not order_by else spoken.aggregate
        if aggregate == "count" and all(amount(kb.node_names[node]) is not None for node in solved.nodes):
            aggregate = ""  # the number itself is stated: how many employees it has
        names = tuple(kb.node_names[node] for node in plan.without)
        operations = Operations(spoken.either, names, tuple(constraints), aggregate, order_by)
        results.append((operations, tuple(dict.fromkeys(unread))))
    return results


def _valued_by(kb: KnowledgeBase, index: Index, nodes: Sequence[int]) -> dict[str, float]:
    """The relations by which many of the nodes have values, each with the median of the values; NaN for counts."""
    starts, rows = torch.tensor(nodes, dtype=torch.int64, device=kb.device), set[int]()
    for _, edge, relation, _ in kb.typed.edges_at(starts):
        rows.update(torch.unique(relation[edge]).tolist())
    medians = dict[str, float]()
    for row in sorted(rows):
        owners, values, is_count = values_of(index, kb.relation_names[row])
        mine = np.isin(owners, nodes)
        if _SHARE * len(np.unique(owners[mine])) >= len(nodes):
            medians[kb.relation_names[row]] = np.nan if is_count else float(np.median(values[mine]))
    return medians


def _named(valued: dict[str, float], words: str, is_date: bool, counts: bool) -> str:
    """The relation that words name, first among relations with values, then, if `counts`, among the others.

    If they name none: the only relation whose values are dates, or, without `is_date`, are none; "" if there is not
    exactly one. valued: see `_valued_by`.
    """
    cues = units_of(words)
    cues += [Unit("", converse_of(cue.groups)) for cue in cues]

    def match(relation: str) -> float:
        return sum(max((says(cue, unit) for cue in cues), default=0.0) for unit in units_of(relation.replace("_", " ")))

    with_values = [name for name, median in valued.items() if not np.isnan(median)]
    for names in (with_values, [name for name in valued if counts and name not in with_values]):
        best = max(names, key=match, default="")
        if best and match(best):
            return best
    likely = [name for name in with_values if (1000 <= valued[name] < 2200) == is_date]
    return likely[0] if len(likely) == 1 else ""
