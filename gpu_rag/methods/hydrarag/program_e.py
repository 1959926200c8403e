"""HydraRAG-E: HydraRAG that keeps one random relation of each edge with several (Tan et al. 2025, experiments)."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.methods.hydrarag.program import check, program, retrieve
from gpu_rag.methods.hydrarag.state import Params as HydraParams

__all__ = ["Params", "check", "program", "retrieve"]


@dataclass(frozen=True)
class Params(HydraParams):
    """The settings of `hydrarag`."""

    @property
    def draw(self) -> int | None:
        """The seed of the draw; every question gets the same relations."""
        return self.seed
