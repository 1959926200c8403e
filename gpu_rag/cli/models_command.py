"""The command `gpu-rag models`: convert the packaged weights, fetch a repository, probe a model, or misbehave."""

from __future__ import annotations

import argparse
import os
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import add_settings, api_key, say, settings_of, table
from gpu_rag.errors import UsageError

HELP = "Convert the packaged model, fetch another, probe what a model can do, or serve a misbehaving model."
EXAMPLE = "gpu-rag models convert --out smollm2"
ACTIONS = ("convert", "fetch", "probe", "misbehave")
OPTIONS = {"name": ("fetch", "probe"), "out": ("convert", "fetch"), "fresh": ("probe",)}  # options and their actions
OPTIONS |= dict.fromkeys(("port", "seed", "share"), ("misbehave",))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("action", choices=[*ACTIONS], help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="fetch: OWNER/NAME; probe: a model (models.llm)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the model folder (default: below the cache folder)")
    parser.add_argument("--fresh", action="store_true", help="probe again a model whose result was kept")
    parser.add_argument("--port", type=int, metavar="P", help="misbehave: port to listen on (default 8000; 0: any)")
    parser.add_argument("--seed", type=int, metavar="N", help="misbehave: seed of the choice of faults (default 0)")
    parser.add_argument("--share", type=float, metavar="S", help="misbehave: share of wrong requests (default .3)")
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Run one of the four actions."""
    _check_options(options)
    if options.action == "misbehave":
        return _misbehave(options)
    if options.action == "fetch":
        os.environ["HF_HUB_OFFLINE"] = "0"  # the one command that may use the network
    from gpu_rag.models.stored import describe_folder

    if options.action == "probe":
        return _probe(options)
    began = time.perf_counter()
    folder, written = _convert(options) if options.action == "convert" else _fetch(options)
    document = {**describe_folder(folder), "written": written, "s": time.perf_counter() - began}
    size = f"{document['bytes'] / 2**20:,.1f} MiB in {len(document['files'])} files"
    did = f"in {document['s']:.1f} s" if written else "was there already"
    return 0, document, f"{document['folder']}: {size}, {did}\ncontent {document['sha256']}"


def _check_options(options: argparse.Namespace) -> None:
    """Raise UsageError for an option of another action."""
    for option, actions in OPTIONS.items():
        value = getattr(options, option)
        absent = value is False or value in (None, "")
        if not absent and options.action not in actions:
            name = "NAME" if option == "name" else f"--{option}"
            raise UsageError(f"{name} is for {' and '.join(actions)}", given=f"models {options.action}")


def _convert(options: argparse.Namespace) -> tuple[Path, bool]:
    """(model folder, whether it was written now)."""
    from gpu_rag.models.packaged import convert_packaged, packaged_llm_folder

    if options.out is None:
        return packaged_llm_folder(), True
    if options.out.exists():
        return options.out, False
    say("converting; this takes about 20 s and 270 MB")
    convert_packaged(options.out)
    return options.out, True


def _fetch(options: argparse.Namespace) -> tuple[Path, bool]:
    from gpu_rag.models.stored import fetch, fetched_folder

    if not options.name:
        raise UsageError("fetch needs a repository", given="no NAME", expected="OWNER/NAME")
    folder = options.out or fetched_folder(options.name)
    if folder.exists():
        return folder, False
    fetch(options.name, folder, say)
    return folder, True


def _misbehave(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Serve until Ctrl-C. The document counts requests and faults."""
    from gpu_rag.models.misbehave import Manners, MisbehavingServer

    share = 0.3 if options.share is None else options.share
    manners = Manners(options.seed or 0, share)
    server = MisbehavingServer(manners, port=8000 if options.port is None else options.port)
    say(f"misbehaving at {server.url} (seed {manners.seed}, share {share:g}); Ctrl-C stops")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.close()
    done = {name or "none": n for name, n in server.done.most_common()}
    document = {"url": server.url, "seed": manners.seed, "share": share, "done": done}
    return 0, document, table([[name, str(n)] for name, n in done.items()], ["fault", "times"])


def _probe(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    from dataclasses import replace

    from gpu_rag.models.llm.http import HttpLLM
    from gpu_rag.models.packaged import cache_dir
    from gpu_rag.models.probe import keep_probe, kept_probe, probe
    from gpu_rag.models.set import ModelSet

    settings = settings_of(options)
    chosen = replace(settings.models, llm=options.name) if options.name else settings.models
    models = ModelSet(chosen, api_key=api_key(settings, chosen.llm), vllm=settings.vllm)
    with closing(models):
        llm = models.llm()
        if isinstance(llm, HttpLLM) and options.fresh:
            llm.learn(fresh=True)
        kept = None if options.fresh else kept_probe(cache_dir(), llm)
        document = kept or probe(llm)
        if kept is None:
            keep_probe(cache_dir(), llm, document)
    document = {**document, "kept": kept is not None}
    if isinstance(llm, HttpLLM):
        document["server"] = str(llm.style)
        say(f"the server: {llm.style}")
    rows = [[test, f"{right} of {n}"] for test, (right, n) in document["tests"].items()]
    uses = f"{document['model']['name']}: good for {', '.join(document['good_for']) or 'none of the three uses'}"
    return 0, document, f"{uses}\n{table(rows, ['test', 'right'])}"
