"""The algebra of questions: operators and sides read from words, exact execution against sets in plain Python, and what
only contrary relations join."""

from dataclasses import replace
from operator import eq, gt, lt, ne
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kb_in_memory import knowledge_base
from memory_index import MemoryIndex
from memory_index import run as run_step

from gpu_rag.graph.reach import EITHER, IN, OUT
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.program.knowledge_base import query as algebra
from gpu_rag.program.knowledge_base.query import (
    STATED_BY,
    STATED_ON,
    Constraint,
    Operations,
    Part,
    Plan,
    Solved,
    amount,
    contrary_nodes,
    operations_of,
    solve,
)
from gpu_rag.text.rules.relations import denial_of, stem_of, units_of, words_of
from gpu_rag.text.rules.relations.direction import (
    AGENT,
    FILLER,
    OPEN,
    OWNER,
    PATIENT,
    agree,
    side_of_head,
    side_of_topic,
)
from gpu_rag.text.rules.relations.operators import Operators, is_compared, operators_of

MEDICAL = frozenset({"indicated", "contraindicated", "unapproved"})


def read(question: str, *topics: str, known: frozenset[str] = frozenset()) -> Operators:
    spans = [(question.index(topic), question.index(topic) + len(topic)) for topic in topics]
    return operators_of(question, spans, known)


@pytest.mark.parametrize(
    ("question", "topics", "negated"),
    [
        ("Which films of Ann were not written by Bob?", ["Ann", "Bob"], [False, True]),
        ("Who doesn't work for Norvex?", ["Norvex"], [True]),
        ("Which company did Norvex not acquire?", ["Norvex"], [True]),
        ("Who works for Norvex but not for Orbis?", ["Norvex", "Orbis"], [False, True]),
        ("Which films that star Ann did Bob not direct?", ["Ann", "Bob"], [False, True]),
        ("Which films of Ann would you not show because of Bob?", ["Ann", "Bob"], [False, True]),
        ("Name films with Ann that Bob doesn't sell.", ["Ann", "Bob"], [False, True]),
        ("Who works for neither Norvex nor Orbis?", ["Norvex", "Orbis"], [True, True]),
        ("Who works for Norvex and Orbis?", ["Norvex", "Orbis"], [False, False]),
        ("Who works for not only Norvex but Orbis?", ["Norvex", "Orbis"], [False, False]),
        ("Whom did Norvex hire that Orbis did not?", ["Norvex", "Orbis"], [False, True]),
        ("Staff of Norvex, but none that is hired by Orbis", ["Norvex", "Orbis"], [False, True]),
        ("Which players of Oslo are in no band?", ["Oslo", "no band"], [False, True]),
        ("Which firms of Oslo has nobody sued?", ["Oslo", "nobody"], [False, True]),
        ("Who plays neither Ann nor Bob?", ["Ann", "Bob"], [True, True]),
    ],
)
def test_a_negation_belongs_to_the_topics_of_its_clause(question: str, topics: list[str], negated: list[bool]) -> None:
    assert [clause.negated for clause in read(question, *topics).clauses] == negated


def test_a_phrase_of_a_relation_is_no_negation_unless_it_is_itself_negated() -> None:
    avoided = read("Which drugs for gout should not be given in asthma?", "gout", "asthma", known=MEDICAL)
    assert [c.negated for c in avoided.clauses] == [False, False] and "should not" in avoided.clauses[1].text
    allowed = read("Which drugs for gout are not contraindicated in asthma?", "gout", "asthma", known=MEDICAL)
    assert [c.negated for c in allowed.clauses] == [False, True] and "contraindicated" not in allowed.clauses[0].text
    safe = read("Which drugs for gout are safe in asthma?", "gout", "asthma", known=MEDICAL)
    assert safe.clauses[1].negated and "contraindicated" in safe.clauses[1].text
    assert read("Who should not be given drugs?", "drugs").clauses[0].negated  # of a graph without such a relation


def test_other_operators() -> None:
    counted = read("How many films did Ann direct?", "Ann")
    assert counted.aggregate == "count" and counted.clauses[0].text == "which films did # direct"
    assert read("Who works for Norvex or Orbis?", "Norvex", "Orbis").either
    assert [c.left_out for c in read("Drugs for gout except Lindane", "gout", "Lindane").clauses] == [False, True]
    joined = read("Who works for Norvex other than Ann and Bob?", "Norvex", "Ann", "Bob")
    assert [clause.left_out for clause in joined.clauses] == [False, True, True]
    asked = "Leave out whatever is ruled out by gout: which drugs treat asthma?"
    assert [clause.negated for clause in read(asked, "gout", "asthma", known=MEDICAL).clauses] == [True, False]
    between = read("Which films by Ann were released between 1990 and 1995?", "Ann").comparisons
    assert [(one.compare, one.value) for one in between] == [("least", "1990"), ("most", "1995")]
    staff = read("Which company in Oslo has more than 1,200 employees?", "Oslo")
    assert [(c.compare, c.value, c.words) for c in staff.comparisons] == [("more", "1,200", "employees")]
    assert read("Which company in Oslo was founded first?", "Oslo").aggregate == "first"
    assert read("Who directed the films of Ann?", "Ann").plain


@pytest.mark.parametrize(
    ("question", "clause"),
    [
        ("Of the firms in Oslo, which has the largest workforce?", "of the firms in #"),
        ("Which firms in Oslo have a workforce of more than 300?", "which firms in #"),
        ("What is the largest firm in Oslo?", "what is the firm in #"),
    ],
)
def test_words_that_say_what_is_compared_say_no_relation_of_a_topic(question: str, clause: str) -> None:
    place = question.index("Oslo")
    (read,) = operators_of(question, [(place, place + 4)], valued=frozenset({stem_of("workforce")})).clauses
    assert read.text == clause


@pytest.mark.parametrize(
    ("question", "aggregate"),
    [
        ("Which is older, Ann or Bob?", "first"),
        ("Who founded more firms, Ann or Bob?", "last"),
        ("Which came out first, Ann or Bob?", "first"),
        ("Which firm is older than Ann or Bob?", ""),
        ("What is the oldest firm of Ann or Bob?", "none"),
    ],
)
def test_one_of_two_topics_is_the_answer_where_they_are_compared(question: str, aggregate: str) -> None:
    spoken = read(question, "Ann", "Bob")
    assert [clause.itself for clause in spoken.clauses] == [aggregate in ("first", "last")] * 2
    assert aggregate in (spoken.aggregate, "none")


def test_a_relation_with_a_superlative_in_its_name_is_no_comparison() -> None:
    question, labels = "Who is the largest customer of Ann?", frozenset({"largest customer"})
    assert operators_of(question, [(31, 34)], labels=labels).plain
    assert operators_of(question, [(31, 34)]).aggregate == "last"


def test_a_number_is_a_value_only_where_others_are_compared_with_it() -> None:
    assert is_compared("bands formed before ", "1970") and is_compared("no later than ", "2001-05-04")
    assert not is_compared("films released in ", "1970") and not is_compared("the day before ", "Ann")


def test_words_that_are_not_understood_are_told() -> None:
    assert read("Which company of Oslo has nobody sued?", "Oslo").unread == ("nobody",)
    assert read("Which employees of Norvex are not engineers?", "Norvex").unread == ("not",)
    assert read("Who has no children?").unread == ("no",)


@pytest.mark.parametrize(
    ("label", "side"),
    [("acquired", AGENT), ("acquired by", PATIENT), ("works for", AGENT), ("born in", PATIENT), ("director", PATIENT),
     ("employee", AGENT), ("capital of", FILLER), ("genre", OWNER), ("indication", OPEN)],
)  # fmt: skip
def test_the_side_of_the_head_by_the_form_of_a_label(label: str, side: int) -> None:
    (unit,) = units_of(label)
    assert side_of_head(words_of(label), unit.at, unit.width).side == side


@pytest.mark.parametrize(
    ("question", "word", "side"),
    [
        ("which company acquired #", "acquired", PATIENT),
        ("what did # acquire", "acquire", AGENT),
        ("which company was acquired by #", "acquired", AGENT),
        ("by whom was # acquired", "acquired", PATIENT),
        ("who works for #", "works", PATIENT),
        ("who does # work for", "work", AGENT),
        ("where was # born", "born", PATIENT),
        ("who was born in #", "born", AGENT),
        ("who is the director of #", "director", PATIENT),
        ("films whose director is #", "director", AGENT),
        ("what is # the capital of", "capital", FILLER),
        ("who are the employees of #", "employees", AGENT),
    ],
)
def test_the_side_of_the_topic_by_word_order_and_voice(question: str, word: str, side: int) -> None:
    words = words_of(question)
    assert side_of_topic(words, words.index(word), 1).side == side


@pytest.mark.parametrize(
    ("question", "word", "label", "forward"),
    [
        ("for which band did # open", "open", "opened for", True),
        ("which band did # open for", "open", "opened for", True),
        ("who opened for #", "opened", "opened for", False),
        ("to whom was # licensed", "licensed", "licensed to", True),
        ("what was licensed to #", "licensed", "licensed to", False),
        ("how many people report to #", "report", "reports to", False),
        ("under whom did # study", "study", "studied under", True),
        ("whom did # mentor", "mentor", "mentored", True),
        ("who was # mentored by", "mentored", "mentored", False),
        ("which drugs does # potentiate", "potentiate", "potentiates", True),
        ("by which drugs is # potentiated", "potentiated", "potentiates", False),
        ("into what does # flow", "flow", "mouth", True),
        ("which rivers flow into #", "flow", "mouth", False),
        ("who came after #", "after", "succeeded", False),
        ("whom has # outbid", "outbid", "outbid", True),
        ("who outbid #", "outbid", "outbid", False),
        ("which firm bought #", "bought", "acquired", False),
        ("which firm did # buy", "buy", "acquired", True),
    ],
)
def test_the_direction_of_a_verb_and_its_preposition(question: str, word: str, label: str, forward: bool) -> None:
    words, (unit, *_) = words_of(question), units_of(label)
    topic, head = side_of_topic(words, words.index(word), 1), side_of_head(words_of(label), unit.at, unit.width)
    assert (agree(topic, head), agree(topic, head.turned())) == (forward, not forward)


def test_a_label_denies_another_by_its_form() -> None:
    stems = {"indic", "like", "phenotyp"}
    for label, denied in [("contraindication", "indicated"), ("phenotype absent", "phenotyp")]:
        denial = denial_of(label, stems)
        assert denial is not None and denied in denial.denied
    assert denial_of("indication", stems) is None and denial_of("uncle", {"uncl"}) is None


NAMES = ["Ann", "Bob", "1990", "2001-05-04", "1,200", "Eva", "Fay", "35"]
PEOPLE = [(f"n{i}", name, "xy"[i % 2]) for i, name in enumerate(NAMES)]


def plain(kb: KnowledgeBase, plan: Plan) -> tuple[set[int], set[int]]:
    """(answers, barred) by sets."""
    edges = list(zip(kb.head.tolist(), kb.relation.tolist(), kb.tail.tolist()))
    named = {node for part in plan.parts if not part.anything for node in part.nodes}

    def step(nodes: set[int], relation: int, way: int) -> set[int]:
        out = {t for h, r, t in edges if r == relation and h in nodes and way & OUT}
        return out | {h for h, r, t in edges if r == relation and t in nodes and way & IN}

    def ends(part: Part) -> set[int]:
        nodes = set(part.nodes) - (named if part.others else set())
        if part.relations and not part.ways:
            return set().union(*(step(nodes, r, EITHER) for r in part.relations))
        for relation, way in zip(part.relations, part.ways):
            nodes = step(nodes, relation, way)
        return nodes

    def values(node: int, relation: str) -> list[float]:
        row = kb.relation_names.index(relation)
        pairs = [(h, t) for h, r, t in edges if r == row]
        sides = [pairs, [(t, h) for h, t in pairs]]
        amounts = [[amount(kb.node_names[other]) for _, other in side] for side in sides]
        valued = [
            2 * sum(v is not None for v in side) >= len(side) and any(v is not None for v in side) for side in amounts
        ]
        if not any(valued):
            there = {other for side in sides for own, other in side if own == node}
            return [len(there)] if there else []
        kept = [zip(side, known) for side, known, has in zip(sides, amounts, valued) if has]
        return [v for some in kept for (own, _), v in some if own == node and v is not None]

    sets = [ends(part) for part in plan.parts if not part.negated]
    out = set().union(*(ends(part) for part in plan.parts if part.negated)) | set(plan.without)
    if sets:
        nodes = set.union(*sets) if plan.operations.either else set.intersection(*sets)
    else:
        everyone = set(range(kb.n))
        last = [
            (part.relations[-1:], part.ways[-1:]) if part.ways else (part.relations, (EITHER,) * 9)
            for part in plan.parts
        ]
        nodes = set().union(*(step(everyone, r, w) for rows, ways in last for r, w in zip(rows, ways)))
        nodes = {node for node in nodes if not plan.types or kb.node_type[node] in plan.types}
    nodes -= out | {node for part in plan.parts if part.relations and not part.anything for node in part.nodes}
    nodes = {node for node in nodes if kb.node_type[node] in plan.types} or nodes
    for one in plan.operations.constraints:
        limit = amount(one.value)
        assert limit is not None
        test = {"less": lt, "more": gt, "equal": eq, "unequal": ne}[one.compare]
        nodes = {n for n in nodes if any(test(int(v), limit) for v in values(n, one.relation))}
    if plan.operations.by:
        pick = min if plan.operations.aggregate == "first" else max
        found = {n: pick(v) for n in nodes if (v := values(n, plan.operations.by))}
        nodes = {n for n, v in found.items() if v == pick(found.values())}
    return nodes, out


@st.composite
def cases(draw: st.DrawFn) -> tuple[KnowledgeBase, list[Plan]]:
    node, relation, way = st.integers(0, 7), st.integers(0, 2), st.sampled_from([OUT, IN, EITHER])
    edges = draw(st.lists(st.tuples(node, relation, node), min_size=1, max_size=25))
    rows = {r for _, r, _ in edges}
    kb = knowledge_base(PEOPLE, [(f"n{a}", f"r{r}", f"n{b}") for a, r, b in edges])
    relations = st.integers(0, len(rows) - 1)

    kind = st.sampled_from([(False, False), (True, False), (True, True)])  # named, anything, others

    @st.composite
    def part(draw: st.DrawFn) -> Part:
        chain = draw(st.lists(relations, max_size=2))
        ways = draw(st.sampled_from([(), tuple(draw(way) for _ in chain)]))
        nodes = draw(st.lists(node, min_size=1, max_size=2, unique=True))
        return Part(tuple(nodes), tuple(chain), ways, draw(st.booleans()), *draw(kind))

    constraint = st.builds(
        Constraint, relations.map(kb.relation_names.__getitem__), st.sampled_from(["less", "more", "equal", "unequal"]),
        st.sampled_from(["1990", "2000", "40"]),
    )  # fmt: skip
    operations = st.builds(
        Operations, st.booleans(), st.just(()), st.lists(constraint, max_size=1).map(tuple),
        st.sampled_from(["", "first", "last"]), relations.map(kb.relation_names.__getitem__),
    ).map(lambda o: o if o.aggregate else Operations(o.either, o.without, o.constraints))  # fmt: skip
    plan = st.builds(
        Plan, st.lists(part(), min_size=1, max_size=3).map(tuple), operations, st.lists(node, max_size=1).map(tuple),
        st.sampled_from([(), (0,), (1,)]),
    )  # fmt: skip
    return kb, draw(st.lists(plan, min_size=1, max_size=3))


def solved(kb: KnowledgeBase, plans: list[Plan]) -> list[Solved]:
    found: list[Solved] = run_step(solve, kb, plans)
    return found


@settings(max_examples=150, deadline=None)
@given(cases())
def test_a_query_is_executed_exactly(case: tuple[KnowledgeBase, list[Plan]]) -> None:
    kb, plans = case
    together = solved(kb, plans)
    assert together == [solved(kb, [plan])[0] for plan in plans]  # in any company
    for plan, found in zip(plans, together):
        assert (set(found.nodes), set(found.barred)) == plain(kb, plan)
        assert list(found.nodes) == sorted(found.nodes)


def company() -> KnowledgeBase:
    facts = [("Norvex", "acquired", "Orbis"), ("Norvex", "based in", "Oslo"), ("Telva", "based in", "Oslo"),
             ("Norvex", "founded on", "1990-05-01"), ("Telva", "founded on", "2010"), ("Norvex", "staff", "500"),
             ("Telva", "staff", "35"), ("Orbis", "based in", "Bergen")]  # fmt: skip
    names = sorted({name for head, _, tail in facts for name in (head, tail)})
    return knowledge_base([(name, name, "x") for name in names], facts)


def test_a_statement_is_of_a_source_and_the_newest_has_the_last_date() -> None:
    nodes = [(name, name, "x") for name in ("Norvex", "Ann", "Bob", "Cid")]
    edges = [("Norvex", "head", name, source) for name, source in (("Ann", "a"), ("Bob", "b"), ("Cid", "b"))]
    dates = ["(a 2019-05-02)", "(b 2021-01-01)", "(b 2020-12-31)"]
    kb = replace(knowledge_base(nodes, edges, sources=("a", "b")), provenance=dates)
    part = Part((kb.node_names.index("Norvex"),), (0,), (OUT,))

    def names(operations: Operations) -> list[str]:
        return [kb.node_names[node] for node in solved(kb, [Plan((part,), operations)])[0].nodes]

    assert names(compared(STATED_BY, "equal", "b")) == ["Bob", "Cid"]
    assert names(compared(STATED_BY, "unequal", "b")) == ["Ann"]
    assert names(Operations(aggregate="last", by=STATED_ON)) == ["Bob"]
    assert names(Operations(aggregate="first", by=STATED_ON)) == ["Ann"]
    assert names(Operations()) == ["Ann", "Bob", "Cid"]


def test_the_step_that_a_source_states_is_the_last_one_of_its_relations() -> None:
    """Register and gazette name other customers; the towns are stated by neither."""
    nodes = [(name, name, "x") for name in ("Norvex", "Telva", "Orbis", "Oslo", "Bergen")]
    edges = [("Norvex", "customer", "Telva", "register"), ("Norvex", "customer", "Orbis", "gazette"),
             ("Telva", "town", "Oslo", "base"), ("Orbis", "town", "Bergen", "base")]  # fmt: skip
    kb = knowledge_base(nodes, edges, sources=("base", "gazette", "register"))
    start, steps = kb.node_names.index("Norvex"), tuple(map(kb.relation_names.index, ("customer", "town")))
    plan = Plan((Part((start,), steps, (OUT, OUT)),), compared(STATED_BY, "equal", "register"))
    assert [kb.node_names[node] for node in solved(kb, [plan])[0].nodes] == ["Oslo"]


def test_a_version_that_forgets_a_negation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    kb = company()
    based, row = kb.relation_names.index("based in"), kb.node_names.index
    plan = Plan((Part((row("Oslo"),), (based,), (IN,), negated=True),))
    assert solved(kb, [plan])[0].nodes == (row("Orbis"),)
    monkeypatch.setattr(algebra, "_needed", lambda plan: len(plan.parts))
    assert solved(kb, [plan])[0].nodes != (row("Orbis"),)


def compared(relation: str, compare: Any, value: str) -> Operations:
    return Operations(constraints=(Constraint(relation, compare, value),))


@pytest.mark.parametrize(
    ("question", "operations", "unread"),
    [
        (
            "Which company in Oslo was founded before 1995?",
            Operations(constraints=(Constraint("founded on", "less", "1995"),)),
            (),
        ),
        (
            "Which company in Oslo has more than 100 staff?",
            Operations(constraints=(Constraint("staff", "more", "100"),)),
            (),
        ),
        ("What is the youngest company in Oslo?", Operations(aggregate="last", by="founded on"), ()),
        ("Which company in Oslo opened before noon?", Operations(), ()),
        ("How many companies are in Oslo?", Operations(aggregate="count"), ()),
        (
            "Which company in Oslo has more than 3 wheels?",
            Operations(constraints=(Constraint("staff", "more", "3"),)),
            (),
        ),
    ],
)
def test_values_are_compared_by_the_relation_that_is_said_or_the_only_one(
    question: str, operations: Operations, unread: tuple[str, ...]
) -> None:
    kb = company()
    plan = Plan((Part((kb.node_names.index("Oslo"),), (kb.relation_names.index("based in"),), (IN,)),))
    found: Any = run_step(operations_of, MemoryIndex(kb), [(read(question, "Oslo"), plan)])
    assert found == [(operations, unread)]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,200", 1200), ("1904-07-01", 1904.5), ("July 1904", 1904.5), ("3 million", 3e6), ("Ann", None), ("R2", None)],
)
def test_amounts(text: str, value: float | None) -> None:
    assert amount(text) == value


def test_what_only_a_contrary_relation_joins() -> None:
    """Drug b treats the disease too, so it is barred only where other relations count for nothing."""
    nodes = [(id, id, "drug") for id in "abc"] + [("d", "d", "disease")]
    edges = [("a", "treats", "d"), ("b", "treats", "d"), ("b", "harms", "d"), ("c", "harms", "d"), ("d", "harms", "a")]
    kb = knowledge_base(nodes, edges)
    row, harms = kb.node_names.index, kb.relation_names.index("harms")
    topic, against = (row("d"),), frozenset({harms})
    queries = [(topic, against, True), (topic, frozenset(), False), (topic, against, False)]
    found: Any = run_step(contrary_nodes, kb, queries)
    assert found == [{row("c"): harms}, {}, dict.fromkeys(map(row, "abc"), harms)]
