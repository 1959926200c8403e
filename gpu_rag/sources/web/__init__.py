"""Web search for programs: the provider at a location. Nothing is fetched unless one is configured.

| location | provider |
|---|---|
| a folder of pages, or a .parquet or .jsonl file of them | `snapshot`: search over pages that were fetched before |
| http://host:port or https://... | `searxng`: a SearXNG server; pages are fetched when they are read |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_rag.errors import RequestFailed


@dataclass(frozen=True)
class WebResult:
    """One hit of a search. snippet: a few words of the page, possibly ""."""

    url: str
    title: str
    snippet: str


@dataclass(frozen=True)
class WebPage:
    """A page that was read. text: its main text; problem: why it could not be read (then text is "")."""

    url: str
    title: str
    text: str
    problem: str = ""


class WebProvider(Protocol):
    """A source of web pages. name: for messages and traces."""

    name: str

    def search(self, queries: Sequence[str], k: int) -> list[list[WebResult] | RequestFailed]:
        """At most k results of each query, best first; an error as a value where the engine did not answer it."""

    def read(self, urls: Sequence[str]) -> list[WebPage]:
        """The pages of results, in that order; a page that cannot be read says why in `problem`."""

    def close(self) -> None:
        """Ends connections and processes."""


def is_server(location: str) -> bool:
    """Whether a location is a search server and not a snapshot."""
    return location.startswith(("http://", "https://"))


def open_web(location: str) -> WebProvider:
    """The provider at a location, see the module. Raises BadInput for a path without pages."""
    if is_server(location):
        from gpu_rag.sources.web.searxng import SearxngProvider

        return SearxngProvider(location)
    from gpu_rag.sources.web.snapshot import SnapshotProvider, read_pages

    pages, _ = read_pages(Path(location))
    return SnapshotProvider(location, pages)
