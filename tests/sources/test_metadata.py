"""Metadata: the other columns of a row, as a document brings them."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rag.sources.corpus import read_corpus
from gpu_rag.types import Document


def read(path: Path) -> list[Document]:
    found = list(read_corpus([path]))
    assert all(isinstance(row, Document) for row in found), found
    return [row for row in found if isinstance(row, Document)]


def test_the_scalars_of_a_json_row_are_metadata_and_the_rest_is_left_out(tmp_path: Path) -> None:
    row = {"id": "a", "title": "T", "text": "some text", "year": 2020, "lang": "de", "good": True, "price": 1.5}
    left_out = {"none": None, "tags": ["x"], "deep": {"a": 1}, "long": "x" * 1001, "nul": "a\x00", "": "b"}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**row, **left_out}) + "\n" + '{"id": "b", "text": "t"}\n')
    first, second = read(path)
    assert first.metadata == {"year": 2020, "lang": "de", "good": True, "price": 1.5}
    assert first.metadata["good"] is True
    assert second.metadata == {}


def test_an_object_named_metadata_is_opened_and_the_row_is_stronger(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"_id": "a", "text": "t", "year": 1, "metadata": {"year": 2, "url": "u", "id": "x"}}))
    assert read(path)[0].metadata == {"year": 1, "url": "u"}


def test_columns_of_parquet_are_metadata(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["a", "b"],
            "text": ["one", "two"],
            "day": pa.array([date(2020, 1, 2), None]),
            "at": pa.array([datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)] * 2, pa.timestamp("ns", "UTC")),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "share": [0.5, float("nan")],
            "kind": pa.array(["x", "y"]).dictionary_encode(),
            "tags": [["x"], ["y"]],
            "raw": pa.array([b"x", b"y"]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    first, second = read(tmp_path / "a.parquet")
    assert first.metadata == {"day": "2020-01-02", "at": "2020-01-02T03:04:05", "price": 1.5, "share": 0.5, "kind": "x"}
    assert second.metadata == {"at": "2020-01-02T03:04:05", "kind": "y"}


def test_text_that_is_not_utf8_loses_its_value_and_not_its_row(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    pq.write_table(pa.table({"id": ["a"], "text": ["one"], "lang": bad}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[0].metadata == {}
