"""docs/cli.md from the parser: commands, options, defaults, help; text and examples lie in docs/data.

A text holds `{options}` where the options of its command go, and `{example NAME}` where NAME.json goes.

    python scripts/make_docs.py            writes the page
    python scripts/make_docs.py --check    exits 1 where the page is not what this script makes
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from gpu_rag.cli.main import build_parser

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "cli.md"
SHARED = ("--profile", "--set", "--json", "--debug")


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, in the order of `gpu-rag --help`."""
    (found,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


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


def text(name: str) -> str:
    """The text of one section, its examples put in."""
    found = (DOCS / "data" / "cli" / f"{name}.md").read_text(encoding="utf-8").strip()
    return re.sub(r"\{example ([\w-]+)\}", lambda match: f"```json\n{example(match[1])}\n```", found)


def example(name: str) -> str:
    """A real document that a command printed, long lists and texts shortened."""
    return (DOCS / "data" / "json" / f"{name}.json").read_text(encoding="utf-8").strip()


def page() -> str:
    """The whole page."""
    found = commands()
    listed = [f"- [{name}](#gpu-rag-{name}): {parser.description}" for name, parser in found.items()]
    parts = [text("head"), "\n".join(listed), text("every-command")]
    parts += [
        f"## gpu-rag {name}\n\n{parser.description}\n\n{text(name).replace('{options}', options(parser))}"
        for name, parser in found.items()
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(int(PAGE.read_text(encoding="utf-8") != page()))
    PAGE.write_text(page(), encoding="utf-8")
