"""Relations that no passage states: a language model is asked about entities whose texts are near."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpu_rag.index.stage import stage
from gpu_rag.index.stages.search import embed_blocks
from gpu_rag.index.work import Sources, Work
from gpu_rag.methods.higra.stages.clusters import (
    ask_clusters,
    decider_of,
    entity_clusters,
    entity_text,
    is_left_to_the_model,
    prompt_of,
    roles_of,
)
from gpu_rag.methods.higra.tables import Row, Triple, read_rows, relation_row, write
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.replies import canonical_schema, object_of


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The clusters, the prompt and the least confidence; with another decider nothing."""
    chosen = settings.alignment
    if not roles_of(settings):
        return {"decider": decider_of(settings) if chosen.refine else "none"}
    return {
        "decider": "llm",
        "clusters": [chosen.link_radius, chosen.min_samples, chosen.max_cluster],
        "confidence": chosen.confidence,
        "prompt": prompt_of("link").digest,
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
    """Table `relations` (HIGRA_RELATIONS): the extracted ones, and those that a language model infers.

    With the decider `similarity`, or without refinement, there are no inferred ones: that texts are near says that
    two things may be related, not how. A relation that was extracted too stays as extracted.
    """
    folder = work.stage_folders["higra_merge"]
    rows, entities = read_rows(folder, "higra_extracted_relations"), read_rows(folder, "higra_entities")
    found, counts = _inferred(work, entities) if roles_of(work.settings) and entities else ({}, {})
    known = {(row["subject"], row["label"], row["object"]) for row in rows}
    ids = [entity["id"] for entity in entities]
    new = [relation_row(ids, key, confidence=found[key]) for key in found if key not in known]
    rows = sorted([*rows, *new], key=lambda row: (row["subject"], row["label"], row["object"]))
    return counts | {"higra_relations": write(work.out, "higra_relations", rows), "higra_inferred": len(new)}


def _inferred(work: Work, entities: Sequence[Row]) -> tuple[dict[Triple, float], dict[str, int]]:
    """{(subject, label, object): the greatest confidence}, and counts of requests and of what was left out."""
    chosen = work.settings.alignment
    vectors = torch.from_numpy(embed_blocks(work, [entity_text(row) for row in entities]))
    clusters = entity_clusters(work, vectors, chosen.link_radius)
    work.progress.start("higra_links", len(clusters), "clusters")
    replies, unread = ask_clusters(work, entities, clusters, "link", relations_schema, chosen.link_tokens)
    found: dict[Triple, float] = {}
    n_unsure = 0
    for cluster, relation in ((cluster, relation) for cluster, reply in replies for relation in reply["relations"]):
        source, target = cluster[relation["source"] - 1], cluster[relation["target"] - 1]
        key, confidence = (source, normalise_name(relation["label"]), target), float(relation["confidence"])
        if source == target or not key[1] or confidence < chosen.confidence:
            n_unsure += 1
        else:
            found[key] = max(found.get(key, 0.0), confidence)
    return found, {"higra_link_clusters": len(clusters), "higra_inferred_unsure": n_unsure, **unread}


def relations_schema(n: int) -> str:
    """Relations between the numbers 1 to n."""
    number = {"type": "integer", "minimum": 1, "maximum": n}
    relation = object_of(
        {
            "source": number,
            "label": {"type": "string", "maxLength": 120},
            "target": number,
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        }
    )
    return canonical_schema(object_of({"relations": {"type": "array", "items": relation, "maxItems": 3 * n}}))
