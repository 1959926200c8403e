"""Documents and files that were removed from an index and stay out. Only hashes of their names are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate

from gpu_rag.index.folder import sha256_text
from gpu_rag.index.stages.rejected import short_name
from gpu_rag.index.work import Sources

FILE, MEMBER, DOCUMENT = "file:", "member:", "document:"


def key_of(kind: str, name: str) -> str:
    """The entry of `Sources.removed` for a name.

    kind: FILE, a file or folder that lies in a corpus, named from the corpus argument on; MEMBER, a file in a .zip;
    DOCUMENT, the id of a document. A file counts as missing. A document keeps its id, which no other document gets.
    """
    return kind + sha256_text(name)


def left_out(sources: Sources) -> Callable[[str], bool]:
    """A function that tells whether a file of the corpus, by its path, was removed, alone or with a folder above it."""
    if not sources.removed:
        return lambda file: False

    @lru_cache(1)  # rows of one file come in sequence
    def is_removed(file: str) -> bool:
        parts = short_name(file, sources.corpus).split("/")
        above = accumulate(parts, "{}/{}".format)
        return any(key_of(kind, name) in sources.removed for name in above for kind in (FILE, MEMBER))

    return is_removed


def has_removed(sources: Sources, document: str) -> bool:
    """Whether a document was removed by its id; "" is not an id."""
    return bool(sources.removed and document) and key_of(DOCUMENT, document) in sources.removed


def removed_params(sources: Sources) -> dict[str, list[str]]:
    """Inputs of the passages besides the files. Removed files are not such an input: the list of files lacks them."""
    removed = sorted(key for key in sources.removed if not key.startswith(FILE))
    return {"removed": removed} if removed else {}
