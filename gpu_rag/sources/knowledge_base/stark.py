"""Processed layout of STaRK, in files that can be read without running code from them.

STaRK ships `node_info.pkl`, `edge_index.pt`, `node_types.pt`, `edge_types.pt`, `node_type_dict.pkl` and
`edge_type_dict.pkl`. Pickles run the code in them, so none is opened. The same tables are read as JSON and NumPy:

    node_info.json        {"0": {"name" or "title": ..., other keys: ...}, ...}
    edge_index.npy        integers [2, E]: rows of nodes
    edge_types.npy        integers [E]; edge_type_dict.json {"0": "cites", ...}
    node_types.npy        integers [N]; node_type_dict.json {"0": "paper", ...}

The text of a node is its "text", otherwise its entries, one per line, as "key: value", nested ones joined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from gpu_rag.errors import BadInput
from gpu_rag.sources.json_rows import read_object
from gpu_rag.sources.knowledge_base.nodes import NODES, SkbNode
from gpu_rag.sources.knowledge_graph.blocks import Block, batch_of, block_of, blocks_of, text_of
from gpu_rag.sources.knowledge_graph.triples import TRIPLES, part_of
from gpu_rag.sources.lines import read_problem
from gpu_rag.sources.rows import Limits, RowError, clean_string, document_text, id_text, kind, shown
from gpu_rag.types import UNTYPED, Reject

NEEDED = ("node_info.json", "edge_index.npy", "edge_types.npy", "edge_type_dict.json")
TYPES = ("node_types.npy", "node_type_dict.json")
_SHIPPED = ("node_info.pkl", "edge_index.pt", "edge_types.pt", "edge_type_dict.pkl")
_NAMES = ("name", "title", "DisplayName")
_MAX_DEPTH = 4
_EDGES = 1 << 18  # per block
_MAX_HEADER = 4096
_NPY = re.compile(
    rb"\x93NUMPY(?:\x01\x00..|[\x02\x03]\x00....)\{'descr': '([<|][iu][1248])', 'fortran_order': (True|False), "
    rb"'shape': \((\d{1,15},|\d{1,15}, \d{1,15})\), \} *\n",
    re.DOTALL,
)


def is_stark(folder: Path) -> bool:
    """Whether a folder has STaRK's layout in readable files. Raises BadInput if it has pickles, or only a part."""
    missing = [name for name in NEEDED if not (folder / name).exists()]
    shipped = [name for name in _SHIPPED if (folder / name).exists()]
    if not missing:
        return True
    if shipped:
        raise BadInput(
            "the files of STaRK are pickles, which run code when they are read, so they are refused",
            given=f"{folder}/{shipped[0]}",
            expected=", ".join(NEEDED),
            do="where you trust them, write node_info and the two dictionaries with json.dump and the tensors with "
            "numpy.save; docs/cli.md has the lines",
        )
    if len(missing) < len(NEEDED):
        raise BadInput("the knowledge base lacks files of STaRK's layout", given=f"{folder} without {missing[0]}")
    return False


def read_stark_nodes(folder: Path, limits: Limits) -> Iterator[Block]:
    """Nodes of node_info.json, in the order of the file, in blocks. A broken file is one Reject."""
    return blocks_of(NODES.schema, _nodes(folder, limits))


def _nodes(folder: Path, limits: Limits) -> Iterator[SkbNode | Reject]:
    path = folder / NEEDED[0]
    try:
        info = read_object(path, limits)
        types = _types(folder, limits)
    except RowError as error:
        yield Reject(shown(path), 0, str(error))
        return
    for line, (id, entry) in enumerate(info.items(), 1):
        try:
            yield _node(id, entry, types, limits, line)
        except RowError as error:
            yield Reject(shown(path), line, str(error), id[:100])


def _node(id: str, entry: Any, types: Mapping[str, str], limits: Limits, line: int) -> SkbNode:
    if not isinstance(entry, dict):
        raise RowError(f"the node is {kind(entry)}; expected an object")
    id = part_of(id, "id")
    name = next((entry[key].strip() for key in _NAMES if isinstance(entry.get(key), str) and entry[key].strip()), id)
    type = types.get(id) or entry.get("type") or UNTYPED
    text = entry.get("text")
    if not isinstance(text, str):
        text = "\n".join(f"{key}: {words}" for key, value in entry.items() if (words := _in_words(value)))
    text = document_text(text, limits) if text.strip() else ""
    return SkbNode(id, part_of(name, "name"), part_of(type, "type"), text, (), line)


def _in_words(value: Any, depth: int = 0) -> str:
    """Value in words: lists separated by commas, objects as "key: value; key: value"."""
    if isinstance(value, str):
        return clean_string(value, "a text").strip()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if depth < _MAX_DEPTH and isinstance(value, list):
        return ", ".join(words for item in value if (words := _in_words(item, depth + 1)))
    if depth < _MAX_DEPTH and isinstance(value, dict):
        return "; ".join(f"{key}: {words}" for key, item in value.items() if (words := _in_words(item, depth + 1)))
    return ""


def _types(folder: Path, limits: Limits) -> dict[str, str]:
    """Type of each node by its id; {} if types are not given."""
    if not all((folder / name).exists() for name in TYPES):
        return {}
    names, rows = _names(folder / TYPES[1], limits), _integers(folder / TYPES[0], 1)
    return {str(row): names[str(number)] for row, number in enumerate(rows.tolist()) if str(number) in names}


def _names(path: Path, limits: Limits) -> dict[str, str]:
    return {key: id_text(value, f"{path.name} {key}") for key, value in read_object(path, limits).items()}


def _integers(path: Path, dimensions: int) -> np.ndarray:
    """Integer array of a .npy file, mapped rather than read. Raises RowError.

    The header is matched as text, because NumPy would evaluate it as a Python literal.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_MAX_HEADER)
        match = _NPY.match(start)
        if match is None:
            raise RowError(f"{path.name} is no NumPy array of integers")
        shape = tuple(int(size) for size in match[3].split(b",") if size.strip())
        dtype = np.dtype(match[1].decode())
        if len(shape) != dimensions:
            raise RowError(f"{path.name} has {len(shape)} dimensions; expected {dimensions}")
        if match.end() + dtype.itemsize * math.prod(shape) != path.stat().st_size:
            raise RowError(f"{path.name} is no NumPy array: its size does not fit {shape}")
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        order: Literal["F", "C"] = "F" if match[2] == b"True" else "C"
        return np.memmap(path, dtype, "r", match.end(), shape, order)
    except OSError as error:
        raise RowError(read_problem(error)) from error


@dataclass(frozen=True)
class StarkEdges:
    """Arrays of edges. ends: integers [2, E]; kinds: integers [E], both mapped from their files; names: of the
    relations, by kind."""

    ends: np.ndarray
    kinds: np.ndarray
    names: dict[str, str]


def stark_edges(folder: Path, limits: Limits) -> StarkEdges:
    """Arrays of edges. Raises RowError if they cannot be read or do not fit together."""
    ends, kinds = _integers(folder / NEEDED[1], 2), _integers(folder / NEEDED[2], 1)
    names = _names(folder / NEEDED[3], limits)
    if ends.shape != (2, len(kinds)):
        raise RowError(f"edge_index.npy has the shape {ends.shape} for {len(kinds)} types; expected (2, {len(kinds)})")
    return StarkEdges(ends, kinds, names)


def read_stark_edges(folder: Path, limits: Limits) -> Iterator[Block]:
    """Edges of edge_index.npy, numbered from 1, in blocks. Arrays that do not fit together are one Reject."""
    path = folder / NEEDED[1]
    try:
        edges = stark_edges(folder, limits)
    except RowError as error:
        yield block_of(TRIPLES.schema, [Reject(shown(path), 0, str(error))])
        return
    for start in range(0, len(edges.kinds), _EDGES):
        yield _part(edges, slice(start, start + _EDGES), shown(path))


def _part(edges: StarkEdges, part: slice, file: str) -> Block:
    kinds, which = np.unique(edges.kinds[part], return_inverse=True)
    names = [edges.names.get(str(kind)) for kind in kinds.tolist()]
    known = np.array([name is not None for name in names], bool)[which]
    line = part.start + 1 + np.arange(len(which))
    rejects = [
        Reject(file, number, f"edge_type_dict.json has no type {kind}")
        for number, kind in zip(line[~known].tolist(), kinds[which[~known]].tolist())
    ]
    head, tail = (text_of(pa.array(np.ascontiguousarray(end[part][known])), int(known.sum())) for end in edges.ends)
    relation = pa.array(names, pa.large_string()).take(pa.array(which[known]))
    none = text_of(None, len(head))
    return Block(batch_of(TRIPLES.schema, head, relation, tail, none, line[known]), rejects)
