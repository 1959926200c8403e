"""A model that says what the rules of index stages would say makes the tables that the rules make, byte for byte."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import gpu_rag
from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.index.stages.coreference import Resolved
from gpu_rag.index.stages.extraction import Extracted, Named, extract_batch
from gpu_rag.methods.higra.tables import HIGRA_MERGES
from gpu_rag.methods.hoprag.stages.questions import InQuestions, OutQuestions
from gpu_rag.methods.hoprag.tables import read_questions
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.text.structs import schema_of
from gpu_rag.types import JsonSchema, Request

METHODS = ["hoprag", "higra-retriever"]
BASE: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}, "alignment": {"tau": 0.9, "min_cosine": 0.1}}
BY_LLM: dict[str, Any] = {
    "models": {"embedder": "hash"},
    "index": {"extractor": "llm", "coref": "llm"},
    "hops": {"simulate": "llm"},
    "alignment": {**BASE["alignment"], "decider": "llm", "link_radius": 0.9},
}
NOTES = {
    "Halden Bridge": "The Halden Bridge, also called Ves Bridge, was designed by Marta Orlo. It crosses the river Ves.",
    "Marta Orlo": "Marta Orlo was born in Tamsin. Marta Orlo studied at the University of Loss.",
    "Loss": "The University of Loss was founded by Hugo Brandt. Loss University lies on the river Ves.",
    "Brandt": "Hugo Brandt was born in Tamsin. H. Brandt taught at the University of Loss.",
}
SAME = {"extraction", "hop_questions", "higra_links", "higra_merge"}  # stages that a model may make
SAID_BY = {"higra_merges.parquet", "carried.z"}  # rows that name the rule, and verdicts of rules kept for later


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [{"id": title, "title": title, "text": text} for title, text in NOTES.items()]
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions_of(index: Index) -> dict[str, dict[str, list[str]]]:
    """Side -> text of a vertex -> its questions by the rules."""
    texts = index.passages["text"].to_pylist()
    found: dict[str, dict[str, list[str]]] = {}
    for side in ("in", "out"):
        rows = read_questions(index.folder("hop_questions"), side).to_pylist()
        found[side] = {text: [row["text"] for row in rows if row["vertex"] == v] for v, text in enumerate(texts)}
    return found


def merges_of(index: Index) -> list[set[str]]:
    """The names that the rules make one."""
    log = tables.read_table(index.folder("higra_merge") / "higra_merges.parquet", HIGRA_MERGES)
    return [set(row["members"]) for row in log.to_pylist() if row["why"] == "semantic"]


def speaking(index: Index, drop: bool = False) -> Callable[[Request], str]:
    """Replies of what the rules say. drop: without the last triple of a passage."""
    questions, merged = questions_of(index), merges_of(index)

    def extracted(title: str, text: str) -> str:
        (row,) = extract_batch(pa.record_batch({"title": [title], "text": [text]})).to_pylist()
        known = {profile["name"]: profile for profile in row["profiles"]}
        entities = tuple(Named(n, tuple(known[n]["aliases"]) if n in known else (), (), "") for n in row["entities"])
        triples = tuple(tuple(triple) for triple in row["triples"])
        return msgspec.json.encode(Extracted(entities, triples[: len(triples) - drop])).decode()

    def reply(request: Request) -> str:
        assert isinstance(request.constraint, JsonSchema)
        schema = request.constraint.schema
        if schema == schema_of(Resolved):
            return msgspec.json.encode(
                Resolved(request.prompt.split("Passage: ")[1].removesuffix("\n</data>"))
            ).decode()
        if schema == schema_of(Extracted):
            return extracted(*re.findall(r"Title: (.*)\n(?:Text|Passage): (.*)", request.prompt)[0])
        for side, form, least in (("in", InQuestions, 2), ("out", OutQuestions, 4)):
            if schema == schema_of(form):
                (said,) = [found for text, found in questions[side].items() if text in request.prompt]
                return msgspec.json.encode(form((*said, *[""] * (least - len(said))))).decode()
        if '"relations"' in schema:
            return json.dumps({"relations": []})
        names = re.findall(r"^\d+\. ([^|\n]*?)(?: \||$)", request.prompt, re.MULTILINE)
        numbers = {name.strip().casefold(): i for i, name in enumerate(names, 1)}
        groups = [[numbers[name] for name in sorted(names)] for names in merged if names <= numbers.keys()]
        return json.dumps({"groups": groups})

    return reply


def files(index: Index) -> dict[str, bytes]:
    return {
        f"{stage}/{path.name}": path.read_bytes()
        for stage in SAME
        for path in sorted(index.folder(stage).iterdir())
        if path.name not in SAID_BY
    }


def test_a_spoken_rule_builds_what_the_rule_builds(corpus: Path, tmp_path: Path) -> None:
    gpu_rag.build(corpus, tmp_path / "rules", methods=METHODS, settings=BASE)
    by_rule = Index.open(tmp_path / "rules")
    assert merges_of(by_rule) and all(any(found.values()) for found in questions_of(by_rule).values())
    for drop in (False, True):
        llm, out = ScriptedLLM(speaking(by_rule, drop)), tmp_path / f"spoken-{drop}"
        report = gpu_rag.build(corpus, out, methods=METHODS, settings=BY_LLM, llm=llm).report
        assert {name for name, stage in report.stages.items() if stage.llm_calls} == SAME
        found, expected = files(Index.open(out)), files(by_rule)
        different = {name for name in expected if found[name] != expected[name]}
        assert found.keys() == expected.keys()
        assert "extraction/extractions.parquet" in different if drop else not different
