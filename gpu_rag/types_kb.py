"""What answers over a knowledge base have beside passages and paths. `gpu_rag.types` has both names too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankedNode:
    """A node of the knowledge base as an answer. id: as in `KnowledgeBase.node_ids`; source: names of its sources."""

    id: str
    name: str
    type: str
    source: str
    score: float


@dataclass(frozen=True)
class Pool:
    """The paths that a search held at one moment, such as "initial beam": how many, and the names of all entities on
    them. For evaluation: was the answer still there?"""

    name: str
    n_paths: int
    entities: tuple[str, ...]
