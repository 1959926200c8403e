"""Relations that no passage states: a language model is asked about entities whose texts are near."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.search import embed_blocks
from gpu_rag.index.work import Sources, Work
from gpu_rag.methods.higra.stages.clusters import entity_clusters
from gpu_rag.methods.higra.stages.decide import (
    Asked,
    ask_clusters,
    decider_of,
    entity_text,
    is_left_to_the_model,
    roles_of,
)
from gpu_rag.methods.higra.tables import HIGRA_ENTITIES, HIGRA_RELATIONS
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema

Row = dict[str, Any]
INFERRED = "inferred"


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The clusters, the prompt and the least confidence; with another decider nothing."""
    chosen = settings.alignment
    if not roles_of(settings):
        return {"decider": decider_of(settings) if chosen.refine else "none"}
    return {
        "decider": "llm",
        "clusters": [chosen.link_radius, chosen.min_samples, chosen.max_cluster],
        "confidence": chosen.confidence,
        "prompt": _prompt().digest,
        "max_tokens": chosen.link_tokens,
    }


@stage(
    "higra_links",
    needs=("higra_merge",),
    retry=("higra_link_failed",),
    params=_params,
    roles=lambda settings: (*roles_of(settings), "embedder") if roles_of(settings) else (),
    by_capability=is_left_to_the_model,
)
def links_stage(work: Work) -> dict[str, int]:
    """Table `relations` (HIGRA_RELATIONS): those that were extracted, and those that a language model infers.

    With the decider `similarity`, or without refinement, there are no inferred ones: that texts are near says that
    two things may be related, not how.

    Adds inferred relations to the extracted ones. One that was extracted too stays as extracted.
    """
    folder = work.stage_folders["higra_merge"]
    rows: list[Row] = tables.read_table(folder / "higra_extracted_relations.parquet", HIGRA_RELATIONS).to_pylist()
    found: dict[tuple[int, str, int], float] = {}
    counts: dict[str, int] = {}
    entities: list[Row] = tables.read_table(folder / "higra_entities.parquet", HIGRA_ENTITIES).to_pylist()
    if roles_of(work.settings) and entities:
        found, counts = _inferred(work, entities)
    known = {(row["subject"], row["label"], row["object"]) for row in rows}
    new = {key: confidence for key, confidence in found.items() if key not in known}
    rows += [_row(entities, key, confidence) for key, confidence in new.items()]
    rows.sort(key=lambda row: (row["subject"], row["label"], row["object"]))
    n = tables.write_rows(work.out / "higra_relations.parquet", HIGRA_RELATIONS, rows)
    return counts | {"higra_relations": n, "higra_inferred": len(new)}


def _prompt() -> Prompt:
    return Prompt.read("gpu_rag.methods.higra.prompts", "link")


def _row(entities: Sequence[Row], key: tuple[int, str, int], confidence: float) -> Row:
    subject, label, object_ = key
    return {
        "id": f"{entities[subject]['id']} | {label} | {entities[object_]['id']}",
        "subject": subject,
        "label": label,
        "object": object_,
        "passages": [],
        "origin": INFERRED,
        "confidence": confidence,
    }


def _inferred(work: Work, entities: Sequence[Row]) -> tuple[dict[tuple[int, str, int], float], dict[str, int]]:
    """{(subject, label, object): the greatest confidence}, and counts of what was asked and left out."""
    chosen = work.settings.alignment
    vectors = torch.from_numpy(embed_blocks(work, cluster_texts(entities)))
    clusters = entity_clusters(work, vectors, chosen.link_radius)
    work.progress.start("higra_links", len(clusters), "clusters")
    asked = Asked(_prompt(), relations_schema, chosen.link_tokens)
    said, unread = ask_clusters(work, entities, clusters, asked)
    found: dict[tuple[int, str, int], float] = {}
    n_unsure = 0
    for cluster, reply in said:
        for relation in reply["relations"]:
            key, confidence = _read(cluster, relation), float(relation["confidence"])
            if key is None or confidence < chosen.confidence:
                n_unsure += 1
            else:
                found[key] = max(found.get(key, 0.0), confidence)
    counts = {f"higra_link_{status}": n for status, n in unread.items()}
    return found, {"higra_link_clusters": len(clusters), "higra_inferred_unsure": n_unsure, **counts}


def cluster_texts(entities: Sequence[Row]) -> list[str]:
    """What the clusters are made of."""
    return [entity_text(row) for row in entities]


def _read(cluster: Sequence[int], relation: Row) -> tuple[int, str, int] | None:
    """The relation between rows; None for one of an entity with itself, or without a label."""
    label = normalise_name(relation["label"])
    source, target = cluster[relation["source"] - 1], cluster[relation["target"] - 1]
    return (source, label, target) if label and source != target else None


def relations_schema(n: int) -> str:
    """Relations between the numbers 1 to n."""
    number = {"type": "integer", "minimum": 1, "maximum": n}
    relation = {
        "type": "object",
        "properties": {
            "source": number,
            "label": {"type": "string", "maxLength": 120},
            "target": number,
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["source", "label", "target", "confidence"],
        "additionalProperties": False,
    }
    relations = {"type": "array", "items": relation, "maxItems": 3 * n}
    properties = {"relations": relations}
    return canonical_schema(
        {"type": "object", "properties": properties, "required": ["relations"], "additionalProperties": False}
    )
