"""Rules that every command keeps: help with an example, exit statuses, one JSON line on stdout, errors of one line."""

import gc
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from damage import manifest_of

from gpu_rag import __version__
from gpu_rag.cli import main as main_module
from gpu_rag.cli.main import COMMANDS, build_parser, late_interrupt

PATIENCE_S = 600  # for a process that ends by itself


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_an_example_that_can_be_run(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main_module.main([name, "--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    example = text.split("example:\n", 1)[1].splitlines()[0]
    words = shlex.split(example)
    assert words[:2] == ["gpu-rag", name]
    build_parser().parse_args(words[1:])  # raises UsageError for an option that does not exist
    for option in ("--json", "--debug"):
        assert option in text


USAGE = {
    "no command": ([], "required"),
    "unknown command": (["aks", "my-index", "Who?"], "did you mean ask?"),
    "unknown option": (["verify", "{index}", "--what"], "--what"),
    "missing option": (["answer", "{index}", "{questions}", "--method", "ppr"], "--out"),
    "not an index": (["verify", "{tmp}/nothing"], "{tmp}/nothing"),
    "a file for an index": (["ask", "{questions}", "Who?"], "{questions}"),
    "missing corpus": (["index", "{tmp}/no.jsonl", "--out", "{tmp}/new"], "{tmp}/no.jsonl"),
    "missing questions": (["eval", "{index}", "{tmp}/no.jsonl", "--retrieval-only"], "{tmp}/no.jsonl"),
    "missing answers": (["explain", "{tmp}/no.jsonl", "q1"], "{tmp}/no.jsonl"),
    "missing profile": (["doctor", "--profile", "{tmp}/no.toml"], "{tmp}/no.toml"),
    "misspelt option": (["ask", "{index}", "Who?", "--methd=ppr"], "did you mean --method?"),
    "question without quotes": (["ask", "{index}", "Who", "built", "it?"], "needs quotes"),
    "option of other tools": (["ask", "{index}", "Who?", "--top", "3"], "did you mean -k?"),
    "unknown method": (["ask", "{index}", "Who?", "--method", "ppt"], "did you mean ppr?"),
    "unknown second method": (["eval", "{index}", "{questions}", "--method", "bm25,denes"], "did you mean dense?"),
    "unknown method to build for": (["index", "{questions}", "--out", "{tmp}/new", "--for", "ppr,bm52"], "bm25?"),
    "no method": (["eval", "{index}", "{questions}", "--method", ",", "--retrieval-only"], "empty"),
    "--set without a section": (["doctor", "--set", "threads=2"], "threads=2"),
    "--set of an unknown name": (["doctor", "--set", "models.thread=2"], "did you mean threads?"),
    "--set of an unknown method": (["ask", "{index}", "Who?", "--set", "method.pprr.damping=0.5"], "did you mean ppr?"),
    "no such model": (["ask", "{index}", "Who?", "--set", "models.llm=gpt"], "given gpt"),
    "an empty question": (["ask", "{index}", " "], "question"),
    "--limit 0": (["eval", "{index}", "{questions}", "--limit", "0", "--retrieval-only"], "given 0"),
    "--at nothing": (["eval", "{index}", "{questions}", "--at", "0,5", "--retrieval-only"], "0,5"),
    "--at words": (["eval", "{index}", "{questions}", "--at", "five", "--retrieval-only"], "five"),
    "--max-failures nan": (["eval", "{index}", "{questions}", "--max-failures", "nan", "--retrieval-only"], "5%"),
    "unknown op": (["bench", "pagernak"], "pagernak"),
    "--openie that nobody reads": (
        ["index", "{questions}", "--out", "{tmp}/new", "--openie", "x.jsonl", "--set", "index.extractor=patterns"],
        "--openie",
    ),
    "--openie that is not there": (
        ["index", "{questions}", "--out", "{tmp}/new", "--openie", "{tmp}/x.jsonl"],
        "{tmp}/x.jsonl",
    ),
}
WITHOUT_SETTINGS = ("verify", "explain", "export", "bench")


@pytest.mark.parametrize("case", USAGE)
def test_bad_usage_is_one_line_and_status_2(case, run, cli, index, questions, tmp_path):
    words, expected = USAGE[case]
    places = {"index": index, "questions": questions, "tmp": tmp_path}
    arguments = [word.format(**places) for word in words]
    if words and words[0] in COMMANDS and words[0] not in WITHOUT_SETTINGS and "models.llm=gpt" not in words:
        arguments += cli.NO_LLM
    result = run(*arguments, "--json")
    assert result.status == 2, result.err
    assert result.out == ""
    assert result.err.count("\n") == 1 and result.err.startswith("gpu-rag: error: ")
    assert expected.format(**places) in result.err


def test_a_wrong_setting_stops_before_any_work(run, cli, index, questions, tmp_path):
    out = tmp_path / "answers.jsonl"
    for words in (("--method", "ppt"), ("--method", "ppr", "--max-failures", "many")):
        assert run("answer", index, questions, "--out", out, *words, *cli.NO_LLM).status == 2
        assert not out.exists()


def test_an_index_of_another_embedder_is_refused(run, cli, index, questions, tiny_corpus, tmp_path):
    manifest = index / "manifest.json"
    document = manifest_of(index)
    made = document["stages"]["passage_vectors"]["models"]["embedder"]["content_hash"]
    manifest.write_text(json.dumps(document).replace(made, made[::-1]))  # the same name and dimension, other weights
    for words in (
        ("eval", index, questions, "--method", "dense", "--retrieval-only"),
        ("index", tiny_corpus, "--out", index),
    ):
        result = run(*words, *cli.NO_LLM)
        assert result.status == 2
        assert "--fresh" in result.error


def test_any_answer_can_be_shown_on_a_terminal_without_unicode(cli, answer, questions, tmp_path):
    asked = "Où est né Łukasz? \U0001f600"
    cli.write_rows(questions, [{"id": "q1", "question": asked}])
    answer()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = cli.run_process("explain", tmp_path / "answers.jsonl", "q1", env=environment)
    assert result.status == 0 and "O\\xf9 est n\\xe9 \\u0141ukasz? \\U0001f600" in result.out


def test_the_disk_refuses_with_status_1(run, cli, index, questions, replay, tmp_path):
    (tmp_path / "folder").write_text("a file where a folder should be")
    given = (index, questions, "--method", "bm25", "--set", f"models.llm=replay:{replay}")
    result = run("answer", *given, "--out", tmp_path / "folder" / "answers.jsonl")
    assert result.status == 1
    assert result.err.count("\n") == 1 and "folder" in result.error


BUG = """
import sys
from gpu_rag.cli import explain_command, main
def run(options): raise KeyError("surprise")
explain_command.run = run
sys.exit(main.main(sys.argv[1:]))
"""


def test_a_bug_of_ours_is_one_line_too_and_debug_shows_where():
    plain = subprocess.run(
        [sys.executable, "-c", BUG, "explain", "x", "q1"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert plain.returncode == 1 and plain.stdout == ""
    assert plain.stderr.count("\n") == 1 and "KeyError: 'surprise'" in plain.stderr and "--debug" in plain.stderr
    debug = subprocess.run([sys.executable, "-c", BUG, "explain", "x", "q1", "--debug"], capture_output=True, text=True)
    assert debug.returncode == 1 and "Traceback" in debug.stderr


def test_a_reader_that_went_away_is_no_error_message(cli, answer, tmp_path):
    """`gpu-rag explain answers.jsonl q1 --json | head -0`: the other end of the pipe is closed."""
    answer()
    reader, writer = os.pipe()
    os.close(reader)
    words = cli.command_line("explain", tmp_path / "answers.jsonl", "q1", "--json")
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_ctrl_c_is_one_line_and_status_1(run, monkeypatch, tmp_path):
    from gpu_rag.cli import verify_command

    monkeypatch.setattr(verify_command, "run", lambda options: signal.raise_signal(signal.SIGINT))
    result = run("verify", tmp_path)
    assert result.status == 1
    assert result.err.count("\n") == 1 and "Ctrl-C" in result.error


def test_ctrl_c_waits_for_the_end_of_an_import_and_is_not_lost():
    steps = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        with late_interrupt():
            signal.raise_signal(signal.SIGINT)
            steps.append("ended")
        steps.append("never")
    assert steps == ["ended"]
    with late_interrupt():
        steps.append("undisturbed")
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ImportError), late_interrupt():
        raise ImportError("as it was")
    assert signal.getsignal(signal.SIGINT) is before


LATE = """
import atexit, os, signal, sys
from gpu_rag.cli import main
atexit.register(lambda: print("closing", flush=True) or os.kill(os.getpid(), signal.SIGINT))
sys.argv[1:] = ["verify", "no-such-index"]
{}
"""


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("main.program()", -signal.SIGINT, ""),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN); main.program()", 2, ""),  # as who started it wants it
        ("sys.exit(main.main())", 2, "Traceback"),  # a wrong version
    ],
)
def test_ctrl_c_after_the_end_adds_nothing(end, status, said, tmp_path):
    """While Python closes what was loaded, which may take as long as a short command itself."""
    words = [sys.executable, "-c", LATE.format(end)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "closing\n"), done.stderr
    first, *more = done.stderr.splitlines()
    assert first.startswith("gpu-rag: error: not an index") and said in done.stderr and bool(more) == bool(said)


LOADING = """
import os, signal, sys
class Pressed:
    def find_spec(name, *_):
        if name == "gpu_rag.settings":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Pressed)
{}
"""


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("from gpu_rag.__main__ import program; program()", ""),
        ("from gpu_rag.cli.main import program; program()", "Traceback"),  # a wrong version
    ],
)
def test_ctrl_c_while_modules_load_adds_nothing(start, said):
    done = subprocess.run([sys.executable, "-c", LOADING.format(start)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT
    assert said in done.stderr and bool(done.stderr) == bool(said)


def test_module_and_command_are_the_same_program(cli):
    command = Path(sys.executable).parent / "gpu-rag"
    by_command = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=PATIENCE_S)
    by_module = cli.run_process("--version")
    assert by_command.stdout == by_module.out == f"gpu-rag {__version__}\n"


def test_garbage_is_collected_once_the_libraries_are_there(monkeypatch):
    states = []
    monkeypatch.setattr(importlib, "import_module", lambda name: states.append((name, gc.isenabled())))
    monkeypatch.setattr(main_module, "keep_stderr", lambda: None)
    monkeypatch.setattr(main_module, "build_parser", lambda _: Commands(lambda: states.append(("run", gc.isenabled()))))
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            main_module.program()
    finally:
        signal.signal(signal.SIGINT, before)
        gc.enable()
        gc.unfreeze()
    assert states == [("gpu_rag.api.indexes", False), ("run", True)]


class Commands:
    """A parser whose one command calls a function."""

    json = False
    command = "add"

    def __init__(self, call):
        self.call = call

    def parse_args(self, _):
        return self

    def run(self, _):
        self.call()
        return 0, None, ""
