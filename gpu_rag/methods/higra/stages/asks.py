"""Shared parts of the decisions about windows of near entities: how entities are shown, and who decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from gpu_rag.index.stages.requests import decided
from gpu_rag.index.work import Work
from gpu_rag.methods.higra.settings import AlignmentSettings
from gpu_rag.methods.higra.stages.windows import Clusters
from gpu_rag.methods.higra.tables import Row
from gpu_rag.models.ask import Ask
from gpu_rag.settings import Settings

PROMPTS = "gpu_rag.methods.higra.prompts"
_N_ALIASES, _LINE_CHARS = 8, 300  # per entity in a prompt: 20 entities fit any context
R = TypeVar("R", bound=Struct)


def roles_of(settings: Settings) -> tuple[str, ...]:
    """("llm",) if the language model decides, else ()."""
    chosen = settings.section(AlignmentSettings)
    return ("llm",) if chosen.refine and chosen.decider == "llm" else ()


def is_left_to_the_model(settings: Settings) -> bool:
    """Whether the capability of the model determines the decider."""
    chosen = settings.section(AlignmentSettings)
    return chosen.refine and chosen.decider == "auto"


def ask_windows(
    work: Work, ask: Ask[R], entities: Sequence[Row], windows: Clusters
) -> tuple[list[tuple[list[int], R]], dict[str, int]]:
    """(window, reply) for every readable reply, and counts of the unreadable ones by reason, prefixed by the Ask's
    name.

    Each window is one request.
    """
    fields = ({"entities": listed(entities, window), "n": len(window)} for window in windows)
    pairs: Iterator[tuple[list[int], R | str]] = zip(windows, decided(work, ask, fields))
    read: list[tuple[list[int], R]] = []
    unread: Counter[str] = Counter()
    for window, reply in pairs:
        if isinstance(reply, str):
            unread[f"{ask.name}_{reply}"] += 1
        else:
            read.append((window, reply))
    return read, dict(sorted(unread.items()))


def listed(entities: Sequence[Row], cluster: Sequence[int]) -> str:
    """The entities of a cluster, numbered from 1, one per line. Long entries are cut to their commonest names and their
    beginning."""
    rows = (entities[row] for row in cluster)
    shown = [entity_text({**row, "aliases": row["aliases"][:_N_ALIASES]})[:_LINE_CHARS] for row in rows]
    return "\n".join(f"{number}. {' '.join(text.split())}" for number, text in enumerate(shown, 1))


def entity_text(row: Row, descriptions: bool = True) -> str:
    """An entity as "name | aliases | types | descriptions", without empty parts. Aliases that differ from the name only
    in case are left out."""
    aliases = list({alias.casefold(): alias for alias in reversed(row["aliases"])}.values())[::-1]
    shown = [alias for alias in aliases if alias.casefold() != row["name"].casefold()]
    parts = [row["name"], ", ".join(shown), ", ".join(row["types"])]
    return " | ".join(filter(None, [*parts, " ".join(row["descriptions"]) if descriptions else ""]))
