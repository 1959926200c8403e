"""scripts/pagerank_multi_gpu.py over gloo: alone and as two ranks, the same bits; what it says of a wrong result."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

SCRIPT = Path(__file__).parents[2] / "scripts" / "pagerank_multi_gpu.py"
SMALL = ["--nodes", "700", "--edges", "2000", "--questions", "3", "--block", "4", "--k", "5", "--cpu"]


def run(arguments: list[str], launcher: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


@pytest.mark.slow
def test_two_ranks_give_the_bits_of_one(tmp_path):
    alone = run([*SMALL, "--out", str(tmp_path / "out.json")], [])
    assert json.loads((tmp_path / "out.json").read_text()) == alone
    assert alone["ok"] and alone["run_to_run_equal"] and alone["error"] < 2e-6 and alone["n"] == 700
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    two = run([*SMALL, "--work", str(tmp_path / "work")], torchrun)
    assert two["ranks"] == 2 and two["backend"] == "gloo" and sum(two["rows"]) == 700
    assert (two["bits"], two["best"], two["error"]) == (alone["bits"], alone["best"], alone["error"])
    drawn = run([*SMALL, "--spread"], torchrun)
    assert drawn["ok"] and drawn["run_to_run_equal"] and drawn["ranks"] == 2 and drawn["m"] > 2000
    kept = sorted(path.name for path in (tmp_path / "work").rglob("*.npy"))
    assert kept == ["indices.npy", "indptr.npy"], "what the user gave a folder for stays"


def test_parts_of_a_graph_are_drawn_apart(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    draw = importlib.import_module("device_graphs").rmat_edges
    one, again, other = (draw(500, 4000, 7, torch.device("cpu"), part)[0] for part in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)
    counts = torch.stack([torch.bincount(ends, minlength=500) for ends in (one, other)]).double()
    assert float(torch.corrcoef(counts)[0, 1]) > 0.5, "the same nodes are the hubs of both parts"


def test_ranks_take_their_gpu_and_wait_long_enough(monkeypatch):
    """Rank 0 may draw for more than the ten minutes that nccl waits; barriers work on the current device."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    module, calls = importlib.import_module("pagerank_multi_gpu"), []
    joins = inspect.signature(dist.init_process_group)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(device))
    monkeypatch.setattr(dist, "init_process_group", lambda *a, **o: calls.append(joins.bind(*a, **o).arguments))
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("RANK", raising=False)
    third = torch.device("cuda:3")
    assert module.join(False) == third and calls == [third]
    monkeypatch.setenv("RANK", "11")
    assert module.join(False) == third and calls[1] == third
    assert (calls[2]["backend"], calls[2]["device_id"]) == ("nccl", third)
    assert calls[2]["timeout"] > timedelta(hours=1)
    assert module.join(True) == torch.device("cpu")
    assert (calls[3]["backend"], calls[3]["device_id"]) == ("gloo", None)


def test_the_script_starts_without_what_reads_texts():
    """On a machine with torch alone: the index is opened only where it is asked for."""
    code = "import sys; sys.modules.update(dict.fromkeys(('Stemmer', 'bm25s', 'ahocorasick', 'jsonschema')))"
    code += f"; sys.path.insert(0, {str(SCRIPT.parent)!r}); import pagerank_multi_gpu, device_check"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_wrong_result_is_a_failure(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    module = importlib.import_module("pagerank_multi_gpu")
    solve = module.personalized_pagerank_sharded
    monkeypatch.setattr(sys, "argv", ["pagerank_multi_gpu.py", *SMALL])
    assert module.main() == 0
    right = json.loads(capsys.readouterr().out)

    def wrong(*given: Any, **options: Any) -> torch.Tensor:
        rows: torch.Tensor = solve(*given, **options)
        rows[2, :2] += torch.tensor([1e-4, -1e-4])
        return rows

    monkeypatch.setattr(module, "personalized_pagerank_sharded", wrong)
    assert module.main() == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"] and found["error"] > 1e-4 and found["bits"] != right["bits"]
