"""The six invented articles with facts written by hand, as an index of every layer."""

import itertools
import json
import shutil
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
Once = Callable[[str, Callable[[Path], object], Path], Path]


@pytest.fixture
def fast() -> dict[str, Any]:
    """Settings with the hashing embedder and no language model."""
    return FAST


@pytest.fixture
def facts() -> dict[str, list[Triple]]:
    return {name: list(triples) for name, triples in FACTS.items()}


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """once(key, make, target): a copy at `target` of the folder that make(folder) has filled, once for each key."""
    made: dict[str, Path] = {}

    def copy(key: str, make: Callable[[Path], object], target: Path) -> Path:
        if key not in made:
            folder = tmp_path_factory.mktemp("once") / "ix"
            make(folder)
            made[key] = folder
        shutil.copytree(made[key], target)
        return target

    return copy


@pytest.fixture
def build(once: Once, tiny_corpus: Path, tmp_path: Path) -> Build:
    """build(facts, methods=..., named=False): an index of the tiny corpus whose relations are those of the facts, and
    whose entities are their ends. named: passages also name these ends as entities of theirs."""
    folders = (tmp_path / f"ix{k}" for k in itertools.count())

    def make(
        found: Mapping[str, Sequence[Triple]],
        methods: Sequence[str] = ("ppr", "hybrid"),
        named: bool = False,
        settings: Any = FAST,
    ) -> gpu_rag.Index:
        def written(folder: Path) -> None:
            openie = tmp_path / "openie.jsonl"
            rows = []
            for name, triples in found.items():
                ends = [*dict.fromkeys(end for s, _, o in triples for end in (s, o))]
                rows.append({"id": name, "entities": ends if named else [], "triples": triples})
            openie.write_text("".join(json.dumps(row) + "\n" for row in rows))
            gpu_rag.build(tiny_corpus, folder, methods=methods, openie=openie, settings=settings)

        key = json.dumps([found, methods, named, settings])
        return gpu_rag.Index.open(once(key, written, next(folders)))

    return make


@pytest.fixture
def index(build: Build) -> gpu_rag.Index:
    return build(FACTS)
