"""Make the parts of docs/cli.md between its made and end marks from the parser. The rest is written by hand.

python scripts/make_docs.py            writes the page
python scripts/make_docs.py --check    exits 1 if a made part differs from the parser
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from gpu_rag.cli.main import build_parser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
WIDTH = 18  # of an option with its value; longer ones push their words to the right
MADE = re.compile(r"(?<=^<!-- made: )([\w-]+)( -->\n)(?:.*?\n)??(?=<!-- end -->$)", re.M | re.S)


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, in the order of `gpu-rag --help`."""
    (subparsers,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


def usage(action: argparse.Action) -> str:
    """An option with its value, such as `--out DIR`."""
    value = "|".join(action.choices) if action.choices else action.metavar if action.nargs != 0 else ""
    return " ".join([*action.option_strings[:1], *([str(value)] if value else [])])


def line(action: argparse.Action) -> str:
    """An option in words, with its default."""
    words = (action.help or "").replace("%%", "%")
    needed = "; required" if action.required and action.option_strings else ""
    default = f" (default {action.default})" if action.default not in (None, False, [], "") else ""
    shown = "" if str(action.default) in words else default
    return f"{usage(action):<{WIDTH}}  {words}{shown}{needed}"


def wrap(text: str) -> str:
    """A line in at most 120 columns."""
    return textwrap.fill(text, 120, subsequent_indent=" " * (WIDTH + 2), break_long_words=False, break_on_hyphens=False)


def block(lines: Iterable[str]) -> str:
    """Lines as code."""
    return "\n".join(["```text", *map(wrap, lines), "```"])


def options() -> dict[str, str]:
    """The block of each command and, under `shared`, options of several commands, with the commands that take them."""
    actions = {
        name: [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
        for name, parser in commands().items()
    }
    takers: dict[str, list[str]] = {}
    for name, own in actions.items():
        for action in own:
            if action.option_strings:
                takers.setdefault(line(action), []).append(name)
    shared = {text: names for text, names in takers.items() if len(names) > 1}
    parts = {name: block(text for text in map(line, own) if text not in shared) for name, own in actions.items()}
    return {"shared": block(f"{text} [{named(names, len(actions))}]" for text, names in shared.items())} | parts


def named(names: list[str], n_commands: int) -> str:
    """Commands in words."""
    if len(names) < 9:
        return ", ".join(names)
    return "all" if len(names) == n_commands else "most"


def page(written: str) -> str:
    """The page with its made parts replaced."""
    described = {name: f"{parser.description}\n\n" for name, parser in commands().items()}
    parts = {name: described.get(name, "") + text for name, text in options().items()}
    names = [match[1] for match in MADE.finditer(written)]
    if names != list(parts):
        raise SystemExit(f"docs/cli.md has the made parts {', '.join(names)}; expected {', '.join(parts)}")
    return MADE.sub(lambda match: f"{match[1]}{match[2]}\n{parts[match[1]]}\n\n", written)


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        sys.exit(int(before != page(before)))
    PAGE.write_text(page(before), encoding="utf-8")
