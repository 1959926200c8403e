"""The page that compares systems: each cell of its table has a source in the CSV."""

import csv
import datetime
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_each_cell_has_a_source_and_a_date() -> None:
    lines = [line for line in (DOCS / "peers.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    shown = {(row[0], system): cell for row in rows for system, cell in zip(header[1:], row[1:], strict=True)}
    with (DOCS / "benchmarks" / "data" / "peers.csv").open(encoding="utf-8", newline="") as file:
        known = list(csv.DictReader(file))
    assert {(row["question"], row["system"]): row["cell"] for row in known} == shown
    for row in known:
        assert row["source"] and row["version"] and datetime.date.fromisoformat(row["date"])
        if row["system"] == "gpu-rag" and (page := re.match(r"docs/[\w/.-]+\.md", row["source"])):
            assert (DOCS.parent / page[0]).is_file()
