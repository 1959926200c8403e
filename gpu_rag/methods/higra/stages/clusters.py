"""Clusters of near names, small enough to be looked at one by one, and what is decided about each.

Which names of a cluster are one entity is decided by a language model, or by rules of spelling and cosine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from gpu_rag.graph.cluster import radius_clusters
from gpu_rag.index.stages.requests import ask
from gpu_rag.index.work import Work
from gpu_rag.methods.higra.tables import Row
from gpu_rag.models.llm.capability import is_capable
from gpu_rag.models.set import pick_device
from gpu_rag.settings import Settings
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.rules.same_name import NameRules, numbers_differ
from gpu_rag.types import JsonSchema, Request

SMALLEST_EPS = 1e-4  # stored vectors are rounded: below it distances say nothing
PACKAGED = "smollm2"  # too small to judge
BY_LLM = "the model's group"
_N_ALIASES, _LINE_CHARS = 8, 300  # of an entity in a prompt: 20 of them fit any context
Clusters = list[list[int]]  # rows of entities


def entity_clusters(work: Work, vectors: torch.Tensor, eps: float) -> Clusters:
    """`near_clusters` under the settings, on the device of the models: clusters are the same on every device."""
    chosen = work.settings.alignment
    moved = vectors.to(pick_device(work.settings.models.device))
    return near_clusters(moved, eps, chosen.min_samples, chosen.max_cluster)


def near_clusters(vectors: torch.Tensor, eps: float, min_samples: int, most: int) -> Clusters:
    """Clusters of DBSCAN (see `radius_clusters`) with at most `most` rows each, sorted by first row; noise is left out.

    A larger cluster is clustered again by itself with half of eps, and so on; rows that become noise then are left
    out. A cluster that is too large still when eps falls below 1e-4, of rows that are all but equal, is cut into runs
    of `most` rows. vectors: f16|f32[N, D], unit rows.
    """
    done: Clusters = []
    todo = [(rows, eps / 2) for rows in _clusters(vectors, torch.arange(len(vectors)), eps, min_samples)]
    while todo:
        rows, smaller = todo.pop()
        if len(rows) <= most:
            done.append(rows.tolist())
        elif smaller < SMALLEST_EPS:
            done += [part.tolist() for part in rows.split(most) if len(part) > 1]
        else:
            todo += [(part, smaller / 2) for part in _clusters(vectors, rows, smaller, min_samples)]
    return sorted(done)


def _clusters(vectors: torch.Tensor, rows: torch.Tensor, eps: float, min_samples: int) -> list[torch.Tensor]:
    """The rows of each cluster of two or more among `rows`, ascending."""
    label = radius_clusters(vectors[rows.to(vectors.device)], eps, min_samples).cpu()
    members: dict[int, list[int]] = defaultdict(list)
    for at, of in zip(rows.tolist(), label.tolist()):
        if of >= 0:
            members[of].append(at)
    return [torch.tensor(found) for found in members.values() if len(found) > 1]


# --- one entity or several -------------------------------------------------------------------------


@dataclass(frozen=True)
class SameEntity:
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
    entities: Sequence[Row], vectors: torch.Tensor, clusters: Clusters, titled: Sequence[set[int]],
    min_cosine: float,
) -> list[SameEntity]:  # fmt: skip
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
                found.append(SameEntity((a, b), rule, score))
    return found


def _cosine(vectors: torch.Tensor, a: int, b: int) -> float:
    return round(float(vectors[a].double() @ vectors[b].double()), 6)


# --- by an LLM -------------------------------------------------------------------------------------


def merge_prompt() -> Prompt:
    """The question to a model about a cluster."""
    return Prompt.read("gpu_rag.methods.higra.prompts", "merge")


def by_llm(
    work: Work, entities: Sequence[Row], vectors: torch.Tensor, clusters: Clusters
) -> tuple[list[SameEntity], dict[str, int]]:
    """The groups that a model finds in each cluster, one request a cluster, and counts of replies that say nothing.

    An entity that a reply puts in two groups makes them one. A reply that cannot be read merges nothing; neither does a
    group with two names whose numbers differ, which is counted.
    """
    work.progress.start("higra_merge", len(clusters), "clusters")
    max_tokens = work.settings.alignment.merge_tokens
    replies, unread = ask_clusters(work, entities, clusters, merge_prompt(), groups_schema, max_tokens)
    decisions: list[SameEntity] = []
    n_numbers = 0
    for cluster, reply in replies:
        for group in reply["groups"]:
            rows = tuple(sorted({cluster[number - 1] for number in group}))
            if any(numbers_differ(entities[a]["name"], entities[b]["name"]) for a, b in combinations(rows, 2)):
                n_numbers += 1
            elif len(rows) > 1:
                score = min(_cosine(vectors, a, b) for a, b in combinations(rows, 2))
                decisions.append(SameEntity(rows, BY_LLM, score))
    counts = {"higra_merge_numbers_differ": n_numbers} if n_numbers else {}
    return decisions, counts | {f"higra_merge_{status}": n for status, n in unread.items()}


def ask_clusters(
    work: Work,
    entities: Sequence[Row],
    clusters: Clusters,
    prompt: Prompt,
    schema: Callable[[int], str],
    max_tokens: int,
) -> tuple[list[tuple[list[int], Row]], dict[str, int]]:
    """(cluster, reply) for every reply that could be read, and how many others were malformed, truncated or failed.

    schema: of the reply, for a number of entities.
    """

    def request(cluster: list[int]) -> Request:
        text, constraint = prompt.render(entities=listed(entities, cluster)), JsonSchema(schema(len(cluster)))
        return Request(prompt.system, text, constraint, max_tokens=max_tokens, seed=work.settings.runtime.seed)

    read: list[tuple[list[int], Row]] = []
    unread: Counter[str] = Counter()
    for cluster, reply in zip(clusters, ask(work, map(request, clusters), f"higra_{Path(prompt.name).stem}")):
        if isinstance(reply, str):
            unread[reply] += 1
        else:
            read.append((cluster, reply))
    return read, dict(sorted(unread.items()))


def groups_schema(n: int) -> str:
    """Groups of two or more of the numbers 1 to n."""
    number = {"type": "integer", "minimum": 1, "maximum": n}
    group = {"type": "array", "items": number, "minItems": 2, "maxItems": n}
    return canonical_schema(object_of({"groups": {"type": "array", "items": group, "maxItems": n}}))


def listed(entities: Sequence[Row], cluster: Sequence[int]) -> str:
    """The entities of a cluster, numbered from 1, a line each: of a long one the commonest names and the beginning."""
    rows = (entities[row] for row in cluster)
    shown = [entity_text({**row, "aliases": row["aliases"][:_N_ALIASES]})[:_LINE_CHARS] for row in rows]
    return "\n".join(f"{number}. {' '.join(text.split())}" for number, text in enumerate(shown, 1))


# --- texts -----------------------------------------------------------------------------------------


def entity_text(row: Row, descriptions: bool = True) -> str:
    """An entity as "name | aliases | types | descriptions", without empty parts; other cases of the name
    are no aliases here."""
    aliases = list({way.casefold(): way for way in reversed(row["aliases"])}.values())[::-1]
    shown = [way for way in aliases if way.casefold() != row["name"].casefold()]
    parts = [row["name"], ", ".join(shown), ", ".join(row["types"])]
    return " | ".join(filter(None, [*parts, " ".join(row["descriptions"]) if descriptions else ""]))
