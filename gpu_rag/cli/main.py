"""The `gpu-rag` command: parse, dispatch, and turn errors into one line and an exit status."""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn

from gpu_rag import __version__
from gpu_rag.cli.terminal import Visible, keep_stderr, show, visible
from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.machine import prepare_environment
from gpu_rag.settings.check import unknown_name

COMMANDS = (
    "index", "answer", "ask", "eval", "explain", "add", "update", "remove", "merge", "verify", "verify-answers",
    "export", "bench", "models", "doctor", "demo", "sample", "serve", "mcp", "tune", "completion",
)  # fmt: skip
WITHOUT_TORCH = ("explain", "bench", "completion")  # bench makes settings before torch is imported

_NAMES_OF_K = ("--k", "--top", "--top-k", "--top_k", "--limit")  # in other tools
EXIT_STATUS = "exit status: 0 done, 1 failed, 2 bad usage or bad input, 3 finished with failures above --max-failures"


class Parser(argparse.ArgumentParser):
    """A parser that raises usage errors as UsageError instead of printing them and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with one line that names the fault and where to find help."""
        given = re.match(r"argument COMMAND: invalid choice: '(\w+)'", message)
        if given:
            raise unknown_name("command", given[1], COMMANDS)
        raise UsageError(message, do=f"see: {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Raise UsageError for unknown arguments, so that the error names this command's own help."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name, known = unknown[0].partition("=")[0], self._option_string_actions
            near = ["-k"] if name in _NAMES_OF_K and "-k" in known else get_close_matches(name, known, n=1)
            hint = "" if unknown[0].startswith("-") else "; a text of several words needs quotes"
            self.error(f"unknown arguments: {' '.join(unknown)}{f'; did you mean {near[0]}?' if near else hint}")
        return options, unknown


def command_modules() -> dict[str, Callable[[], Any]]:
    """{command: a function that imports its module}; commands of methods come last. A module has HELP, EXAMPLE,
    add_arguments and run, which returns (exit status, --json document, text)."""
    from gpu_rag.methods.registry import named_hooks

    load = importlib.import_module
    own = {name: partial(load, f"gpu_rag.cli.{name.replace('-', '_')}_command") for name in COMMANDS}
    return {**named_hooks("commands"), **own}


def build_parser(only: str = "") -> Parser:
    """The parser of all commands, or only of the command `only`: modules of the others are not imported."""
    parser = Parser(prog="gpu-rag", description="Graph RAG on your own machines.", epilog=EXIT_STATUS)
    parser.add_argument("--version", action="version", version=f"gpu-rag {__version__}")
    modules = command_modules()
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name in [only] if only in modules else [*COMMANDS, *(name for name in modules if name not in COMMANDS)]:
        module = modules[name]()
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"example:\n  {module.EXAMPLE}\n\n{EXIT_STATUS}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON document as the last line of stdout")
        sub.add_argument("--debug", action="store_true", help="print a traceback if an error ends the command")
        sub.set_defaults(run=module.run)
    return parser


def prepare_process() -> None:
    """Set what libraries read at import (no spinning threads, hub or telemetry), and the output streams."""
    prepare_environment()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an answer may hold letters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Visible())


def program() -> NoReturn:
    """Run the command of this process, and exit: the entry point of `gpu-rag`.

    When the command has ended, everything is written: Ctrl-C then ends the process at once, without a traceback of
    libraries that are being closed.
    """
    gc.disable()  # while libraries are imported: collection would take a sixth of that time
    keep_stderr()
    status = 1  # if Ctrl-C comes while an error is reported
    with suppress(KeyboardInterrupt):
        try:
            status = main()
        finally:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if ignored, as by nohup
                signal.signal(signal.SIGINT, signal.SIG_DFL)
    # If Ctrl-C came while `exec` ran (dataclasses use it), `python -m` would die of SIGINT instead of ending with this
    # status. Another `exec` that runs to its end resets that.
    exec("")
    sys.exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    if not debug:
        sys.excepthook = _internal_error
    try:
        prepare_process()
        options = build_parser(given[0] if given else "").parse_args(given)
        if options.command not in WITHOUT_TORCH:
            with late_interrupt():
                importlib.import_module("gpu_rag.api.indexes")
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        status, document, text = options.run(options)
        if options.json and document is not None:  # None: the command has printed it
            # ASCII fits every encoding; json escapes every control character but DEL
            show(json.dumps(document, allow_nan=False).replace("\x7f", "\\u007f"))
        elif text:
            show(text)
        return int(status)
    except GpuRagError as error:
        return _report(error, error.exit_code, debug)
    except BrokenPipeError:
        # The reader of our output is gone: nothing more to say, and nothing to write at the end (Python's status 120).
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.close()
        return 1
    except KeyboardInterrupt as error:
        return _report(error, 1, debug, "stopped by Ctrl-C; run the same command again to continue where it stopped")
    except (OSError, MemoryError, RecursionError) as error:
        return _report(error, 1, debug)


@contextmanager
def late_interrupt() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block: torch aborts the process when its import is interrupted in C++ code.

    Threads that start inside the block never handle Ctrl-C.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _internal_error(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Report a bug of ours in one line that names --debug. Python then exits with status 1."""
    text = visible(" ".join(str(error).split()))
    print(f"gpu-rag: internal error: {kind.__name__}: {text}; run again with --debug and report it", file=sys.stderr)


def _report(error: BaseException, status: int, debug: bool, message: str | None = None) -> int:
    if debug:
        import traceback

        print(visible("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    text = message or f"{' '.join(str(error).split()) or type(error).__name__}"
    print(f"gpu-rag: error: {visible(text)}", file=sys.stderr, flush=True)
    return status
