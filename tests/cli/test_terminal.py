"""Terminal escapes of documents, models and arguments are shown and never sent."""

import contextlib
import fcntl
import json
import logging
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.cli.main import _internal_error
from gpu_rag.cli.terminal import visible
from gpu_rag.models import set as models_set
from gpu_rag.models.llm.scripted import ScriptedLLM

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x7f\u202etxt.exe\u2066\u200f"
OBEYED = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
OBEYED = (OBEYED | {"\u061c", "\u200e", "\u200f", "\u2028", "\u2029"}) - {"\n", "\t"}


def check_tame(*texts: str) -> None:
    for text in texts:
        assert not OBEYED & set(text), sorted(OBEYED & set(text))


def test_the_function_shows_what_a_terminal_obeys_and_nothing_else():
    check_tame(visible(EVIL), visible("".join(OBEYED)))
    assert visible(EVIL).startswith(r"\x1b]0;owned\x07\x1b[2J\x9b31m\r\x7f\u202etxt.exe")
    kept = "Zoë, 日本語, नमस्ते, 👩‍🚀, עברית\n\ttab"
    assert visible(kept) == kept


@pytest.fixture
def hostile(tmp_path: Path, run: Any, cli: Any) -> Path:
    """An index of a document whose title and text hold escapes."""
    rows = [{"id": f"d{EVIL}", "title": f"Halden {EVIL}", "text": f"Marta Orlo {EVIL} designed the Halden Bridge."}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run("index", tmp_path / "c.jsonl", "--out", tmp_path / "ix", *cli.NO_LLM, "--for", "ppr,bm25")
    assert result.status == 0, result.err
    return tmp_path / "ix"


def test_documents_and_models_send_no_escape(run, cli, hostile, monkeypatch, tmp_path):
    monkeypatch.setattr(models_set, "load_llm", lambda *_, **__: ScriptedLLM(lambda request: f"Marta {EVIL}"))
    asked = ("ask", hostile, f"Who designed the Halden Bridge? {EVIL}", "--method", "bm25", "--explain")
    model = ("--set", "models.llm=smollm2")
    asked += model
    result = run(*asked)
    assert result.status == 0 and r"\x1b]0;owned" in result.out
    check_tame(result.out, result.err)
    result = run(*asked, "--json")
    check_tame(result.out, result.err)
    assert "\x9b" in result.document["answer"] and result.out.isascii()  # the document itself is whole
    answers = tmp_path / "a.jsonl"
    questions = cli.write_rows(tmp_path / "q.jsonl", [{"id": f"q{EVIL}", "question": f"Who? {EVIL}"}])
    for command in (
        ("answer", hostile, questions, "--method", "bm25", "--out", answers, *model), ("explain", answers, f"q{EVIL}"),
        ("verify", hostile), ("verify-answers", answers, hostile),
        ("eval", hostile, questions, "--method", "bm25", *model),
    ):  # fmt: skip
        result = run(*command)
        check_tame(result.out, result.err)


@pytest.mark.parametrize(
    "command",
    [(f"{EVIL}",), ("ask", f"no{EVIL}", "Who?"), ("verify", f"no{EVIL}"), ("index", f"no{EVIL}", "--out", "x"),
     ("index", ".", "--out", "x", "--set", f"index.{EVIL}=1"), ("ask", "x", "y", f"--{EVIL}"),
     ("verify", f"n{EVIL}", "--debug"), ("answer", "x", "y", "--out", "z", "--max-failures", EVIL)],
)  # fmt: skip
def test_arguments_send_no_escape(run, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*command)
    assert result.status == 2 and "owned" in result.err
    check_tame(result.out, result.err)


def test_warnings_and_internal_errors_send_no_escape(run, capsys):
    run("verify", "nothing")
    logging.getLogger("some.library").warning("a server said %s", EVIL)
    _internal_error(ValueError, ValueError(EVIL), None)
    found = capsys.readouterr()
    check_tame(found.err)


def in_terminal(command: list[str], **variables: str) -> str:
    """Output of a command in a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM")}
    process = subprocess.Popen(
        command, stdout=theirs, stderr=subprocess.PIPE, env={**kept, "TERM": "xterm", **variables}
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 65536):
            written += piece
    os.close(ours)
    assert process.wait(timeout=300) == 0, process.stderr.read()
    return written.decode().replace("\r\n", "\n")


def test_a_terminal_shows_the_words_that_match(run, cli, hostile, chat_server):
    server = chat_server(lambda prompt: (200, f"Marta {EVIL} Orlo"))
    words = ("Who designed the Halden Bridge?", "--method", "bm25", *cli.HASH, "--set", f"models.llm={server.spec}")
    command = cli.command_line("ask", hostile, *words)
    plain = run("ask", hostile, *words).out
    assert "\x1b" not in plain, "no styles in a pipe"
    styled = in_terminal(command)
    assert "\x1b[1;33mdesigned\x1b[0m" in styled and "\x1b[1mMarta\x1b[0m" in styled and "\x1b[1msentences" in styled
    bare = re.sub("\x1b\\[[0-9;]*m", "", styled)
    check_tame(bare)
    assert re.sub(r"(?m)^cost .*", "", bare) == re.sub(r"(?m)^cost .*", "", plain)
    assert "\x1b" not in in_terminal(command, NO_COLOR="1")
