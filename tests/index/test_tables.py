"""Reading the tables of an index."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from gpu_rag.errors import IndexCorrupt, StorageError
from gpu_rag.index import tables
from gpu_rag.text.bm25 import Bm25

TEXTS = pa.schema([("text", pa.string()), ("n", pa.int32())])


@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_column_is_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(tables, "ROWS_A_GROUP", 2)
    file = tmp_path / "lines.parquet"
    assert tables.write_table(file, tables.LINES, {"line": range(n)}) == n
    assert pq.ParquetFile(file).num_row_groups == max(1, (n + 1) // 2)
    table = tables.read_table(file, tables.LINES)
    assert table["line"].num_chunks <= 1 and table["line"].to_pylist() == list(range(n))
    taken = table.take(pa.array(list(range(n))[::-3], pa.int64()))
    assert taken["line"].to_pylist() == list(range(n))[::-3]


def test_few_entries_of_a_column_read_their_groups_once_and_many_the_whole(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "ROWS_A_GROUP", 3)
    file, texts, groups, whole = tmp_path / "t.parquet", [f"t{i}" for i in range(20)], list[int](), list[str]()
    tables.write_table(file, TEXTS, {"text": texts, "n": range(20)})
    plain = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda self, number, columns: groups.append(number) or plain(self, number, columns=columns),
    )

    read = tables.read_table
    monkeypatch.setattr(tables, "read_table", lambda *given: whole.append("read") or read(*given))
    column: tables.StoredColumn[str] = tables.StoredColumn(file, TEXTS, "text")
    assert [column[row] for row in (4, 19, 5, 3, 0)] == ["t4", "t19", "t5", "t3", "t0"] and groups == [1, 6, 0]
    assert column.take(np.array([4, 18, 4])) == ["t4", "t18", "t4"] and (groups, whole) == ([1, 6, 0], [])
    with pytest.raises(IndexError):
        column[20]
    assert len(column) == 20 and column.index("t7") == 7 and not whole
    assert column.take(np.arange(20)[::-1]) == texts[::-1] and column[-1] == "t19" and column[2:4] == ["t2", "t3"]
    assert list(column) == texts and column == texts and column.column.to_pylist() == texts
    assert (groups, whole) == ([1, 6, 0, 2], ["read"]) and column[9] == "t9"


def test_columns_of_more_than_two_gib_stay_in_chunks_and_others_become_one() -> None:
    """3 GiB of text without as much memory: chunks that share pages, none of which is ever written."""
    size, n = 1 << 30, 1024
    offsets = np.linspace(0, size, n + 1).astype(np.int32)
    text = pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(bytes(size)))
    lists = pa.chunked_array([pa.ListArray.from_arrays(np.arange(n + 1, dtype=np.int32), text)] * 3)
    numbers = pa.chunked_array([np.arange(n)] * 3)
    whole = pa.table({"lists": lists, "number": numbers})
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        whole.combine_chunks()
    found = tables.joined_chunks(whole)
    assert [column.num_chunks for column in found.columns] == [3, 1]
    assert found.schema == whole.schema and found["number"].to_pylist() == numbers.to_pylist()


def test_texts_in_one_chunk() -> None:
    one, two = pa.chunked_array([["a", "é"]]), pa.chunked_array([["a"], [], ["é", ""]])
    assert tables.whole_text(one) is one
    found = tables.whole_text(two)
    assert found.num_chunks == 1 and found.type == pa.large_string() and found.to_pylist() == ["a", "é", ""]


def test_arrays_and_words_that_the_disk_refuses_are_a_storage_error(tmp_path: Path, small_files: None) -> None:
    """safetensors reports it by an error of its own."""
    with pytest.raises(StorageError, match="may not grow this large"):
        tables.write_arrays(tmp_path / "a.safetensors", {"x": np.zeros(10_000)})
    words = Bm25.build(["one text"])
    words.arrays["data"] = np.zeros(10_000, np.float32)
    with pytest.raises(StorageError, match="BM25"):
        words.save(tmp_path / "bm25")


def test_arrays_are_safetensors_byte_for_byte_and_are_read_by_mapping(tmp_path: Path) -> None:
    arrays = {
        "weight": np.linspace(0, 1, 7, dtype=np.float32), "indptr": np.arange(5), "flag": np.array([True, False]),
        "half": np.ones((2, 3), np.float16), "empty": np.zeros((0, 4), np.float16), "a": np.arange(3, dtype=np.int32),
    }  # fmt: skip
    tables.write_arrays(tmp_path / "ours", arrays)
    save_file(arrays, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    found = tables.read_arrays(tmp_path / "ours")
    assert found.keys() == arrays.keys() and all(np.array_equal(found[name], arrays[name]) for name in arrays)
    assert all(found[name].dtype == arrays[name].dtype for name in arrays)
    found["weight"][0] = 9
    assert tables.read_arrays(tmp_path / "ours")["weight"][0] == 0


@pytest.mark.parametrize(
    "header",
    [
        b"{", b"[]", b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}',
        b'{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}',
        b'{"x":{"dtype":"V4","shape":[1],"data_offsets":[0,4]}}',
    ],
)  # fmt: skip
def test_arrays_of_a_strange_file_are_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(IndexCorrupt, match=r"x\.safetensors"):
        tables.read_arrays(path)
    path.write_bytes(b"\xff" * 16)
    with pytest.raises(IndexCorrupt):
        tables.read_arrays(path)


def test_unchanged_rows_are_those_with_equal_texts_and_lists(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("names", pa.list_(pa.string()))])
    draw = random.Random(5)
    for _ in range(20):
        now, earlier = (
            {id: (draw.choice("xy"), draw.choice([[], [""], ["a"], ["a", "b"], ["b", "a"], ["a\0b"]])) for id in ids}
            for ids in (sorted(draw.sample("abcdefghij", draw.randrange(11))) for _ in range(2))
        )
        for name, rows in (("now", now), ("earlier", earlier)):
            tables.write_rows(
                tmp_path / name, schema, [{"id": id, "text": t, "names": n} for id, (t, n) in rows.items()]
            )
        places = {id: place for place, id in enumerate(earlier)}
        expected = [places[id] if earlier.get(id) == row else -1 for id, row in now.items()]
        assert tables.unchanged_rows(tmp_path / "now", tmp_path / "earlier", schema, schema.names).tolist() == expected


def test_columns_are_kept_during_a_build_until_the_file_or_the_room_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(ids: list[str]) -> None:
        tables.write_table(tmp_path / "new", tables.ENTITIES, {**others, "id": ids})
        (tmp_path / "new").rename(path)

    path, others = tmp_path / "t", {"name": ["a", "b"], "aliases": [[], ["c"]], "n_passages": [1, 2]}
    write(["x", "y"])
    with tables.keeping_columns():
        first = tables.read_table(path, tables.ENTITIES, ["name", "id"])
        whole = tables.read_table(path, tables.ENTITIES)
        assert whole.equals(pq.read_table(path)) and first.equals(whole.select(["name", "id"]))
        assert whole["id"].chunk(0).buffers()[2].address == first["id"].chunk(0).buffers()[2].address
        write(["x", "z"])
        assert tables.read_table(path, tables.ENTITIES, ["id"])["id"].to_pylist() == ["x", "z"]
        monkeypatch.setattr(tables, "BYTES_KEPT", 0)
        again = [tables.read_table(path, tables.ENTITIES, ["id"])["id"].chunk(0) for _ in range(3)]
        assert again[1].buffers()[2].address != again[2].buffers()[2].address
