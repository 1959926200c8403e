"""Clusters of near names as the paper makes them, and what a language model says about one, or about a window."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import torch

from gpu_rag.graph.cluster import radius_clusters
from gpu_rag.index.stages.requests import ask
from gpu_rag.index.work import Work
from gpu_rag.methods.higra.settings import AlignmentSettings
from gpu_rag.methods.higra.tables import Row
from gpu_rag.models.budget import reply_tokens
from gpu_rag.models.llm.capability import is_capable
from gpu_rag.settings import Settings
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import JsonSchema, Request

SMALLEST_EPS = 1e-4  # stored vectors are rounded: below it distances say nothing
PACKAGED = "smollm2"  # too small to judge
_N_ALIASES, _LINE_CHARS = 8, 300  # of an entity in a prompt: 20 of them fit any context
Clusters = list[list[int]]  # rows of entities


def near_clusters(vectors: torch.Tensor, eps: float, min_samples: int, most: int) -> Clusters:
    """Clusters of DBSCAN (see `radius_clusters`) with at most `most` rows each, sorted by first row; noise is left out.

    A larger cluster is clustered again by itself with half of eps, and so on; rows that become noise then are left
    out. A cluster that is too large still when eps falls below 1e-4, of rows that are all but equal, is cut into runs
    of `most` rows. vectors: f16|f32[N, D], unit rows.
    """
    done: Clusters = []
    todo = [(torch.arange(len(vectors)), eps)]
    while todo:
        rows, radius = todo.pop()
        label = radius_clusters(vectors[rows.to(vectors.device)], radius, min_samples).tolist()
        members: dict[int, list[int]] = defaultdict(list)
        for row, of in zip(rows.tolist(), label):
            members[of].append(row)
        for found in (found for of, found in members.items() if of >= 0 and len(found) > 1):
            if len(found) <= most:
                done.append(found)
            elif radius / 2 < SMALLEST_EPS:
                done += [part for at in range(0, len(found), most) if len(part := found[at : at + most]) > 1]
            else:
                todo.append((torch.tensor(found), radius / 2))
    return sorted(done)


# --- who decides about a cluster -------------------------------------------------------------------


def decider_of(settings: Settings) -> str:
    """llm | similarity. "auto" is llm where `models.llm` names a model that is capable by its size, or
    `models.capable` says so; the packaged model is not."""
    models, decider = settings.models, settings.section(AlignmentSettings).decider
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
    return settings.section(AlignmentSettings).refine and settings.section(AlignmentSettings).decider == "auto"


def roles_of(settings: Settings) -> tuple[str, ...]:
    """The language model, where it decides."""
    return ("llm",) if settings.section(AlignmentSettings).refine and decider_of(settings) == "llm" else ()


# --- by an LLM -------------------------------------------------------------------------------------


def prompt_of(what: str) -> Prompt:
    """The question to a model about a cluster: merge | link."""
    return Prompt.read("gpu_rag.methods.higra.prompts", what)


def ask_clusters(
    work: Work, entities: Sequence[Row], clusters: Clusters, what: str, schema: Callable[[int], str]
) -> tuple[list[tuple[list[int], Row]], dict[str, int]]:
    """(cluster, reply) for every reply that could be read, and counts of the others by why not, under names of `what`.

    One request a cluster. schema: of the reply, for a number of entities.
    """
    prompt, seed = prompt_of(what), work.settings.runtime.seed

    def request(cluster: list[int]) -> Request:
        text, reply = prompt.render(entities=listed(entities, cluster)), schema(len(cluster))
        room = reply_tokens(work.models.llm(), reply)
        return Request(prompt.system, text, JsonSchema(reply), max_tokens=room, seed=seed)

    read: list[tuple[list[int], Row]] = []
    unread: Counter[str] = Counter()
    for cluster, reply in zip(clusters, ask(work, map(request, clusters), f"higra_{what}")):
        if isinstance(reply, str):
            unread[f"higra_{what}_{reply}"] += 1
        else:
            read.append((cluster, reply))
    return read, dict(sorted(unread.items()))


def listed(entities: Sequence[Row], cluster: Sequence[int]) -> str:
    """The entities of a cluster, numbered from 1, a line each: of a long one the commonest names and the beginning."""
    rows = (entities[row] for row in cluster)
    shown = [entity_text({**row, "aliases": row["aliases"][:_N_ALIASES]})[:_LINE_CHARS] for row in rows]
    return "\n".join(f"{number}. {' '.join(text.split())}" for number, text in enumerate(shown, 1))


def entity_text(row: Row, descriptions: bool = True) -> str:
    """An entity as "name | aliases | types | descriptions", without empty parts; other cases of the name
    are no aliases here."""
    aliases = list({way.casefold(): way for way in reversed(row["aliases"])}.values())[::-1]
    shown = [way for way in aliases if way.casefold() != row["name"].casefold()]
    parts = [row["name"], ", ".join(shown), ", ".join(row["types"])]
    return " | ".join(filter(None, [*parts, " ".join(row["descriptions"]) if descriptions else ""]))
