"""The ceiling of retrieval: an oracle's choices, and hand-worked shares by stage on six articles."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.errors import UsageError
from gpu_rag.evaluation import ceiling as ceilings
from gpu_rag.evaluation.ceiling import ceiling_scores, oracle_of
from gpu_rag.evaluation.choices import ChoiceShares
from gpu_rag.evaluation.compare import compare, score
from gpu_rag.evaluation.kb import KbGold
from gpu_rag.methods.bubblerag.asks import ENOUGH, GROUPS, Grouping, Sorted, stated_by_gold
from gpu_rag.methods.bubblerag.graph import node_texts
from gpu_rag.methods.bubblerag.rules import Keyword
from gpu_rag.methods.higra.asks import of_gold
from gpu_rag.methods.higra.graph import entity_options, passages_of_entities
from gpu_rag.models.ask import Choose, Fields, Options, Taken
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.decide import Rule, decide
from gpu_rag.program.embed import embed
from gpu_rag.program.oracle import Gold, Known, Oracle
from gpu_rag.program.questions import planned
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Draft, Question

CHOOSING = ("hoprag", "bubblerag", "higra-retriever", "higra-agent", "fused")
BORN = "Where was the designer of the Halden Bridge born?"
METHODS = (
    "dense",
    "bm25",
    "hybrid",
    "ppr",
    "hoprag",
    "bubblerag",
    "higra-retriever",
    "dual-agent",
    "higra-agent",
    "fused",
)
ARTICLES = (
    ("Halden Bridge", "The Halden Bridge was designed by Marta Orlo. It crosses the river Ves."),
    ("Marta Orlo", "Marta Orlo was an engineer born in Tamsin. She studied under Piet Ruyven."),
    ("Piet Ruyven", "Piet Ruyven taught at the University of Loss."),
    ("Kerling", "Kerling is a town on the river Ves."),
    ("Tamsin", "Tamsin is a fishing port. The lighthouse of Tamsin was built in 1902."),
    ("University of Loss", "The University of Loss was founded by Hugo Brandt."),
)
SETTINGS: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}


def asked(*gold: str, text: str = BORN, id: str = "q") -> QuestionRow:
    return QuestionRow(Question(id, text), gold, (), {}, "jsonl")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    """The tiny corpus with facts by hand, of every method over a corpus."""
    return built(tmp_path_factory.mktemp("ceiling"))


@pytest.fixture(scope="module")
def with_copies(tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    """The tiny corpus with four copies of its first article, and one of its second under another title."""
    more = [*copies_of_first(4), {"id": "n", "title": "Who?", "text": ARTICLES[1][1]}]
    return built(tmp_path_factory.mktemp("copies"), more)


@pytest.fixture(scope="module")
def buried(tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    """The tiny corpus with 90 copies of its first article."""
    return built(tmp_path_factory.mktemp("buried"), copies_of_first(90))


def copies_of_first(n: int) -> list[dict[str, str]]:
    return [{"id": f"c{i}", "title": ARTICLES[0][0], "text": ARTICLES[0][1]} for i in range(n)]


def built(folder: Path, more: Sequence[dict[str, str]] = ()) -> gpu_rag.Index:
    rows = [{"id": f"d{i}", "title": title, "text": text} for i, (title, text) in enumerate(ARTICLES)] + [*more]
    facts = {
        "d0": [("Halden Bridge", "designed by", "Marta Orlo"), ("Halden Bridge", "crosses", "Ves")],
        "d1": [("Marta Orlo", "born in", "Tamsin"), ("Marta Orlo", "studied under", "Piet Ruyven")],
        "d2": [("Piet Ruyven", "taught at", "University of Loss")],
        "d3": [("Kerling", "lies on", "Ves")],
        "d4": [("lighthouse of Tamsin", "built in", "1902")],
        "d5": [("University of Loss", "founded by", "Hugo Brandt")],
    }
    facts |= {row["id"]: facts["d1" if row["id"] == "n" else "d0"] for row in more}
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [
        {"id": name, "entities": [*dict.fromkeys(end for s, _, o in triples for end in (s, o))], "triples": triples}
        for name, triples in facts.items()
    ]
    (folder / "openie.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    given = {"methods": METHODS, "openie": folder / "openie.jsonl", "settings": SETTINGS}
    gpu_rag.build(folder / "corpus.jsonl", folder / "ix", **given)
    return gpu_rag.Index.open(folder / "ix")


def scores(index: gpu_rag.Index, method: str, row: QuestionRow, at: Sequence[int] = (1, 2), **params: Any) -> Any:
    engine = index.engine({**SETTINGS, "method": {method: params}})
    found = ceiling_scores(engine, method, [row], at)
    assert found["failed"] == [0.0]
    return {name: values[0] for name, values in found.items()}


HELPFUL = Choose(
    "pick", lambda: Prompt.parse("p", "s\n=== question ===\n{{options}}"), helps=lambda gold, i: i in (1, 2)
)


def chosen(
    options: Sequence[str], p: float = 1.0, n: int = 1, choice: Choose = HELPFUL, watch: Any = None, **fields: Any
) -> list[list[int]]:
    """Choices by an oracle of n questions."""
    oracle = Oracle({f"q{i}": Gold(frozenset()) for i in range(n)}, p, watch=watch)

    async def program(question: Question, run: Run, params: Any) -> Draft:
        taken = await decide(run, replace(choice, none=fields.get("none", False)), options=options, **fields)
        return Draft(json.dumps(taken))

    index = _index_of[0]
    engine = index.engine(SETTINGS)
    questions = [Question(f"q{i}", "which?") for i in range(n)]
    found = engine.run("dense", questions, program=program, decider=oracle).answers
    assert all(answer.error is None for answer in found), found[0].error
    return [json.loads(answer.text or "") for answer in found]


_index_of: list[gpu_rag.Index] = []


def test_the_oracle_takes_what_helps_and_nothing_else(index: gpu_rag.Index) -> None:
    _index_of[:] = [index]
    assert chosen("abc", k=3) == [[1, 2]] and chosen("abc") == [[1]]
    assert chosen("a", none=True) == [[]]
    assert chosen("abcd", p=0.0, k=3, n=8) != chosen("abcd", k=3, n=8)
    assert all(not {1, 2} & set(one) for one in chosen("abcd", p=0.0, k=3, n=8))


def test_what_helps_may_take_a_step_and_choices_can_be_watched(index: gpu_rag.Index) -> None:
    """Beside what the oracle takes it is told what the rule would take: the best by score."""
    _index_of[:] = [index]
    seen: list[Any] = []

    async def helps(gold: Known, position: int, options: Sequence[str]) -> bool:
        (vector,) = await embed([options[position]])
        return position == 2 and vector.any()

    def watch(known: Known, name: str, fields: Any, right: Sequence[int], believed: Sequence[int]) -> None:
        seen.append((name, fields["options"], right, believed))

    taken = chosen("abc", choice=replace(HELPFUL, helps=helps), watch=watch, scores=(0.1, 0.9, 0.2))
    assert taken == [[2]] and seen == [("pick", "abc", [2], [1])]


def test_an_oracle_is_right_as_often_as_it_says(index: gpu_rag.Index) -> None:
    _index_of[:] = [index]
    taken = chosen("abcd", p=0.7, n=300)
    right = sum(one == [1] for one in taken) / len(taken)
    assert right == pytest.approx(0.7, abs=0.08) and taken == chosen("abcd", p=0.7, n=300)
    with pytest.raises(UsageError):
        Oracle({}, 1.5)


def test_decisions_without_gold_are_by_rule_and_listed(index: gpu_rag.Index) -> None:
    rows = [asked("d0", "d1")]
    document = compare(index.engine(SETTINGS), ["hoprag", "dual-agent"], rows, at=(2,), p_oracle=1.0).document
    assert document["methods"]["hoprag"]["by_rule"] == []
    assert document["methods"]["dual-agent"]["by_rule"] == []  # retrieval alone: it plans nothing
    document = compare(index.engine(SETTINGS), ["bubblerag"], rows, at=(2,), p_oracle=1.0).document
    assert document["methods"]["bubblerag"]["by_rule"] == ["keywords", "relax", "specialise"]


def test_the_gold_plan_is_the_decomposition_that_a_question_brings(index: gpu_rag.Index) -> None:
    def plan_of(decomposition: Any, p: float = 1.0) -> list[tuple[str, tuple[int, ...]]]:
        async def program(question: Question, run: Run, params: Any) -> Draft:
            plan = await planned(run, question.text)
            return Draft(json.dumps([[step.question, list(step.depends_on)] for step in plan.steps]))

        oracle = Oracle({"q": Gold(frozenset(), meta={"decomposition": decomposition})}, p)
        found = index.engine(SETTINGS).run("dense", [Question("q", BORN)], program=program, decider=oracle).answers
        return [(text, tuple(needs)) for text, needs in json.loads(found[0].text or "")]

    steps = [{"question": "Who made the bridge?"}, {"question": "#1 >> place of birth"}]
    assert plan_of(steps) == [("Who made the bridge?", ()), ("#1 >> place of birth", (1,))]
    rules = plan_of(None)
    assert rules[0][0] == "Who is the designer of the Halden Bridge?" and plan_of(steps, p=0.0) == rules
    for bad in ([{"question": "Where was #2 born?"}], [{"question": 3}], [], "no list", ["no object"], steps * 5):
        assert plan_of(bad) == rules


def test_gold_of_bubblerags_groups_and_of_whether_passages_suffice(index: gpu_rag.Index) -> None:
    known = Known(index, frozenset({1}), Gold(frozenset({"d1"})))
    names = list(index.entity_names)
    bridge, engineer = names.index("Halden Bridge"), names.index("Marta Orlo")
    pools = [Ranking((bridge,), (1.0,)), Ranking((bridge, engineer), (1.0, 0.5))]
    fields = {"keywords": [Keyword("bridge"), Keyword("engineer")], "pools": pools, "candidates": [bridge, engineer]}
    assert GROUPS.gold is not None and ENOUGH.helps is not None
    assert GROUPS.gold(known, **fields) == Grouping((Sorted("engineer", 1.0, (2,)),))
    assert GROUPS.gold(replace(known, passages=frozenset()), **fields) is None
    for rows, right in (((0, 1), 1), ((0,), 0)):
        assert [ENOUGH.helps(known, i, rows) for i in (0, 1)] == [right == 0, right == 1]
    assert not ENOUGH.helps(Known(index, frozenset(), Gold(frozenset())), 1, (0,))


def test_dense_by_hand(index: gpu_rag.Index) -> None:
    """Gold is first and last of the ranking: half of it is among the first, all of it is reached, half is read."""
    engine = index.engine(SETTINGS)
    (answer,) = engine.run("dense", [Question("q", BORN)], limit=6, retrieval_only=True).answers
    first, *_, last = [e.passage_id for e in answer.evidence]
    found = scores(index, "dense", asked(first, last))
    assert found == {
        "index": 1.0, "reached": 1.0, "recall@1": 0.5, "recall@2": 0.5, "prompt": 0.5, "choices": 0, "failed": 0.0,
    }  # fmt: skip


def first_edges(index: gpu_rag.Index) -> tuple[int, int, int]:
    """(vertex, where its first edge leads, another vertex that no edge leads to from it), vertices being passages."""
    from gpu_rag.methods.hoprag.batched import hop_graph

    graph = hop_graph(index)
    indptr, target = graph.indptr.tolist(), graph.target.tolist()
    for vertex in range(graph.n_vertices):
        to = target[indptr[vertex] : indptr[vertex + 1]]
        far = [v for v in range(graph.n_vertices) if v not in (*to, vertex)]
        if to and far:
            return vertex, to[0], far[0]
    raise AssertionError("every passage leads to every other")


def test_hoprag_by_hand(index: gpu_rag.Index) -> None:
    """From one start the oracle hops to the gold passage that an edge leads to, and to nothing else."""
    vertex, near, far = first_edges(index)
    title = index.passages["title"][vertex].as_py()
    start = {"top_k": 1, "n_hop": 1}
    row = asked(f"d{vertex}", f"d{near}", f"d{far}", text=title)
    found = scores(index, "hoprag", row, **start)
    assert found["graph"] == found["reached"] == pytest.approx(2 / 3)
    assert found["recall@2"] == pytest.approx(1 / 3)  # top_k is 1: pruning keeps one of the two
    assert found["choices"] == 1
    none = scores(index, "hoprag", asked(f"d{far}", text=title), **start)
    assert none["graph"] == 0.0 and none["choices"] == 1


def test_bubblerag_grows_by_what_gold_passages_state(index: gpu_rag.Index) -> None:
    """The tree begins at the bridge; facts of d0 and d1 lead on to Tamsin, which the port's own passage names."""
    found = scores(index, "bubblerag", asked("d0", "d1", "d2"), n_trees=1)
    assert found["graph"] == 1.0 and found["choices"] >= 1
    relations = range(index.n_entities, index.n_entities + index.relations.num_rows)
    known = Known(index, frozenset({1}), Gold(frozenset({"d1"})))
    taken = {node_texts(index, [v])[0] for i, v in enumerate(relations) if stated_by_gold(known, i, relations)}
    assert taken == {"Marta Orlo - born in - Tamsin", "Marta Orlo - studied under - Piet Ruyven"}


def test_higra_starts_from_entities_of_gold_passages(index: gpu_rag.Index) -> None:
    known, rows = Known(index, frozenset({2}), Gold(frozenset({"d2"}))), list(passages_of_entities(index))
    helpful = [row for i, row in enumerate(rows) if of_gold(known, i, rows)]
    names = {option.split(" (")[0].split(",")[0] for option in entity_options(index, helpful, {})}
    assert names == {"Piet Ruyven", "University of Loss"}
    near = scores(index, "higra-retriever", asked("d2"), radius=0, walk="subgraph")
    assert near["graph"] == 1.0 and near["choices"] == 1
    doubted = scores(index, "higra-retriever", asked("d2"), radius=0)  # none of these is a seed of the rule
    assert doubted["graph"] == 0.0 and doubted["choices"] == 1


@pytest.mark.parametrize("method", METHODS)
def test_no_stage_has_more_than_the_one_before(index: gpu_rag.Index, method: str) -> None:
    found = scores(index, method, asked("d0", "d1", "d5"), at=(1, 2, 6))
    order = [found[name] for name in ("index", "reached", "recall@6", "recall@2", "recall@1")]
    assert order == sorted(order, reverse=True)
    assert found["recall@6"] >= found["prompt"] >= found["recall@2"]
    assert ("graph" in found) == (method in CHOOSING) == (found["choices"] > 0)


def test_a_wrong_oracle_is_seen(index: gpu_rag.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle that is never right does not reach what the right one does."""
    vertex, near, _ = first_edges(index)
    row = asked(f"d{near}", text=index.passages["title"][vertex].as_py())
    start = {"top_k": 1, "n_hop": 1}
    right = scores(index, "hoprag", row, **start)
    monkeypatch.setattr(ceilings, "oracle_of", lambda rows: oracle_of(rows, 0.0))
    assert (right["graph"], scores(index, "hoprag", row, **start)["graph"]) == (1.0, 0.0)


def test_the_document_has_it_beside_the_scores(index: gpu_rag.Index) -> None:
    engine = index.engine(SETTINGS)
    rows = [asked("d0", "d1"), asked(id="without gold")]
    document = compare(engine, ["dense", "hoprag"], rows, at=(2,), ceiling=True).document
    assert set(document["ceiling"]) == {"dense", "hoprag"}
    assert list(document["ceiling"]["hoprag"]) == [
        "index", "graph", "reached", "recall@2", "prompt", "choices", "failed",
    ]  # fmt: skip
    assert document["ceiling"]["dense"]["recall@2"] == document["methods"]["dense"]["recall@2"]
    assert "ceiling" not in compare(engine, ["dense"], rows, at=(2,)).document


def test_a_method_over_a_knowledge_base_is_refused(index: gpu_rag.Index) -> None:
    with pytest.raises(UsageError, match="given the ceiling of hybgrag"):
        compare(index.engine(SETTINGS), ["dense", "hybgrag"], [asked("d0")], ceiling=True)


def test_a_model_with_a_short_context_is_shown_less(index: gpu_rag.Index) -> None:
    shown = {}
    for context in (20, 300, 8192):
        llm = ScriptedLLM(lambda _: "x", context_tokens=context)
        engine = index.engine({"models": {"embedder": "hash"}}, llm=llm)
        found = ceiling_scores(engine, "dense", [asked("d0", "d1", "d2", "d3", "d4", "d5")], (6,), retrieval_only=False)
        shown[context] = found["prompt"][0]
        assert not llm.calls  # it is asked nothing
    assert 0 == shown[20] < shown[300] < shown[8192] == pytest.approx(5 / 6)


def test_the_command_prints_it(index: gpu_rag.Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpu_rag.cli.main import main

    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"id": "q", "question": BORN, "gold_ids": ["d0", "d1"]}) + "\n")
    words = ["eval", str(index.path), str(questions), "--method", "dense,hoprag", "--retrieval-only", "--ceiling"]
    off = [word for key, value in SETTINGS["models"].items() for word in ("--set", f"models.{key}={value}")]
    assert main([*words, *off]) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("ceiling: ")]
    table = [line.split() for line in lines[at + 1 :] if line.split()[:1] in (["method"], ["dense"], ["hoprag"])][:3]
    assert table[0][:4] == ["method", "index", "graph", "reached"] and table[1][:3] == ["dense", "1.000", "-"]
    assert main([*words, *off, "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["ceiling"]["hoprag"]["index"] == 1.0


class Firsts(Rule):
    """A decider that takes the first k options."""

    async def choice(self, run: Run, choose: Choose, options: Options, fields: Fields) -> Taken:
        return Taken(list(range(min(options.k, len(options.texts)))), "model")


def test_choices_that_lead_to_gold_are_counted_beside_the_rule(index: gpu_rag.Index) -> None:
    """Options 1 and 2 of HELPFUL help. A choice that cannot fail, or whose gold is not known, is not counted."""
    shares = ChoiceShares(Oracle({"q": Gold(frozenset())}))

    async def program(question: Question, run: Run, params: Any) -> Draft:
        await decide(run, HELPFUL, options="abcd", scores=(0.9, 0.1, 0.2, 0.8), k=2)  # rule: 0 and 3
        await decide(run, HELPFUL, options="abc", scores=(0.1, 0.9, 0.8), k=1)  # rule: 1
        await decide(run, replace(HELPFUL, helps=lambda gold, i: True), options="abc", scores=(1, 2, 3))
        await decide(run, replace(HELPFUL, helps=None), options="abc", scores=(1, 2, 3))
        return Draft(None)

    questions = [Question("q", "which?"), Question("no gold", "which?")]
    index.engine(SETTINGS).run("dense", questions, program=program, decider=Firsts(), on_choice=shares.see)
    chance = pytest.approx((2 / 4 + 2 / 3) / 2)
    assert shares.entry() == {"pick": {"n": 2, "right": 0.25, "rule": 0.5, "chance": chance}}


def test_an_evaluation_tells_how_often_the_model_chose_right(index: gpu_rag.Index) -> None:
    models = {"embedder": "hash", "decider": "model"}
    for hops in ("joint", "single"):
        llm = ScriptedLLM(lambda request: "none", capable=True)
        engine = index.engine({"models": models, "method": {"hoprag": {"hops": hops}}}, llm=llm)
        document = compare(engine, ["hoprag"], [asked("d0", "d1")], at=(2,), retrieval_only=True).document
        (entry,) = document["methods"]["hoprag"]["choice_shares"].values()
        assert entry["n"] > 0 and entry["right"] == 0.0 < entry["chance"]
    without = compare(index.engine(SETTINGS), ["hoprag"], [asked("d0")], at=(2,)).document
    assert "choice_shares" not in without["methods"]["hoprag"]


@pytest.mark.parametrize("method", METHODS)
def test_no_copy_takes_a_place_and_gold_whose_copy_is_shown_is_retrieved(
    with_copies: gpu_rag.Index, method: str
) -> None:
    """Retrieval alone, and with a reader, whichever program a method has."""
    (retrieved,) = with_copies.retrieve([BORN], method=method, settings=SETTINGS, k=3)
    by_rule = {"models": {**SETTINGS["models"], "decider": "rule"}}
    (answered,) = with_copies.answer([BORN], method=method, settings=by_rule, llm=ScriptedLLM(lambda _: "Tamsin"))
    for answer in (retrieved, answered):
        contents = [(e.text, e.title) for e in answer.evidence]
        assert len(contents) == len(set(contents)) >= 3, answer.error
        (bridge,) = (e for e in answer.evidence if e.title == "Halden Bridge")
        assert "the same text is in" in bridge.why and bridge.why.endswith(" and 1 other")
    assert len(retrieved.evidence) == 3
    rows = [asked("d0", "c0", "c3", "d4"), asked("n")]
    gold, engine = KbGold(with_copies, rows), with_copies.engine(SETTINGS)
    scores = score(engine, [retrieved, replace(retrieved, evidence=answered.evidence[:1])], rows, (8,), True, gold)
    assert scores["recall@8"][0] >= 0.75 and scores["recall@8"][1] == float(answered.evidence[0].title == "Who?")


@pytest.mark.parametrize("method", METHODS)
def test_many_copies_leave_as_many_passages_as_asked_for(buried: gpu_rag.Index, method: str) -> None:
    question = "Which bridge near Kerling, designed by Marta Orlo, crosses the river Ves?"
    (retrieved,) = buried.retrieve([question], method=method, settings=SETTINGS, k=3)
    assert len({e.title for e in retrieved.evidence}) == len(retrieved.evidence) == 3
