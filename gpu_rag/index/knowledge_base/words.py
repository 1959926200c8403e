"""Nodes and edges of a knowledge base as text: what is embedded, and what a model reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MOST_NEIGHBOURS = 3  # of one relation in a stand-in text
MOST_RELATIONS = 12
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MARKS = re.compile(r"[_./#:\s]+")


def in_words(name: str) -> str:
    """A name for a model to read: "_" as a space, single spaces. A name of blanks alone stays as it is."""
    return " ".join(name.replace("_", " ").split()) or name


def relation_text(name: str) -> str:
    """A relation in words: "_", ".", "/", "#" and ":" as spaces, camelCase taken apart.

    >>> relation_text("film.film.directed_by"), relation_text("birthPlace")
    ('film film directed by', 'birth place')
    """
    return _MARKS.sub(" ", _CAMEL.sub(" ", name)).strip().lower() or name


def edge_text(head: str, relation: str, tail: str) -> str:
    """The text behind a row of kb_edge_vectors. relation: in words already."""
    return f"{in_words(head)} {relation} {in_words(tail)}"


def standin_text(name: str, type: str, out: Sequence[tuple[str, str]], into: Sequence[tuple[str, str]]) -> str:
    """The stand-in of a node without a text: "name (type).", then its edges as sentences, one a relation.

    out, into: (relation in words, neighbour's name) of the edges that leave and reach it, in their order. At most 12
    relations, those that leave first, with three neighbours each.

    >>> standin_text("Bern", "city", [("capital of", "Switzerland")], [("born in", "Ada"), ("born in", "Eve")])
    'Bern (city). Bern capital of Switzerland. Ada, Eve born in Bern.'
    """
    name = in_words(name)
    said = [f"{name} {relation} {names}." for relation, names in _grouped(out)]
    said += [f"{names} {relation} {name}." for relation, names in _grouped(into)]
    return " ".join([f"{name} ({type}).", *said[:MOST_RELATIONS]])


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(relation, its first neighbours between commas), each relation once, in the order of the first of its edges."""
    groups: dict[str, list[str]] = {}
    for relation, name in pairs:
        names = groups.setdefault(relation, [])
        if len(names) < MOST_NEIGHBOURS and in_words(name) not in names:
            names.append(in_words(name))
    return [(relation, ", ".join(names)) for relation, names in groups.items()]
