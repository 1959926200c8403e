"""Checking `Blocks`, the subgraphs of B questions in one block-diagonal matrix, and naming their nodes."""

from __future__ import annotations

import torch
from gpu_rag_kernels.dispatch import compiled_checks

from gpu_rag.errors import BadInput
from gpu_rag.graph.csr import check_csr, is_sound
from gpu_rag.graph.ragged import arrays_of, check_ragged, row_of_value
from gpu_rag.types import Blocks, Ragged


def check_blocks(blocks: Blocks) -> None:
    """Raises BadInput naming what is broken in `blocks`; returns nothing when they are sound. Reads all of them once.

    Sound: `csr` as `check_csr` says; offsets i64[B+1] from 0 to its number of nodes; global_ids i32/i64, < 2^31 - 1,
    >= 0 and ascending in each block, each once; no entry leads from one block into another.
    """
    nodes = Ragged(blocks.global_ids, blocks.offsets)
    check_ragged(nodes, "nodes of blocks", n=2**31 - 1, device=blocks.csr.indptr.device, ascending=True)
    sound = is_sound(blocks.csr, blocks.offsets)  # in one pass; the slow checks below say what is wrong
    if not sound:
        check_csr(blocks.csr)
    if nodes.values.shape[0] != blocks.csr.n:
        given = f"{nodes.values.shape[0]} global ids for {blocks.csr.n} rows"
        raise BadInput("blocks name other nodes than they have", given=given, expected="one global id a row")
    if not sound:
        _check_diagonal(blocks)


def _check_diagonal(blocks: Blocks) -> None:
    """Raises BadInput where an entry leads out of its block; rows ascend, so their first and last columns tell."""
    indptr, indices = blocks.csr.indptr, blocks.csr.indices
    row = indptr.diff().nonzero()[:, 0]
    block = row_of_value(Ragged(blocks.global_ids, blocks.offsets))[row]
    first, last = indices[indptr[row]], indices[indptr[row + 1] - 1]
    across = (first < blocks.offsets[block]) | (last >= blocks.offsets[block + 1])
    if bool(across.any()):
        given = f"row {int(row[across.nonzero()[0, 0]])}"
        raise BadInput("an entry leads out of its block", given=given, expected="a block-diagonal matrix")


def local_nodes(blocks: Blocks, lists: Ragged, name: str) -> Ragged:
    """Nodes of the whole graph as rows of `blocks.csr`: i64[T], list b looked up in block b of the checked `blocks`.

    Raises BadInput where a node is not in its block, or where there are more or fewer lists than blocks.
    """
    check_ragged(lists, name, device=blocks.offsets.device, batch=blocks.offsets.shape[0] - 1, of="blocks")
    checks = compiled_checks(lists.values.device)
    if checks is not None:
        rows = torch.empty_like(lists.values, dtype=torch.int64)
        named = arrays_of(Ragged(blocks.global_ids, blocks.offsets))
        if checks.find_rows(*named, *arrays_of(lists), rows.numpy()):
            return Ragged(rows, lists.offsets)
    row, node = row_of_value(lists), lists.values.long()
    if node.numel() == 0:
        return Ragged(node, lists.offsets)
    width = 2**31  # above every id: `check_blocks` has seen to it
    known = row_of_value(Ragged(blocks.global_ids, blocks.offsets)) * width + blocks.global_ids
    wanted = row * width + node
    at = torch.searchsorted(known, wanted)
    missing = (node < 0) | (node >= width) | (torch.searchsorted(known, wanted, right=True) == at)
    if bool(missing.any()):
        first = int(missing.nonzero()[0, 0])
        given = f"node {int(node[first])} in list {int(row[first])}"
        raise BadInput(f"one of the {name} is not in its block", given=given, expected="a node of the block")
    return Ragged(at, lists.offsets)
