"""Ragged lists: their checks, and the common operations on them in torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
from gpu_rag_kernels.dispatch import compiled_checks

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import to_device
from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.graph.csr import check_range
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

EXPAND_AT_ONCE = 1 << 24  # entries that `expand` makes at a time


def check_ragged(
    lists: Ragged, name: str, *, n: int | None = None, device: torch.device | None = None, ascending: bool = False,
    kind: str = "node", batch: int | None = None, owners: str = "questions",
) -> None:  # fmt: skip
    """Raise BadInput unless `lists` is B lists of integers: values i32/i64[T], offsets i64[B+1] from 0 to T.

    n: every value must be in [0, n); kind: the kind of the values. device: device of both tensors. ascending: each list
    must ascend, without repeats. batch: the required number of lists, one for each of `owners`. One compiled pass on
    the CPU if numba is installed, elsewhere one wait for the device; slower checks then find the error to report.
    """
    check_tensors(lists, name, device)
    if batch is not None and lists.batch != batch:
        given = f"{lists.batch} lists for {batch} {owners}"
        raise BadInput(f"{name} do not match the {owners}", given=given, expected="one list for each")
    values, offsets, size = lists.values, lists.offsets, lists.values.shape[0]
    if is_trusted(values.device):
        return
    checks = compiled_checks(values.device)
    if checks is None:
        broken = are_broken(lists, n)
        sound = not bool(broken | _is_unordered(lists) if ascending else broken)
    else:
        sound = (checks.are_sets if ascending else checks.are_lists)(*arrays_of(lists), -1 if n is None else n)
    if sound:
        return
    if int(offsets[0]) != 0 or int(offsets[-1]) != size or bool((offsets.diff() < 0).any()):
        given = f"{int(offsets[0])} to {int(offsets[-1])} over {size} values"
        raise BadInput(f"offsets of {name} are broken", given=given, expected="0 to T, never falling")
    if n is not None:
        check_range(values, n, f"one of the {name}", kind)
    row = row_of_value(lists)
    position = int(((row[1:] == row[:-1]) & (values[1:] <= values[:-1])).nonzero()[0, 0])
    pair = f"{int(values[position])} before {int(values[position + 1])} in row {int(row[position])}"
    raise BadInput(f"{name} are not in order", given=pair, expected="ascending, each once")


def check_tensors(lists: Ragged, name: str, device: torch.device | None) -> None:
    """Check dtypes, shapes and devices: the part of `check_ragged` that reads no values. Raises BadInput."""
    values, offsets = lists.values, lists.offsets
    if offsets.dtype != torch.int64 or offsets.dim() != 1 or offsets.shape[0] < 1 or values.dim() != 1:
        given = f"offsets {offsets.dtype} {tuple(offsets.shape)}, values {tuple(values.shape)}"
        raise BadInput(f"{name} are not ragged lists", given=given, expected="offsets i64[B+1], values [T]")
    if values.dtype not in (torch.int32, torch.int64):
        raise BadInput(f"{name} are not integers", given=values.dtype, expected="i32 or i64")
    if values.device != offsets.device or (device is not None and values.device != device):
        given = f"values on {values.device}, offsets on {offsets.device}"
        raise BadInput(f"{name} are on another device", given=given, expected=device or "one device")


def are_broken(lists: Ragged, n: int | None) -> torch.Tensor:
    """Whether the offsets are wrong or a value is outside [0, n): bool[] on their device, without a wait."""
    values, offsets = lists.values, lists.offsets
    broken = (offsets[0] != 0) | (offsets[-1] != values.shape[0]) | (offsets.diff() < 0).any()
    if n is not None and values.shape[0]:
        low, high = values.aminmax()
        broken |= (low < 0) | (high.long() >= n)
    return broken


def arrays_of(lists: Ragged, *, wide: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The tensors of lists on the CPU, as arrays for the kernels; wide: values in i64."""
    values = lists.values.long() if wide else lists.values
    return values.contiguous().numpy(), lists.offsets.contiguous().numpy()


def _is_unordered(lists: Ragged) -> torch.Tensor:
    """Whether a value is not above the previous one in its list: bool[] on their device; any offsets."""
    size = lists.values.shape[0]
    begins = torch.zeros(size + 1, dtype=torch.bool, device=lists.values.device)
    begins[lists.offsets.clamp(0, size)] = True
    return ((lists.values[1:] <= lists.values[:-1]) & ~begins[1:size]).any()


def row_of_value(lists: Ragged) -> torch.Tensor:
    """The list of every value: i64[T]."""
    rows = torch.arange(lists.batch, device=lists.offsets.device)
    return torch.repeat_interleave(rows, lists.offsets.diff(), output_size=lists.values.shape[0])


def ragged_of_lists(lists: Sequence[Sequence[int]], device: str | torch.device) -> Ragged:
    """Convert lists of ints to a Ragged of i64 on a device. No wait."""
    return Ragged(*to_device(device, flat(lists), np.cumsum([0, *map(len, lists)], dtype=np.int64)))


def flat(lists: Iterable[Iterable[int]]) -> np.ndarray:
    """The values of lists of ints, one list after another: i64[T]."""
    return np.fromiter(chain.from_iterable(lists), np.int64)


def keys_of(lists: Ragged, n: int) -> torch.Tensor:
    """list * n + value of every value: i64[T]."""
    return row_of_value(lists) * n + lists.values.long()


def ragged_of_keys(keys: torch.Tensor, batch: int, n: int) -> Ragged:
    """Lists of values i32 from ascending keys i64[T], key = list * n + value, 0 <= value < n."""
    width = max(n, 1)
    starts = torch.arange(batch + 1, device=keys.device) * width
    return Ragged((keys % width).int(), torch.searchsorted(keys, starts))


def places_of(mask: torch.Tensor, size: int) -> torch.Tensor:
    """The positions of the `size` true elements of `mask` bool[T]: i64[size]; a `nonzero` without a wait."""
    wanted = torch.arange(1, size + 1, device=mask.device)
    return torch.searchsorted(mask.cumsum(0), wanted)


def expand(
    first: torch.Tensor, last: torch.Tensor, whole: int | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Every (i, p) with first[i] <= p < last[i], by (i, p), as pairs of i64 tensors of bounded length.

    first, last: i64[M]; whole: the total number of entries, if known. A piece holds at most EXPAND_AT_ONCE entries, or
    one i if that alone has more. The host waits for the device once, unless `whole` is given, and once more for each
    piece if there are several.
    """
    counts = last - first
    ends = counts.cumsum(0)
    size, start, done = first.shape[0], 0, 0
    if whole is None:
        whole = int(ends[-1]) if size else 0
    while start < size:
        stop, end = (size, whole) if whole - done <= EXPAND_AT_ONCE else _stop_of_piece(ends, start, done)
        total, own_counts = end - done, counts[start:stop]
        owner = torch.repeat_interleave(torch.arange(start, stop, device=first.device), own_counts, output_size=total)
        before = (ends[start:stop] - own_counts - done)[owner - start]
        yield owner, torch.arange(total, device=first.device) - before + first[owner]
        start, done = stop, end


def _stop_of_piece(ends: torch.Tensor, start: int, done: int) -> tuple[int, int]:
    """The end of the piece that begins at list `start`, and the number of entries up to it."""
    limit = torch.tensor([done + EXPAND_AT_ONCE], device=ends.device)
    stop = torch.searchsorted(ends, limit, right=True).clamp_(min=start + 1)
    piece: tuple[int, int] = tuple(torch.stack([stop, ends[stop - 1]]).view(2).tolist())
    return piece


def part_of(lists: Ragged, first: int, last: int) -> Ragged:
    """The lists from `first` to `last`, exclusive. The host waits twice, but not for all lists."""
    if last - first == lists.batch:
        return lists
    offsets = lists.offsets[first : last + 1]
    return Ragged(lists.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])


def pieces_of(lists: Ragged, size: int) -> Iterator[tuple[int, Ragged]]:
    """The lists in pieces of `size`, each with the number of its first list. The host waits once."""
    bounds = [*range(0, lists.batch, size), lists.batch]
    ends = lists.offsets[torch.tensor(bounds)].tolist()
    for first, last, lo, hi in zip(bounds, bounds[1:], ends, ends[1:]):
        yield first, Ragged(lists.values[lo:hi], lists.offsets[first : last + 1] - lo)


def some_lists(lists: Ragged, rows: torch.Tensor) -> Ragged:
    """Some of the lists, in the order of `rows` i64."""
    first, last = lists.offsets[rows], lists.offsets[rows + 1]
    places = [place for _, place in expand(first, last)]
    return Ragged(lists.values[torch.cat([rows[:0], *places])], offsets_of(last - first))
