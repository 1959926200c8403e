"""The scripts that measure HydraRAG, on a graph of seven facts: shares by hand, gold relations, classes, tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from project_scripts import script

import gpu_rag
from gpu_rag.types import Answer, Pool, Question, RankedNode, TraceStep
from gpu_rag.types import Path as Found

FACTS = [
    ("Nightfall", "directed by", "Marta Orlo"), ("Daybreak", "directed by", "Marta Orlo"),
    ("Nightfall", "has genre", "drama"), ("Daybreak", "has genre", "comedy"),
    ("Nightfall", "starred actors", "Ada Brink"),
    ("Daybreak", "starred actors", "Carl Moss"), ("Marta Orlo", "born in", "Tamsin"),
]  # fmt: skip
QUESTIONS = [
    {"id": "q1", "question": "who is the director of [Nightfall]", "answers": ["Marta Orlo"], "hops": 1,
     "topic_entity": "Nightfall", "path": [["Nightfall", "directed by", "Marta Orlo"]]},
    {"id": "q2", "question": "where was the director of Nightfall born", "answers": ["Tamsin"], "hops": 2,
     "topic_entity": {"m.1": "Nightfall", "m.2": "Tamsin"},
     "sparql": "SELECT ?x WHERE { ?y ns:people.person.place_of_birth ?x . }"},
    {"id": "q3", "question": "what is the genre of Daybreak", "answers": ["opera"], "hops": 1,
     "topic_entity": "Daybreak"},
]  # fmt: skip


@pytest.fixture(scope="module")
def base() -> ModuleType:
    return script("eval_hydrarag")


@pytest.fixture(scope="module")
def evidence() -> ModuleType:
    return script("eval_hydrarag_evidence")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An index of the facts, and the questions."""
    folder = tmp_path_factory.mktemp("eval_hydrarag")
    (folder / "facts.tsv").write_text("".join("\t".join(fact) + "\n" for fact in FACTS))
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    settings = {"models": {"embedder": "hash", "llm": "none"}}
    gpu_rag.build((), folder / "ix", kg=[folder / "facts.tsv"], methods=["hydrarag"], settings=settings)
    return folder / "ix", folder / "questions.jsonl"


def answer(nodes: list[str], edges: list[tuple[str, str, str, str]], verified: tuple[str, ...] = ("kg",)) -> Answer:
    ranked = tuple(RankedNode(name, name, "entity", "facts", 1.0) for name in nodes)
    pools = (Pool("initial found", 2, ("Marta Orlo", "drama")), Pool("initial w_max", 1, ("drama",)))
    trace = (TraceStep(1, "verified_by", 1, verified),)
    return Answer("q", "?", "hydrarag", "answered", None, paths=(Found("", tuple(edges), "facts"),), nodes=ranked,
                  pools=pools, trace=trace)  # fmt: skip


def test_questions_are_read_by_halves_without_brackets(base: ModuleType, made: tuple[Path, Path]) -> None:
    rows = base.read(made[1], "all", 0)
    assert rows[0].question.text == "who is the director of Nightfall"
    assert rows[1].topics == {"nightfall", "tamsin"} and rows[0].answers == {"marta orlo"}
    assert [row.question.id for row in base.read(made[1], "first", 0)] == ["q1", "q3"]
    assert [row.question.id for row in base.read(made[1], "second", 5)] == ["q2"]


def test_shares_by_hand(base: ModuleType) -> None:
    row = base.Row(Question("q", "?"), frozenset({"marta orlo"}), 1, frozenset())
    one = answer(["Marta  ORLO"], [])
    run = base.Run([row], [one], 0, 0)
    assert base.on_path(one, row, "initial", "found") is True and base.on_path(one, row, "initial", "w_max") is False
    assert base.on_path(one, row, "refined", "found") is None
    assert run.ever(one, row, "found") and not run.last(one, row, "w_max")
    assert run.hit(one, row) and run.hits() == "1.000" and not run.hit(answer(["drama"], []), row)
    assert base.share([]) == "-"
    assert base.difference([True, True], [True, True]) == "+0.000 [+0.000, +0.000]"


def test_gold_relations_are_those_of_path_query_or_chain(evidence: ModuleType) -> None:
    gold = evidence.gold_of(QUESTIONS[0])
    assert gold.relations == {"directed by"} and gold.triples == {("nightfall", "directed by", "marta orlo")}
    assert evidence.gold_of(QUESTIONS[1]).relations == {"people.person.place of birth"}
    chain = evidence.gold_of({"inferential_chains": [["a.b.c", "d.e.f"], None]})
    assert chain.relations == {"a.b.c", "d.e.f"} and not evidence.gold_of(QUESTIONS[2]).relations


def test_overlap_is_the_share_of_gold_relations(evidence: ModuleType) -> None:
    gold = evidence.Gold(frozenset({"a", "b"}), frozenset())
    for relations, expected in (("a", 0.5), ("ab", 1.0), ("abx", 1.0), ("x", 0.0)):
        left = evidence.left_of(answer([], [("s", r, "o", "facts") for r in relations]))
        assert evidence.overlap(gold, left) == expected


def test_classes_name_the_kinds_that_verify(evidence: ModuleType) -> None:
    assert evidence.class_of(answer([], [], ("document", "kg"))) == "kg + document"
    assert evidence.class_of(answer([], [], ())) == "none"


@pytest.mark.parametrize("part", ["phases", "ablations", "sources"])
def test_every_part_prints_its_tables(
    base: ModuleType, made: tuple[Path, Path], part: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(base, "ABLATIONS", base.ABLATIONS[:3])
    given = ["eval_hydrarag.py", f"tiny={made[0]}={made[1]}", "--part", part, "--set", "models.llm=none"]
    monkeypatch.setattr(sys, "argv", given)
    base.main()
    printed = capsys.readouterr().out
    assert "tiny: 3 questions" in printed and "failed" not in printed
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    wanted = {"phases": "| initial | 3 | 0.667 |", "ablations": "| hydrarag-e | 0.667 |",
              "sources": "| all, pruning by relevance | 0.667 |"}  # fmt: skip
    assert any(row.startswith(wanted[part]) for row in rows), printed


def test_an_oracle_keeps_what_the_rules_keep(
    base: ModuleType, made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    kept = {}
    for decider in ("rule", "oracle:1"):
        given = ["eval_hydrarag.py", f"tiny={made[0]}={made[1]}", "--decider", decider, "--set", "models.llm=none"]
        monkeypatch.setattr(sys, "argv", given)
        base.main()
        printed = capsys.readouterr().out
        (row,) = [line for line in printed.splitlines() if line.startswith("| 2 | 1 |")]
        kept[decider] = [float(share) for share in row.strip("| ").split(" | ")[2:]]
        assert ("decided by rule, for want of gold: " in printed) == (decider != "rule")
    assert all(oracle >= rule for oracle, rule in zip(kept["oracle:1"], kept["rule"])) and kept["oracle:1"][-1] == 1.0


def test_the_tables_of_evidence(
    evidence: ModuleType, made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    given = ["eval_hydrarag_evidence.py", f"tiny={made[0]}={made[1]}", "--method", "hydrarag,hydrarag-e"]
    monkeypatch.setattr(sys, "argv", given)
    evidence.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| tiny")]
    of = {row[0]: row[1:] for row in rows if len(row) == 7 and "all" in row[0]}
    assert of["| tiny, hydrarag, all"][:2] == ["2", "0.500"]  # the first has its gold relation, the second another name
    assert any(row[:2] == ["| tiny, hydrarag", "several"] for row in rows)
    assert any("kg 1.000" in row[-1] for row in rows)
