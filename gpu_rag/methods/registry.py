"""The registry: which layers a method needs, and in which order layers are built."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from gpu_rag.errors import MissingLayer
from gpu_rag.index.build import Layer, Sources, needs_of
from gpu_rag.index.stages.entities import Entities
from gpu_rag.index.stages.extraction import ExtractionLayer
from gpu_rag.index.stages.graph import Graph, Synonyms
from gpu_rag.index.stages.knowledge_base.texts import kb_layers
from gpu_rag.index.stages.mentions import MentionLayer
from gpu_rag.index.stages.passages import Passages
from gpu_rag.index.stages.search import Bm25Layer, Vectors, entity_texts, passage_texts, relation_texts
from gpu_rag.methods.higra import settings as _alignment  # noqa: F401  (registers the section [alignment])
from gpu_rag.methods.higra.stages import higra_layers
from gpu_rag.methods.hoprag import settings as _hops  # noqa: F401  (registers the section [hops])
from gpu_rag.methods.hoprag.stages import hop_layers
from gpu_rag.settings.check import unknown_name

METHODS = {
    "dense": "gpu_rag.methods.dense.program",
    "bm25": "gpu_rag.methods.bm25.program",
    "hybrid": "gpu_rag.methods.hybrid.program",
    "ppr": "gpu_rag.methods.ppr.program",
    "hoprag": "gpu_rag.methods.hoprag.program",
    "bubblerag": "gpu_rag.methods.bubblerag.program",
    "higra-retriever": "gpu_rag.methods.higra.retriever",
    "dual-agent": "gpu_rag.methods.higra.dual_agent",
    "higra-agent": "gpu_rag.methods.higra.agent",
    "hybgrag": "gpu_rag.methods.hybgrag.program",
    "hydrarag": "gpu_rag.methods.hydrarag.program",
    "hydrarag-e": "gpu_rag.methods.hydrarag.program_e",
}


ALL = "all"  # in place of a method: every one


class Method(Protocol):
    """What a method's file must define; a method of one's own is one more file of this shape.

    It may define `check(index, params)` too, called before a run: raises for parameters that the index cannot serve.
    """

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
        *kb_layers(),
    ]
    return {layer.name: layer for layer in layers}


def load_method(name: str) -> Method:
    """The module of a method. Raises UsageError listing the methods that exist."""
    if name not in METHODS:
        raise unknown_name("method", name, list(METHODS))
    module: Any = importlib.import_module(METHODS[name])
    return module


def inexact_ops(method: str) -> list[str]:
    """The families of graph ops that a method runs and whose implementations are not equal bit by bit.

    PageRank of the whole graph and of blocks (HiGraAgent's; the only one among `ops`) is within its tolerance by each,
    and scores of torch and faiss may differ in the last bit. Told by the layers that the ops work on.
    """
    needs = load_method(method).NEEDS
    families = {"graph": "pagerank", "higra_graph": "ops", "passage_vectors": "neighbours"}
    return [family for layer, family in families.items() if layer in needs]


def layers_for(methods: Iterable[str], sources: Sources | None = None) -> list[Layer]:
    """The layers that the methods need, with all that those need, in building order.

    methods: names; "all" stands for every method that can run over the sources. sources: what is to be built from; with
    named ones the knowledge base is built whatever the methods. Without sources layers that read the corpus too, where
    there is one, do.
    """
    sources = Sources(corpus=(Path(),)) if sources is None else sources
    wanted: set[str] = set()
    stack = ["passages", *(need for name in _spelled(methods, sources) for need in load_method(name).NEEDS)]
    stack += [*(["kb"] if sources.named else []), *(["kb_web"] if sources.of_kind("web") else [])]
    while stack:
        need = stack.pop()
        if need not in wanted:
            wanted.add(need)
            stack.extend(needs_of(all_layers()[need], sources))
    return [layer for name, layer in all_layers().items() if name in wanted]


def _spelled(methods: Iterable[str], sources: Sources) -> list[str]:
    """The methods, with those that "all" stands for: over a corpus every one, else those over a knowledge base."""
    able = [name for name in METHODS if sources.corpus or "kb" in load_method(name).NEEDS]
    return [name for given in methods for name in (able if given == ALL else [given])]


def check_layers(method: str, present: Sequence[str], folder: str, sources: Mapping[str, Any]) -> None:
    """Raises MissingLayer, with the methods that can run and the line to run, when a layer of the method is missing.

    What a layer was made of is there when the layer is: `kb` of a knowledge base alone has no extraction.
    sources: what the index was built from, as its manifest has it.
    """
    missing = _missing(method, present)
    if missing:
        names = ", ".join(name for name in all_layers() if name in missing)
        able = [name for name in METHODS if not _missing(name, present)]
        raise MissingLayer(
            f"the index lacks what {method} needs",
            given=f"{folder} without {names}",
            expected=f"a method that it is built for: --method {' | '.join(able)}" if able else None,
            do=f"{'or ' if able else ''}run: {build_line(method, folder, sources)} "
            "(corpus, --kg, --skb, --source, --openie and settings as before)",
        )


def build_line(method: str, folder: str, sources: Mapping[str, Any]) -> str:
    """The command that builds what a method needs into the index `folder`, of sources as its manifest has them.

    >>> build_line("hydrarag", "ix", {"corpus": [], "openie": [], "named": [["facts", "kg", "facts.tsv"]]})
    'gpu-rag index --kg FILE --out ix --for hydrarag'
    """
    kinds = [kind for _, kind, _ in sources.get("named", ())]
    given = ["CORPUS"] if len(sources.get("corpus", ())) > kinds.count("documents") or not kinds else []
    given += [words for kind, words in (("kg", "--kg FILE"), ("skb", "--skb DIR")) if kind in kinds]
    given += [f"--source NAME={kind}:PATH" for kind in ("documents", "web") if kind in kinds]
    return f"gpu-rag index {' '.join(given)} --out {folder} --for {method}"


def _missing(method: str, present: Sequence[str]) -> set[str]:
    """The layers that a method needs and that are not there, with what is missing under these."""
    missing: set[str] = set()
    stack = ["passages", *load_method(method).NEEDS]
    while stack:
        need = stack.pop()
        if need not in missing and need not in present:
            missing.add(need)
            stack.extend(all_layers()[need].needs)
    return missing


def check_passages(method: str, n_passages: int, folder: str) -> None:
    """Raises MissingLayer for a method that ranks passages where there are none: a knowledge base without documents."""
    if not n_passages and "kb" not in load_method(method).NEEDS:
        over = [name for name in METHODS if "kb" in load_method(name).NEEDS]
        raise MissingLayer(
            f"the index has no passages, which {method} ranks",
            given=f"{folder}, a knowledge base without documents",
            expected=f"a corpus beside it, or --method {' | '.join(over)}",
        )
