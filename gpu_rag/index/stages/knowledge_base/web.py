"""The pages of web snapshots, for a local search that stands in for the web."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_rag.index import tables
from gpu_rag.index.build import NamedSource, Sources, Work
from gpu_rag.index.knowledge_base.tables import WEB_PAGES
from gpu_rag.index.stages.passages import content_hash
from gpu_rag.index.stages.rejected import reject_line, short_reject, stop_if_strict
from gpu_rag.settings import Settings
from gpu_rag.sources.corpus.parsed import versions_for
from gpu_rag.sources.rows import Limits
from gpu_rag.sources.web.snapshot import read_pages
from gpu_rag.text.bm25 import Bm25
from gpu_rag.types import Reject


class KbWeb:
    """The pages of web snapshots (see `sources.web_snapshot`): table `web_pages`, and a BM25 index over title and text.

    Pages are no passages: only who asks the web sees them.
    """

    name = "kb_web"
    version = 1
    needs: tuple[str, ...] = ()
    retry: tuple[str, ...] = ()

    def params(self, settings: Settings, sources: Sources) -> dict[str, Any]:
        """The snapshots, and how they are searched."""
        named = sources.of_kind("web")
        return {
            "web": [[source.name, content_hash((source.path,))] for source in named],
            "readers": versions_for(["page.html"] if named else []),
            "k1": settings.index.bm25_k1,
            "b": settings.index.bm25_b,
            "max_document_chars": settings.index.max_document_chars,
        }

    def roles(self, settings: Settings) -> tuple[str, ...]:
        """No model."""
        return ()

    def run(self, work: Work) -> dict[str, int]:
        """Reads the snapshots; of pages with one id in two of them each is kept, under "SOURCE:ID" the second time."""
        rows: dict[str, dict[str, Any]] = {}
        n_rejects = 0
        with (work.out / "rejects.jsonl").open("w", encoding="utf-8") as rejects:
            for source in work.sources.of_kind("web"):
                for found in _pages(source, work.settings.index.max_document_chars):
                    if isinstance(found, Reject):
                        stop_if_strict(work.sources.strict, found)
                        rejects.write(reject_line(short_reject(found, (source.path,))))
                        n_rejects += 1
                        continue
                    if found["id"] in rows:
                        found["id"] = f"{source.name}:{found['id']}"
                    rows[found["id"]] = found
                    work.progress.advance(1)
        pages = [rows[id] for id in sorted(rows)]
        tables.write_rows(work.out / "web_pages.parquet", WEB_PAGES, pages)
        index = work.settings.index
        Bm25.build([f"{p['title']}\n{p['text']}" for p in pages], k1=index.bm25_k1, b=index.bm25_b).save(work.out)
        return {"web_pages": len(pages), "rejects": n_rejects}


def _pages(source: NamedSource, max_document_chars: int) -> Iterator[dict[str, Any] | Reject]:
    pages, rejects = read_pages(source.path, Limits(max_document_chars))
    yield from rejects
    for page in pages:
        yield {"id": page.url, "title": page.title, "text": page.text, "url": page.url, "source": source.name}
