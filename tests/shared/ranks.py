"""A test file that runs as one rank of several gloo processes: python FILE RANK WORLD FOLDER."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


def results_of(file: str, world: int, folder: Path) -> list[Any]:
    """What every rank of a group of so many found."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    started = [
        subprocess.Popen(
            [sys.executable, file, str(rank), str(world), str(folder)], stderr=subprocess.PIPE, text=True, env=environ
        )
        for rank in range(world)
    ]
    for process in started:
        error = process.communicate(timeout=600)[1]
        assert process.returncode == 0, error
    return [np.load(folder / f"{rank}.npz") for rank in range(world)]


def run_as_rank(work: Callable[[int], dict[str, Any]]) -> None:
    """The main program of such a file; work(rank) gives arrays by name."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    np.savez(folder / f"{rank}.npz", **work(rank))
    dist.destroy_process_group()
