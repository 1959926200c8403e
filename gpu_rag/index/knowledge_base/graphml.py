"""The edges of a knowledge base as lines of GraphML, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.knowledge_base import KnowledgeBase

_ROWS = 1 << 16
Data = Callable[[str, str], str]


def kb_edge_lines(kb: KnowledgeBase, data: Data) -> Iterator[str]:
    """Lines of its edges, then of its nodes with their passages: "document" of their own, "mention" of others.

    data(key, text): the element that says what an edge is. Memory: the lines of 65,536 edges.
    """
    weight = data("e_weight", "1.0")
    labels = pa.array(
        [data("e_kind", "edge") + data("e_label", name) + weight for name in kb.relation_names], pa.string()
    )
    for start in range(0, kb.n_edges, _ROWS):
        part = slice(start, start + _ROWS)
        yield _lines("n", kb.head[part], "n", kb.tail[part], labels.take(pa.array(kb.relation[part])))
    offsets = kb.node_passages.offsets.cpu().numpy()
    passages = kb.node_passages.values.cpu().numpy()
    kinds = pa.array([data("e_kind", kind) + weight for kind in ("document", "mention")], pa.string())
    for start in range(0, len(passages), _ROWS):
        place = np.arange(start, min(start + _ROWS, len(passages)))
        node = np.searchsorted(offsets, place, side="right") - 1
        is_mention = place - offsets[node] >= kb.n_own[node]
        said = kinds.take(pa.array(is_mention.astype(np.int64)))
        yield _lines("n", node, "p", passages[place], said)


def _lines(of: str, source: np.ndarray, to: str, target: np.ndarray, data: pa.StringArray) -> str:
    ends = (pa.array(np.ascontiguousarray(rows)).cast(pa.string()) for rows in (source, target))
    head, tail = ends
    parts = [f'<edge source="{of}', head, f'" target="{to}', tail, '">', data, "</edge>\n"]
    lines = pc.binary_join_element_wise(*parts, "")
    return "".join(lines.to_pylist())
