"""Options that several commands share, and the settings made of them."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.terminal import visible
from gpu_rag.errors import UsageError
from gpu_rag.methods.registry import AUTO, method_names
from gpu_rag.settings import Settings, make_settings, merge, nested, parse_assignment, read_profile
from gpu_rag.settings.check import checked

if TYPE_CHECKING:
    from gpu_rag.models.llm.interface import ApiKeys

PROFILES = ("cpu", "gpu", "multi-gpu")  # methods have further profiles


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add --profile and --set."""
    parser.add_argument("--profile", metavar="cpu|gpu|FILE", help="settings of a profile or a TOML file")
    words = "one setting, such as index.chunk_words=200 or method.NAME.PARAMETER=0.5; stronger than all others"
    add_list(parser, "--set", "KEY=VALUE", words, dest="assignments", type=str)


def add_index(parser: argparse.ArgumentParser) -> None:
    """Add DIR, the index folder."""
    parser.add_argument("index", type=Path, metavar="DIR", help="the index folder")


def add_method(parser: argparse.ArgumentParser) -> None:
    """Add --method."""
    best = f"{AUTO} (default): what tune found, else the best that the index has"
    others = ", ".join(name for name in method_names() if name != AUTO)
    parser.add_argument("--method", default=AUTO, metavar="M", help=f"{best}; or one of {others}")


def say_method(given: str, method: str) -> None:
    """Name the method that `auto` stood for."""
    if given != method:
        say(f"{given}: {method}")


def add_limit(parser: argparse.ArgumentParser, what: str = "questions") -> None:
    """Add --limit."""
    add_count(parser, "--limit", what, f"only the first N {what}")


def add_where(parser: argparse.ArgumentParser) -> None:
    """Add --where."""
    words = "only documents whose metadata fit, such as 'year >= 2020 and lang = \"de\"'"
    parser.add_argument("--where", metavar="EXPR", type=_filter, help=words)


def _filter(text: str) -> str:
    """The text of a filter. Raises UsageError if it is empty."""
    if not text.strip():
        raise UsageError("the filter is empty", expected="such as year >= 2020", do="or leave --where out")
    return text.strip()


def add_count(parser: argparse.ArgumentParser, name: str, what: str, words: str) -> None:
    """Add an option with a whole number above 0."""

    def count(text: str) -> int:
        if not text.isdecimal() or not int(text):
            raise UsageError(f"not a number of {what}", given=text, expected="a whole number above 0")
        return int(text)

    parser.add_argument(name, type=count, metavar="N", help=words)


def port(text: str) -> int:
    """The number of a port."""
    if not text.isdecimal() or int(text[:6]) > 65535:
        raise UsageError("not a port", given=text, expected="0 to 65535")
    return int(text)


def add_list(parser: argparse.ArgumentParser, name: str, metavar: str, words: str, **more: Any) -> None:
    """Add an option that may be given several times."""
    parser.add_argument(
        name, action="append", default=[], metavar=metavar, help=f"{words} (repeatable)", **{"type": Path, **more}
    )


def add_progress(parser: argparse.ArgumentParser) -> None:
    """--json-progress."""
    parser.add_argument("--json-progress", action="store_true", help="write progress to stderr as lines of JSON")


def add_limits(parser: argparse.ArgumentParser, failures: str) -> None:
    """Add --max-failures, with this default, and --max-fallbacks."""
    lost, ruled = "failures allowed", "unreadable replies allowed, which rules then decide,"
    for name, default, words in (("--max-failures", failures, lost), ("--max-fallbacks", "20%", ruled)):
        shown = f"{words} before exit status 3 (default {default})".replace("%", "%%")  # argparse formats it
        parser.add_argument(name, type=_failures, metavar="N|P%", default=default, help=shown)


def exit_status(
    options: argparse.Namespace,
    losses: Sequence[tuple[int, int, str]],
    fallbacks: Sequence[tuple[Mapping[str, Mapping[str, int]], int]],
) -> int:
    """3 if more was lost than --max-failures and --max-fallbacks allow, else 0. Says which limit was exceeded.

    losses: (failures, total, words such as "12 questions failed"); only the first that is exceeded is reported.
    fallbacks: (counts by step and kind, number of replies).
    """
    status = 0
    for n, total, words in losses:
        if not status and exceeds(options.max_failures, n, total):
            say(f"gpu-rag: {words}, above --max-failures {options.max_failures}")
            status = 3
    for by_step, n_read in fallbacks:
        by_rule = {step: kinds["rule"] for step, kinds in by_step.items() if kinds["rule"]}
        if exceeds(options.max_fallbacks, n := sum(by_rule.values()), n_read):
            steps = ", ".join(f"{step} {n:,}" for step, n in sorted(by_rule.items(), key=lambda item: -item[1]))
            say(
                f"gpu-rag: RULES DECIDED IN PLACE OF THE MODEL: {n:,} of {n_read:,} replies could not be read, above "
                f"--max-fallbacks {options.max_fallbacks} ({steps}); see what model and server can do: gpu-rag models "
                "probe --fresh; then --retry-unread asks again"
            )
            status = 3
    return status


def _failures(text: str) -> str:
    """Check the text of a limit before any work is done. Raises UsageError."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1
    if not (number >= 0 and math.isfinite(number)):
        raise UsageError("cannot read a limit", given=text, expected="a number, or a percentage such as 5%")
    return text


def exceeds(limit: str, failures: int, total: int) -> bool:
    """Whether `failures` of `total` are above a limit such as "3" or "5%"."""
    number = float(limit.removesuffix("%"))
    return failures > (number / 100 * total if limit.endswith("%") else number)


def profile_file(name: str) -> Path:
    """The file of a profile: a name from configs/ or of a method, or a path."""
    from gpu_rag.methods.registry import profiles

    if name not in PROFILES:
        return profiles().get(name, Path(name))
    here = Path(__file__).resolve().parents[2] / "configs" / f"{name}.toml"
    return here if here.is_file() else Path(sys.prefix) / "share" / "gpu-rag" / "configs" / f"{name}.toml"


def settings_of(
    options: argparse.Namespace, manifest: Mapping[str, Any] | None = None, flags: Mapping[str, Any] | None = None
) -> Settings:
    """The settings. Strongest first: --set, flags, profile, manifest, defaults."""
    profile = read_profile(profile_file(options.profile)) if options.profile else {}
    assigned = nested([parse_assignment(text) for text in options.assignments])
    from gpu_rag.methods.registry import load_method  # declares the sections of methods

    settings = make_settings(merge(profile, flags or {}, assigned), manifest)
    for name, params in settings.method.items():  # also methods that are not used: a typing error is never dropped
        checked(load_method(name).Params, params, f"method.{name}")
    return settings


def names(text: str) -> list[str]:
    """A comma-separated list without blanks and repeats. Raises UsageError when nothing is left."""
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise UsageError("the list is empty", given=repr(text), expected="one or more names, separated by commas")
    return parts


def numbers(text: str) -> list[int]:
    """A comma-separated list of whole numbers above 0."""
    try:
        values = [int(part) for part in names(text)]
    except ValueError as error:
        raise UsageError("not whole numbers", given=text, expected="such as 2,5,10") from error
    if min(values) < 1:
        raise UsageError("numbers must be above 0", given=text, expected="such as 2,5,10")
    return sorted(values)


def api_key(settings: Settings, llm: str = "") -> ApiKeys:
    """Keys by address from the variables that `models.api_keys` names; without any, the key for all model servers.

    The key for all comes from GPU_RAG_API_KEY or OPENAI_API_KEY. llm: the model in place of `models.llm`. Raises
    UsageError for a server that is used and whose variable is not set.
    """
    if not settings.models.api_keys:
        return os.environ.get("GPU_RAG_API_KEY") or os.environ.get("OPENAI_API_KEY")
    keys: dict[str, str] = {}
    for entry in settings.models.api_keys:
        address, _, name = entry.rpartition("=")
        if not address.startswith("http") or not name:
            expected = "http://HOST:PORT/v1=NAME, NAME an environment variable"
            raise UsageError("cannot read models.api_keys", given=entry, expected=expected)
        if key := os.environ.get(name, "").strip():
            keys[address] = key
        elif any(address.rstrip("/") in spec for spec in (llm or settings.models.llm, settings.eval.judge)):
            given = f"{name}, for {address}"
            raise UsageError("the key of a model server is not set", given=given, do=f"export {name}")
    return keys


def say(*lines: str) -> None:
    """Print a remark to stderr; stdout is for results."""
    for line in lines:
        print(visible(line), file=sys.stderr, flush=True)


def table(rows: Sequence[Sequence[str]], header: Sequence[str], n_left: int = 1) -> str:
    """A plain-text table: the first `n_left` columns are left-aligned, the others right-aligned."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = (cell.ljust(w) if i < n_left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
