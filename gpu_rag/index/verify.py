"""Checks of a finished index: every checksum, the tables against each other, the graph's invariants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.csr import check_csr, is_symmetric
from gpu_rag.index import tables
from gpu_rag.index.folder import checksums
from gpu_rag.index.index import Index
from gpu_rag.types import CSR


def verify(folder: Path) -> list[str]:
    """Everything that is broken, one line each; empty when the index is sound."""
    index = Index.open(folder)
    broken = list(_files(index))
    if broken:
        return broken
    for check in (_inputs, _passages, _vectors, _entities, _mentions, _graph):
        broken.extend(_guarded(check, index))
    return broken


def _guarded(check: Callable[[Index], Iterator[str]], index: Index) -> list[str]:
    try:
        return list(check(index))
    except GpuRagError as error:
        return [str(error)]


def _files(index: Index) -> Iterator[str]:
    for record in index.manifest.stages.values():
        base = index.path / record.folder
        if not base.is_dir():
            yield f"{record.folder}: the folder is missing"
            continue
        found = checksums(base)
        for name, entry in record.files.items():
            if name not in found:
                yield f"{record.folder}/{name}: missing"
            elif found[name] != entry:
                now, then = found[name]["sha256"][:12], entry["sha256"][:12]
                yield f"{record.folder}/{name}: altered (sha256 {now}, recorded {then})"
        for name in sorted(found.keys() - record.files.keys()):
            yield f"{record.folder}/{name}: not part of the index"


def _inputs(index: Index) -> Iterator[str]:
    stages = index.manifest.stages
    for record in stages.values():
        for need, output in record.inputs.items():
            if need not in stages or stages[need].output_hash != output:
                yield f"{record.folder}: made from another state of {need}"


def _sorted_unique(ids: list[str], what: str) -> Iterator[str]:
    if any(a >= b for a, b in zip(ids, ids[1:])):
        yield f"{what}: ids are not sorted and unique"


def _passages(index: Index) -> Iterator[str]:
    yield from _sorted_unique(index.passage_ids, "passages")
    documents = index.documents["id"].to_pylist()
    yield from _sorted_unique(documents, "documents")
    known = set(documents)
    if lost := [d for d in index.passage_doc_ids if d not in known]:
        yield f"passages: {len(lost)} name a document that does not exist, such as {lost[0]}"
    rows = zip(
        index.passages["text"].to_pylist(), index.passages["start"].to_pylist(), index.passages["end"].to_pylist()
    )
    if bad := sum(len(text) != end - start for text, start, end in rows):
        yield f"passages: {bad} have offsets that do not fit their text"


def _vectors(index: Index) -> Iterator[str]:
    rows_of = {"passage_vectors": "passages", "entity_vectors": "entities", "relation_vectors": "relations"}
    for layer, table in rows_of.items():
        if layer not in index.layers:
            continue
        vectors = tables.read_arrays(index.folder(layer) / "vectors.safetensors")["vectors"].astype(np.float32)
        if len(vectors) != getattr(index, table).num_rows:
            yield f"{layer}: {len(vectors)} rows for {getattr(index, table).num_rows} {table}"
        if len(vectors) and not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=5e-3):
            yield f"{layer}: not all vectors have length 1"


def _out_of_range(column: pa.ChunkedArray, limit: int) -> int:
    values = column.to_numpy()
    return int(((values < 0) | (values >= limit)).sum())


def _entities(index: Index) -> Iterator[str]:
    if "entities" not in index.layers:
        return
    yield from _sorted_unique(index.entities["id"].to_pylist(), "entities")
    for end in ("subject", "object"):
        if bad := _out_of_range(index.relations[end], index.n_entities):
            yield f"relations: {bad} have a {end} that does not exist"


def _mentions(index: Index) -> Iterator[str]:
    if "mentions" not in index.layers:
        return
    for name, limit in (("entity", index.n_entities), ("passage", index.n_passages)):
        if bad := _out_of_range(index.mentions[name], limit):
            yield f"mentions: {bad} name an {name} that does not exist"
            return
    lengths = np.asarray([len(text) for text in index.passages["text"].to_pylist()])
    start, end = index.mentions["start"].to_numpy(), index.mentions["end"].to_numpy()
    located = start >= 0
    inside = (start < end) & (end <= lengths[index.mentions["passage"].to_numpy()])
    if bad := int((located & ~inside).sum()):
        yield f"mentions: {bad} lie outside their passage"


def _graph(index: Index) -> Iterator[str]:
    if "graph" not in index.layers:
        return
    arrays = tables.read_arrays(index.folder("graph") / "graph.safetensors")
    csr = CSR(*(torch.from_numpy(arrays[name]) for name in ("indptr", "indices", "weight")))
    check_csr(csr)
    if csr.n != index.n_entities + index.n_passages:
        yield f"graph: {csr.n} nodes for {index.n_entities} entities and {index.n_passages} passages"
    if not is_symmetric(csr):
        yield "graph: an edge lacks its other direction"
    entity, passage = (index.mentions[name].to_numpy().astype(np.int64) for name in ("entity", "passage"))
    mentioned = np.unique(entity * index.n_passages + passage)
    of_entities = arrays["indices"][: arrays["indptr"][index.n_entities]]
    linked = int((of_entities >= index.n_entities).sum())
    if linked != len(mentioned):
        yield f"graph: {linked} entity-passage edges for {len(mentioned)} mentioned pairs"
