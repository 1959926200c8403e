"""Make the parts of docs/cli.md between its made and end marks from the parser. The rest is written by hand.

python scripts/make_docs.py            writes the page
python scripts/make_docs.py --check    exits 1 if a made part differs from the parser
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

from gpu_rag.cli.main import build_parser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
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
    return f"- `{usage(action)}`: {words}{shown}{needed}"


def options() -> dict[str, str]:
    """The lines of each command and, under `shared`, the lines of options that several commands share."""
    actions = {
        name: [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
        for name, parser in commands().items()
    }
    uses = Counter(line(action) for own in actions.values() for action in own if action.option_strings)
    parts = {"shared": "\n".join(text for text, count in uses.items() if count > 1)}
    for name, own in actions.items():
        shared = [action.option_strings[0] for action in own if uses[line(action)] > 1]
        lines = [line(action) for action in own if uses[line(action)] <= 1]
        parts[name] = "\n".join([*lines, f"- [shared](#shared-options): {' '.join(f'`{text}`' for text in shared)}"])
    return parts


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
