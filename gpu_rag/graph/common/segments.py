"""Segments of a list: their offsets, sorting by several keys, and sums in a fixed order."""

from __future__ import annotations

from gpu_rag.lazy import torch

PIECE = 256  # entries summed in sequence; a longer segment is summed piece by piece


def offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    """Offsets of consecutive segments of these lengths: i64[S + 1]; lengths: integers or bool[S]."""
    offsets = torch.zeros(lengths.shape[0] + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def lexsort(*keys: torch.Tensor) -> torch.Tensor:
    """The order by the last key, then by the one before it, and so on: i64[N]; stable."""
    order = torch.argsort(keys[0], stable=True)
    for key in keys[1:]:
        order = order[torch.argsort(key[order], stable=True)]
    return order


def are_first(*columns: torch.Tensor) -> torch.Tensor:
    """Whether a row of these columns [N] differs from the row before it: bool[N]; the first row does."""
    first = torch.ones_like(columns[0], dtype=torch.bool)
    first[1:] = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        first[1:] |= column[1:] != column[:-1]
    return first


def row_sums(values: torch.Tensor) -> torch.Tensor:
    """The sums of float rows [B, S], [B], each in the order of its entries: zeros among them change no bit."""
    batch, width = values.shape
    offsets = torch.arange(batch + 1, device=values.device) * width
    return segment_sums(values.reshape(-1), offsets)


def segment_sums(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The sums [S] of the segments of float values [E] with offsets i64[S + 1], each in the order of its entries."""
    return sums_in_order(values[:, None], offsets)[:, 0]


class SegmentSum:
    """Sums of consecutive segments, prepared once from their lengths, i64[S], >= 0, and the total length. No wait.

    A segment is cut into pieces of PIECE entries; each piece is summed in order, then the pieces in order. So a sum has
    the same bits in every run and for any other segments, and a long segment does not delay the others.
    """

    def __init__(self, lengths: torch.Tensor, total: int):
        counts = (lengths + PIECE - 1) // PIECE
        self.segments = offsets_of(counts)
        n_pieces = counts.shape[0] + total // PIECE  # an upper bound: the last pieces may be empty
        place = torch.arange(n_pieces, device=counts.device)
        owner = torch.searchsorted(self.segments, place, right=True) - 1  # an empty piece gets the number of segments
        place -= self.segments[owner]
        self.pieces = offsets_of((torch.cat([lengths, lengths.new_zeros(1)])[owner] - place * PIECE).clamp(0, PIECE))

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """The sums, [S] in the float dtype of `values` [E]; 0 for an empty segment."""
        return segment_sums(segment_sums(values, self.pieces), self.segments)


def sums_in_order(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The sums [S, D] of the segments of float rows [E, D], row after row: for two dimensions torch adds in order, with
    one GPU thread for each number, not in a reduction tree."""
    if values.shape[0] == 0 or offsets.shape[0] == 1:
        return values.new_zeros(offsets.shape[0] - 1, values.shape[1])
    return torch.segment_reduce(values, "sum", offsets=offsets, axis=0, unsafe=True)
