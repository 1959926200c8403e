"""Stage of the knowledge base: nodes and edges of all its sources and of the index's extraction, and links."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import KB_LINKS, KB_NODES, KB_PASSAGES, KB_RECORDS, KB_SOURCES, KB_TYPES
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.knowledge_base.columns import LISTS, Edges, SourceColumns
from gpu_rag.index.stages.knowledge_base.edges import write_edges
from gpu_rag.index.stages.knowledge_base.mediators import collapse_mediators
from gpu_rag.index.stages.knowledge_base.nodes import Nodes
from gpu_rag.index.stages.knowledge_base.passages import EXTRACTION, PassageRows, link_passages, read_passage_rows
from gpu_rag.index.stages.knowledge_base.read import read_source
from gpu_rag.index.stages.passages import content_hash
from gpu_rag.index.stages.rejected import Rejects
from gpu_rag.index.tables import write_columns
from gpu_rag.index.work import Sources, Work
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import normalise_name


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """Content of the sources. The content of documents is in the passages."""
    named = [[s.name, s.kind, "" if s.kind in ("documents", "web") else content_hash((s.path,))] for s in sources.named]
    collapsed = {} if settings.index.mediators == "keep" else {"mediators": settings.index.mediators}
    return {"named": named, "max_document_chars": settings.index.max_document_chars, **collapsed}


@stage(
    "kb",
    needs=("passages",),
    corpus_needs=("extraction", "entities", "mentions"),
    version=3,
    params=_params,
    size="triples",
    graph=True,
)
def kb_stage(work: Work) -> dict[str, int]:
    """Tables `kb_sources`, `kb_types`, `kb_relations`, `kb_nodes`, `kb_records`, `kb_links`, `kb_edges` and
    `kb_passages` (the source of each passage), and rejects.jsonl.

    With a corpus, its own extraction is a source too. See `KnowledgeBase` for the meaning of the tables.

    Raises BadInput for a source that does not exist, and for a bad row if that must stop the build. Sources are read in
    blocks into columns: memory is about 50 bytes an edge, 100 a record and four times the text of names and ids, beside
    some 200 bytes a passage and the names of `link_passages`, which reads passages by block.
    """
    limit = work.settings.index.max_document_chars
    with Rejects(work, tuple(source.path for source in work.sources.named)) as rejects:
        parts = [
            read_source(source, rejects.add, limit, work.progress.advance)
            for source in work.sources.of_kind("kg", "skb")
        ]
    if work.settings.index.mediators == "collapse":
        parts = [collapse_mediators(part) for part in parts]
    if "entities" in work.stage_folders:
        parts.append(read_extraction(work))
    passages = read_passage_rows(work.stage_folders["passages"])
    sources = _write_sources(work, parts, passages)
    return {**write_kb(work, parts, passages, sources), "rejects": rejects.n}


def _write_sources(work: Work, parts: Sequence[SourceColumns], passages: PassageRows) -> list[str]:
    """Write the table `kb_sources`. Returns the names."""
    rows: list[dict[str, Any]] = [{"name": part.name, "kind": part.kind, "files": part.files} for part in parts]
    documents = work.sources.of_kind("documents")
    rows += [{"name": s.name, "kind": s.kind, "files": [s.path.name]} for s in documents]
    if "documents" in passages.source:
        named = {source.path for source in documents}
        files = [path.name for path in work.sources.corpus if path not in named]
        rows.append({"name": "documents", "kind": "documents", "files": files})
    rows += [{"name": s.name, "kind": s.kind, "files": [s.path.name]} for s in work.sources.of_kind("web")]
    tables.write_rows(work.out / "kb_sources.parquet", KB_SOURCES, rows)
    return [row["name"] for row in rows]


def write_kb(work: Work, parts: Sequence[SourceColumns], passages: PassageRows, sources: list[str]) -> dict[str, int]:
    """Write all tables but `kb_sources`. Returns their counts. sources: the names in `kb_sources`."""
    nodes = Nodes.of(parts)
    records, out = nodes.records, work.out
    linked, n_own = link_passages(work, passages, nodes, [part.name for part in parts])
    tables.write_table(out / "kb_types.parquet", KB_TYPES, {"name": nodes.type_names})
    write_columns(
        out / "kb_nodes.parquet", KB_NODES, [nodes.ids, nodes.names, nodes.aliases, nodes.type, linked, n_own]
    )
    columns = [records.source, records.ids, records.names, records.aliases, records.types, nodes.node]
    write_columns(out / "kb_records.parquet", KB_RECORDS, columns)
    links = {name: [link[place] for link in nodes.fused.links] for place, name in enumerate(KB_LINKS.names)}
    tables.write_table(out / "kb_links.parquet", KB_LINKS, links)
    source_row = {name: row for row, name in enumerate(sources)}
    source_of = [source_row[name] for name in passages.source]
    tables.write_table(out / "kb_passages.parquet", KB_PASSAGES, {"source": source_of})
    n_relations, n_edges, n_repeated = write_edges(work, nodes, parts)
    return {
        "kb_sources": len(sources), "kb_nodes": nodes.n, "kb_edges": n_edges, "kb_relations": n_relations,
        "kb_types": len(nodes.type_names), "kb_records": len(records.ids), "kb_links": len(nodes.fused.links),
        "kb_ambiguous": nodes.fused.ambiguous, "kb_repeated": n_repeated,
    }  # fmt: skip


# --- the index's extraction as a source ----------------------------------------------------------------


def read_extraction(work: Work) -> SourceColumns:
    """The index's own entities and relations as a source. An entity's type is the most frequent one in its profiles."""
    folders = work.stage_folders
    entities = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES)
    types: dict[str, Counter[str]] = defaultdict(Counter)
    profiles = tables.read_table(folders["extraction"] / "profiles.parquet", tables.PROFILES)
    for name, given in zip(profiles["name"].to_pylist(), profiles["types"].to_pylist()):
        types[normalise_name(name)].update(type for written in given if (type := normalise_name(written)))
    counted = (types.get(id, Counter()).items() for id in entities["id"].to_pylist())
    ranked = [[type for type, _ in sorted(types, key=lambda item: (-item[1], item[0]))] for types in counted]
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


def _column(table: pa.Table, name: str) -> pa.Array:
    """Column as one array; texts as large_string, because there may be more than 2 GiB of them."""
    column = table[name]
    if pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
