"""How tables of an index are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_rag.index import tables


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
