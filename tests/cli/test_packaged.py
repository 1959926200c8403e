"""The installed command with the packaged models, as a user runs it: one process after the other, no test settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "gpu-rag"


def call(*arguments: object) -> dict:
    """The JSON document of a command that must succeed."""
    words = [str(COMMAND), *map(str, arguments), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


@pytest.mark.slow
def test_from_a_corpus_to_explained_answers_with_the_packaged_models(tiny_corpus, questions, tmp_path, cli):
    built = call("index", tiny_corpus, "--out", tmp_path / "i", "--for", "ppr,bm25")
    assert built["passages"] == 6 and built["entities"] > 6 and built["relations"] > 4
    scored = call("eval", tmp_path / "i", questions, "--method", "bm25,ppr", "--retrieval-only", "--limit", 4)
    assert scored["methods"]["ppr"]["recall@2"] >= 0.6  # two of six at random: 0.33
    answered = call("answer", tmp_path / "i", questions, "--method", "ppr", "--out", tmp_path / "a.jsonl", "--limit", 2)
    assert (answered["n"], answered["failed"], answered["usage"]["llm_calls"]) == (2, 0, 2)
    first = cli.read_rows(tmp_path / "a.jsonl")[0]
    assert first["evidence"][0]["passage_id"] == "d5"  # the article about the university itself
    assert first["status"] == "answered" and "Brandt" in first["answer"]
    assert first["usage"]["prompt_tokens"] > 100 and first["usage"]["llm_s"] > 0
    assert call("explain", tmp_path / "a.jsonl", "q1") == first
