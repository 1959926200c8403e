"""A stderr that is closed, full or without a reader: remarks are dropped, the command goes on."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# what a build does as far as streams go: it opens files, says remarks, and ends with its document
WORK = """
import os, sys
from gpu_rag.cli.terminal import keep_stderr
keep_stderr()
from gpu_rag.cli.options import say
with open(sys.argv[1], "w") as file:
    for number in range(3):
        say("remark" * 1000)
        print("from the library", file=sys.__stderr__ or sys.stderr) if number else os.write(2, b"from C")
    file.write(str(file.fileno()))
print("done")
"""


@pytest.fixture
def dead_pipe() -> Iterator[int]:
    """The writing end of a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("to", ["2>&-", "<&- 2>&-", "2>/dev/full", ""])
def test_remarks_that_nobody_reads_end_nothing(to: str, tmp_path: Path, dead_pipe: int) -> None:
    command = ["sh", "-c", f'"$@" {to}', "sh", sys.executable, "-P", "-c", WORK, str(tmp_path / "file")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=dead_pipe, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert int((tmp_path / "file").read_text()) > 2, "no file of an index takes the number of stderr"


def test_an_error_that_nobody_reads_keeps_its_status_and_leaves_stdout_alone(cli) -> None:
    command = ["sh", "-c", '"$@" 2>&-', "sh", *cli.command_line("explain", "nothing.jsonl", "q1", "--json")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_full_disk_is_named(cli, more: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        words = cli.command_line("completion", "bash", *more)
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-rag: error: the disk is full; given stdout; ") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_build_goes_on_without_stderr(cli, tiny_corpus: Path, tmp_path: Path, dead_pipe: int) -> None:
    words = ("index", tiny_corpus, "--out", tmp_path / "ix", "--for", "bm25", *cli.NO_LLM, "--json")
    done = subprocess.run(cli.command_line(*words), stdout=subprocess.PIPE, stderr=dead_pipe, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["passages"] == 6
