"""Fixed batches: what makes a row bit-equal alone or in any company.

A matrix product rounds differently for another shape. So the shape a text is computed in must depend on that text
alone: texts are grouped by their own padded length, and each group is cut into batches of one fixed size, the last
one filled up with dummy rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def fixed_batches(lengths: Sequence[int], size: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (length, rows) in order of length; at most `size` row numbers, all of that same length.

    lengths: the padded length of each row. Rows of equal length stay in their order.
    """
    groups: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        groups.setdefault(length, []).append(row)
    for length in sorted(groups):
        rows = groups[length]
        for start in range(0, len(rows), size):
            yield length, rows[start : start + size]


def distinct(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """The distinct texts in order of first appearance, and for each text its place among them."""
    place: dict[str, int] = {}
    index = [place.setdefault(text, len(place)) for text in texts]
    return list(place), index
