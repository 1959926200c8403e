"""A run with the verbs of methods that are not yet steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_rag.methods.hydrarag.batched import PathVerbs
from gpu_rag.methods.hydrarag.web import WebVerbs
from gpu_rag.program import ask as model
from gpu_rag.program import search
from gpu_rag.program.choose import choose
from gpu_rag.program.knowledge_base import KbVerbs
from gpu_rag.program.models import Models
from gpu_rag.program.run import Run


class Verbs(Run, KbVerbs, PathVerbs, WebVerbs):
    """The verbs of one question over one index. limit: how many passages `retrieve` is to return."""

    @property
    def settings(self) -> Models:
        return self.models

    @property
    def llm(self) -> Any:
        return self.models.language_model

    async def ask(self, *args: Any, **kwargs: Any) -> Any:
        return await model.ask(self, *args, **kwargs)

    async def ask_text(self, *args: Any, **kwargs: Any) -> Any:
        return await model.ask_text(self, *args, **kwargs)

    async def choose(self, *args: Any, **kwargs: Any) -> Any:
        if "similarity" in kwargs:
            kwargs["scores"] = kwargs.pop("similarity")
        return await choose(self, *args, **kwargs)

    async def embed(self, texts: Any) -> np.ndarray:
        return await model.embed(texts)

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        return await model.request(self, *args, **kwargs)

    def repair(self, *args: Any, **kwargs: Any) -> Any:
        return model.repair(self, *args, **kwargs)

    def pack(self, *args: Any, **kwargs: Any) -> Any:
        return model.packed(self, *args, **kwargs)

    async def search_dense(self, vector: np.ndarray, k: int) -> Any:
        return await search.search_dense(vector, k)

    async def search_bm25(self, text: str, k: int) -> Any:
        return await search.search_bm25(text, k)

    async def search_hybrid(
        self, text: str, vector: np.ndarray, k: int, *, depth: int = 100, constant: float = 60.0
    ) -> Any:
        return await search.search_hybrid((text, vector), k, depth, constant)
