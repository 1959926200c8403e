"""Text search: the BM25 index, and unit vectors of passages, entities and relations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain, repeat
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.names import HashedRows, one_array, rows_of
from gpu_rag.index.stage import Stage, stage, the_embedder
from gpu_rag.index.stages.passages import languages_of
from gpu_rag.index.tables import unchanged_rows
from gpu_rag.index.work import Sources, Work
from gpu_rag.models.embed.cache import keys_of
from gpu_rag.settings import Settings
from gpu_rag.text.bm25 import Bm25, count_words
from gpu_rag.text.language import ENGLISH

MIN_SHARE = 50  # word search uses the rules of a language if at least one of this many documents is in it
TRIPLE = ("subject", "label", "object")
N_FITTED = 4096  # relations that are embedded where others are composed
COMPOSED = "composed"  # a parameter of stages whose vectors are not embedded from their texts
RIDGE = 1.0
GRID = 2.0**16
CHARS_A_TEXT = 256  # average characters per text in a full window; longer texts make it smaller


@dataclass(frozen=True)
class TextRows(Sequence[str]):
    """n texts that are made when read. make(rows): the texts of a range of rows."""

    n: int
    make: Callable[[slice], list[str]]

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.n)
            return self.make(slice(start, stop))
        row = range(self.n)[index]
        return self.make(slice(row, row + 1))[0]


def passage_texts(folder: Path) -> TextRows:
    """Title and text of each passage, as both searches use them."""
    table = tables.read_table(folder / "passages.parquet", tables.PASSAGES, ["title", "text"])

    def make(rows: slice) -> list[str]:
        part = table.slice(rows.start, rows.stop - rows.start)
        title, text = part["title"], part["text"]
        joined = pc.if_else(pc.equal(title, ""), text, pc.binary_join_element_wise(title, text, "\n"))
        return joined.to_pylist()  # type: ignore[no-any-return]

    return TextRows(len(table), make)


def entity_texts(folder: Path) -> TextRows:
    """Written name of each entity."""
    return _rows_of_column(tables.read_table(folder / "entities.parquet", tables.ENTITIES)["name"])


def _rows_of_column(texts: pa.ChunkedArray | pa.Array) -> TextRows:
    return TextRows(len(texts), lambda rows: texts.slice(rows.start, rows.stop - rows.start).to_pylist())


def relation_texts(folder: Path) -> TextRows:
    """Each relation as "subject label object", with the entities' written names."""
    names = tables.read_table(folder / "entities.parquet", tables.ENTITIES)["name"]
    return triple_texts(names, tables.read_table(folder / "relations.parquet", tables.RELATIONS, [*TRIPLE]))


def same_relations(now: Path, before: Path) -> np.ndarray:
    """i64[n]: the row of an earlier relation with the same written subject, label and object, -1 if there is none.
    now, before: folders of the stage `entities`."""
    entity = unchanged_rows(now / "entities.parquet", before / "entities.parquet", tables.ENTITIES, ("id", "name"))
    paths = (folder / "relations.parquet" for folder in (now, before))
    return same_triples(entity, *(tables.read_table(path, tables.RELATIONS, [*TRIPLE]) for path in paths))


def same_triples(entity: np.ndarray, now: pa.Table, before: pa.Table) -> np.ndarray:
    """i64[n]: the earlier row of each relation, ascending; -1 if it is new, or an end is. entity: the earlier row of
    each entity, ascending, -1 if it is new. now, before: columns TRIPLE, sorted."""
    labels, ends, keys = one_array(before["label"]).unique(), [], list[np.ndarray]()
    for table in (now, before):
        rows = (table[end].to_numpy().astype(np.int64) for end in (TRIPLE[0], TRIPLE[2]))
        subject, object_ = (entity[row] for row in rows) if table is now else rows
        ends.append(np.minimum(subject, object_))
        label = rows_of(one_array(table["label"]), labels)
        keys.append(np.stack([subject << 32 | object_ & 0xFFFFFFFF, label], 1).view(np.uint64))
    return np.where(ends[0] < 0, -1, rows_by_key(keys[0], keys[1]))


@dataclass(frozen=True)
class Triples(TextRows):
    """Relations as "subject label object". names: of entities, by row; table: columns TRIPLE."""

    names: pa.ChunkedArray
    table: pa.Table


def triple_texts(names: pa.ChunkedArray, table: pa.Table) -> Triples:
    """Each row of a table of relations as "subject label object". names: names of entities, by row."""
    names, columns = tables.whole_text(names), table.select([*TRIPLE])

    def make(rows: slice) -> list[str]:
        part = columns.slice(rows.start, rows.stop - rows.start)
        subjects, objects = (names.take(part[end]).cast(pa.string()) for end in ("subject", "object"))
        return pc.binary_join_element_wise(subjects, part["label"], objects, " ").to_pylist()  # type: ignore[no-any-return]

    return Triples(len(columns), make, names, columns)


def _windows(texts: Sequence[str], limit: int) -> Iterator[Sequence[str]]:
    """The texts of each window: at most `limit` texts, of at most CHARS_A_TEXT * limit characters unless it is one
    text."""
    start = 0
    while start < len(texts):
        window = texts[start : start + limit]
        ends = np.cumsum([len(text) for text in window])
        n = max(int(np.searchsorted(ends, CHARS_A_TEXT * limit, "right")), 1)
        yield window[:n]
        start += n


@dataclass(frozen=True)
class Known:
    """Vectors of an earlier run f16[M, D], and the row of each text among them i64[n], -1 for a new text."""

    vectors: np.ndarray
    rows: np.ndarray


def _one_by_one(texts: Sequence[str]) -> Iterator[str]:
    """The texts, made a block at a time."""
    starts = range(0, len(texts), tables.ROWS_A_GROUP)
    return chain.from_iterable(texts[start : start + tables.ROWS_A_GROUP] for start in starts)


def text_hashes(texts: Sequence[str]) -> np.ndarray:
    """A hash of each text for `rows_by_key` within this process, u64[n, 2].
    Python's hash has a secret key, so that nobody can prepare two texts with one hash."""
    hashes = np.fromiter(map(hash, _one_by_one(texts)), np.int64, len(texts))
    return np.stack([hashes.view(np.uint64), np.zeros(len(texts), np.uint64)], 1)


def _name_of(window: Sequence[str]) -> str:
    """A name for the block of a window. A later run may know other vectors, so a window of the same rows may differ."""
    sizes = np.array([*map(len, window)], np.int64)
    return blake2b(sizes.tobytes() + "".join(window).encode(), digest_size=16).hexdigest()


def rows_by_key(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    """i64[len(keys)]: a row of `known` with the same key, -1 if there is none. keys, known: hashes u64[n, 2].

    A key whose mixed halves stand for another key too may get -1: the caller then makes its row again.
    """
    if not len(known):
        return np.full(len(keys), -1, np.int64)
    mixed, wanted = (k[:, 0] ^ (k[:, 1] * np.uint64(0x9E3779B97F4A7C15)) for k in (known, keys))
    order = np.argsort(mixed, kind="stable")
    place = np.searchsorted(mixed[order], wanted)
    rows = order[np.minimum(place, len(order) - 1)]
    return np.where((known[rows] == keys).all(1), rows, -1)


def drop_changed(rows: np.ndarray, now: np.ndarray, before: np.ndarray) -> None:
    """Set the earlier row of each vector to -1 in place where its bits have changed. now, before: f16[N, D]."""
    for start in range(0, len(rows) if len(before) else 0, tables.ROWS_A_GROUP):
        part = rows[start : start + tables.ROWS_A_GROUP]  # a view
        bits, known = (array.view(np.uint16) for array in (now[start : start + len(part)], before[part]))
        part[(bits != known).any(1)] = -1  # numpy compares f16 in five times as long


def _embed(work: Work, texts: Sequence[str]) -> np.ndarray:
    """Vectors of some texts."""
    done = 0

    def on_batch(n_done: int) -> None:
        nonlocal done
        work.progress.advance(n_done - done)
        done = n_done

    vectors = work.models.embedder().embed(texts, on_batch).astype(np.float16)
    on_batch(len(texts))  # equal texts are computed once
    return vectors


def embed_blocks(work: Work, texts: Sequence[str]) -> np.ndarray:
    """Vectors f16[len(texts), D], mapped from a file of the stage's work space.

    Texts are embedded in windows of `index.block` texts, fewer if they are long; the embedder sorts a window by length.
    Windows that an earlier run finished come from disk, by their texts. Memory: a window and its vectors.
    """
    windows = (
        work.array_block(_name_of(window), partial(_embed, work, window))
        for window in _windows(texts, work.settings.index.block)
    )
    return _mapped(work, windows)


def embed_new(work: Work, texts: Sequence[str], known: Known) -> np.ndarray | tables.Blocks:
    """Vectors as `embed_blocks`, but `known` ones are copied while they are written."""
    new = np.flatnonzero(known.rows < 0)
    if len(new) == len(texts):
        return embed_blocks(work, texts)
    made = embed_blocks(work, TextRows(len(new), lambda rows: [texts[row] for row in new[rows].tolist()]))
    work.report.reused += len(texts) - len(new)
    work.progress.advance(len(texts) - len(new))
    return tables.Blocks((len(texts), made.shape[1]), made.dtype, _joined(known, made, new))


def _joined(known: Known, made: np.ndarray, new: np.ndarray) -> Iterator[np.ndarray]:
    """All vectors, by block. made: vectors of the rows `new`."""
    for start in range(0, len(known.rows), tables.ROWS_A_GROUP):
        vectors = known.vectors[known.rows[start : start + tables.ROWS_A_GROUP]]
        first, last = np.searchsorted(new, (start, start + len(vectors)))
        vectors[new[first:last] - start] = made[first:last]
        yield vectors


def _mapped(work: Work, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """The rows of all blocks, mapped from a file of the stage's work space."""
    dim, path, n = int(work.models.describe("embedder")["dim"]), work.partial / "vectors.f16", 0
    with storage_errors(path):
        work.partial.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    for vectors in blocks:
        with storage_errors(path), path.open("ab") as file:
            file.write(np.ascontiguousarray(vectors).data)
        n += len(vectors)
    return np.memmap(path, np.float16, "c", shape=(n, dim)) if n else np.zeros((0, dim), np.float16)


def compose(work: Work, stage: str, relations: Triples) -> tables.Blocks:
    """Unit vectors w / |w| of relations from vectors of their parts, w = [subject label object 1] W = x W. A label's
    vector is the mean of those of its words, since few labels occur twice.

    W minimises |XW - Y|^2 + RIDGE |W|^2 over the N_FITTED relations whose texts have the smallest hashes; Y are the
    vectors of these texts. So W depends on the records alone. Components of X, Y and W are rounded to multiples of
    1 / GRID: since |W| <= |Y| / sqrt(RIDGE), no sum in f64 is rounded, and bits depend on no block, order or thread.
    Memory: names, labels and words, and 8,192 rows of X.
    """
    words = _words(one_array(relations.table["label"]).unique()).flatten().unique()
    chosen = np.sort(np.argsort(keys_of(_one_by_one(relations))[:, 0], kind="stable")[:N_FITTED])
    work.progress.start(stage, len(relations.names) + len(words) + len(chosen) + len(relations), "texts")
    names, made = (embed_blocks(work, _rows_of_column(array)) for array in (relations.names, words))
    row_of = HashedRows(words)
    wanted = embed_blocks(work, TextRows(len(chosen), lambda rows: [relations[row] for row in chosen[rows].tolist()]))

    def parts(table: pa.Table) -> np.ndarray:
        subject, object_ = (names[table[end].to_numpy()] for end in (TRIPLE[0], TRIPLE[2]))
        label = _means(made, row_of, _words(one_array(table["label"])))
        return _on_grid(np.concatenate([subject, label, object_, np.ones((len(table), 1))], 1))

    x, dim = parts(relations.table.take(pa.array(chosen))), wanted.shape[1]
    gram = x.T @ x + RIDGE * np.eye(x.shape[1])
    weights = _on_grid(solved(gram, x.T @ _on_grid(wanted)))

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, len(relations), tables.ROWS_A_GROUP):
            sums = parts(relations.table.slice(start, tables.ROWS_A_GROUP)) @ weights
            work.progress.advance(len(sums))
            yield (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1 / GRID)).astype(np.float16)

    return tables.Blocks((len(relations), dim), np.dtype(np.float16), blocks())


def _words(labels: pa.LargeStringArray) -> pa.LargeListArray:
    """Words of each label; at least one, which may be empty."""
    return pc.utf8_split_whitespace(labels).cast(pa.large_list(pa.large_string()))


def _means(vectors: np.ndarray, row_of: HashedRows, words: pa.LargeListArray) -> np.ndarray:
    """f64[len(words), D]: mean vector of the words of each label. row_of: the row of a word."""
    counts = pc.list_value_length(words).to_numpy()
    sums = np.add.reduceat(_on_grid(vectors[row_of.of(words.flatten())]), np.cumsum(counts) - counts)
    return sums / counts[:, None]  # type: ignore[no-any-return]


def solved(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """X with gram X = right, for a positive definite matrix, by elimination. All steps are elementwise, so that bits
    depend on no library of matrices or its threads. O(n^2 (n + m)) for n rows and m columns of `right`."""
    n, both = len(gram), np.concatenate([gram, right], 1)
    for k in range(n):
        both[k, k:] /= both[k, k]
        both[k + 1 :, k:] -= both[k + 1 :, k, None] * both[k, k:]
    for k in range(n - 1, 0, -1):
        both[:k, n:] -= both[:k, k, None] * both[k, n:]
    return both[:, n:]


def _on_grid(values: np.ndarray) -> np.ndarray:
    return np.rint(values.astype(np.float64) * GRID) / GRID


@stage(
    "bm25",
    needs=("passages",),
    version=7,
    params=lambda settings, _: {"k1": settings.index.bm25_k1, "b": settings.index.bm25_b},
    size="characters",
)
def bm25_stage(work: Work) -> dict[str, int]:
    """A BM25 index over the passages, which are read by block; words follow the rules of the document's language.

    Passages that an earlier run had keep their word counts, if both runs know the same single language.
    """
    folder, index = work.stage_folders["passages"], work.settings.index
    path, language_of = folder / "passages.parquet", languages_of(folder)
    languages = _common(language_of, tables.n_rows(folder / "documents.parquet")) if language_of else [ENGLISH]
    work.progress.start("bm25", tables.n_rows(path), "passages")
    rows, earlier = np.full(tables.n_rows(path), -1), None
    if work.previous_inputs:
        words = Bm25.load(work.previous or path, tables.read_arrays)
        fits = words.n == tables.n_rows(work.previous_inputs["passages"] / path.name)
        if fits and list(words.languages) == languages and len(languages) == 1:
            before = work.previous_inputs["passages"] / path.name
            rows = unchanged_rows(path, before, tables.PASSAGES, ("id", "title", "text"))
            earlier = words.counts

    def texts() -> Iterator[str]:
        first = 0
        for batch in tables.read_batches(path, tables.PASSAGES, ("title", "text")):
            new = batch.filter(pa.array(rows[first : first + batch.num_rows] < 0))
            for title, text in zip(new["title"].to_pylist(), new["text"].to_pylist()):
                yield f"{title}\n{text}" if title else text
            first += batch.num_rows
            work.progress.advance(batch.num_rows)

    def language_of_each() -> Iterator[str]:
        for batch in tables.read_batches(path, tables.PASSAGES, ("doc_id",)):
            for document in batch["doc_id"].to_pylist():
                language = language_of.get(document, ENGLISH)
                yield language if language in languages else languages[0]

    each = language_of_each() if len(languages) > 1 else repeat(languages[0])
    counts = count_words(texts(), earlier, rows, each)
    Bm25.of(counts, index.bm25_k1, index.bm25_b, languages).save(work.out)
    work.report.reused = int((rows >= 0).sum())
    return {}


def _common(language_of: Mapping[str, str], n_documents: int) -> list[str]:
    """Languages of at least one document in MIN_SHARE, the commonest first: rarer ones are often mistaken."""
    counts = Counter(language_of.values())
    counts[ENGLISH] = n_documents - len(language_of)
    return [
        language for language, n in sorted(counts.items(), key=lambda c: (-c[1], c[0])) if n * MIN_SHARE >= n_documents
    ]


def vector_stage(
    name: str,
    needs: tuple[str, ...],
    texts_of: Callable[..., Sequence[str]],
    size: str = "passages",
    graph: bool = False,
    same: Callable[..., np.ndarray] | None = None,
    like: tuple[tuple[str, str], Callable[..., np.ndarray]] | None = None,
) -> Stage:
    """Stage of unit vectors (float16) of texts; resumes at the window where a run died. A text that an earlier run with
    the same embedder had keeps its vector; this takes 60 bytes of memory a text. Vectors of more than N_FITTED
    relations are composed if `index.relation_vectors` says so.

    texts_of(folders of the needed stages, in the order of `needs`): the texts. same(their folders, of an earlier run
    too): an earlier row with the text of each row, -1 if none; by default texts are compared. like: ((another
    such stage, the stage of its texts), a function of the folders of `needs` and of the latter: its row with the text
    of each row, -1 if none), for copies in a first run. size, graph: as in `Stage`.
    """

    def run(work: Work) -> dict[str, int]:
        now = [work.stage_folders[need] for need in needs]
        texts = texts_of(*now)
        work.progress.start(name, len(texts), "texts")
        vectors: np.ndarray | tables.Blocks
        if COMPOSED in work.params and isinstance(texts, Triples) and len(texts) > N_FITTED:
            vectors = compose(work, name, texts)
        elif work.previous and work.previous_inputs and COMPOSED not in work.params:
            before = [work.previous_inputs[need] for need in needs]
            rows = same(*now, *before) if same else rows_by_key(text_hashes(texts), text_hashes(texts_of(*before)))
            known = tables.read_arrays(work.previous / "vectors.safetensors")["vectors"]
            vectors = embed_new(work, texts, Known(known, rows))
        elif like:
            (of_vectors, of_texts), rows_like = like
            known = tables.read_arrays(work.stage_folders[of_vectors] / "vectors.safetensors")["vectors"]
            vectors = embed_new(work, texts, Known(known, rows_like(*now, work.stage_folders[of_texts])))
            work.report.reused = 0
        else:
            vectors = embed_blocks(work, texts)
        tables.write_arrays(work.out / "vectors.safetensors", {"vectors": vectors})
        return {}

    def its_texts(*folders: Path) -> Sequence[str]:
        return texts_of(*folders[: len(needs)])

    def params(settings: Settings, sources: Sources) -> dict[str, Any]:
        is_composed = size == "relations" and settings.index.relation_vectors == COMPOSED
        return {COMPOSED: [N_FITTED, RIDGE, "words"]} if is_composed else {}

    also = like[0] if like else ()
    return Stage(name, run, (*needs, *also), params=params, roles=the_embedder, size=size, graph=graph, texts=its_texts)
