"""The index's own extraction as a source of a knowledge base."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa

from gpu_rag.index import tables
from gpu_rag.index.build import Work
from gpu_rag.index.stages.knowledge_base.columns import LISTS, Edges, SourceColumns
from gpu_rag.index.stages.knowledge_base.passages import EXTRACTION
from gpu_rag.text.normalise import normalise_name


def read_extraction(work: Work) -> SourceColumns:
    """The index's own entities and relations as a source. An entity's type is the commonest that profiles give it."""
    folders = work.stage_folders
    entities = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES)
    types: dict[str, Counter[str]] = defaultdict(Counter)
    profiles = tables.read_table(folders["extraction"] / "profiles.parquet", tables.PROFILES)
    for name, given in zip(profiles["name"].to_pylist(), profiles["types"].to_pylist()):
        types[normalise_name(name)].update(type for raw in given if (type := normalise_name(raw)))
    ranked = [_ranked(types.get(id, Counter())) for id in entities["id"].to_pylist()]
    relations = tables.read_table(folders["entities"] / "relations.parquet", tables.RELATIONS)
    labels = _column(relations, "label").dictionary_encode()
    edges = Edges(
        relations["subject"].to_numpy(), labels.indices.to_numpy(), relations["object"].to_numpy(),
        np.arange(relations.num_rows), passages=_column(relations, "passages"),
    )  # fmt: skip
    ids, names = (_column(entities, name) for name in ("id", "name"))
    aliases = _column(entities, "aliases").cast(LISTS)
    named = [(label, label) for label in labels.dictionary.to_pylist()]
    return SourceColumns(EXTRACTION, EXTRACTION, [], ids, names, aliases, pa.array(ranked, LISTS), edges, named)


def _ranked(types: Counter[str]) -> list[str]:
    return [type for type, _ in sorted(types.items(), key=lambda item: (-item[1], item[0]))]


def _column(table: pa.Table, name: str) -> pa.Array:
    """A column as one array; texts as large_string, as there may be more than 2 GiB of them."""
    column = table[name]
    if pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
