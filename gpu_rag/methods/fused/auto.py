"""`auto`: the method that `gpu-rag tune` found best for an index; else the best that it was built for."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.errors import MissingLayer
from gpu_rag.index.index import Index
from gpu_rag.index.tuned import tuned
from gpu_rag.methods.registry import check_passages, check_stages, method_names
from gpu_rag.settings.check import Declared

# Best first, by docs/benchmarks/ranking.md; methods of other packages come after them.
OVER_PASSAGES = ("fused", "ppr", "bubblerag", "higra-retriever", "hoprag", "hybrid", "dense", "bm25")
OVER_KNOWLEDGE = ("hybgrag", "hydrarag")


@dataclass(frozen=True)
class Params(Declared):
    """None: the method that it stands for has its own."""


def stands_for(index: Index) -> str:
    """The method that answers. Raises MissingLayer where the index was built for none, with the line to run."""
    name = tuned(index.path).get("auto", {}).get("method")
    if isinstance(name, str) and name != "auto":
        return name
    own = (OVER_PASSAGES, OVER_KNOWLEDGE)
    known = [name for names in (own if index.manifest.sources.get("corpus") else own[::-1]) for name in names]
    lacking: MissingLayer | None = None
    for name in (*known, *(name for name in method_names() if name not in known)):
        if name == "auto":
            continue
        try:
            check_stages(name, index.stages, str(index.path), index.manifest.sources)
            check_passages(name, index.n_passages, index.stages, str(index.path))
        except MissingLayer as error:
            lacking = lacking if name == "fused" else lacking or error
            continue
        return name
    assert lacking is not None
    raise lacking
