"""The command `gpu-rag completion`: a script with which a shell completes commands, options and names of files."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "Print a script with which a shell completes commands and options."
EXAMPLE = "gpu-rag completion bash"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(options: argparse.Namespace) -> tuple[int, None, str]:
    """Make the script from the parser of all commands."""
    import shtab

    from gpu_rag.cli.main import build_parser

    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            if action.type is Path or action.dest == "indexes":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return 0, None, shtab.complete(parser, options.shell)
