"""The knowledge base of an index, as verbs hold it."""

from __future__ import annotations

from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.load import load_kb


class HoldsKb:
    """Verbs over an index with a knowledge base."""

    index: Index

    @property
    def kb(self) -> KnowledgeBase:
        """The knowledge base of the index. Raises MissingLayer."""
        return self.index.loaded("kb", load_kb)
