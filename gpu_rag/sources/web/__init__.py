"""Web search for programs: the provider at a location. Nothing is fetched unless one is configured.

| location | provider |
|---|---|
| a folder of pages, or a .parquet or .jsonl file of them | `snapshot`: search over pages that were fetched before |
| http://host:port or https://... | `searxng`: a SearXNG server; pages are fetched when they are read |
"""

from __future__ import annotations

from pathlib import Path

from gpu_rag.sources.web.types import WebProvider


def is_server(location: str) -> bool:
    """Whether a location is a search server and not a snapshot."""
    return location.startswith(("http://", "https://"))


def open_web(location: str) -> WebProvider:
    """Provider at a location, see the module. Raises BadInput for a path without pages."""
    if is_server(location):
        from gpu_rag.sources.web.cached import CachedProvider
        from gpu_rag.sources.web.searxng import SearxngProvider

        return CachedProvider(SearxngProvider(location))
    from gpu_rag.sources.web.snapshot import SnapshotProvider, read_pages

    pages, _ = read_pages(Path(location))
    return SnapshotProvider(location, pages)
