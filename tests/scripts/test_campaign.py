"""A slice of the fault campaign; the whole is run by hand, see docs/reliability.md."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from project_scripts import FOLDER, script


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_a_slice_of_the_campaign_keeps_every_promise(tmp_path: Path) -> None:
    given = [str(FOLDER / "campaign.py"), str(tmp_path), "--seed", "3", "--share", "0.02", "--seconds", "10"]
    ended = subprocess.run([sys.executable, *given], capture_output=True, text=True, timeout=600)
    rows = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert rows and all(row["fault"] is None for row in rows)


def test_a_campaign_goes_on_with_what_failed_or_was_not_reached(tmp_path: Path) -> None:
    campaign, journal = script("campaign"), tmp_path / "cases.jsonl"
    assert campaign.finished(journal, 1) == []
    cases = [("a/x/1", 1, None), ("a/x/2", 1, "lost"), ("a/x/3", 1, "lost"), ("a/x/3", 1, None), ("a/x/1", 2, None)]
    rows = [{"case": case, "seed": seed, "fault": fault} for case, seed, fault in cases]
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = campaign.finished(journal, 1)
    assert [row["case"] for row in done] == ["a/x/1", "a/x/3"] and all(row["seed"] == 1 for row in done)
    assert campaign.summary([rows[0], rows[1]]).endswith("| a/x | 2 | 1 |")
