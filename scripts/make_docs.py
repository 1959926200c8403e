"""docs/cli.md: the parts between the made and end marks are made from the parser, the rest is by hand.

python scripts/make_docs.py            writes the page
python scripts/make_docs.py --check    exits 1 where a made part is not what the parser says
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from gpu_rag.cli.main import build_parser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
MADE = re.compile(r"(?<=^<!-- made: )([\w-]+)( -->\n)(?:.*?\n)??(?=<!-- end -->$)", re.M | re.S)
SHARED = ("--profile", "--set", "--json", "--debug")


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, in the order of `gpu-rag --help`."""
    (subparsers,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


def usage(action: argparse.Action) -> str:
    """An option with its value, such as `--out DIR`."""
    value = "|".join(action.choices) if action.choices else action.metavar if action.nargs != 0 else ""
    return " ".join([*action.option_strings[:1], *([str(value)] if value else [])])


def options(parser: argparse.ArgumentParser) -> str:
    """A line for each option of a command; those that all share are named in one line."""
    lines, shared = [], []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if (action.option_strings or [""])[0] in SHARED:
            shared.append(f"`{usage(action)}`")
            continue
        words = (action.help or "").replace("%%", "%")
        needed = "; required" if action.required and action.option_strings else ""
        default = f" (default {action.default})" if action.default not in (None, False, [], "") else ""
        shown = "" if str(action.default) in words else default
        lines.append(f"- `{usage(action)}`: {words}{shown}{needed}")
    return "\n".join([*lines, f"- {', '.join(shared)}: see [every command](#every-command)"])


def page(written: str) -> str:
    """The page with its made parts replaced."""
    parsers = commands()
    parts = {name: f"{parser.description}\n\n{options(parser)}" for name, parser in parsers.items()}
    listed = (f"- [{name}](#gpu-rag-{name}): {parser.description}" for name, parser in parsers.items())
    parts["commands"] = "\n".join(listed)
    names = [match[1] for match in MADE.finditer(written)]
    if names != list(parts := {name: parts[name] for name in ("commands", *parsers)}):
        raise SystemExit(f"docs/cli.md has the made parts {', '.join(names)}; expected {', '.join(parts)}")
    return MADE.sub(lambda match: f"{match[1]}{match[2]}\n{parts[match[1]]}\n\n", written)


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        sys.exit(int(before != page(before)))
    PAGE.write_text(page(before), encoding="utf-8")
