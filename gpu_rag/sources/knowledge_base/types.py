"""A node of a semi-structured knowledge base."""

from __future__ import annotations

from dataclasses import dataclass

UNTYPED = "entity"  # the type of a node that has none
NODE_KEYS = ("id", "type", "name", "text")
LITERAL = "literal"  # of a value: a number, a date, a text


@dataclass(frozen=True)
class SkbNode:
    """text: the node's own document, "" where it has none. line: of the file that it stands in, from 1."""

    id: str
    name: str
    type: str
    text: str
    aliases: tuple[str, ...]
    line: int
