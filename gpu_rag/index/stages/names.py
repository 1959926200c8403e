"""Stages of two tables of names, of titles and of entities. Their names are found in questions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.name_table import NAMES, NameTable, of_one
from gpu_rag.index.names import normalised, one_array, rows_of
from gpu_rag.index.stage import stage
from gpu_rag.index.titles import telling_titles, without_brackets
from gpu_rag.index.work import Work

PROFILES = "profiles.parquet"


@stage("title_names", needs=("passages",), version=2)
def title_names_stage(work: Work) -> dict[str, int]:
    """Passages by title, and by title without a final bracket, for titles that at most MAX_PASSAGES passages share."""
    path = work.stage_folders["passages"] / "passages.parquet"
    table = names_of_titles(tables.read_table(path, tables.PASSAGES, ["title"])["title"])
    tables.write_arrays(work.out / NAMES, table.arrays)
    return {}


@stage("entity_names", needs=("extraction", "entities"), version=2, size="entities")
def entity_names_stage(work: Work) -> dict[str, int]:
    """Entities by name, by name without a final bracket, and by aliases that belong to only one entity."""
    path, profiles = work.stage_folders["entities"] / "entities.parquet", work.stage_folders["extraction"] / PROFILES
    names = tables.read_table(path, tables.ENTITIES, ["id"])["id"]
    table = names_of_entities(names, tables.read_table(profiles, tables.PROFILES, ["name", "aliases"]))
    tables.write_arrays(work.out / NAMES, table.arrays)
    return {}


def names_of_titles(column: pa.ChunkedArray) -> NameTable:
    """The table of `title_names_stage`. column: the title of each passage."""
    passages, titles = telling_titles(column)
    bracketed, short = without_brackets(titles)
    rows = np.concatenate([passages, passages[bracketed]])
    order = np.argsort(rows, kind="stable")
    names = one_array(pa.chunked_array([titles, short])).take(pa.array(order))
    return NameTable.of(names, rows[order])


def names_of_entities(column: pa.ChunkedArray, profiles: pa.Table) -> NameTable:
    """The table of `entity_names_stage`. column: normalised names; profiles: columns name, aliases."""
    names = one_array(column)
    named = rows_of(normalised(one_array(profiles["name"])), names)
    aliases = profiles["aliases"].combine_chunks()
    row = named[pc.list_parent_indices(aliases).to_numpy()]
    bracketed, short = without_brackets(names)
    more = one_array(pa.chunked_array([one_array(aliases.flatten()).filter(pa.array(row >= 0)), short]))
    also, rows = of_one(more, np.concatenate([row[row >= 0], bracketed]), names)
    return NameTable.of(pa.chunked_array([names, also]), np.concatenate([np.arange(len(names)), rows]))
