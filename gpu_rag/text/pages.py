"""Page numbers from character offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from gpu_rag.errors import UsageError


def page_of(pages: Sequence[int], offset: int) -> int:
    """The page, counted from 1, on which the character at `offset` of a document stands.

    pages: ascending offsets where each page begins, the first 0 (`Document.pages`, column `pages` of the documents).
    The line break that joins two pages belongs to the page before it; an offset past the end is on the last page.
    Raises UsageError for a document without pages and for a negative offset.

    >>> page_of((0, 120, 250), 119), page_of((0, 120, 250), 120)
    (1, 2)
    """
    if not pages:
        raise UsageError("the document has no pages", do="ask for pages of PDF documents only")
    if offset < 0:
        raise UsageError("an offset is below 0", given=offset, expected=">= 0")
    return bisect_right(pages, offset)
