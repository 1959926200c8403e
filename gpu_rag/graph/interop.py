"""Graphs of other libraries: SciPy, networkx, PyG, and any library that supports DLPack, such as CuPy.

Libraries are imported when needed; a missing one raises MissingBackend with the extra that installs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from gpu_rag.errors import BadInput, MissingBackend
from gpu_rag.graph.csr import check_csr, csr_from_edges, is_symmetric, row_of_entry
from gpu_rag.graph.reach import TypedGraph, typed_graph
from gpu_rag.types import CSR

_EXTRAS = {
    "torch_geometric": ("PyG", "pip install torch-geometric, or 'gpu-rag[gpu]'"),
    "networkx": ("networkx", "pip install 'gpu-rag[bench]'"),
    "cugraph": ("cuGraph", "pip install cugraph-cu13, from NVIDIA's index"),
    "cudf": ("cuDF", "pip install cudf-cu13, from NVIDIA's index"),
}


EdgeType = tuple[str, str, str]


def library(name: str) -> Any:
    """Import a module of another library. Raises MissingBackend."""
    top = name.partition(".")[0]
    if find_spec(top) is None:
        title, line = _EXTRAS[top]
        raise MissingBackend(f"{title} is not installed", do=line)
    return import_module(name)


# --- DLPack: the same memory -----------------------------------------------------------------------


def csr_arrays(csr: CSR, from_dlpack: Callable[[Any], Any] = np.from_dlpack) -> tuple[Any, Any, Any]:
    """(indptr, indices, weight or None) as arrays of another library in the same memory: a write to one changes both.

    from_dlpack: the function of that library, such as numpy's (CPU), cupy's or jax's; it must support the device of
    `csr`. CuPy's csr_matrix takes them as (weight, indices, indptr), with cupy.ones(csr.m, "f4") if there are no
    weights.
    """
    weight = None if csr.weight is None else from_dlpack(csr.weight)
    return from_dlpack(csr.indptr), from_dlpack(csr.indices), weight


def csr_from_arrays(indptr: Any, indices: Any, weight: Any = None) -> CSR:
    """A CSR in the memory of arrays that support DLPack: indptr i64[N+1], indices i32[E], weight f32[E] or None.

    Nothing is copied, so another dtype is an error. Checked as `check_csr`. Raises BadInput.
    """
    stored = [None if array is None else torch.from_dlpack(array) for array in (indptr, indices, weight)]
    if stored[0] is None or stored[1] is None:
        raise BadInput("a CSR lacks an array", given="None", expected="indptr and indices")
    csr = CSR(stored[0], stored[1], stored[2])
    check_csr(csr)
    return csr


# --- SciPy and networkx ----------------------------------------------------------------------------


def csr_to_scipy(csr: CSR) -> Any:
    """scipy.sparse.csr_array [N, N] f32, with weights of 1 if there are none."""
    weight = torch.ones(csr.m) if csr.weight is None else csr.weight
    arrays = tuple(part.cpu().numpy() for part in (weight, csr.indices, csr.indptr))
    return csr_array(arrays, shape=(csr.n, csr.n))


def csr_from_scipy(matrix: Any) -> CSR:
    """The CSR of any square sparse SciPy matrix: rows sorted, duplicates summed, stored zeros kept.

    Raises BadInput.
    """
    stored = matrix.tocsr(copy=True)
    stored.sum_duplicates()
    if stored.shape[0] != stored.shape[1]:
        raise BadInput("a graph needs a square matrix", given=stored.shape, expected="[N, N]")
    indptr, indices, data = (torch.from_numpy(array) for array in (stored.indptr, stored.indices, stored.data))
    csr = CSR(indptr.long(), indices.int(), data.float())
    check_csr(csr)
    return csr


def csr_to_networkx(csr: CSR) -> Any:
    """networkx.Graph of a symmetric CSR, else DiGraph: nodes 0..N-1, edges with "weight" if there are weights."""
    nx = library("networkx")
    graph = nx.Graph() if is_symmetric(csr) else nx.DiGraph()
    graph.add_nodes_from(range(csr.n))
    ends = zip(row_of_entry(csr).tolist(), csr.indices.tolist())
    if csr.weight is None:
        graph.add_edges_from(ends)
    else:
        graph.add_weighted_edges_from((a, b, w) for (a, b), w in zip(ends, csr.weight.tolist()))
    return graph


def csr_from_networkx(graph: Any, *, weight: str | None = "weight") -> tuple[CSR, list[Any]]:
    """(CSR, names): row i is the node names[i], in the graph's order. weight: the edge attribute (1 if an edge lacks
    it), or None for a CSR without weights. Parallel edges are summed. Raises BadInput, MissingBackend."""
    nx = library("networkx")
    names = list(graph)
    matrix = csr_array((0, 0))  # networkx makes no matrix for an empty graph
    if names:
        matrix = nx.to_scipy_sparse_array(graph, nodelist=names, weight=weight, dtype=np.float64, format="csr")
    csr = csr_from_scipy(matrix)
    return (csr if weight is not None else CSR(csr.indptr, csr.indices)), names


# --- cuGraph ---------------------------------------------------------------------------------------


def csr_to_cugraph(csr: CSR) -> Any:
    """cugraph.Graph of a CSR on a GPU, undirected if the CSR is symmetric: nodes 0..N-1, including those without edges.

    Raises MissingBackend. Tested with a stand-in that takes the arguments of cuGraph 26.10; not yet run on a GPU.
    """
    cugraph, cudf, symmetric = library("cugraph"), library("cudf"), is_symmetric(csr)
    from_dlpack = import_module("cupy").from_dlpack
    columns = {"src": row_of_entry(csr).int(), "dst": csr.indices}
    if csr.weight is not None:
        columns["weight"] = csr.weight
    nodes = torch.arange(csr.n, dtype=torch.int32, device=csr.indices.device)
    graph = cugraph.Graph(directed=not symmetric)
    graph.from_cudf_edgelist(
        cudf.DataFrame({name: from_dlpack(column) for name, column in columns.items()}), source="src",
        destination="dst", weight=None if csr.weight is None else "weight", renumber=True, symmetrize=False,
        vertices=cudf.Series(from_dlpack(nodes)),
    )  # fmt: skip
    return graph


def csr_from_cugraph(graph: Any, n: int | None = None) -> CSR:
    """The CSR of a cugraph.Graph with integer nodes; an undirected edge is stored both ways.

    n: number of nodes; None: one more than the highest node with an edge. Raises BadInput.
    """
    edges, names = graph.view_edge_list(), (graph.source_columns, graph.destination_columns, graph.weight_column)
    columns = [None if name is None else torch.from_dlpack(edges[name].values) for name in names]
    src, dst, weight = columns[0], columns[1], columns[2]
    if src is None or dst is None or src.is_floating_point():
        raise BadInput("nodes of a cuGraph graph are no integers", expected="0..N-1, one column")
    n = max(int(torch.stack([src, dst]).max()) + 1 if len(src) else 0, 0) if n is None else n
    directed = graph.is_directed()
    return csr_from_edges(src.long(), dst.long(), n, weight, undirected=not directed, drop_self_loops=False)


# --- PyG -------------------------------------------------------------------------------------------


def csr_to_edge_index(csr: CSR) -> tuple[Any, torch.Tensor | None]:
    """(torch_geometric.EdgeIndex [2, E] i64 sorted by row, weight f32[E] or None): edges from row to column."""
    pyg = library("torch_geometric")
    ends = torch.stack([row_of_entry(csr), csr.indices.long()])
    edges = pyg.EdgeIndex(ends, sparse_size=(csr.n, csr.n), sort_order="row", is_undirected=is_symmetric(csr))
    return edges, csr.weight


def csr_from_edge_index(edge_index: torch.Tensor, n: int, weight: torch.Tensor | None = None) -> CSR:
    """The CSR of an EdgeIndex or a plain edge_index i64[2, E]; edges stay directed, duplicates are summed.

    n: number of nodes. Raises BadInput.
    """
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise BadInput("edge_index has the wrong shape", given=tuple(edge_index.shape), expected="[2, E]")
    ends = _plain(edge_index)
    return csr_from_edges(ends[0], ends[1], n, weight, undirected=False, drop_self_loops=False)


def _plain(edge_index: torch.Tensor) -> torch.Tensor:
    """The plain tensor inside an EdgeIndex, which has its own arithmetic."""
    inside: torch.Tensor = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index
    return inside


def typed_to_hetero(graph: TypedGraph, ranges: Mapping[str, tuple[int, int]], relations: Sequence[str]) -> Any:
    """torch_geometric.data.HeteroData of a typed graph.

    ranges: node type -> (lo, hi), nodes lo <= v < hi; together they cover every node once. relations: the name of each
    relation. Each existing combination (kind of tail, relation, kind of head) becomes an edge type, its edges ordered
    by (tail, head). Raises BadInput, MissingBackend.
    """
    if len(relations) != graph.n_relations:
        raise BadInput("relations do not fit", given=f"{len(relations)} names", expected=graph.n_relations)
    tail = torch.repeat_interleave(torch.arange(graph.n, device=graph.device), graph.out_indptr.diff())
    return _hetero(ranges, graph.n, tail, graph.out_node.long(), graph.out_relation.long(), list(relations), None)


def _hetero(
    ranges: Mapping[str, tuple[int, int]], n: int, tail: torch.Tensor, head: torch.Tensor, relation: torch.Tensor,
    relations: list[str], weight: torch.Tensor | None,
) -> Any:  # fmt: skip
    """HeteroData of the edges tail -> head, each with a relation, all i64[E], in their order."""
    kinds = list(ranges)
    of = torch.full((n,), -1, dtype=torch.int64, device=tail.device)
    for number, (lo, hi) in enumerate(ranges.values()):
        of[lo:hi] = number
    if bool((of < 0).any()) or sum(hi - lo for lo, hi in ranges.values()) != n:
        raise BadInput("ranges do not cover the nodes once", given=dict(ranges), expected=f"0..{n}")
    data = library("torch_geometric.data").HeteroData()
    for kind, (lo, hi) in ranges.items():
        data[kind].num_nodes = hi - lo
    key = (relation * len(kinds) + of[tail]) * len(kinds) + of[head]
    for code in torch.unique(key).tolist():
        name, sides = relations[code // len(kinds) ** 2], code % len(kinds) ** 2
        left, right = kinds[sides // len(kinds)], kinds[sides % len(kinds)]
        mine = key == code
        shift = torch.tensor([[ranges[left][0]], [ranges[right][0]]], device=tail.device)
        data[left, name, right].edge_index = torch.stack([tail[mine], head[mine]]) - shift
        if weight is not None:
            data[left, name, right].edge_weight = weight[mine]
    return data


def csr_to_hetero(csr: CSR, ranges: Mapping[str, tuple[int, int]], relation: str = "to") -> Any:
    """torch_geometric.data.HeteroData of a CSR with nodes of several kinds, such as passages and entities.

    ranges: as in `typed_to_hetero`. relation: the middle of every edge type. edge_weight is set if there are weights.
    An undirected edge between two kinds is in two edge types, one for each direction. Raises BadInput, MissingBackend.
    """
    none = torch.zeros(csr.m, dtype=torch.int64, device=csr.indices.device)
    return _hetero(ranges, csr.n, row_of_entry(csr), csr.indices.long(), none, [relation], csr.weight)


def csr_from_hetero(data: Any) -> tuple[CSR, dict[str, tuple[int, int]]]:
    """(csr, ranges) of a HeteroData: its node types in order, one after another; edges of all relations in one matrix.

    Weights are the edge_weight of its edge types; all or none must have one. Parallel edges become one entry with the
    sum of their weights. Edges stay directed. Raises BadInput.
    """
    ranges, edges, _ = _side_by_side(data)
    weights = [data[kind].edge_weight for kind in data.edge_types if "edge_weight" in data[kind]]
    if len(weights) not in (0, len(data.edge_types)):
        given = f"{len(weights)} of {len(data.edge_types)} edge types"
        raise BadInput("only some edge types have weights", given=given, expected="all or none")
    return csr_from_edge_index(edges, _size(ranges), torch.cat(weights) if weights else None), ranges


def _side_by_side(data: Any) -> tuple[dict[str, tuple[int, int]], torch.Tensor, list[int]]:
    """The node range of each node type of a HeteroData, its edges i64[2, E], and the number of edges of each edge
    type."""
    ranges: dict[str, tuple[int, int]] = {}
    for kind in data.node_types:
        ranges[kind] = (_size(ranges), _size(ranges) + data[kind].num_nodes)
    ends = [torch.zeros(2, 0, dtype=torch.int64)]
    for left, name, right in data.edge_types:
        edges = _plain(data[left, name, right].edge_index).long()
        ends.append(edges + torch.tensor([[ranges[left][0]], [ranges[right][0]]], device=edges.device))
    whole = torch.cat([part.to(ends[-1].device) for part in ends], 1)
    return ranges, whole, [part.shape[1] for part in ends[1:]]


def _size(ranges: Mapping[str, tuple[int, int]]) -> int:
    return max((hi for _, hi in ranges.values()), default=0)


def typed_from_hetero(data: Any) -> tuple[TypedGraph, dict[str, tuple[int, int]], list[str]]:
    """(graph, ranges, relations) of a HeteroData: its node types in order, one after another; relation names ascending.

    Edge types with one relation name between different kinds of nodes share that relation. Raises BadInput.
    """
    ranges, (tail, head), counts = _side_by_side(data)
    names = [name for _, name, _ in data.edge_types]
    relations = sorted(set(names))
    kinds = torch.tensor([relations.index(name) for name in names], dtype=torch.int64, device=tail.device)
    kind_of = torch.repeat_interleave(kinds, torch.tensor(counts, dtype=torch.int64, device=tail.device))
    return typed_graph(tail, kind_of, head, _size(ranges), len(relations)), ranges, relations
