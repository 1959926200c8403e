"""Shared by the tests of answers: the expected answers of QUESTIONS, and the check of rows."""

import json
from collections import Counter

import pytest

KEYS = ["id", "question", "method", "status", "answer", "grounding", "evidence", "paths", "trace", "usage"]
KEYS += ["fallbacks", "error", "config_hash", "digest"]
USAGE = {
    "llm_calls", "prompt_tokens", "cached_tokens", "generated_tokens", "llm_s", "graph_s", "embed_s", "wall_s",
    "malformed", "cut", "replies_read", "fallbacks",
}  # fmt: skip
EXPECTED = {
    "q1": ("answered", "Hugo Brandt"),
    "q2": ("answered", "the port of Tamsin"),
    "q3": ("answered", "The University of Loss"),
    "q4": ("answered", "Piet"),
    "q5": ("unsupported", None),
}


@pytest.fixture(params=["rounds", "streaming"])
def driver(request):
    """Each driver in its turn."""
    return request.param


@pytest.fixture
def out(tmp_path):
    return tmp_path / "answers.jsonl"


def check(rows, index, cli) -> None:
    """Rows as documented, one a question, whose evidence and paths are in the index."""
    from gpu_rag import Index

    passages = {row["id"]: row for row in Index.open(index).passages.to_pylist()}
    assert Counter(row["id"] for row in rows) == Counter(list(EXPECTED))
    asked = {row["id"]: row["question"] for row in cli.QUESTIONS}
    for row in rows:
        assert list(row) == KEYS
        assert (row["status"], row["answer"]) == EXPECTED[row["id"]]
        assert (row["question"], row["method"], row["error"]) == (asked[row["id"]], "ppr", None)
        assert set(row["usage"]) == USAGE and row["usage"]["llm_calls"] == 1 and row["usage"]["prompt_tokens"] > 0
        assert [step["step"] for step in row["trace"]] == list(range(len(row["trace"])))
        assert row["evidence"] == sorted(row["evidence"], key=lambda e: -e["score"]) != []
        for item in row["evidence"]:
            passage = passages[item["passage_id"]]
            assert {name: item[name] for name in ("title", "text", "start", "end")} == {
                name: passage[name] for name in ("title", "text", "start", "end")
            }
            assert item["why"]
        for path in row["paths"]:
            assert path["edges"] and path["source"] == "graph"
            for subject, _, object_, passage in path["edges"]:
                assert passage in passages and subject in path["text"] and object_ in path["text"]


@pytest.fixture
def expected():
    """{question id: (status, answer)}."""
    return EXPECTED


@pytest.fixture
def keys():
    """The keys of a row, in order."""
    return KEYS


@pytest.fixture
def check_rows(index, cli):
    """check_rows(rows): whether these are the rows of QUESTIONS by ppr."""
    return lambda rows: check(rows, index, cli)


@pytest.fixture
def forget(replay):
    """forget(text): takes the replies to prompts with this text off the recording."""

    def forget(text):
        whole = replay.read_text()
        kept = [line for line in whole.splitlines(keepends=True) if text not in json.loads(line).get("prompt", "")]
        assert len(kept) < whole.count("\n")
        replay.write_text("".join(kept))

    return forget
