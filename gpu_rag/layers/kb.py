"""The knowledge base: nodes and edges of all its sources and of the own extraction, with what links them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_rag.index import tables
from gpu_rag.index.build import Sources, Work
from gpu_rag.index.kb_tables import (
    KB_EDGES,
    KB_LINKS,
    KB_NODES,
    KB_PASSAGES,
    KB_RECORDS,
    KB_RELATIONS,
    KB_SOURCES,
    KB_TYPES,
)
from gpu_rag.index.kb_words import relation_text
from gpu_rag.layers.kb_fuse import Fused, fuse
from gpu_rag.layers.kb_passages import NodeNames, PassageRows, link_passages, read_passage_rows
from gpu_rag.layers.kb_read import Record, SourceRecords, read_source
from gpu_rag.layers.passages import content_hash, reject_line, short_reject, stop_if_strict
from gpu_rag.settings import Settings
from gpu_rag.sources.skb_types import LITERAL, UNTYPED
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Reject

EXTRACTION = "extraction"  # the source that is the index's own


class Kb:
    """Tables `kb_sources`, `kb_types`, `kb_relations`, `kb_nodes`, `kb_records`, `kb_links`, `kb_edges` and
    `kb_passages` (the source of each passage), and rejects.jsonl.

    With a corpus its own extraction is a source too. See `index.kb.KnowledgeBase` for what they mean.
    """

    name = "kb"
    version = 2
    needs: tuple[str, ...] = ("passages",)
    corpus_needs: tuple[str, ...] = ("extraction", "entities", "mentions")
    retry: tuple[str, ...] = ()

    def params(self, settings: Settings, sources: Sources) -> dict[str, Any]:
        """The content of the sources; that of documents is in the passages."""
        named = [
            [s.name, s.kind, "" if s.kind in ("documents", "web") else content_hash((s.path,))] for s in sources.named
        ]
        return {"named": named, "max_document_chars": settings.index.max_document_chars}

    def roles(self, settings: Settings) -> tuple[str, ...]:
        """No model."""
        return ()

    def run(self, work: Work) -> dict[str, int]:
        """Reads, links and writes. Raises BadInput for a source that does not exist, and where bad rows are to stop."""
        rejects = _Rejects(work)
        limit = work.settings.index.max_document_chars
        held = []
        for source in work.sources.of_kind("kg", "skb"):
            held.append(read_source(source, rejects.add, limit))
            work.progress.advance(len(held[-1].records) + len(held[-1].edges))
        rejects.close()
        if "entities" in work.stage_folders:
            held.append(read_extraction(work))
        passages = read_passage_rows(work.stage_folders["passages"])
        base = Assembled.of(held)
        sources = _write_sources(work, held, passages)
        counts = _write(work, base, held, passages, sources)
        return {**counts, "rejects": rejects.n}


class _Rejects:
    """rejects.jsonl of a running stage."""

    def __init__(self, work: Work):
        self._paths = tuple(source.path for source in work.sources.named)
        self._strict, self.n = work.sources.strict, 0
        self._file = (work.out / "rejects.jsonl").open("w", encoding="utf-8")

    def add(self, reject: Reject) -> None:
        """Writes one down. Raises BadInput where bad rows are to stop the run."""
        stop_if_strict(self._strict, reject)
        self._file.write(reject_line(short_reject(reject, self._paths)))
        self.n += 1

    def close(self) -> None:
        """No more."""
        self._file.close()


def read_extraction(work: Work) -> SourceRecords:
    """The index's own entities and relations as a source. An entity's type is the commonest that profiles give it."""
    folders = work.stage_folders
    found = SourceRecords(EXTRACTION, EXTRACTION, [])
    entities = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES)
    types: dict[str, Counter[str]] = defaultdict(Counter)
    profiles = tables.read_table(folders["extraction"] / "profiles.parquet", tables.PROFILES)
    for name, given in zip(profiles["name"].to_pylist(), profiles["types"].to_pylist()):
        types[normalise_name(name)].update(type for raw in given if (type := normalise_name(raw)))
    ids = entities["id"].to_pylist()
    for id, name, aliases in zip(ids, entities["name"].to_pylist(), entities["aliases"].to_pylist()):
        ranked = sorted(types[id].items(), key=lambda item: (-item[1], item[0])) if id in types else []
        found.records[id] = Record(id, name, aliases, [type for type, _ in ranked])
    relations = tables.read_table(folders["entities"] / "relations.parquet", tables.RELATIONS)
    columns = (relations[name].to_pylist() for name in ("subject", "label", "object", "passages"))
    for subject, label, object_, passages in zip(*columns):
        key = (ids[subject], label, ids[object_])
        found.add_edge(key, "")
        found.passages[key] = passages
        found.relations.setdefault(label, label)
    return found


@dataclass(frozen=True)
class Assembled:
    """Records of all sources in order (by source, then id), and their nodes by ascending id.

    node: of each record its node; first: of each node its first record, whose id and name it has; row: of each source
    the row of each record by its id.
    """

    records: list[Record]
    source: list[int]
    fused: Fused
    node: np.ndarray
    node_ids: list[str]
    first: list[int]
    row: list[dict[str, int]]

    @classmethod
    def of(cls, held: Sequence[SourceRecords]) -> Assembled:
        """Links the records and numbers the nodes."""
        records: list[Record] = []
        source: list[int] = []
        row: list[dict[str, int]] = []
        for number, one in enumerate(held):
            ids = sorted(one.records)
            row.append({id: len(records) + place for place, id in enumerate(ids)})
            records.extend(one.records[id] for id in ids)
            source.extend([number] * len(ids))
        fused = fuse(records, source)
        firsts = [place for place, group in enumerate(fused.node) if place == group]
        taken: set[str] = set()
        named = []
        for place in firsts:
            id = records[place].id
            while id in taken:  # two sources use one id for two things
                id = f"{held[source[place]].name}:{id}"
            taken.add(id)
            named.append((id, place))
        named.sort()
        number_of = {place: number for number, (_, place) in enumerate(named)}
        node = np.array([number_of[group] for group in fused.node], np.int32)
        return cls(records, source, fused, node, [id for id, _ in named], [place for _, place in named], row)

    def members(self) -> list[list[int]]:
        """The records of each node, in order."""
        found: list[list[int]] = [[] for _ in self.node_ids]
        for record, node in enumerate(self.node.tolist()):
            found[node].append(record)
        return found


def _write_sources(work: Work, held: Sequence[SourceRecords], passages: PassageRows) -> list[str]:
    """Table `kb_sources`; returns the names."""
    rows: list[dict[str, Any]] = [{"name": one.name, "kind": one.kind, "files": one.files} for one in held]
    documents = work.sources.of_kind("documents")
    rows += [{"name": s.name, "kind": s.kind, "files": [s.path.name]} for s in documents]
    if "documents" in passages.source:
        named = {source.path for source in documents}
        files = [path.name for path in work.sources.corpus if path not in named]
        rows.append({"name": "documents", "kind": "documents", "files": files})
    rows += [{"name": s.name, "kind": s.kind, "files": [s.path.name]} for s in work.sources.of_kind("web")]
    tables.write_rows(work.out / "kb_sources.parquet", KB_SOURCES, rows)
    return [row["name"] for row in rows]


def _write(
    work: Work, base: Assembled, held: Sequence[SourceRecords], passages: PassageRows, sources: list[str]
) -> dict[str, int]:
    members = base.members()
    types = _types(base, members)
    names = [_names(base, rows) for rows in members]
    searched: list[list[str]] = []
    for (name, aliases), type in zip(names, types):
        searched.append([] if type == LITERAL else [name, *aliases])
    nodes_of = NodeNames(
        searched,
        {one.name: {id: int(base.node[row]) for id, row in base.row[n].items()} for n, one in enumerate(held)},
    )
    linked, n_own = link_passages(work, passages, nodes_of)
    type_names = sorted(set(types))
    type_row = {name: row for row, name in enumerate(type_names)}
    nodes = {
        "id": base.node_ids,
        "name": [name for name, _ in names],
        "aliases": [aliases for _, aliases in names],
        "type": [type_row[type] for type in types],
        "passages": linked,
        "n_own": n_own,
    }
    out = work.out
    tables.write_table(out / "kb_types.parquet", KB_TYPES, {"name": type_names})
    tables.write_table(out / "kb_nodes.parquet", KB_NODES, nodes)
    records = {
        "source": base.source, "id": [record.id for record in base.records],
        "name": [record.name for record in base.records], "aliases": [record.aliases for record in base.records],
        "types": [record.types for record in base.records], "node": base.node,
    }  # fmt: skip
    tables.write_table(out / "kb_records.parquet", KB_RECORDS, records)
    links = {name: [link[place] for link in base.fused.links] for place, name in enumerate(KB_LINKS.names)}
    tables.write_table(out / "kb_links.parquet", KB_LINKS, links)
    source_row = {name: row for row, name in enumerate(sources)}
    of = [source_row[name] for name in passages.source]
    tables.write_table(out / "kb_passages.parquet", KB_PASSAGES, {"source": of})
    n_relations, n_edges = _write_edges(work, base, held)
    return {
        "kb_sources": len(sources), "kb_nodes": len(base.node_ids), "kb_edges": n_edges, "kb_relations": n_relations,
        "kb_types": len(type_names), "kb_records": len(base.records), "kb_links": len(base.fused.links),
        "kb_ambiguous": base.fused.ambiguous, "kb_repeated": sum(one.repeated for one in held),
    }  # fmt: skip


def _types(base: Assembled, members: list[list[int]]) -> list[str]:
    """The first type that a record of the node has."""
    return [next((base.records[r].types[0] for r in rows if base.records[r].types), UNTYPED) for rows in members]


def _names(base: Assembled, rows: list[int]) -> tuple[str, list[str]]:
    """(name of the first record, all other names) of a node."""
    found = [name for row in rows for name in (base.records[row].name, *base.records[row].aliases)]
    name, *others = dict.fromkeys(found)
    return name, others


def _write_edges(work: Work, base: Assembled, held: Sequence[SourceRecords]) -> tuple[int, int]:
    """Tables `kb_relations` and `kb_edges`; returns their sizes."""
    names = relation_names(held)
    order = sorted(names, key=names.__getitem__)
    relation_row = {id: row for row, id in enumerate(order)}
    columns = {"name": [names[id] for id in order], "id": order, "text": [relation_text(names[id]) for id in order]}
    tables.write_table(work.out / "kb_relations.parquet", KB_RELATIONS, columns)
    rows: list[tuple[int, int, int, int, str, list[int]]] = []
    for number, one in enumerate(held):
        node = {id: int(base.node[row]) for id, row in base.row[number].items()}
        for (head, relation, tail), provenance in one.edges.items():
            passages = one.passages.get((head, relation, tail), [])
            rows.append((node[head], relation_row[relation], node[tail], number, provenance, passages))
    rows.sort(key=lambda row: row[:4])
    edges = {name: [row[place] for row in rows] for place, name in enumerate(KB_EDGES.names)}
    tables.write_table(work.out / "kb_edges.parquet", KB_EDGES, edges)
    work.progress.advance(len(rows))
    return len(order), len(rows)


def relation_names(held: Sequence[SourceRecords]) -> dict[str, str]:
    """A name of its own for each relation id; where two would have one name, the later by id is called by its id."""
    names: dict[str, str] = {}
    for one in held:
        for id, name in one.relations.items():
            names.setdefault(id, name)
    taken: set[str] = {id for id, name in names.items() if id == name}
    for id in sorted(names):
        if names[id] != id and names[id] in taken:
            names[id] = id
        taken.add(names[id])
    return names
