"""Cores and memory that this process may use: those of the machine, within its control groups (containers, SLURM);
processes beside it, and the environment of libraries."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

_ROOT, _OWN, _MEMORY = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


MAX_CORES = 16  # used unless a setting says more: each worker or thread takes memory
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # waiting threads do not spin
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}


def prepare_environment() -> None:
    """Set the variables that libraries of models read at import, and that are not set yet."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def usable_cores() -> int:
    """The number of cores, by affinity and by the quota of each control group; at least 1."""
    cores = len(os.sched_getaffinity(0))
    for group in _groups("cpu"):
        limit = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(limit) == 2 and all(map(str.isdigit, limit)):
            cores = min(cores, max(1, round(int(limit[0]) / int(limit[1]))))
    return cores


def free_host_bytes() -> int:
    """Memory that can still be allocated; cached files count as free."""
    lines = dict(line.split(":", 1) for line in _text(_MEMORY).splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else _unused_bytes()
    for group in _groups("memory"):
        limit = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
        used = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
        if used and limit and limit[0].isdigit():
            words = _words(group / "memory.stat")
            counts = dict(zip(words[::2], words[1::2]))
            sums = "total_" if "total_active_file" in counts else ""  # version 1: with the groups inside
            cached = sum(int(counts.get(f"{sums}{kind}_file", 0)) for kind in ("active", "inactive"))
            free = min(free, max(int(limit[0]) - int(used[0]) + cached, 0))
    return free


def start_module(module: str, *words: str, **pipes: Any) -> subprocess.Popen[bytes]:
    """Start a module of this package with these arguments, by this interpreter and with its import path, whatever the
    working directory is. pipes: of `subprocess.Popen`, as the OSError it may raise."""
    import subprocess

    root = os.fspath(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*filter(None, sys.path), root]))}
    return subprocess.Popen([sys.executable, "-P", "-m", module, *words], env=environment, **pipes)


def _unused_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups of this process, from its own to the outermost one that it sees; of version 2, and
    of version 1 for one controller."""
    for line in _text(_OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _ROOT / controller if controllers else _ROOT
            group = root / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    """The content of a file of the system; "" if there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
