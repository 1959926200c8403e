"""Stage of the keywords of edges and the topics of vertices, in the form that questions read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.graph.ragged import ragged_of_keys, row_of_value, some_lists
from gpu_rag.index import tables
from gpu_rag.index.checks import outside
from gpu_rag.index.names import inverse, one_array, rows_of
from gpu_rag.index.stage import stage
from gpu_rag.index.tables import unchanged_rows
from gpu_rag.index.work import Work
from gpu_rag.lazy import torch
from gpu_rag.methods.hoprag.stages.vertices import read_vertices
from gpu_rag.methods.hoprag.tables import EDGES, KEYWORDS, read_lists, write_lists
from gpu_rag.text.keywords import keywords
from gpu_rag.types import Ragged


@stage("hop_words", needs=("passages", "entities", "hop_vertices", "hop_keywords", "hop_edges"), version=8)
def words_stage(work: Work) -> dict[str, int]:
    """Write ascending lists of keyword numbers: for each edge the keywords of both questions, and for each vertex the
    topics of its passage, which are the keywords of its title and the subjects of its triples.

    Topics that are not keywords of a text are numbered after the keywords, in the order of the table `topic_words`.
    """
    folders = work.stage_folders
    vocabulary = one_array(tables.read_table(folders["hop_keywords"] / "keywords.parquet", KEYWORDS)["keyword"])
    write_lists(work.out / "edges.parquet", _edge_keywords(work, len(vocabulary)))
    others, topics = _topics(work, vocabulary)
    tables.write_table(work.out / "topic_words.parquet", KEYWORDS, {"keyword": others.cast(pa.string())})
    vertex = torch.from_numpy(read_vertices(work, "passage")["passage"].to_numpy().astype(np.int64))
    write_lists(work.out / "topics.parquet", some_lists(topics, vertex))
    return {}


def _edge_keywords(work: Work, n: int) -> Ragged:
    """The numbers, below n, of the keywords of each edge's questions."""
    folders = work.stage_folders
    edges = tables.read_table(folders["hop_edges"] / "edges.parquet", EDGES, ["question", "out_question"])
    rows = (torch.from_numpy(edges[name].to_numpy().copy()) for name in ("out_question", "question"))
    sides = (read_lists(folders["hop_keywords"] / f"{side}.parquet") for side in ("out", "in"))
    return union_of_rows(*zip(sides, rows), n=n)


def _topics(work: Work, vocabulary: pa.LargeStringArray) -> tuple[pa.LargeStringArray, Ragged]:
    """(topics that are not in the vocabulary, sorted; the numbers of the topics of each passage)."""
    folders = work.stage_folders
    n_passages = tables.n_rows(folders["passages"] / "passages.parquet")
    title_words, passage_of_word = _title_words(work)
    passage_of_triple, subject = _subjects(work)
    subjects, subject_row = np.unique(subject, return_inverse=True)
    ids = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES, ["id"])["id"]
    words = pa.concat_arrays([title_words, one_array(ids.take(pa.array(subjects)))])
    number = rows_of(words, vocabulary)
    others = words.filter(pa.array(number < 0)).unique()
    others = others.take(pc.sort_indices(others))
    number = np.where(number < 0, len(vocabulary) + rows_of(words, others), number)
    of_title_words, of_subjects = np.split(number, [len(title_words)])
    sizes = np.bincount(passage_of_word, minlength=n_passages)
    work.carry(np.concatenate([sizes, np.sort(passage_of_word << 32 | of_title_words) & 0xFFFFFFFF]))
    passage = np.concatenate([passage_of_word, passage_of_triple])
    n_words = max(len(vocabulary) + len(others), 1)
    keys = np.unique(passage * n_words + np.concatenate([of_title_words, of_subjects[subject_row]]))
    return others, ragged_of_keys(torch.from_numpy(keys), n_passages, n_words)


def union_of_rows(*sides: tuple[Ragged, torch.Tensor], n: int) -> Ragged:
    """For each e the distinct values of lists[rows[e]] over all sides (lists, rows), ascending. n: above all values."""
    keys = []
    for lists, rows in sides:
        picked = some_lists(lists, rows.long())
        keys.append(row_of_value(picked) * max(n, 1) + picked.values)
    return ragged_of_keys(torch.unique(torch.cat(keys)), int(sides[0][1].shape[0]), n)


def _title_words(work: Work) -> tuple[pa.LargeStringArray, np.ndarray]:
    """(the keywords of titles, the passage of each). Titles that an earlier run had keep theirs."""
    path, first = work.stage_folders["passages"] / "passages.parquet", 0
    work.progress.start("hop_words", tables.n_rows(path), "titles")
    is_new, known, known_passage = _earlier_words(work, path)
    words, passages = [known], [known_passage]
    for batch in tables.read_batches(path, tables.PASSAGES, ("title",)):
        new = first + np.flatnonzero(is_new[first : first + batch.num_rows])
        lists = [keywords(title) for title in batch["title"].take(pa.array(new - first)).to_pylist()]
        words.append(pa.array([word for title_words in lists for word in title_words], pa.large_string()))
        passages.append(np.repeat(new, np.array(list(map(len, lists)), np.int64)))
        first += batch.num_rows
        work.progress.advance(batch.num_rows)
    work.report.reused += int((~is_new).sum())
    return pa.concat_arrays(words), np.concatenate(passages)


def _earlier_words(work: Work, path: Path) -> tuple[np.ndarray, pa.LargeStringArray, np.ndarray]:
    """(whether each title is new, the keywords of the other titles, the passage of each)."""
    none = np.ones(tables.n_rows(path), bool), pa.array([], pa.large_string()), np.zeros(0, np.int64)
    carried, before = work.carried(np.int64), work.previous_inputs
    if carried is None or not work.previous or not before:
        return none
    path_before = before["passages"] / path.name
    sizes, number = np.split(carried, [tables.n_rows(path_before)])
    files = before["hop_keywords"] / "keywords.parquet", work.previous / "topic_words.parquet"
    words = pa.concat_arrays([one_array(tables.read_table(file, KEYWORDS)["keyword"]) for file in files])
    rows = unchanged_rows(path, path_before, tables.PASSAGES, ("id", "title"))
    if outside(rows + 1, len(sizes) + 1) or sizes.sum() != len(number) or outside(number, len(words)):
        return none
    passage = np.repeat(inverse(rows, len(sizes)), sizes)
    return rows < 0, words.take(pa.array(number[passage >= 0])), passage[passage >= 0]


def _subjects(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """(passage i64, subject i64) of each passage that states a triple."""
    path = work.stage_folders["entities"] / "relations.parquet"
    relations = tables.read_table(path, tables.RELATIONS, ["subject", "passages"])
    stated, subject = relations["passages"], relations["subject"].to_numpy().astype(np.int64)
    passage = pc.list_flatten(stated).to_numpy().astype(np.int64)
    return passage, np.repeat(subject, pc.list_value_length(stated).to_numpy())
