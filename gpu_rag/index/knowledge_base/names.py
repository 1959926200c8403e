"""Names of a knowledge base: normal form and look-up; and nodes and edges as text, for embedding and for prompts."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.names import TextColumn, normalised
from gpu_rag.text.normalise import normalise_name

MAX_NEIGHBOURS = 3  # per relation in a stand-in text
MAX_RELATIONS = 12
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MARKS = re.compile(r"[_./#:\s]+")
_ROWS = 1 << 16
_QUALIFIER = r"[\s_]*\([^()]*\)$"


def name_key(name: str) -> str:
    """Normal form under which `KnowledgeBase.named` compares names: `normalise_name` with "_" as a space."""
    return normalise_name(name.replace("_", " "))


def name_keys(names: pa.LargeStringArray) -> pa.LargeStringArray:
    """`name_key` of each name, by array operations."""
    return normalised(pc.replace_substring(names, "_", " "))


class NameTable:
    """Rows of each key of names; a name with a qualifier in brackets at its end, "Mercury (planet)", has a second key
    without it. Memory: the keys and 16 bytes a name; a look-up is a binary search."""

    def __init__(self, names: Sequence[str], aliases: Sequence[list[str]]):
        texts, rows = [pa.array([], pa.large_string())], [np.zeros(0, np.int64)]
        for start in range(0, len(names), _ROWS):
            block, others = pa.array(names[start : start + _ROWS], pa.large_string()), aliases[start : start + _ROWS]
            own, bare = start + np.arange(len(block)), pc.replace_substring_regex(block, _QUALIFIER, "")
            changed = pc.not_equal(bare, block)
            texts += [block, bare.filter(changed)]
            rows += [own, own[changed.to_numpy(zero_copy_only=False)]]
            if also := [alias for group in others for alias in group]:
                texts.append(pa.array(also, pa.large_string()))
                rows.append(start + np.repeat(np.arange(len(others)), [len(group) for group in others]))
        keys, row = name_keys(pa.concat_arrays(texts)), np.concatenate(rows)
        order = pc.sort_indices(pa.table({"key": keys, "row": row}), [("key", "ascending"), ("row", "ascending")])
        self._keys: TextColumn[str] = TextColumn(pa.chunked_array([keys.take(order)]))
        self._rows = row[order.to_numpy()]

    def keys(self) -> list[str]:
        """All keys but the empty one, each once, ascending."""
        return [key for key in dict.fromkeys(self._keys) if key]

    def rows(self, key: str) -> list[int]:
        """Rows with a name of this key, ascending, each once; none for the empty key."""
        if not key:
            return []
        first, last = bisect_left(self._keys, key), bisect_right(self._keys, key)
        rows: list[int] = np.unique(self._rows[first:last]).tolist()
        return rows


# --- in words ------------------------------------------------------------------------------------------


def in_words(name: str) -> str:
    """Name for a model to read: "_" as a space, single spaces. A name of blanks alone is unchanged."""
    return " ".join(name.replace("_", " ").split()) or name


def relation_text(name: str) -> str:
    """Relation in words: "_", ".", "/", "#" and ":" become spaces, camelCase is split.

    >>> relation_text("film.film.directed_by"), relation_text("birthPlace")
    ('film film directed by', 'birth place')
    """
    return _MARKS.sub(" ", _CAMEL.sub(" ", name)).strip().lower() or name


def standin_text(name: str, type: str, out: Sequence[tuple[str, str]], into: Sequence[tuple[str, str]]) -> str:
    """Stand-in text of a node without a text: "name (type).", then its edges as sentences, one per relation.

    out, into: (relation in words, neighbour's name) of the outgoing and incoming edges, in their order. At most 12
    relations, outgoing ones first, with three neighbours each.

    >>> standin_text("Bern", "city", [("capital of", "Switzerland")], [("born in", "Ada"), ("born in", "Eve")])
    'Bern (city). Bern capital of Switzerland. Ada, Eve born in Bern.'
    """
    name = in_words(name)
    sentences = [f"{name} {relation} {names}." for relation, names in _grouped(out)]
    sentences += [f"{names} {relation} {name}." for relation, names in _grouped(into)]
    return " ".join([f"{name} ({type}).", *sentences[:MAX_RELATIONS]])


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(relation, its first neighbours joined by commas), each relation once, ordered by its first edge."""
    groups: dict[str, list[str]] = {}
    for relation, name in pairs:
        names = groups.setdefault(relation, [])
        if len(names) < MAX_NEIGHBOURS and in_words(name) not in names:
            names.append(in_words(name))
    return [(relation, ", ".join(names)) for relation, names in groups.items()]
