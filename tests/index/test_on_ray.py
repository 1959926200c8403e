"""Shards on a Ray cluster of this machine with fewer workers than shards, of which one is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.errors import UsageError
from gpu_rag.models import packaged

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setattr(packaged, "_cache_dir", folder / "cache")
    for name, value in {"HOME": str(folder), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cluster() -> Iterator[tuple[str, int]]:
    """The address of a cluster, and the process that it belongs to. It runs two tasks at a time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=2", "--include-dashboard=false", "--node-ip-address=127.0.0.1"]
    command += ["--object-store-memory=100000000", "--disable-usage-stats"]
    head = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for_port(port)
    yield f"ray:127.0.0.1:{port}", head.pid
    head.terminate()
    head.wait(60)


def wait_for_port(port: int) -> None:
    for _ in range(600):
        with socket.socket() as there:
            if not there.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)
    raise TimeoutError(port)


def tasks_of(head: int) -> list[int]:
    """Processes of a cluster that run a task."""
    parents, tasks = dict[int, int](), list[int]()
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            status, command = path.read_text(), (path.parent / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        number = int(path.parent.name)
        parents[number] = int(status.split("\nPPid:\t")[1].split("\n")[0])
        tasks += [number] if command.startswith(b"ray::call") else []

    def is_below(number: int) -> bool:
        return number == head or (number in parents and is_below(parents[number]))

    return [number for number in tasks if is_below(number)]


def kill_a_task(head: int, out: Path, killed: list[int]) -> None:
    """Kill a task when a shard has written its passages."""
    while not killed:
        written = [*out.glob("work/shards/*/stages/passages-*")]
        for number in tasks_of(head)[:1] if written else []:
            os.kill(number, signal.SIGKILL)
            killed.append(number)
        time.sleep(0.01)


def test_shards_on_ray_give_the_index_of_one_build(cluster: tuple[str, int], tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "text": f"Marta Orlo{n} designed the bridge of Kerling{n % 3}."} for n in range(300)]
    corpus = tmp_path / "rows.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    address, head = cluster
    one = gpu_rag.build(corpus, tmp_path / "one", methods="ppr", settings=FAST).manifest.digest()
    killed: list[int] = []
    killer = threading.Thread(target=kill_a_task, args=(head, tmp_path / "ix", killed), daemon=True)
    killer.start()
    index = gpu_rag.build(corpus, tmp_path / "ix", methods="ppr", settings=FAST, shards=3, on=address)
    assert index.manifest.digest() == one and killed


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("Marta Orlo designed a bridge.")
    with pytest.raises(UsageError, match="127.0.0.1:1"):
        gpu_rag.build(tmp_path / "one.txt", tmp_path / "ix", settings=FAST, shards=2, on="ray:127.0.0.1:1")
