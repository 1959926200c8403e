"""HydraRAG-E: HydraRAG with one random relation of each edge that stands for several (Tan et al. 2025, experiments)."""

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
        """The same relations for every question."""
        return self.seed
