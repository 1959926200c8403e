"""Web pages, search results, and the protocol of a provider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_rag.errors import RequestFailed


@dataclass(frozen=True)
class WebResult:
    """One search result. snippet: a few words of the page, possibly ""."""

    url: str
    title: str
    snippet: str


@dataclass(frozen=True)
class WebPage:
    """A page that was read. text: its main text; problem: the reason why it could not be read (then text is "")."""

    url: str
    title: str
    text: str
    problem: str = ""


class WebProvider(Protocol):
    """A source of web pages. name: for messages and traces."""

    name: str

    def search(self, queries: Sequence[str], k: int) -> list[list[WebResult] | RequestFailed]:
        """At most k results of each query, best first; an error as a value if the engine did not answer it."""

    def read(self, urls: Sequence[str]) -> list[WebPage]:
        """Pages of results, in that order; `problem` tells why a page cannot be read."""

    def close(self) -> None:
        """Close connections and end processes."""
