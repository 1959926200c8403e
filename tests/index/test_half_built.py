"""An index that a build has not finished, or has replaced, and names of folders that mean something to DuckDB."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpu_rag
from gpu_rag.errors import GpuRagError
from gpu_rag.index import build
from gpu_rag.index.database import Database

FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}
ROWS = [("Halden Bridge", "bridge over the Ves"), ("Kerling", "town in the north"), ("Marta Orlo", "engineer")]


def corpus(path: Path, rows: list[tuple[str, str]]) -> Path:
    lines = [{"id": f"d{i}", "title": x, "text": f"{x} is a {y}."} for i, (x, y) in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    return path


def test_an_index_between_two_builds_never_mixes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "ix"
    gpu_rag.build(corpus(tmp_path / "c.jsonl", ROWS), out, methods=["dense"], settings=FAST)
    real = build._bring_up_to_date

    def stopped(folder: Path, stage: Any, *rest: Any) -> Any:
        if stage.name != "passages":
            raise KeyboardInterrupt
        return real(folder, stage, *rest)

    monkeypatch.setattr(build, "_bring_up_to_date", stopped)
    with pytest.raises(KeyboardInterrupt):
        gpu_rag.build(corpus(tmp_path / "c.jsonl", ROWS[::-1]), out, methods=["dense"], settings=FAST)
    try:
        with gpu_rag.Index.open(out) as index:
            found = index.retrieve("Halden Bridge over the Ves", method="dense", k=1, settings=FAST)
    except GpuRagError:
        return  # refused in one line
    assert [evidence.title for evidence in found.evidence] == ["Halden Bridge"]


@pytest.mark.parametrize("name", ["ix[1]", "passage=7", "i*1"])
def test_a_view_reads_its_own_file_in_any_folder(tmp_path: Path, name: str) -> None:
    import duckdb

    for folder, value in (("ix1", 999), (name, 1)):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"passage": pa.array([value], pa.int32())}), tmp_path / folder / "f.parquet")
    db = Database(duckdb.connect())
    db.view("v", tmp_path / name / "f.parquet")
    assert db.column("SELECT passage FROM v").tolist() == [1]
