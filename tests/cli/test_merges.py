"""gpu-rag merges: lists, filters, edits that the next index run applies, and takes back; alignment in the report."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.index.manifest import Manifest

ROWS = [
    {"id": "d0", "entities": [], "triples": [["The Halden Bridge", "crosses", "Ves"]]},
    {"id": "d1", "entities": [], "triples": [["Marta Orlo", "designed", "Halden Bridge"]]},
    {"id": "d3", "entities": [], "triples": [["Kerling", "lies on", "the Ves"]]},
]
WIDE = ("--set", "alignment.tau=0.6", "--set", "alignment.min_cosine=0.4")


@pytest.fixture
def build(run: Any, cli: Any, tiny_corpus: Path, tmp_path: Path) -> Callable[..., Any]:
    """build(): (re)builds the index `tmp_path/ix`, and returns what the command did."""
    openie = cli.write_rows(tmp_path / "openie.jsonl", ROWS)
    words = ("index", tiny_corpus, "--openie", openie, "--out", tmp_path / "ix", "--for", "higra-retriever")
    return lambda *more: run(*words, *WIDE, *cli.NO_LLM, *more)


@pytest.fixture
def folder(cli: Any, made_once: Callable[..., Path], tiny_corpus: Path, tmp_path: Path) -> Path:
    openie = cli.write_rows(tmp_path / "openie.jsonl", ROWS)
    return made_once("ix", tiny_corpus, "--openie", openie, "--for", "higra-retriever", *WIDE)


def test_merges_are_listed_and_filtered(run, folder):
    result = run("merges", folder)
    assert result.status == 0 and result.out.splitlines()[-1] == "2 of 2 merges"
    assert re.search(r"^m_[0-9a-f]{10}  semantic  0\.\d{3}  (the )?ves = (the )?ves  \(article\)$", result.out, re.M)
    document = run("merges", folder, "--json").document
    assert list(document) == ["index", "n", "edited", "merges", "edits", "pairs"] and document["n"] == 2
    assert document["pairs"] == {}  # no model: no windows
    assert {tuple(sorted(row["members"])) for row in document["merges"]} == {
        ("halden bridge", "the halden bridge"),
        ("the ves", "ves"),
    }
    assert run("merges", folder, "--find", "HALDEN", "--json").document["n"] == 1
    assert run("merges", folder, "--why", "exact", "--json").document["merges"] == []
    limited = run("merges", folder, "--limit", 1, "--json").document
    assert (limited["n"], len(limited["merges"])) == (2, 1)


def test_edits_are_applied_by_the_next_run_and_taken_back(run, build, folder):
    before = Manifest.read(folder).digest()
    ves = next(r["id"] for r in run("merges", folder, "--json").document["merges"] if "ves" in r["members"])
    result = run("merges", folder, "--reject", ves, "--force", "Kerling", "Marta Orlo")
    assert result.status == 0 and "run gpu-rag index again" in result.err
    assert f"edit {ves}: reject" in result.out and "force kerling = marta orlo" in result.out
    document = build("--json").document
    skipped = {name for name, stage in document["stages"].items() if stage["skipped"]}
    assert {"passages", "extraction", "entities", "higra_exact_vectors"} <= skipped and "higra_merge" not in skipped
    merges = run("merges", folder, "--json").document["merges"]
    assert {(row["why"], *sorted(row["members"])) for row in merges} == {
        ("forced", "kerling", "marta orlo"),
        ("semantic", "halden bridge", "the halden bridge"),
    }
    assert document["alignment"]["entities"] == {"before": 6, "exact": 6, "semantic": 4}
    ids = [edit["id"] for edit in run("merges", folder, "--json").document["edits"]]
    assert run("merges", folder, *(word for id in ids for word in ("--undo", id))).out == "no edits\n"
    build()
    assert Manifest.read(folder).digest() == before


def test_bad_edits_are_refused_and_nothing_is_written(run, folder):
    for words, error in (
        (("--reject", "m_1"), "m_1"), (("--undo", "m_1"), "m_1"), (("--limit", "0"), "0"),
        (("--force", "Kerlin", "Ves"), "did you mean kerling?"), (("--force", "Ves", "the Ves"), "the Ves"),
    ):  # fmt: skip
        result = run("merges", folder, *words)
        assert result.status == 2 and error in result.error
        assert not (folder / "edits" / "merges.jsonl").exists()


def test_a_build_says_what_alignment_did(build):
    assert "alignment: 6 entities became 4" in build().out
