"""Where in its source file a passage stands, in words a reader can follow: a page, or lines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def place_of(file: str, row: int, pages: Sequence[int], line: int, start: int, text: str) -> str:
    """ "page 3", "pages 3-4", "line 12", "lines 12-14" or "row 5"; "" where the source has nothing of the kind.

    row: the document's line or row in a file of many, 0 for a whole file. pages: where its pages begin, empty without
    pages. line: the passage's first line in a text file, 0 in other sources. start, text: of the passage.
    A row of JSON Lines is a line of its file; rows of Parquet and of JSON arrays are counted from 1.
    """
    if pages:
        return _span("page", page_of(pages, start), page_of(pages, start + max(len(text) - 1, 0)))
    if row:
        return f"{'line' if file.lower().endswith(('.jsonl', '.jsonl.gz')) else 'row'} {row}"
    return _span("line", line, line + text.count("\n")) if line else ""


def page_of(pages: Sequence[int], offset: int) -> int:
    """The page, counted from 1, on which the character at `offset` of a document stands.

    pages: ascending offsets where each page begins, the first 0 (`Document.pages`, column `pages` of the documents).
    The line break that joins two pages belongs to the page before it; an offset past the end is on the last page.

    >>> page_of((0, 120, 250), 119), page_of((0, 120, 250), 120)
    (1, 2)
    """
    return bisect_right(pages, offset)


def _span(unit: str, first: int, last: int) -> str:
    return f"{unit} {first}" if first == last else f"{unit}s {first}-{last}"
