"""Completion: bash runs the printed script, and offers what the parser of each command has."""

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_rag.cli import completion_command
from gpu_rag.cli.main import COMMANDS, build_parser

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"
_shtab_gpu_rag 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(run, tmp_path: Path) -> Path:
    file = tmp_path / "script"
    result = run("completion", "bash")
    assert result.status == 0 and not result.err
    file.write_text(result.out)
    return file


def offered(script: Path, *words: str) -> set[str]:
    """The words that bash offers for the last word."""
    command = ["bash", "-c", ASK, "bash", str(script), *words]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=script.parent)
    return set(run.stdout.split())


def test_bash_offers_commands_options_choices_and_files(script):
    assert offered(script, "gpu-rag", "") >= {*COMMANDS, "merges"}
    assert offered(script, "gpu-rag", "verify") == {"verify", "verify-answers"}
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, parser in commands.choices.items():
        options = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
        assert offered(script, "gpu-rag", name, "--") == options, name
    assert offered(script, "gpu-rag", "export", "ix", "--format", "") >= {"parquet", "graphml"}
    (script.parent / "my-index").mkdir()
    assert "my-index" in offered(script, "gpu-rag", "serve", "my")
    assert "my-index" in offered(script, "gpu-rag", "index", "files", "--out", "my")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_is_printed_as_it_is(run, shell, tmp_path):
    text = run("completion", shell, "--json").out
    assert text == completion_command.run(argparse.Namespace(shell=shell))[2] + "\n" and "verify-answers" in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_a_shell_that_it_does_not_know(run):
    result = run("completion", "dosh")
    assert result.status == 2 and "dosh" in result.err
