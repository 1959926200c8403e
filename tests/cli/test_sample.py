"""The larger sample and its questions: ids, hops and answers hold together; `gpu-rag sample` writes them."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.sample import world_path

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None


@pytest.mark.parametrize(
    "file", [world_path("questions.jsonl"), Path(__file__).parent.parent / "fresh" / "world.jsonl"]
)
def test_the_larger_sample(file):
    corpus, questions = read_rows(world_path("corpus.jsonl")), read_rows(file)
    passages = {row["id"]: row for row in corpus}
    assert len(passages) == 440 and len({row["title"] for row in corpus}) == 440
    assert all(
        row["id"] == "p_" + hashlib.sha1(f"{row['title']}\n{row['text']}".encode()).hexdigest()[:12] for row in corpus
    )
    assert Counter(row["hops"] for row in questions) == {2: 24, 3: 24, 4: 12}
    for row in questions:
        assert len(set(row["gold_ids"])) == row["hops"] and row["type"] in ("bridge", "chain", "comparison")
        *before, last = [passages[key]["text"] for key in row["gold_ids"]]
        assert any(mentions(last, answer) for answer in row["answers"]), row["id"]
        assert not any(mentions(text, answer) for text in [row["question"], *before] for answer in row["answers"]), row[
            "id"
        ]


def test_the_sample_as_files(run, tmp_path):
    folder = tmp_path / "sample"
    lines = run("sample", str(folder), "--json").ok.document["lines"]
    assert (lines["corpus.jsonl"], lines["openie.jsonl"], lines["questions.jsonl"]) == (440, 440, 60)
    assert {file.relative_to(folder).as_posix() for file in folder.rglob("*.*")} == lines.keys()
    assert (folder / "questions.jsonl").read_bytes() == world_path("questions.jsonl").read_bytes()
    again = run("sample", str(folder))
    assert again.status == 2 and "DIR is not empty" in again.err
