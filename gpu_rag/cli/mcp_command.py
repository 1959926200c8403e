"""The command `gpu-rag mcp`: tools for agents over an index, by the Model Context Protocol."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

from gpu_rag.cli.options import add_index, add_method, add_settings, api_key, port, say, settings_of
from gpu_rag.errors import MissingBackend

HELP = "Give agents tools over an index: search, fetch, answer, explain, neighbours, paths (Model Context Protocol)."
EXAMPLE = "gpu-rag mcp my-index --http 8765"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    add_method(parser)
    words = "serve http://127.0.0.1:PORT/mcp; default: stdin and stdout"
    parser.add_argument("--http", type=port, metavar="PORT", help=words)
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, None, str]:
    """Serve until the client leaves, or a signal stops the server."""
    if importlib.util.find_spec("mcp") is None:
        raise MissingBackend("mcp is not installed", do="pip install 'gpu-rag[mcp]'")
    import asyncio

    from gpu_rag import Index
    from gpu_rag.api.agents import make_server
    from gpu_rag.cli.trace_text import trace_text
    from gpu_rag.jobs import row_of
    from gpu_rag.types import Answer

    index = Index.open(options.index)
    settings = settings_of(options, index.manifest.defaults())
    given: dict[str, Any] = {"settings": settings, "api_key": api_key(settings)}

    def explain(answer: Answer) -> str:
        return trace_text(row_of(answer))

    with index:
        server = make_server(index, given, explain, method=options.method)
        if options.http is None:
            asyncio.run(server.run_stdio_async())
        else:
            say(f"http://127.0.0.1:{options.http}/mcp gives tools over {options.index}; Ctrl-C stops it")
            asyncio.run(server.run_streamable_http_async(host="127.0.0.1", port=options.http))
    return 0, None, ""
