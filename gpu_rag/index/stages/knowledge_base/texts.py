"""What is embedded of a knowledge base, and the stand-ins of nodes without passages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.build import Layer, Sources, Work
from gpu_rag.index.knowledge_base.tables import KB_NODES, KB_TEXTS, KB_TYPES
from gpu_rag.index.knowledge_base.words import in_words, standin_text
from gpu_rag.index.stages.knowledge_base.around import NODES_AT_ONCE, Surroundings, relation_texts
from gpu_rag.index.stages.knowledge_base.edge_texts import EdgeTexts
from gpu_rag.index.stages.knowledge_base.stage import Kb
from gpu_rag.index.stages.knowledge_base.web import KbWeb
from gpu_rag.index.stages.search import Vectors
from gpu_rag.index.write import TableWriter
from gpu_rag.settings import Settings


def node_names(folder: Path) -> list[str]:
    """The name of each node, in words."""
    return [in_words(name) for name in tables.read_table(folder / "kb_nodes.parquet", KB_NODES)["name"].to_pylist()]


def standin_texts(folder: Path) -> list[str]:
    """The stand-ins that the stage `kb_texts` wrote."""
    texts: list[str] = tables.read_table(folder / "kb_texts.parquet", KB_TEXTS)["text"].to_pylist()
    return texts


class KbTexts:
    """Table `kb_texts`: for each node without any passage "name (type)." and its first edges as sentences."""

    name = "kb_texts"
    version = 1
    needs: tuple[str, ...] = ("kb",)
    retry: tuple[str, ...] = ()

    def params(self, settings: Settings, sources: Sources) -> dict[str, Any]:
        """No setting."""
        return {}

    def roles(self, settings: Settings) -> tuple[str, ...]:
        """No model."""
        return ()

    def run(self, work: Work) -> dict[str, int]:
        """Writes the stand-ins; edges in the order of the table of edges. Memory: some 30 bytes an edge."""
        folder = work.stage_folders["kb"]
        nodes = tables.read_table(folder / "kb_nodes.parquet", KB_NODES)
        alone = np.flatnonzero(pc.list_value_length(nodes["passages"]).to_numpy() == 0)
        around = Surroundings.read(folder)
        types = tables.read_table(folder / "kb_types.parquet", KB_TYPES)["name"].to_pylist()
        type_of = nodes["type"].to_numpy()
        with TableWriter(work.out / "kb_texts.parquet", KB_TEXTS) as writer:
            for start in range(0, len(alone), NODES_AT_ONCE):
                rows = alone[start : start + NODES_AT_ONCE]
                names = around.names.take(pa.array(rows)).to_pylist()
                beside = around.of(rows)
                named = zip(rows.tolist(), names)
                writer.add([rows, [standin_text(name, types[type_of[row]], *beside(row)) for row, name in named]])
                work.progress.advance(len(rows))
        return {"kb_texts": len(alone)}


def kb_layers() -> list[Layer]:
    """All of them, in building order. A method names those that it reads."""
    return [
        Kb(),
        Vectors("kb_name_vectors", ("kb",), node_names),
        Vectors("kb_edge_vectors", ("kb",), EdgeTexts),
        Vectors("kb_relation_vectors", ("kb",), relation_texts),
        KbTexts(),
        Vectors("kb_text_vectors", ("kb_texts",), standin_texts),
        KbWeb(),
    ]
