"""The decisions of HopRAG: the out-edge of a passage to follow, for each passage or for all of a round at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated

from msgspec import Meta, Struct

from gpu_rag.methods.hoprag.batched import OutEdge, vertex_passage
from gpu_rag.models.ask import Ask, Choose, Packed
from gpu_rag.program.oracle import Known

PROMPTS = "gpu_rag.methods.hoprag.prompts"
MAX_PLACES = 20  # maximum places of one request


def nearest(entry: str, edges: Sequence[OutEdge]) -> list[int]:
    """The nearest out-edge; none after a random walk, which has already followed all edges."""
    return [] if entry == "walk" else [0]


def leads_to_gold(gold: Known, position: int, edges: Sequence[OutEdge]) -> bool:
    """Whether an out-edge ends at a gold passage."""
    return vertex_passage(gold.index, edges[position].target) in gold.passages


HOP = Choose("hop", f"{PROMPTS}:choose", none=True, rule=nearest, helps=leads_to_gold, shuffled=True)


@dataclass(frozen=True)
class Place:
    """A vertex to hop from: its title, the questions of its out-edges, nearest first, and the order in which a model
    sees them."""

    title: str
    options: Sequence[str]
    order: Sequence[int] = ()


class Ways(Struct, frozen=True):
    """Numbers of the out-edges to follow, counted from 1 over all places, at most one of each place."""

    ways: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(max_length=MAX_PLACES)]


def texts(places: Sequence[Place]) -> list[str]:
    """Each place with its numbered ways, for a prompt."""
    number = count(1)
    lines = ((f"{next(number)}. {' '.join(place.options[i].split())}" for i in place.order) for place in places)
    return ["\n".join((f"From {place.title}", *options)) for place, options in zip(places, lines)]


def chosen(reply: Ways, places: Sequence[Place]) -> list[list[int]]:
    """The position of the way taken from each place, or nothing. The first number of a place counts."""
    positions, end = [], 0
    for place in places:
        start, end = end, end + len(place.options)
        positions.append([place.order[number - 1 - start] for number in reply.ways if start < number <= end][:1])
    return positions


def _first_ways(entry: str, places: Sequence[Place]) -> Ways:
    """The nearest way from each place, by the rule of HOP."""
    starts = [1 + sum(len(place.options) for place in places[:i]) for i in range(len(places))]
    ways = tuple(start + place.order.index(0) for start, place in zip(starts, places))
    return Ways(() if entry == "walk" else ways[:MAX_PLACES])


HOPS = Ask(
    "hops",
    Ways,
    rule=_first_ways,
    prompt=f"{PROMPTS}:choose_all",
    show=lambda question, places: {
        "question": question,
        "places": Packed(texts(places), range(len(places)), separator="\n\n"),
    },
    words=lambda reply, places: [
        f"{place.title} -> {place.options[i]}" for place, ways in zip(places, chosen(reply, places)) for i in ways
    ],
)
