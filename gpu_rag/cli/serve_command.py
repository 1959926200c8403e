"""The command `gpu-rag serve`: indexes behind HTTP, with the questions of all clients batched together."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_rag.cli.options import add_settings, api_key, port, say, settings_of
from gpu_rag.cli.terminal import visible
from gpu_rag.errors import BadInput, MissingBackend, UsageError

if TYPE_CHECKING:
    from gpu_rag.engine import Engine
    from gpu_rag.serve.keys import Client
    from gpu_rag.settings import Settings

HELP = "Answer questions over HTTP: an API, OpenAI's protocols, and a page to explore with."
WORDS = "a file with the key that clients must send, or a FILE.toml of keys with rights and limits"
EXAMPLE = "gpu-rag serve my-index --port 8080"
NAME = re.compile("[a-z0-9_-]{1,40}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    folders = "index folders; below /w/NAME/ each has all routes of an index, and the first also at /"
    parser.add_argument("indexes", nargs="+", metavar="[NAME=]DIR", help=folders)
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
    from gpu_rag.cli.trace_text import step_words
    from gpu_rag.serve import server
    from gpu_rag.serve.admission import Admission
    from gpu_rag.serve.api import make_app
    from gpu_rag.serve.audit import Audit
    from gpu_rag.serve.changes import Changes
    from gpu_rag.serve.guard import is_loopback
    from gpu_rag.serve.keys import KeyFile
    from gpu_rag.serve.live import EngineThread
    from gpu_rag.serve.watch import Watch

    folders = _folders(options.indexes)
    check = partial(_check_client, folders)
    keys = KeyFile(options.api_key_file, os.environ, check, say) if options.api_key_file else None
    of_index = {name: settings_of(options, Index.open(path).manifest.defaults()) for name, path in folders.items()}
    first = next(iter(folders))
    settings = of_index[first]  # they hold the server's settings too, which no index has
    scheme = "https" if server.check_tls(settings.serve) else "http"
    server.allow_files(settings.serve.max_connections)
    bound = server.bind(options.host, options.port)
    address, port = bound.getsockname()[:2]
    if is_loopback(address):  # then a Host header is checked; the name given by --host is allowed too
        serve = replace(settings.serve, hosts=(*settings.serve.hosts, options.host))
        settings = replace(settings, serve=serve)
    elif keys is None:
        say(f"anyone who reaches {options.host} can ask questions and read passages: --api-key-file asks for a key")

    def ready() -> None:
        url = f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"
        methods = [name for name, lack in thread.indexes[first].lacking.items() if lack is None]
        document = json.dumps({"url": url, "methods": methods, "pid": os.getpid()})
        more = "".join(f", {path} below /w/{name}/" for name, path in folders.items() if name != first)
        line = f"{url} serves {folders[first]} by {', '.join(methods) or 'no method'}{more}; Ctrl-C stops it"
        print(document if options.json else visible(line), flush=True)

    with bound, closing(Audit(options.audit, say)) if options.audit else nullcontext() as audit:
        thread = EngineThread(partial(engines, folders, of_index, options.replies), settings.serve, say)
        watches = [Watch(folders[name], live, say) for name, live in thread.indexes.items()]
        admission = Admission(settings)
        try:
            thread.start()
            for watch in watches:
                watch.start()
            changes = Changes(*_program(options)) if keys else None
            app = make_app(thread, admission, step_words, address, keys, audit, changes)
            server.run(app, admission, bound, ready, keys)
        finally:
            for watch in watches:
                watch.stop()
            thread.stop()
    _end()
    return 0, None, ""


def _folders(given: Sequence[str]) -> dict[str, Path]:
    """{name: folder} of the indexes to serve. The first may lack a name; its folder's name is used, with letters
    replaced that a name may not have. Raises UsageError."""
    folders: dict[str, Path] = {}
    for text in given:
        name, sign, path = text.partition("=")
        if not sign or "/" in name:
            if folders:
                raise UsageError("a further index needs a name", given=text, expected="NAME=DIR")
            name, path = re.sub("[^a-z0-9_-]+", "-", Path(text).resolve().name.lower())[:40].strip("-") or "index", text
        if not NAME.fullmatch(name) or not path:
            expected = "NAME=DIR, with a name of at most 40 characters of a-z, 0-9, _ and -"
            raise UsageError("not a name of an index", given=text, expected=expected, do="write ./A=B for a folder A=B")
        if name in folders:
            raise UsageError("two indexes have one name", given=f"{name}: {folders[name]} and {path}")
        folders[name] = Path(path)
    return folders


def engines(folders: Mapping[str, Path], settings: Mapping[str, Settings], replies: Path | None) -> dict[str, Engine]:
    """An engine for each index, by its name. They share the language model, and embedders of the same name."""
    from gpu_rag import Index
    from gpu_rag.engine import Engine
    from gpu_rag.models.set import ModelSet

    first = next(iter(settings.values()))
    shared = ModelSet(first.models, replies, api_key=api_key(first), vllm=first.vllm)
    models = {first.models.embedder: shared}
    for other in settings.values():
        if (embedder := other.models.embedder) not in models:
            models[embedder] = shared.with_embedder(embedder)
    return {
        name: Engine(Index.open(path), settings[name], models[settings[name].models.embedder])
        for name, path in folders.items()
    }


def _check_client(folders: Mapping[str, Path], client: Client) -> None:
    """Raise BadInput if a client names an index that is not served, or its filter does not fit one of its indexes."""
    from gpu_rag import Index
    from gpu_rag.index.where import matching

    names = client.settings.indexes or tuple(folders)
    if unknown := [name for name in names if name not in folders]:
        given, expected = f"{', '.join(unknown)} of the key {client.name}", ", ".join(folders)
        raise BadInput("a key is for an index that is not served", given=given, expected=expected)
    for name in names if client.settings.where else ():
        try:
            matching(client.settings.where, Index.open(folders[name]).metadata)
        except UsageError as error:
            given, do = f"{client.name}, {name}: {error}", 'name the indexes that it fits: indexes = ["NAME"]'
            raise BadInput("the filter of a key does not fit an index", given=given, do=do) from error


def _program(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Arguments of `Changes`: the command line of this program, and the server's options for settings. A change leaves
    the other cores to the server's questions, unless these options say otherwise."""
    profile = ["--profile", options.profile] if options.profile else []
    settings = [word for given in options.assignments or () for word in ("--set", given)]
    return [sys.executable, "-m", "gpu_rag"], [*profile, "--set", "index.workers=1", *settings]


def _end() -> None:
    """End the process if a model still works in a thread: torch would abort if the interpreter shut down under it."""
    if any(thread is not threading.main_thread() for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
