"""The pages of web snapshots, for a local search that stands in for the web."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import WEB_PAGES
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.passages import content_hash
from gpu_rag.index.stages.rejected import Rejects
from gpu_rag.index.work import NamedSource, Sources, Work
from gpu_rag.settings import Settings
from gpu_rag.sources.corpus.parsed import versions_for
from gpu_rag.sources.rows import Limits
from gpu_rag.sources.web.snapshot import read_pages
from gpu_rag.text.bm25 import Bm25
from gpu_rag.types import Reject


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The snapshots, and how they are searched."""
    named = sources.of_kind("web")
    return {
        "web": [[source.name, content_hash((source.path,))] for source in named],
        "readers": versions_for(["page.html"] if named else []),
        "k1": settings.index.bm25_k1,
        "b": settings.index.bm25_b,
        "max_document_chars": settings.index.max_document_chars,
    }


@stage("kb_web", params=_params)
def kb_web_stage(work: Work) -> dict[str, int]:
    """The pages of web snapshots (see `sources.web.snapshot`): table `web_pages`, and a BM25 index over title and text.

    Pages are no passages: only who asks the web sees them.
    A page whose id another snapshot has too is called "SOURCE:ID".
    """
    rows: dict[str, dict[str, Any]] = {}
    with Rejects(work, tuple(source.path for source in work.sources.of_kind("web"))) as rejects:
        for source in work.sources.of_kind("web"):
            for found in _pages(source, work.settings.index.max_document_chars):
                if isinstance(found, Reject):
                    rejects.add(found)
                    continue
                if found["id"] in rows:
                    found["id"] = f"{source.name}:{found['id']}"
                rows[found["id"]] = found
                work.progress.advance(1)
    pages = [rows[id] for id in sorted(rows)]
    tables.write_rows(work.out / "web_pages.parquet", WEB_PAGES, pages)
    index = work.settings.index
    Bm25.build([f"{p['title']}\n{p['text']}" for p in pages], k1=index.bm25_k1, b=index.bm25_b).save(work.out)
    return {"web_pages": len(pages), "rejects": rejects.n}


def _pages(source: NamedSource, max_document_chars: int) -> Iterator[dict[str, Any] | Reject]:
    pages, rejects = read_pages(source.path, Limits(max_document_chars))
    yield from rejects
    for page in pages:
        yield {"id": page.url, "title": page.title, "text": page.text, "url": page.url, "source": source.name}
