"""The web steps: search, and read pages. The provider is the one configured for the run."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.errors import RequestFailed
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.load import load_web
from gpu_rag.program.kinds import TEXT
from gpu_rag.runtime.step import batched
from gpu_rag.sources.web import is_server, open_web
from gpu_rag.sources.web.snapshot import SnapshotProvider
from gpu_rag.sources.web.types import WebPage, WebProvider, WebResult

NONE, INDEX = "none", "index"


def web_provider(index: Index, location: str) -> WebProvider | None:
    """The provider at a location, opened once. "none": None; "index": the snapshots in the index, None if it has no
    page; otherwise a path or an address as in `sources.web`."""
    if location == NONE:
        return None
    if location == INDEX:
        return index.loaded("web snapshot", _snapshot)
    return index.loaded(f"web {location}", lambda index: open_web(location))


def _snapshot(index: Index) -> WebProvider | None:
    if "kb_web" not in index.stages:
        return None
    table, bm25 = index.loaded("kb_web", load_web)
    rows = table.select(["id", "title", "text"]).to_pylist()
    pages = [WebPage(row["id"], row["title"], row["text"]) for row in rows]  # two snapshots may have the same url
    return SnapshotProvider("snapshot", pages, bm25) if pages else None


def has_web(index: Index, location: str) -> bool:
    """Whether a location has a provider, see `web_provider`. A server is not contacted."""
    return is_server(location) or web_provider(index, location) is not None


@batched(TEXT)
def web_search(index: Index, queries: list[str], location: str, k: int) -> Sequence[list[WebResult] | RequestFailed]:
    """At most k results of each query, best first; RequestFailed if a server does not answer."""
    provider = web_provider(index, location)
    return [[] for _ in queries] if provider is None else provider.search(queries, k)


@batched(TEXT)
def web_read(index: Index, queries: list[tuple[str, ...]], location: str) -> list[list[WebPage]]:
    """The pages at the addresses of each query."""
    provider = web_provider(index, location)
    urls = list(dict.fromkeys(url for addresses in queries for url in addresses))
    pages = {} if provider is None else dict(zip(urls, provider.read(urls)))
    return [[pages[url] for url in addresses if url in pages] for addresses in queries]
