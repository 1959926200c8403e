"""Settings of the graph ops: the section `[graph]`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpu_rag.settings.ranges import Allowed


@dataclass(frozen=True)
class GraphSettings:
    """Which code runs the graph ops; `auto` takes the fastest that the device has, see docs/cli.md.

    pagerank: auto | numba | scipy | torch | cugraph. ops: auto | numba | torch, all other graph ops. neighbours: auto |
    torch | faiss, exact search by vectors in a whole table. What was taken is printed and recorded; one that is not
    installed, or cannot work on the device, is an error.
    """

    pagerank: str = "auto"
    ops: str = "auto"
    neighbours: str = "auto"

    def preferences(self) -> dict[str, str]:
        """By family of ops, as `backend.preferring` takes them; those that are auto are left out."""
        return {family: name for family, name in asdict(self).items() if name != "auto"}


ALLOWED: dict[str, Allowed] = {
    "pagerank": ("auto", "numba", "scipy", "torch", "cugraph"),
    "ops": ("auto", "numba", "torch"),
    "neighbours": ("auto", "torch", "faiss"),
}
