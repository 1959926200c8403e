"""Datasets of Hugging Face and Arrow tables: a corpus, questions, documents to add, and results."""

import datetime
import importlib.util
import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

if importlib.util.find_spec("datasets") is None and not os.environ.get("CI"):
    pytest.skip("the package is in the extra `dev`", allow_module_level=True)

import datasets

import gpu_rag
from gpu_rag.api.corpus import corpus_files

FAST = {"models": {"embedder": "hash", "llm": "none"}}
ROWS = [
    {"id": "bridge", "title": "Halden Bridge", "text": "Marta Orlo designed the Halden Bridge.", "year": 1901},
    {"id": "town", "title": "Kerling", "text": "Kerling is a town. Its mayor was Anna Stroud.", "year": None},
]


def generated() -> Iterator[dict[str, Any]]:
    yield from ROWS


def tables() -> dict[str, Any]:
    return {
        "dataset": datasets.Dataset.from_list(ROWS),
        "formatted": datasets.Dataset.from_list(ROWS).with_format("numpy"),
        "stream": datasets.Dataset.from_list(ROWS).to_iterable_dataset(),
        "stream without columns": datasets.IterableDataset.from_generator(generated),
        "arrow": pyarrow.Table.from_pylist(ROWS),
    }


@pytest.mark.parametrize("name", list(tables()))
def test_each_table_is_the_same_corpus(name: str, tmp_path: Path) -> None:
    lists = [{key: value for key, value in row.items() if value is not None} for row in ROWS]
    (plain,), (made,) = corpus_files(lists, tmp_path / "plain"), corpus_files(tables()[name], tmp_path / "made")
    assert [json.loads(line) for line in made.read_text().splitlines()] == lists
    assert plain.read_text().splitlines()[0].count("Halden") == 2


def test_a_dataset_is_built_asked_by_a_dataset_and_added_to(tmp_path: Path) -> None:
    index = gpu_rag.build(datasets.Dataset.from_list(ROWS), tmp_path / "ix", methods="bm25", settings=FAST)
    assert index.retrieve("Which bridge?", where="year > 1900").evidence[0].title == "Halden Bridge"
    asked = datasets.Dataset.from_dict(
        {"id": ["a", "b"], "question": ["Who was mayor of Kerling?", "Who designed it?"]}
    )
    results = index.retrieve(asked)
    answers = datasets.Dataset(results.to_arrow())
    assert answers["id"][:] == ["a", "b"] and answers["status"][:] == ["retrieved"] * 2
    assert answers[0]["passages"] == [item.passage_id for item in results[0].evidence]
    assert answers[0]["error"] is None and isinstance(answers[0]["llm_s"], float)
    passages = datasets.Dataset(results.to_arrow(passages=True))
    assert passages["text"][:] == [item.text for result in results for item in result.evidence]
    assert passages["score"][:] == [item.score for result in results for item in result.evidence]
    assert datasets.Dataset(results[0].to_arrow()).features == passages.features
    nothing = index.retrieve([]).to_arrow()
    assert nothing.num_rows == 0 and nothing.schema == results.to_arrow().schema
    frame = results.to_pandas(passages=True)
    assert frame.equals(results.to_arrow(passages=True).to_pandas())
    more = datasets.Dataset.from_list([{"id": "river", "text": "The Ves is a river."}])
    assert gpu_rag.add(tmp_path / "ix", more).added == 1
    for refused in (more.remove_columns("id"), datasets.IterableDataset.from_generator(generated)):
        with pytest.raises(gpu_rag.UsageError, match="id"):
            gpu_rag.add(tmp_path / "ix", refused)


def test_dates_are_texts_and_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    day = datetime.datetime(2024, 5, 17, 8, 30)
    rows = [{"text": "a", "at": day, "share": float("nan")}, {"text": None, "at": None, "share": 0.5}]
    (made,) = corpus_files(datasets.Dataset.from_list(rows), tmp_path / "ix")
    assert [json.loads(line) for line in made.read_text().splitlines()] == [
        {"id": "1", "text": "a", "at": "2024-05-17T08:30:00"},
        {"id": "2", "share": 0.5},
    ]


@pytest.mark.parametrize(
    "corpus",
    [
        datasets.Dataset.from_dict({"body": ["a"]}),
        datasets.Dataset.from_dict({"body": ["a"]}).to_iterable_dataset(),
        datasets.IterableDataset.from_generator(lambda: iter([{"body": "a"}])),
        datasets.IterableDataset.from_generator(lambda: iter([])),
        datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}),
        datasets.Dataset.from_list([{"text": "a", "raw": b"bytes"}]),
        pyarrow.table({"body": ["a"]}),
    ],
)
def test_what_has_no_texts_is_refused_and_leaves_nothing(corpus: Any, tmp_path: Path) -> None:
    with pytest.raises(gpu_rag.UsageError):
        gpu_rag.build(corpus, tmp_path / "ix", settings=FAST)
    assert not list(tmp_path.iterdir())


def test_a_stream_is_read_in_bounded_memory(tmp_path: Path) -> None:
    n_rows, size = 3000, 10_000

    def rows() -> Iterator[dict[str, str]]:
        for number in range(n_rows):
            yield {"id": str(number), "text": f"{number} " + "word " * (size // 5)}

    stream = datasets.IterableDataset.from_generator(rows)
    tracemalloc.start()
    try:
        (file,) = corpus_files(stream, tmp_path / "ix")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.stat().st_size > n_rows * size and peak < n_rows * size / 5, peak
