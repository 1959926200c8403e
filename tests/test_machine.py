"""Cores and memory within control groups, of both versions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_rag import machine

GIB = 1 << 30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 cores and 100 GiB of free memory, whose control groups a test writes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {100 << 20} kB\n")
    for name, path in {"_ROOT": "groups", "_OWN": "own", "_MEMORY": "meminfo"}.items():
        monkeypatch.setattr(machine, name, tmp_path / path)
    return tmp_path / "groups"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_without_groups_it_is_the_machine(groups: Path) -> None:
    assert machine.usable_cores() == 64 and machine.free_host_bytes() == 100 * GIB


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 64), ("250000 100000", 2), ("1000 100000", 1), ("", 64)])
def test_a_container_has_the_cores_of_its_quota(groups: Path, quota: str, cores: int) -> None:
    (groups.parent / "own").write_text("0::/\n")
    write(groups, cpu__max=quota)
    assert machine.usable_cores() == cores


def test_the_strictest_group_counts(groups: Path) -> None:
    (groups.parent / "own").write_text("0::/slurm/job_7/step_0\n")
    write(groups, cpu__max="max 100000")
    write(groups / "slurm" / "job_7", cpu__max="800000 100000", memory__max=f"{8 * GIB}", memory__current=f"{7 * GIB}")
    write(groups / "slurm" / "job_7", memory__stat=f"anon {5 * GIB}\nactive_file {GIB}\ninactive_file {GIB}\n")
    write(groups / "slurm" / "job_7" / "step_0", memory__max="max", memory__current="5", cpu__max="1600000 100000")
    assert machine.usable_cores() == 8 and machine.free_host_bytes() == 3 * GIB
    write(groups / "slurm" / "job_7", memory__stat="", memory__current=f"{9 * GIB}")
    assert machine.free_host_bytes() == 0


def test_groups_of_version_1(groups: Path) -> None:
    (groups.parent / "own").write_text("4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n2:pids:/x\n0::/\n")
    write(
        groups / "cpu", cpu__cfs_quota_us="300000\n", cpu__cfs_period_us="100000\n"
    )  # a container sees the root alone
    write(groups / "memory", memory__limit_in_bytes=str(4 * GIB), memory__usage_in_bytes=str(3 * GIB))
    write(groups / "memory", memory__stat=f"inactive_file 5\ntotal_active_file {GIB}\ntotal_inactive_file 0\n")
    assert machine.usable_cores() == 3 and machine.free_host_bytes() == 2 * GIB
    write(groups / "cpu", cpu__cfs_quota_us="-1\n")
    write(groups / "memory", memory__limit_in_bytes="9223372036854771712")
    assert machine.usable_cores() == 64 and machine.free_host_bytes() == 100 * GIB


def test_this_machine() -> None:
    assert 1 <= machine.usable_cores() <= (os.cpu_count() or 1) and machine.free_host_bytes() > 0


def test_a_module_finds_this_package_and_the_import_path_from_any_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "beside.py").write_text("import gpu_rag, sys; print(gpu_rag.__file__, *sys.argv[1:])")
    root = Path(machine.__file__).parents[1]
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *(place for place in sys.path if Path(place) != root)])
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # an interpreter without what is installed
    monkeypatch.chdir("/")
    process = machine.start_module("beside", "a", "b", stdout=subprocess.PIPE)
    assert process.communicate()[0].decode().split() == [str(root / "gpu_rag" / "__init__.py"), "a", "b"]
