"""Occurrences of entities: extraction links with their offsets, and further whole-word occurrences found by search."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Work
from gpu_rag.text.mentions import find_mentions
from gpu_rag.text.normalise import normalise_name

MAX_PASSAGES_OF_A_SEARCHED_NAME = 100  # theta of HiGraAgent: a name in more passages says little


@stage(
    "mentions",
    needs=("passages", "extraction", "entities"),
    params=lambda settings, _: {"max_passages": MAX_PASSAGES_OF_A_SEARCHED_NAME},
    size="mentions",
)
def mentions_stage(work: Work) -> dict[str, int]:
    """Table `mentions`, sorted by (passage, start, entity). An extraction link that is not verbatim has offsets -1.
    Every written name is searched in every passage (Aho-Corasick, whole words).
    """
    entities = tables.read_table(work.stage_folders["entities"] / "entities.parquet", tables.ENTITIES)
    texts = tables.read_table(work.stage_folders["passages"] / "passages.parquet", tables.PASSAGES)["text"].to_pylist()
    extracted = _extracted(work, entities["id"].to_pylist())
    names, owner = [], []
    for row, (name, aliases) in enumerate(zip(entities["name"].to_pylist(), entities["aliases"].to_pylist())):
        names.extend([name, *aliases])
        owner.extend([row] * (1 + len(aliases)))
    found = find_mentions(names, texts)
    entity = np.asarray(owner, np.int64)[found.name]
    quadruples = np.unique(np.stack([found.text, found.start, found.end, entity], 1), axis=0)
    rows = _label(quadruples, extracted, len(entities))
    rows.sort(key=lambda r: (r["passage"], r["start"], r["entity"], r["end"]))
    n = tables.write_rows(work.out / "mentions.parquet", tables.MENTIONS, rows)
    work.progress.advance(len(texts))
    return {"mentions": n, "mentions_not_verbatim": sum(r["start"] < 0 for r in rows)}


def _extracted(work: Work, ids: list[str]) -> set[tuple[int, int]]:
    row_of = {name: row for row, name in enumerate(ids)}
    table = tables.read_table(work.stage_folders["extraction"] / "extractions.parquet", tables.EXTRACTIONS)
    pairs: set[tuple[int, int]] = set()
    rows = zip(table["passage"].to_pylist(), table["entities"].to_pylist(), table["triples"].to_pylist())
    for passage, names, triples in rows:
        ends = [name for s, _, o in triples for name in (s, o)]
        keys = {normalise_name(name) for name in [*names, *ends]}
        pairs.update((row_of[key], passage) for key in keys if key in row_of)
    return pairs


def _label(found: np.ndarray, extracted: set[tuple[int, int]], n_entities: int) -> list[dict[str, Any]]:
    pairs = np.unique(found[:, [3, 0]], axis=0) if len(found) else np.zeros((0, 2), np.int64)
    n_passages = np.bincount(pairs[:, 0], minlength=n_entities)
    rows, verbatim = [], set()
    for passage, start, end, entity in found.tolist():
        is_extracted = (entity, passage) in extracted
        if is_extracted:
            verbatim.add((entity, passage))
        elif n_passages[entity] >= MAX_PASSAGES_OF_A_SEARCHED_NAME:
            continue
        origin = "extraction" if is_extracted else "search"
        rows.append({"entity": entity, "passage": passage, "start": start, "end": end, "origin": origin})
    for entity, passage in extracted - verbatim:
        rows.append({"entity": entity, "passage": passage, "start": -1, "end": -1, "origin": "extraction"})
    return rows
