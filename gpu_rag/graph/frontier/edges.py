"""Questions, items and edges with keywords and vectors: the inputs of the searches of `frontier`, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import component_bits
from gpu_rag.graph.common.dots import check_unit_rows
from gpu_rag.graph.csr import check_range
from gpu_rag.graph.memory import check_memory
from gpu_rag.graph.ragged import check_ragged
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

QUESTION_TILE = 64  # questions whose scores are in memory together


@dataclass(frozen=True)
class Described:
    """N items with vectors and keywords; made by `described`. vectors: f16 or f32[N, D], unit rows; keywords: Ragged of
    i32/i64 in [0, n_keywords), ascending."""

    vectors: torch.Tensor
    keywords: Ragged
    n_keywords: int

    @property
    def n(self) -> int:
        """Number of items."""
        return self.keywords.batch


@dataclass(frozen=True)
class FrontierQuery:
    """B questions. vectors: f32[B, D], unit rows; keywords: Ragged of i32/i64 >= 0, ascending. A keyword that no item
    has only counts in the size of the question's set."""

    vectors: torch.Tensor
    keywords: Ragged


@dataclass(frozen=True)
class HopEdges:
    """E directed edges between V vertices; made by `hop_edges`.

    indptr: i64[V+1], edge e leaves v if indptr[v] <= e < indptr[v+1]; target: i32[E]; vector_of: i32[E], the row of
    `vectors` f16 or f32[Q, D] of each edge (edges may share one); keywords: Ragged, one list for each edge.
    """

    indptr: torch.Tensor
    target: torch.Tensor
    vector_of: torch.Tensor
    vectors: torch.Tensor
    keywords: Ragged
    n_keywords: int

    @property
    def n(self) -> int:
        """Number of vertices V."""
        return int(self.indptr.shape[0]) - 1

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """indptr, vector_of, vectors (as `component_bits`), offsets and values of the keywords as arrays, for edges on
        the CPU; cached."""
        indptr, vector_of, offsets, values = (
            part.contiguous().numpy()
            for part in (self.indptr, self.vector_of, self.keywords.offsets, self.keywords.values)
        )
        return indptr, vector_of, component_bits(self.vectors.detach()), offsets, values


def described(vectors: torch.Tensor, keywords: Ragged, n_keywords: int) -> Described:
    """Check the items that `score_lists` compares questions with. Raises BadInput."""
    check_unit_rows(vectors, "vectors")
    check_keywords(keywords, vectors, n_keywords, batch=vectors.shape[0], owners="vectors")
    return Described(vectors, keywords, n_keywords)


def hop_edges(
    indptr: torch.Tensor, target: torch.Tensor, vector_of: torch.Tensor, vectors: torch.Tensor, keywords: Ragged,
    n_keywords: int,
) -> HopEdges:  # fmt: skip
    """Check edges, once. Arguments as in `HopEdges`; all on one device. Raises BadInput."""
    check_unit_rows(vectors, "vectors")
    check_keywords(keywords, vectors, n_keywords)
    check_ragged(Ragged(target, indptr), "targets", n=indptr.numel() - 1, device=vectors.device)
    if vector_of.shape != target.shape or keywords.batch != target.shape[0] or vector_of.device != vectors.device:
        given = f"{tuple(target.shape)} targets, {tuple(vector_of.shape)} vectors, {keywords.batch} keyword lists"
        raise BadInput("edges do not match", given=given, expected="one of each an edge, on one device")
    check_range(vector_of, vectors.shape[0], "the vector of an edge", "vector")
    check_memory(16 * n_keywords, vectors.device, f"lists of {n_keywords:,} keywords", "number the keywords that occur")
    return HopEdges(indptr, target, vector_of, vectors, keywords, n_keywords)


def check_keywords(
    keywords: Ragged, vectors: torch.Tensor, n_keywords: int, batch: int | None = None, owners: str = ""
) -> None:
    """Raise BadInput unless each list ascends, with values in [0, n_keywords); batch, owners: as in `check_ragged`."""
    if n_keywords < 0:
        raise BadInput("a negative number of keywords", given=n_keywords, expected=">= 0")
    device = vectors.device
    check_ragged(
        keywords, "keywords", n=n_keywords, device=device, ascending=True, kind="keyword", batch=batch, owners=owners
    )
