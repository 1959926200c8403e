"""Links: no path of an index and no file of a corpus folder is followed out of it."""

import json
import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of somebody else, which must stay as it is."""
    folder = tmp_path / "elsewhere"
    (folder / "old").mkdir(parents=True)
    (folder / "precious").write_text("precious")
    (folder / "old/precious").write_text("precious")
    return folder


def check_untouched(folder: Path) -> None:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert names == ["old", "old/precious", "precious"]
    assert {path.read_text() for path in folder.rglob("*") if path.is_file()} == {"precious"}


TARGETS = {"stages": ".", "work": ".", "lock": "precious", "replies.sqlite": "precious", "plan.json": "precious"}


@pytest.mark.parametrize("name", TARGETS)
def test_index_follows_no_link_out_of_the_folder(run, cli, tiny_corpus, tmp_path, elsewhere, name):
    (tmp_path / "ix").mkdir()
    (tmp_path / "ix" / name).symlink_to(elsewhere / TARGETS[name])
    for more in ((), ("--fresh",), ("--plan",)):
        result = run("index", tiny_corpus, "--out", tmp_path / "ix", "--for", "bm25", *cli.NO_LLM, *more)
        check_untouched(elsewhere)
        assert result.status == 1 and str(tmp_path / "ix" / name) in result.error


@pytest.mark.parametrize("name", ["stages", "manifest.json", "run.json", "edits", "a stage", "a table", "a pipe"])
def test_a_finished_index_with_a_link_is_refused_by_every_command(
    run, cli, index, tiny_corpus, tmp_path, questions, name
):
    stage = next(index.glob("stages/passages-*"))
    path = {"a stage": stage, "a table": stage / "passages.parquet", "a pipe": stage / "pipe"}.get(name, index / name)
    if name == "a pipe":
        os.mkfifo(path)
    else:
        outside = tmp_path / "outside"
        path.rename(outside) if path.exists() else outside.write_text("")
        path.symlink_to(outside)
    commands = [("verify", index), ("index", tiny_corpus, "--out", index, "--fresh", *cli.NO_LLM)]
    if name in ("stages", "a table"):
        commands += [
            ("ask", index, "Who?", "--method", "bm25"), ("eval", index, questions, "--method", "bm25"),
            ("index", tiny_corpus, "--out", index, *cli.NO_LLM),
            ("export", index, "--format", "graphml", "--out", tmp_path / "x"),
        ]  # fmt: skip
    for command in commands:
        result = run(*command)
        assert result.status == 1 and str(path) in result.err, command
    if name != "a pipe":
        assert path.is_symlink() and outside.exists()


def test_a_link_that_stands_for_a_file_that_is_written_beside_is_replaced(run, cli, tiny_corpus, tmp_path, elsewhere):
    (tmp_path / "ix").mkdir()
    for name in ("manifest.json", "run.json", "rejects.jsonl"):
        (tmp_path / "ix" / f".{name}.{os.getpid()}.tmp").symlink_to(elsewhere / "precious")
    assert run("index", tiny_corpus, "--out", tmp_path / "ix", "--for", "bm25", *cli.NO_LLM).status == 0
    check_untouched(elsewhere)


def test_the_index_folder_itself_may_be_a_link(run, index, tmp_path):
    (tmp_path / "here").symlink_to(index)
    assert run("verify", tmp_path / "here").status == 0


def test_links_that_lead_out_of_a_corpus_folder_are_rejects(run, cli, tmp_path):
    (tmp_path / "secret.txt").write_text("the secret words")
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("Marta Orlo designed the Halden Bridge.")
    (folder / "sub/inside.txt").symlink_to("../a.txt")
    (folder / "sub/out.txt").symlink_to("../../secret.txt")
    (folder / "abroad.html").symlink_to(tmp_path / "secret.txt")
    (folder / "circle.txt").symlink_to("circle.txt")
    result = run("index", folder, "--out", tmp_path / "ix", "--for", "bm25", "--json", *cli.NO_LLM)
    assert result.status == 0 and result.document["rejects"] == 3 and result.document["documents"] == 2
    rows = [json.loads(line) for line in (tmp_path / "ix/rejects.jsonl").read_text().splitlines()]
    out = [Path(row["file"]).name for row in rows if "leads out" in row["reason"]]
    assert sorted(out) == ["abroad.html", "out.txt"]
    assert b"secret words" not in b"".join(path.read_bytes() for path in tmp_path.glob("ix/**/*") if path.is_file())


def test_a_folder_whose_rows_lie_elsewhere_is_refused(run, cli, tmp_path, tiny_corpus):
    (tmp_path / "beir").mkdir()
    (tmp_path / "beir/corpus.jsonl").symlink_to(tiny_corpus)
    given = ("--out", tmp_path / "ix", "--for", "bm25", *cli.NO_LLM)
    result = run("index", tmp_path / "beir", *given)
    assert result.status == 2 and "leads out" in result.error
    assert run("index", tmp_path / "beir/corpus.jsonl", *given).status == 0  # a file that the user names
    skb = tmp_path / "skb"
    skb.mkdir()
    (tmp_path / "nodes.jsonl").write_text('{"id": "x"}\n')
    (skb / "nodes.jsonl").symlink_to(tmp_path / "nodes.jsonl")
    (skb / "edges.tsv").write_text("x\tis\tx\n")
    result = run("index", "--skb", skb, "--out", tmp_path / "kb", *cli.NO_LLM)
    assert result.status == 2 and "leads out" in result.error
    shutil.copy(tmp_path / "nodes.jsonl", tmp_path / "copy.jsonl")
    (skb / "nodes.jsonl").unlink()
    (tmp_path / "copy.jsonl").rename(skb / "nodes.jsonl")
    for plan in ((), ("--plan",)):
        assert run("index", "--skb", skb, "--out", tmp_path / "kb", *cli.NO_LLM, *plan).status == 0
