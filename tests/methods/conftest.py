"""The six invented articles with facts written by hand, as an index of every layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import gpu_rag

Triple = tuple[str, str, str]
FACTS: dict[str, list[Triple]] = {
    "d0": [
        ("Halden Bridge", "designed by", "Marta Orlo"),
        ("Halden Bridge", "crosses", "Ves"),
        ("Halden Bridge", "stands at", "Kerling"),
    ],
    "d1": [("Marta Orlo", "born in", "Tamsin"), ("Marta Orlo", "studied under", "Piet Ruyven")],
    "d2": [("Piet Ruyven", "taught at", "University of Loss"), ("Piet Ruyven", "born in", "1871")],
    "d3": [("Kerling", "lies on", "Ves"), ("Kerling", "had as mayor", "Anna Stroud")],
    "d4": [("lighthouse of Tamsin", "built in", "1902")],
    "d5": [("University of Loss", "founded in", "1640"), ("University of Loss", "founded by", "Hugo Brandt")],
}
FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}
Build = Callable[..., gpu_rag.Index]


@pytest.fixture
def fast() -> dict[str, Any]:
    """Settings with the hashing embedder and no language model."""
    return FAST


@pytest.fixture
def facts() -> dict[str, list[Triple]]:
    return {name: list(triples) for name, triples in FACTS.items()}


@pytest.fixture
def build(tiny_corpus: Path, tmp_path: Path) -> Build:
    """build(facts, methods=..., named=False): an index of the tiny corpus whose relations are those of the facts, and
    whose entities are their ends. named: passages also name these ends as entities of theirs."""

    def make(
        found: Mapping[str, Sequence[Triple]],
        methods: Sequence[str] = ("ppr", "hybrid"),
        named: bool = False,
        settings: Any = FAST,
    ) -> gpu_rag.Index:
        openie = tmp_path / "openie.jsonl"
        ends = {name: [*dict.fromkeys(end for s, _, o in triples for end in (s, o))] for name, triples in found.items()}
        rows = [
            {"id": name, "entities": ends[name] if named else [], "triples": triples} for name, triples in found.items()
        ]
        openie.write_text("".join(json.dumps(row) + "\n" for row in rows))
        gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=methods, openie=openie, settings=settings, fresh=True)
        return gpu_rag.Index.open(tmp_path / "ix")

    return make


@pytest.fixture
def index(build: Build) -> gpu_rag.Index:
    return build(FACTS)
