"""Receipts of removals: hashes of what left an index, and the check that it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from gpu_rag.errors import BadInput, IndexCorrupt
from gpu_rag.index import tables
from gpu_rag.index.folder import RECEIPTS, sealed, sha256_text, unsealed, write_atomic
from gpu_rag.index.index import Index
from gpu_rag.index.stages.rejected import read_rejects
from gpu_rag.text.normalise import normalise_name

PENDING = f"{RECEIPTS}/pending.json"  # a removal that has begun
KINDS = ("documents", "passages", "names")  # fields of a receipt with hashes
_FORMAT = 1


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One removal. documents, passages, names: sha256 of the ids of documents, of the texts of passages that no other
    passage has, and of normalised names and titles that nothing else has. before, after: digests of the index. files:
    files of the index that were made again. copies: number of documents that stay, from another file or with the same
    text. caches_cleared: whether their vectors left the cache of the machine too."""

    format: int = _FORMAT
    documents: frozenset[str] = frozenset()
    passages: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    before: str = ""
    after: str = ""
    files: tuple[str, ...] = ()
    copies: int = 0
    caches_cleared: bool = False
    sha256: str = ""

    def without(self, other: Receipt) -> Receipt:
        """The receipt without the hashes of another one."""
        return msgspec.structs.replace(self, **{kind: getattr(self, kind) - getattr(other, kind) for kind in KINDS})

    def joined(self, other: Receipt) -> Receipt:
        """The receipt with the hashes of another one too, whose vectors are in the cache still."""
        hashes = {kind: getattr(self, kind) | getattr(other, kind) for kind in KINDS}
        return msgspec.structs.replace(self, **hashes, caches_cleared=self.caches_cleared and not other.documents)

    def write(self, path: Path) -> None:
        """Write the receipt with its checksum."""
        document = msgspec.to_builtins(self)
        for name in KINDS:
            document[name].sort()
        del document["sha256"]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, sealed(document))


def read_receipt(path: Path) -> Receipt:
    """Read a receipt. Raises BadInput for another or an altered file."""
    if not path.is_file():
        raise BadInput("no such receipt", given=path, expected="a file that gpu-rag remove wrote")
    receipt = unsealed(path, Receipt, refusal=BadInput)
    if receipt.format != _FORMAT:
        raise BadInput("a receipt of another version", given=f"{path}: {receipt.format}", expected=str(_FORMAT))
    return receipt


def receipt_of(index: Index, removed: np.ndarray) -> Receipt:
    """The receipt of a removal that is to come. removed: bool[n documents]."""
    if not removed.any():
        return Receipt(before=index.manifest.digest())
    documents, kept_documents = _split(index.documents["id"].to_pylist(), removed)
    leaving_ids = set(documents)
    leaving = np.array([id in leaving_ids for id in index.passages["doc_id"].to_pylist()], bool)
    texts, kept_texts = _split(index.passages["text"].to_pylist(), leaving)
    titles, kept_titles = _split(index.passages["title"].to_pylist(), leaving)
    names, kept_names = set(map(normalise_name, titles)), set(map(normalise_name, kept_titles))
    if "entities" in index.stages:
        stated = index.table("entities", "extracted.parquet", tables.EXTRACTED)
        passage, entity = stated["passage"].to_numpy(), stated["entity"].to_numpy()
        ids = np.array(index.entities["id"].to_pylist(), object)
        names |= set(ids[np.unique(entity[leaving[passage]])])
        kept_names |= set(ids[np.unique(entity[~leaving[passage]])])
    return Receipt(
        documents=_hashes(set(documents) - set(kept_documents)),
        passages=_hashes(set(texts) - set(kept_texts)),
        names=_hashes(names - kept_names - {""}),
        before=index.manifest.digest(),
    )


def still_there(receipt: Receipt, index: Index, present: Receipt) -> Iterator[str]:
    """Lines about removed items of a receipt that the index has again. present: `hashes_in` the index.

    Names are compared only in the state that the receipt is of: later documents may bring them again.
    """
    for kind in KINDS:
        again = getattr(receipt, kind) & getattr(present, kind)
        if again and (kind != "names" or index.manifest.digest() == receipt.after):
            yield f"{len(again)} {kind} that were removed by the receipt, such as sha256 {min(again)}"
    try:
        ids = {reject.id for reject in read_rejects(index.path / "rejects.jsonl")}
    except IndexCorrupt as error:
        yield str(error)
        return
    if receipt.documents & _hashes(ids | {id.rpartition("#")[0] for id in ids}):
        yield "rejects.jsonl names removed documents: take their rows out of the file of --openie, then run again"


def hashes_in(index: Index) -> Receipt:
    """The hashes of all documents, passages and names of an index."""
    everything = receipt_of(index, np.ones(index.documents.num_rows, bool)) if "passages" in index.stages else Receipt()
    if "entities" not in index.stages:
        return everything
    return msgspec.structs.replace(everything, names=everything.names | _hashes(set(index.entities["id"].to_pylist())))


def _split(values: list[str], chosen: np.ndarray) -> tuple[list[str], list[str]]:
    """(The chosen values, the others)."""
    return [v for v, c in zip(values, chosen) if c], [v for v, c in zip(values, chosen) if not c]


def _hashes(texts: set[str]) -> frozenset[str]:
    return frozenset(map(sha256_text, texts))
