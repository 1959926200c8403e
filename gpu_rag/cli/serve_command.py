"""The command `gpu-rag serve`: an index behind HTTP, with the questions of all clients batched together."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import threading
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_rag.cli.options import add_index, add_settings, api_key, port, say, settings_of
from gpu_rag.cli.terminal import visible
from gpu_rag.errors import MissingBackend

if TYPE_CHECKING:
    from gpu_rag.engine import Engine
    from gpu_rag.models.set import ModelSet

HELP = "Answer questions over HTTP: an API, OpenAI's chat protocol, and a page to explore with."
WORDS = "a file with the key that clients must send, or a FILE.toml of keys with rights and limits"
EXAMPLE = "gpu-rag serve my-index --port 8080"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="the address to bind (default 127.0.0.1)")
    parser.add_argument("--port", type=port, default=8080, metavar="PORT", help="port; 0: a free one (default 8080)")
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help=WORDS)
    audit = "append a line for each request: time, key's name, path, status, milliseconds"
    parser.add_argument("--audit", type=Path, metavar="FILE.jsonl", help=audit)
    parser.add_argument("--replies", type=Path, metavar="FILE.sqlite", help="keep model replies, and never ask twice")
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, None, str]:
    """Serve until a signal stops the server. The JSON document is printed when it is ready, not at the end."""
    missing = [name for name in ("uvicorn", "starlette", "prometheus_client") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingBackend(f"{' and '.join(missing)} not installed", do="pip install 'gpu-rag[serve]'")
    from gpu_rag import Index
    from gpu_rag.cli.trace_text import said
    from gpu_rag.engine import Engine
    from gpu_rag.serve import server
    from gpu_rag.serve.admission import Admission
    from gpu_rag.serve.api import make_app
    from gpu_rag.serve.audit import Audit
    from gpu_rag.serve.changes import Changes
    from gpu_rag.serve.guard import is_loopback
    from gpu_rag.serve.keys import read_keys
    from gpu_rag.serve.live import Live
    from gpu_rag.serve.watch import Watch

    keys = read_keys(options.api_key_file, os.environ) if options.api_key_file else None
    settings = settings_of(options, Index.open(options.index).manifest.defaults())
    scheme = "https" if server.check_tls(settings.serve) else "http"
    server.allow_files(settings.serve.max_connections)
    bound = server.bind(options.host, options.port)
    address, port = bound.getsockname()[:2]
    if is_loopback(address):  # then a Host header is checked; the name in --host, which stands for it, is one of ours
        serve = replace(settings.serve, hosts=(*settings.serve.hosts, options.host))
        settings = replace(settings, serve=serve)
    elif keys is None:
        say(f"anyone who reaches {options.host} can ask questions and read passages: --api-key-file asks for a key")

    def open_engine() -> Engine:
        return Index.open(options.index).engine(settings, replies=options.replies, api_key=api_key(settings))

    def open_again(models: ModelSet) -> Engine:
        return Engine(Index.open(options.index, device=models.device), settings, models)

    def ready() -> None:
        url = f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"
        methods = [name for name, lack in live.lacking.items() if lack is None]
        document = json.dumps({"url": url, "methods": methods, "pid": os.getpid()})
        line = f"{url} serves {options.index} by {', '.join(methods) or 'no method'}; Ctrl-C stops it"
        print(document if options.json else visible(line), flush=True)

    with bound, closing(Audit(options.audit, say)) if options.audit else nullcontext() as audit:
        live = Live(open_engine, settings.serve, say)
        watch = Watch(options.index, live, open_again, say)
        admission = Admission(live, settings)
        try:
            live.start()
            watch.start()
            app = make_app(admission, said, address, keys, audit, Changes(*_program(options)) if keys else None)
            server.run(app, admission, bound, ready)
        finally:
            watch.stop()
            live.stop()
    _end()
    return 0, None, ""


def _program(options: argparse.Namespace) -> tuple[list[str], str, list[str]]:
    """Arguments of `Changes`: the command line of this program, the index, and the server's options for settings."""
    profile = ["--profile", options.profile] if options.profile else []
    settings = [word for given in options.assignments or () for word in ("--set", given)]
    return [sys.executable, "-m", "gpu_rag"], str(options.index), [*profile, *settings]


def _end() -> None:
    """End the process if a model still works in a thread: torch would abort if the interpreter shut down under it."""
    if any(thread is not threading.main_thread() for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
