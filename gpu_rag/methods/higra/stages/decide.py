"""Which names of a cluster are one entity: decided by a language model, or by rules of spelling and cosine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from gpu_rag.index.stages.requests import ask, windows
from gpu_rag.index.work import Work
from gpu_rag.models.llm.capability import is_capable
from gpu_rag.settings import Settings
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema
from gpu_rag.text.rules.same_name import NameRules, numbers_differ
from gpu_rag.types import JsonSchema, Request

PACKAGED = "smollm2"  # too small to judge
BY_LLM = "the model's group"
_N_ALIASES, _LINE_CHARS = 8, 300  # of an entity in a prompt: 20 of them fit any context
Row = dict[str, Any]


@dataclass(frozen=True)
class Decision:
    """Rows that are one entity, by which rule, and how near they are: the least cosine among them."""

    rows: tuple[int, ...]
    rule: str
    score: float


def decider_of(settings: Settings) -> str:
    """llm | similarity. "auto" is llm where `models.llm` names a model that is capable by its size, or
    `models.capable` says so; the packaged model is not."""
    models, decider = settings.models, settings.alignment.decider
    if decider != "auto":
        return decider
    if models.llm == "none" or models.llm.startswith("replay:"):
        return "similarity"
    capable = models.capable
    if capable is None:
        capable = models.llm != PACKAGED and is_capable(models.llm.rpartition("#")[2] or models.llm)
    return "llm" if capable else "similarity"


def is_left_to_the_model(settings: Settings) -> bool:
    """Whether the capability of the model chooses the decider."""
    return settings.alignment.refine and settings.alignment.decider == "auto"


def roles_of(settings: Settings) -> tuple[str, ...]:
    """The language model, where it decides."""
    return ("llm",) if settings.alignment.refine and decider_of(settings) == "llm" else ()


def by_similarity(
    entities: Sequence[Row], vectors: torch.Tensor, clusters: Sequence[Sequence[int]], titled: Sequence[set[int]],
    min_cosine: float,
) -> list[Decision]:  # fmt: skip
    """Pairs of a cluster that agree by name and by vector: a rule of `NameRules` holds, the cosine is at least
    `min_cosine`, and their types, where both have some, are not all different.

    titled: for each entity the passages that name it, as extracted or as their title.
    """
    rules = NameRules([[row["name"], *row["aliases"]] for row in entities])
    types = [{kind.casefold() for kind in row["types"]} for row in entities]
    found = []
    for cluster in clusters:
        for a, b in combinations(cluster, 2):
            if types[a] and types[b] and not types[a] & types[b]:
                continue
            rule = rules.rule(a, b, bool(titled[a] & titled[b]))
            if rule and (score := _cosine(vectors, a, b)) >= min_cosine:
                found.append(Decision((a, b), rule, score))
    return found


def _cosine(vectors: torch.Tensor, a: int, b: int) -> float:
    return round(float(vectors[a].double() @ vectors[b].double()), 6)


# --- by an LLM -------------------------------------------------------------------------------------


def merge_prompt() -> Prompt:
    """What a model is asked about a cluster."""
    return Prompt.read("gpu_rag.methods.higra.prompts", "merge")


def by_llm(
    work: Work, entities: Sequence[Row], vectors: torch.Tensor, clusters: Sequence[Sequence[int]]
) -> tuple[list[Decision], dict[str, int]]:
    """The groups that a model finds in each cluster, one request a cluster, and counts of replies that say nothing.

    An entity that a reply puts in two groups makes them one. A reply that cannot be read merges nothing; neither does a
    group with two names whose numbers differ, which is counted.
    """
    work.progress.start("higra_merge", len(clusters), "clusters")
    asked = Asked(merge_prompt(), groups_schema, work.settings.alignment.merge_tokens)
    said, unread = ask_clusters(work, entities, clusters, asked)
    decisions: list[Decision] = []
    n_numbers = 0
    for cluster, reply in said:
        for group in reply["groups"]:
            rows = tuple(sorted({cluster[number - 1] for number in group}))
            if any(numbers_differ(entities[a]["name"], entities[b]["name"]) for a, b in combinations(rows, 2)):
                n_numbers += 1
            elif len(rows) > 1:
                score = min(_cosine(vectors, a, b) for a, b in combinations(rows, 2))
                decisions.append(Decision(rows, BY_LLM, score))
    counts = {"higra_merge_numbers_differ": n_numbers} if n_numbers else {}
    return decisions, counts | {f"higra_merge_{status}": n for status, n in unread.items()}


@dataclass(frozen=True)
class Asked:
    """What a model is asked about each cluster. schema: of the reply, for a number of entities."""

    prompt: Prompt
    schema: Callable[[int], str]
    max_tokens: int


def ask_clusters(
    work: Work, entities: Sequence[Row], clusters: Sequence[Sequence[int]], asked: Asked
) -> tuple[list[tuple[Sequence[int], Row]], dict[str, int]]:
    """(cluster, reply) for every reply that could be read, and how many others were malformed, truncated or failed."""
    read: list[tuple[Sequence[int], Row]] = []
    unread: Counter[str] = Counter()
    for block in windows(len(clusters)):
        part = clusters[block]
        for cluster, said in zip(part, ask(work, [_request(work, asked, entities, c) for c in part])):
            if isinstance(said, str):
                unread[said] += 1
            else:
                read.append((cluster, said))
    return read, dict(sorted(unread.items()))


def groups_schema(n: int) -> str:
    """Groups of two or more of the numbers 1 to n."""
    number = {"type": "integer", "minimum": 1, "maximum": n}
    group = {"type": "array", "items": number, "minItems": 2, "maxItems": n}
    groups = {"type": "array", "items": group, "maxItems": n}
    return canonical_schema(
        {"type": "object", "properties": {"groups": groups}, "required": ["groups"], "additionalProperties": False}
    )


def _request(work: Work, asked: Asked, entities: Sequence[Row], cluster: Sequence[int]) -> Request:
    return Request(
        asked.prompt.system,
        asked.prompt.render(entities=listed(entities, cluster)),
        JsonSchema(asked.schema(len(cluster))),
        max_tokens=asked.max_tokens,
        seed=work.settings.runtime.seed,
    )


def listed(entities: Sequence[Row], cluster: Sequence[int]) -> str:
    """The entities of a cluster, numbered from 1, a line each: of a long one the commonest names and the beginning."""
    rows = (entities[row] for row in cluster)
    shown = [entity_text({**row, "aliases": row["aliases"][:_N_ALIASES]})[:_LINE_CHARS] for row in rows]
    return "\n".join(f"{number}. {' '.join(text.split())}" for number, text in enumerate(shown, 1))


# --- texts -----------------------------------------------------------------------------------------


def entity_text(row: Row, descriptions: bool = True) -> str:
    """As "name | aliases | types | descriptions"; parts that are empty left out; ways of writing the name in other case
    are no aliases here."""
    aliases = list({way.casefold(): way for way in reversed(row["aliases"])}.values())[::-1]
    shown = [way for way in aliases if way.casefold() != row["name"].casefold()]
    parts = [row["name"], ", ".join(shown), ", ".join(row["types"])]
    return " | ".join(filter(None, [*parts, " ".join(row["descriptions"]) if descriptions else ""]))
