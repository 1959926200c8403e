"""What a program may say to the web: search, and read pages. The provider is what the run was configured with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_rag.errors import RequestFailed
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.load import load_web
from gpu_rag.program.legacy import RANK_TEXT, Call, Executor
from gpu_rag.sources.web import is_server, open_web
from gpu_rag.sources.web.snapshot import SnapshotProvider
from gpu_rag.sources.web.types import WebPage, WebProvider, WebResult

NONE, INDEX = "none", "index"


def web_provider(index: Index, location: str) -> WebProvider | None:
    """The provider at a location, opened once: "none"; "index", the snapshots in the index, None where it has no page;
    a path or an address as in `sources.web`."""
    if location == NONE:
        return None
    if location == INDEX:
        return index.loaded("web snapshot", _snapshot)
    return index.loaded(f"web {location}", lambda index: open_web(location))


def _snapshot(index: Index) -> WebProvider | None:
    if "kb_web" not in index.layers:
        return None
    web = index.loaded("kb_web", load_web)
    rows = web.pages.select(["id", "title", "text"]).to_pylist()
    pages = [WebPage(row["id"], row["title"], row["text"]) for row in rows]  # two snapshots may have one url
    return SnapshotProvider("snapshot", pages, web.bm25) if pages else None


def web_executors(index: Index) -> dict[str, Executor]:
    """The executors of the web verbs."""

    def search(static: tuple[Any, ...], args: list[str]) -> list[list[WebResult] | RequestFailed]:
        provider = web_provider(index, static[0])
        return [[] for _ in args] if provider is None else provider.search(args, static[1])

    def read(static: tuple[Any, ...], args: list[tuple[str, ...]]) -> list[list[WebPage]]:
        provider = web_provider(index, static[0])
        urls = list(dict.fromkeys(url for some in args for url in some))
        pages = {} if provider is None else dict(zip(urls, provider.read(urls)))
        return [[pages[url] for url in some if url in pages] for some in args]

    return {"web_search": Executor(search, "text", RANK_TEXT), "web_read": Executor(read, "text", RANK_TEXT)}


class WebVerbs:
    """The web verbs of one question."""

    index: Index

    def has_web(self, location: str) -> bool:
        """Whether there is a provider at a location, see `web_provider`. A server is not asked."""
        return is_server(location) or web_provider(self.index, location) is not None

    async def web_search(self, location: str, query: str, k: int) -> list[WebResult]:
        """At most k results, best first. Raises RequestFailed where a server does not answer."""
        return await Call("web_search", (location, k), query)

    async def web_read(self, location: str, urls: Sequence[str]) -> list[WebPage]:
        """The pages of results."""
        return await Call("web_read", (location,), tuple(urls))
