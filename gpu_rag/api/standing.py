"""An index that stands where `build` writes: its other sources stay in it, and documents that leave are counted."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpu_rag.errors import BadInput, GpuRagError
from gpu_rag.index import tables
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.names import hashes_of
from gpu_rag.index.recorded import Record, read_record, remembered
from gpu_rag.index.work import Sources
from gpu_rag.sources.named import all_sources

MAX_NAMES = 5  # of sources, that a message shows
_log = logging.getLogger(__name__)


def check_sources_exist(sources: Sources) -> None:
    """Raise BadInput if a source is gone."""
    paths = [*sources.corpus, *sources.openie, *(source.path for source in sources.named)]
    for path in paths:
        if not path.exists():
            do = "bring it back; or name its new place: gpu-rag update DIR PATH; or gpu-rag remove DIR --file NAME"
            raise BadInput("a source of the index is gone, and its documents are read from it", given=path, do=do)


def with_others(given: Sources, out: Path) -> tuple[Sources, tuple[str, ...]]:
    """(the given sources and those that stay in the index, a note that names the latter).

    If the index in `out` has all given files and folders, its others stay: `add` brought them, or an earlier build. So
    do its named sources; if there is a new one among the given, only those of documents. Raises BadInput if one that
    stays is gone, or if a new one has its name.
    """
    known = remembered(out)
    if known is None or not _places(given) <= _places(known):
        return given, ()
    named = known.named
    if not _named(given) <= _named(known):
        places = _documents(given)
        documents = [source for source in known.of_kind("documents") if _place(source.path) not in places]
        named = all_sources(named=(*given.named, *documents))
    sources = replace(given, corpus=known.corpus, named=named)
    places = _places(given) | _documents(sources)
    others = [path.name for path in known.corpus if _place(path) not in places]
    others += sorted(name for name, _, _ in _named(sources) - _named(given))
    check_sources_exist(sources)
    what = "sources that the index has too stay in it"
    note = f"gpu-rag: {what}: {_shown(others)}; gpu-rag remove {out} takes one out (--file F or --source NAME)"
    return sources, (note,) if others else ()


@dataclass(frozen=True)
class Standing:
    """The sources of an index before a build, and hashes, for this process, of the ids of its documents: i64[n]."""

    record: Record
    documents: np.ndarray

    @classmethod
    def read(cls, out: Path) -> Standing:
        """The state of the index in `out`; without documents if there is none."""
        return cls(read_record(out), _document_hashes(out))

    def warn_of_lost(self, out: Path, sources: Sources) -> None:
        """Say how many documents are not in the index any more, and which of its sources."""
        n = len(np.setdiff1d(self.documents, _document_hashes(out)))
        now = [Path(place) for place in _places(sources)]
        files = [path for path in self.record.corpus if not any(map(Path(os.path.normpath(path)).is_relative_to, now))]
        staying = {source.name for source in sources.named}
        named = [name for name, _, path in self.record.named if name not in staying and path not in files]
        why = "its sources do not give them any more"
        if files or named:
            do = f"name them too, or run gpu-rag add {out} PATH, to have them back"
            why = f"these sources were not named: {_shown([*files, *named])}; {do}"
        if n or named:
            _log.warning("gpu-rag: %s documents left the index: %s", f"{n:,}", why)


def _document_hashes(out: Path) -> np.ndarray:
    try:
        record = Manifest.read(out).stages.get("passages")
        path = out / record.folder / "documents.parquet" if record else None
        batches = tables.read_batches(path, tables.DOCUMENTS, ["id"]) if path else ()
        hashes = [hashes_of(batch["id"]) for batch in batches]
    except GpuRagError:  # no index, or a damaged one, which a build with `fresh` replaces
        hashes = []
    return np.concatenate([np.zeros(0, np.int64), *hashes])


def _place(path: Path) -> str:
    return os.path.normpath(path.absolute())


def _places(sources: Sources) -> set[str]:
    return set(map(_place, sources.corpus))


def _documents(sources: Sources) -> set[str]:
    """The places of named sources of documents."""
    return {_place(source.path) for source in sources.of_kind("documents")}


def _named(sources: Sources) -> set[tuple[str, str, str]]:
    return {(source.name, source.kind, _place(source.path)) for source in sources.named}


def _shown(names: Sequence[str]) -> str:
    return f"{', '.join(names[:MAX_NAMES])}{', ...' * (len(names) > MAX_NAMES)}"
