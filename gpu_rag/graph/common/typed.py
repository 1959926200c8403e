"""A graph whose edges have types (relations), stored in both directions for walks along named relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.csr import check_csr, check_range, row_of_entry
from gpu_rag.graph.memory import check_memory
from gpu_rag.types import CSR

Side = tuple[np.ndarray, ...]  # indptr, relations, nodes


@dataclass(frozen=True)
class TypedGraph:
    """N nodes and M distinct edges (tail, relation, head), by tail for walks out and by head for walks in.

    out_indptr i64[N+1], out_relation i32[M], out_node i32[M]: the edges of a tail, by (relation, head); in_indptr,
    in_relation, in_node: those of a head, by (relation, tail). Made by the functions of this module, which check.
    """

    out_indptr: torch.Tensor
    out_relation: torch.Tensor
    out_node: torch.Tensor
    in_indptr: torch.Tensor
    in_relation: torch.Tensor
    in_node: torch.Tensor
    n_relations: int

    @property
    def n(self) -> int:
        """Number of nodes."""
        return int(self.out_indptr.shape[0]) - 1

    @property
    def device(self) -> torch.device:
        """The device of the graph, and so of results."""
        return self.out_indptr.device

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """The out and the in side as arrays, for a graph on the CPU: made once, as a call on a few nodes is short."""
        out_side = self.out_indptr, self.out_relation, self.out_node
        in_side = self.in_indptr, self.in_relation, self.in_node
        out_arrays, in_arrays = (tuple(a.contiguous().numpy() for a in side) for side in (out_side, in_side))
        return out_arrays, in_arrays

    @cached_property
    def keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        """node * n_relations + relation of each edge, i64[M] ascending, out and in; made once, from all edges."""
        sides = ((self.out_indptr, self.out_relation), (self.in_indptr, self.in_relation))
        nodes = torch.arange(self.n, device=self.device)
        rows = (torch.repeat_interleave(nodes, ends.diff(), output_size=kinds.shape[0]) for ends, kinds in sides)
        out_keys, in_keys = (row * self.n_relations + kinds for row, (_, kinds) in zip(rows, sides, strict=True))
        return out_keys, in_keys


def typed_graph(tail: torch.Tensor, relation: torch.Tensor, head: torch.Tensor, n: int, n_relations: int) -> TypedGraph:
    """The graph of edges tail -> head of a relation; an edge given several times counts once, loops are kept.

    tail, head: i32/i64[M], nodes in [0, n); relation: i32/i64[M] in [0, n_relations). n, n_relations < 2^31. Several
    relations between two nodes are several edges. O(M log M) time, O(M) memory. Raises BadInput.

    Edges (0, 0, 1), (2, 0, 1) and (1, 1, 3): out along relation 0 from node 2 is node 1, in along 0 from 1 is {0, 2}.
    """
    if not 0 <= n < 2**31 or not 0 <= n_relations < 2**31:
        given = f"n={n}, n_relations={n_relations}"
        raise BadInput("the size of a graph is out of range", given=given, expected=">= 0 and < 2^31")
    for name, ids, size in (("tail", tail, n), ("relation", relation, n_relations), ("head", head, n)):
        if ids.dtype not in (torch.int32, torch.int64) or ids.shape != tail.shape[:1] or ids.device != tail.device:
            given = f"{ids.dtype} {tuple(ids.shape)} on {ids.device}"
            raise BadInput(f"the {name} ids are no list", given=given, expected="i32/i64 [M] each, on one device")
        check_range(ids, size, f"the {name} of an edge", "relation" if name == "relation" else "node")
    check_memory(24 * (n + tail.shape[0]), tail.device, f"a graph of {n:,} nodes", "split it by relations")
    tail, relation, head = _distinct(tail.long(), relation.long(), head.long(), n)
    order = lexsort(relation, head)  # by (head, relation, tail): the tails were ascending
    return TypedGraph(
        _indptr(tail, n), relation.int(), head.int(),
        _indptr(head[order], n), relation[order].int(), tail[order].int(), n_relations,
    )  # fmt: skip


def _distinct(
    tail: torch.Tensor, relation: torch.Tensor, head: torch.Tensor, n: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Edges by (tail, relation, head), each once."""
    order = lexsort(head, relation, tail)
    tail, relation, head = tail[order], relation[order], head[order]
    new = torch.ones(tail.shape[0], dtype=torch.bool, device=tail.device)
    new[1:] = (tail[1:] != tail[:-1]) | (relation[1:] != relation[:-1]) | (head[1:] != head[:-1])
    return tail[new], relation[new], head[new]


def _indptr(ascending: torch.Tensor, n: int) -> torch.Tensor:
    return torch.searchsorted(ascending, torch.arange(n + 1, device=ascending.device))


def typed_graph_of_csr(csr: CSR, relation: torch.Tensor, n_relations: int) -> TypedGraph:
    """`typed_graph` of the entries of `csr`, entry e being an edge of relation[e]. relation: i32/i64[E].

    A CSR has one entry a pair of nodes; where pairs have several relations use `typed_graph_of_csrs`, or edges.
    """
    check_csr(csr)
    return typed_graph(row_of_entry(csr), relation, csr.indices, csr.n, n_relations)


def typed_graph_of_csrs(csrs: Sequence[CSR]) -> TypedGraph:
    """`typed_graph` of one CSR a relation, all over the same nodes and on one device. Raises BadInput."""
    if not csrs:
        raise BadInput("no relation is given", given="no CSR", expected="one or more")
    for csr in csrs:
        check_csr(csr)
        if csr.n != csrs[0].n:
            raise BadInput("relations have different nodes", given=f"{csr.n} and {csrs[0].n}", expected="one number")
        if csr.indptr.device != csrs[0].indptr.device:
            raise BadInput("relations are on different devices", given=csr.indptr.device, expected="one device")
    sizes = torch.tensor([csr.m for csr in csrs], device=csrs[0].indptr.device)
    relation = torch.repeat_interleave(torch.arange(len(csrs), device=sizes.device), sizes)
    tail = torch.cat([row_of_entry(csr) for csr in csrs])
    return typed_graph(tail, relation, torch.cat([csr.indices for csr in csrs]), csrs[0].n, len(csrs))
