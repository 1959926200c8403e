"""Files that no command writes, and disks that refuse: one line that says what to do, and nothing is left over."""

import json
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.errors import BadInput
from gpu_rag.index.folder import write_atomic
from gpu_rag.methods.higra.merges import merge_id, read_edits

DEEP = "[" * 100_000
EDIT = b'{"id": "%s", "action": "reject", "members": ["a", "b"]}\n' % merge_id("semantic", ("a", "b")).encode()


def temporary(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b'{"id": "\xff"}\n', DEEP.encode(), b"7\n", b"\x00\n"])
def test_edits_of_merges_that_are_none(tmp_path, line):
    (tmp_path / "merges.jsonl").write_bytes(EDIT + b"\n" + line)
    with pytest.raises(BadInput, match=r"not an edit of merges; given .*merges.jsonl:3: "):
        read_edits(tmp_path / "merges.jsonl")


def test_no_flipped_bit_of_an_edit_changes_names(tmp_path):
    """It is refused by the number of its line, or says the same."""
    path, refused = tmp_path / "merges.jsonl", 0
    path.write_bytes(EDIT)
    (sound,) = read_edits(path)
    for at in range(len(EDIT)):
        for bit in range(8):
            data = bytearray(EDIT * 2)
            data[len(EDIT) + at] ^= 1 << bit
            path.write_bytes(data)
            try:
                assert set(read_edits(path)) == {sound}
            except BadInput as error:
                refused += "merges.jsonl:2: " in str(error) and "mend or remove the line" in str(error)
    assert refused > 0.95 * 8 * len(EDIT)


def test_edits_between_millions_of_blank_lines_are_read_one_by_one(tmp_path):
    (tmp_path / "merges.jsonl").write_bytes(b"\n" * 2_000_000 + EDIT)
    tracemalloc.start()
    (edit,) = read_edits(tmp_path / "merges.jsonl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert edit.members == ("a", "b") and peak < 1 << 20


@pytest.mark.parametrize("text", [DEEP, "{", "\xff", "7", '{"format": 1}', '{"a": 1' + "0" * 5000 + "}"])
def test_a_plan_that_is_none_is_an_error(run, cli, index, tiny_corpus, text):
    (index / "plan.json").write_text(text, "latin-1")
    result = run("index", tiny_corpus, "--out", index, *cli.NO_LLM)
    assert result.status == 2 and "internal" not in result.err and "plan.json" in result.error


ODD: list[dict[str, Any]] = [
    {"stages": [], "identity": {}, "load_s": 0}, {"stages": {}, "identity": [], "load_s": 0},
    {"stages": {"passages": {}}, "identity": {"passages": 1}, "load_s": "x"},
    {"stages": 1, "identity": None, "load_s": []},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_a_plan_of_other_values_is_not_compared(run, cli, tiny_corpus, tmp_path, odd):
    given = ("index", tiny_corpus, "--out", tmp_path / "ix", "--for", "bm25", *cli.NO_LLM)
    assert run(*given, "--plan").status == 0
    plan = json.loads((tmp_path / "ix/plan.json").read_text())
    plan.pop("sha256")  # of one that an earlier version made
    odd = {**odd, "identity": plan["identity"]} if odd["identity"] == {"passages": 1} else odd
    (tmp_path / "ix/plan.json").write_text(json.dumps({**plan, **odd}))
    result = run(*given)
    assert result.status == 0 and "not compared" in result.err


def test_answers_that_are_nested_too_deeply(run, cli, index, questions, tmp_path):
    answers = tmp_path / "a.jsonl"
    answers.write_text(DEEP + "\n")
    assert run("explain", answers, "q1").status == 2
    answers.with_name("a.jsonl.config.json").write_text(DEEP)
    result = run("answer", index, questions, "--method", "bm25", "--out", answers, *cli.HASH)
    assert result.status == 2 and "internal" not in result.err


@pytest.mark.parametrize("method", ["dense", "ppr"])
def test_a_limit_of_the_size_of_files_says_so_and_leaves_nothing(run, cli, tmp_path, small_files, method):
    texts = [f"{n} was born in Tamsin {n * 7919 % 10007} {n * 104729 % 999983}." for n in range(400)]
    rows = [{"id": f"d{n}", "title": f"T{n}", "text": text} for n, text in enumerate(texts)]
    cli.write_rows(tmp_path / "c.jsonl", rows[:300])
    result = run("index", tmp_path / "c.jsonl", "--out", tmp_path / "ix", "--for", method, *cli.NO_LLM)
    assert result.status == 1 and "a file may not grow this large here" in result.error and "ulimit" in result.error
    assert temporary(tmp_path) == []


def test_a_write_that_fails_leaves_no_temporary_file(tmp_path, small_files):
    with pytest.raises(Exception, match="a file may not grow this large here; .*ulimit"):
        write_atomic(tmp_path / "x", b"x" * 100_000)
    assert list(tmp_path.iterdir()) == []


def test_what_killed_jobs_left_beside_answers_is_removed(run, cli, index, questions, replay, tmp_path):
    for name in (".a.jsonl.123.tmp", ".a.jsonl.config.json.4.tmp", ".a.jsonl.inflight.5.tmp", ".b.jsonl.6.tmp"):
        (tmp_path / name).write_text("torn")
    given = ("answer", index, questions, "--method", "bm25", "--out", tmp_path / "a.jsonl", *cli.HASH)
    assert run(*given, "--set", f"models.llm=replay:{replay}").status == 0
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == [".b.jsonl.6.tmp"]


@pytest.mark.parametrize("out", ["/dev/null", "/dev/null/index", "file"])
def test_an_index_is_not_written_into_what_is_no_folder(run, tiny_corpus, tmp_path, out):
    (tmp_path / "file").write_text("x")
    result = run("index", tiny_corpus, "--out", tmp_path / out, "--for", "bm25")
    assert result.status in (1, 2) and str(tmp_path / out) in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux")
def test_an_index_is_not_written_into_a_folder_whose_name_is_no_text(run, cli, tiny_corpus, tmp_path):
    result = run("index", tiny_corpus, "--out", tmp_path / "a\udcffb", "--for", "bm25", *cli.HASH)
    assert result.status == 1 and "UTF-8" in result.err and "--out" in result.err
