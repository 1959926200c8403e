"""A drug that is contraindicated for a disease that a question names is never shown, unless it is asked for."""

import json
import re
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gpu_rag
from gpu_rag.program.knowledge_base.chain_reader import ChainReader

DISEASES, DRUGS = ("gout", "asthma", "glaucoma", "hay fever"), [f"Drug {i}" for i in range(5)]
BEFORE = (
    "",
    "",
    "I have {}. ",
    "I have {} and cannot sleep: ",
    "She must not drink and has {}; ",
    "Drug 1 made my {} worse. ",
)
ASKS = (
    "which drugs treat {}?", "one drug for {} that he may take?", "what helps against {} and {}?",
    "Which drugs for {} do not treat {}?",
    "which drugs other than Drug 1 treat {}?", "is there something safe in {} for {}?", "what cures {}, except {}?",
    "drugs for {} or {}?", "which drugs should a man with {} and {} take?", "Which drug has an effect on {}?",
)  # fmt: skip
AFTER = ("", "", " Not for {}.", " It must not be contraindicated in {}.", " I may not take what {} forbids.")
RELATIONS = ("indication", "contraindication", "off-label use")
Facts = dict[tuple[str, str], list[str]]


@st.composite
def asked(draw: st.DrawFn) -> str:
    text = "".join(draw(st.sampled_from(parts)) for parts in (BEFORE, ASKS, AFTER))
    names = iter(draw(st.permutations(DISEASES)))
    return re.sub("{}", lambda _: next(names), text)


some = st.lists(st.sampled_from(RELATIONS), max_size=2, unique=True)
facts = st.fixed_dictionaries({(drug, disease): some for drug in DRUGS for disease in DISEASES})


def harm(known: Facts, questions: Sequence[str], twins: Collection[str] = ()) -> list[tuple[str, str, str]]:
    """(method, question, drug) for each contraindicated drug that an answer shows. twins: diseases that a second node,
    whose type is not known, stands for too; it has the facts of half of the drugs."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        base.mkdir()
        nodes = [
            {"id": n, "type": t, "name": n} for t, names in (("disease", DISEASES), ("drug", DRUGS)) for n in names
        ]
        nodes += [{"id": f"x:{n}", "name": n.title()} for n in twins]
        ends = {(d, to): f"x:{to}" if to in twins and int(d[-1]) % 2 else to for d, to in known}
        edges = [{"src": fact[0], "relation": r, "dst": ends[fact]} for fact, own in known.items() for r in own]
        for file, rows in (("nodes.jsonl", nodes), ("edges.jsonl", edges)):
            (base / file).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        options: dict[str, Any] = {"methods": ["hybgrag", "hydrarag"], "llm": "none", "embedder": "hash"}
        gpu_rag.build((), Path(folder) / "index", sources=[f"base=kg:{base}"], **options)
        shown = []
        with gpu_rag.Index.open(Path(folder) / "index") as index:
            for method in ("hybgrag", "hydrarag"):
                for question, answer in zip(questions, index.answer(questions, method=method, llm="none"), strict=True):
                    assert answer.error is None
                    said = {node.name for node in answer.nodes} | set(re.findall(r"Drug \d", answer.text or ""))
                    bad = {d for (d, to), own in known.items() if to in question and "contraindication" in own}
                    shown += [(method, question, drug) for drug in sorted(said & bad)]
        return shown


@settings(max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(facts, st.lists(asked(), min_size=20, max_size=40), st.sets(st.sampled_from(DISEASES)))
def test_nothing_contraindicated_is_shown(known: Facts, questions: list[str], twins: set[str]) -> None:
    assert harm(known, questions, twins) == []


def test_a_reader_that_forgets_what_forbids_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    known: Facts = {(drug, "gout"): ["indication"] for drug in DRUGS} | {("Drug 0", "asthma"): ["contraindication"]}
    questions = ["I have asthma and cannot sleep: one drug for gout."]
    assert harm(known, questions) == []
    monkeypatch.setattr(ChainReader, "rules_out", lambda *_: {})
    monkeypatch.setattr(ChainReader, "forbidding", frozenset())
    assert {drug for _, _, drug in harm(known, questions)} == {"Drug 0"}
