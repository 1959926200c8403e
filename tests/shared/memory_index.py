"""An index that is a knowledge base in memory, for steps that read no more."""

from collections.abc import Callable, Sequence
from typing import Any

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.runtime.step import Step


class MemoryIndex:
    """The part of an index that a step reads: `loaded`, `vectors`, threads and device."""

    threads, device = 1, "cpu"

    def __init__(self, kb: KnowledgeBase | None = None):
        self._parts: dict[str, Any] = {"kb": kb}
        self.vectors = None if kb is None else kb.vectors

    def loaded(self, part: str, load: Callable[[Any], Any]) -> Any:
        if part not in self._parts:
            self._parts[part] = load(self)
        return self._parts[part]


def run(
    step: Step[Any, Any, Any, Any], kb: KnowledgeBase | MemoryIndex | None, queries: Sequence[Any], *key: Any
) -> Any:
    """The answers of a step to all queries."""
    return step.run(kb if isinstance(kb, MemoryIndex) else MemoryIndex(kb), list(queries), key)
