"""`auto`: the method that `gpu-rag tune` found best for an index, else the best one that the index was built for."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.index.index import Index
from gpu_rag.index.tuned import tuned
from gpu_rag.methods.registry import AUTO, best_method
from gpu_rag.settings.check import Declared


@dataclass(frozen=True)
class Params(Declared):
    """No parameters: the method that `auto` chooses has its own."""


def stands_for(index: Index) -> str:
    """The method that answers. Raises MissingLayer, with the command to run, if the index was built for none."""
    name = tuned(index.path).get("auto", {}).get("method")
    return name if isinstance(name, str) and name != AUTO else best_method(index)
