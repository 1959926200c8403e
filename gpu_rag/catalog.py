"""The registry: which layers a method needs, and in which order layers are built."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Protocol

from gpu_rag.errors import MissingLayer
from gpu_rag.index.build import Layer
from gpu_rag.layers.entities import Entities
from gpu_rag.layers.extraction import ExtractionLayer
from gpu_rag.layers.graph import Graph, Synonyms
from gpu_rag.layers.higra import higra_layers
from gpu_rag.layers.hops import hop_layers
from gpu_rag.layers.mentions import MentionLayer
from gpu_rag.layers.passages import Passages
from gpu_rag.layers.search import Bm25Layer, Vectors, entity_texts, passage_texts, relation_texts
from gpu_rag.settings import unknown_name

METHODS = {
    "dense": "gpu_rag.methods.dense",
    "bm25": "gpu_rag.methods.bm25",
    "hybrid": "gpu_rag.methods.hybrid",
    "ppr": "gpu_rag.methods.ppr",
    "hoprag": "gpu_rag.methods.hoprag",
    "higra-retriever": "gpu_rag.methods.higra_retriever",
    "dual-agent": "gpu_rag.methods.dual_agent",
    "higra-agent": "gpu_rag.methods.higra_agent",
}


class Method(Protocol):
    """What a method's file must define; a method of one's own is one more file of this shape."""

    NEEDS: tuple[str, ...]
    Params: type
    retrieve: Any
    program: Any


@cache
def all_layers() -> dict[str, Layer]:
    """Every layer by name, in an order in which they can be built."""
    layers: list[Layer] = [
        Passages(),
        Bm25Layer(),
        Vectors("passage_vectors", ("passages",), passage_texts),
        ExtractionLayer(),
        Entities(),
        Vectors("entity_vectors", ("entities",), entity_texts),
        Vectors("relation_vectors", ("entities",), relation_texts),
        MentionLayer(),
        Synonyms(),
        Graph(),
        *hop_layers(),
        *higra_layers(),
    ]
    return {layer.name: layer for layer in layers}


def load_method(name: str) -> Method:
    """The module of a method. Raises UsageError listing the methods that exist."""
    if name not in METHODS:
        raise unknown_name("method", name, list(METHODS))
    module: Any = importlib.import_module(METHODS[name])
    return module


def layers_for(methods: Iterable[str]) -> list[Layer]:
    """The layers that the methods need, with all that those need, in building order."""
    wanted: set[str] = {"passages"}
    stack = [need for name in methods for need in load_method(name).NEEDS]
    while stack:
        need = stack.pop()
        if need not in wanted:
            wanted.add(need)
            stack.extend(all_layers()[need].needs)
    return [layer for name, layer in all_layers().items() if name in wanted]


def check_layers(method: str, present: Sequence[str], folder: str) -> None:
    """Raises MissingLayer with the line to run when the index lacks a layer that the method needs."""
    missing = [layer.name for layer in layers_for([method]) if layer.name not in present]
    if missing:
        raise MissingLayer(
            f"the index lacks what {method} needs",
            given=f"{folder} without {', '.join(missing)}",
            do=f"run: gpu-rag index CORPUS --out {folder} --for {method} (CORPUS, --openie and settings as before)",
        )
