"""The knowledge base: nodes and edges of all its sources and of the own extraction, with what links them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_rag.index import tables
from gpu_rag.index.build import Sources, Work
from gpu_rag.index.knowledge_base.tables import KB_LINKS, KB_NODES, KB_PASSAGES, KB_RECORDS, KB_SOURCES, KB_TYPES
from gpu_rag.index.stages.knowledge_base.columns import SourceColumns
from gpu_rag.index.stages.knowledge_base.edges import write_edges
from gpu_rag.index.stages.knowledge_base.extraction import read_extraction
from gpu_rag.index.stages.knowledge_base.nodes import Nodes
from gpu_rag.index.stages.knowledge_base.passages import PassageRows, link_passages, read_passage_rows
from gpu_rag.index.stages.knowledge_base.read import read_source
from gpu_rag.index.stages.passages import content_hash
from gpu_rag.index.stages.rejected import reject_line, short_reject, stop_if_strict
from gpu_rag.index.write import write_columns
from gpu_rag.settings import Settings
from gpu_rag.types import Reject


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
        """Reads, links and writes. Raises BadInput for a source that does not exist, and where bad rows are to stop.

        Sources are read in blocks into columns: memory is about 50 bytes an edge, 100 a record and four times the text
        of names and ids, beside the passages and what `link_passages` searches for.
        """
        rejects = _Rejects(work)
        limit = work.settings.index.max_document_chars
        held = [
            read_source(source, rejects.add, limit, work.progress.advance)
            for source in work.sources.of_kind("kg", "skb")
        ]
        rejects.close()
        if "entities" in work.stage_folders:
            held.append(read_extraction(work))
        passages = read_passage_rows(work.stage_folders["passages"])
        sources = _write_sources(work, held, passages)
        return {**_write(work, held, passages, sources), "rejects": rejects.n}


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


def _write_sources(work: Work, held: Sequence[SourceColumns], passages: PassageRows) -> list[str]:
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


def _write(work: Work, held: Sequence[SourceColumns], passages: PassageRows, sources: list[str]) -> dict[str, int]:
    """All other tables; returns what they count."""
    nodes = Nodes.of(held)
    records, out = nodes.records, work.out
    linked, n_own = link_passages(work, passages, nodes, [one.name for one in held])
    tables.write_table(out / "kb_types.parquet", KB_TYPES, {"name": nodes.type_names})
    write_columns(
        out / "kb_nodes.parquet", KB_NODES, [nodes.ids, nodes.names, nodes.aliases, nodes.type, linked, n_own]
    )
    columns = [records.source, records.ids, records.names, records.aliases, records.types, nodes.node]
    write_columns(out / "kb_records.parquet", KB_RECORDS, columns)
    links = {name: [link[place] for link in nodes.fused.links] for place, name in enumerate(KB_LINKS.names)}
    tables.write_table(out / "kb_links.parquet", KB_LINKS, links)
    source_row = {name: row for row, name in enumerate(sources)}
    of = [source_row[name] for name in passages.source]
    tables.write_table(out / "kb_passages.parquet", KB_PASSAGES, {"source": of})
    n_relations, n_edges, n_repeated = write_edges(work, nodes, held)
    return {
        "kb_sources": len(sources), "kb_nodes": nodes.n, "kb_edges": n_edges, "kb_relations": n_relations,
        "kb_types": len(nodes.type_names), "kb_records": len(records.ids), "kb_links": len(nodes.fused.links),
        "kb_ambiguous": nodes.fused.ambiguous, "kb_repeated": n_repeated,
    }  # fmt: skip
