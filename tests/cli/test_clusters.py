"""The files that start a Ray cluster and build an index in shards on it."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gpu_rag.cli.main import build_parser

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("n_nodes", [1, 3])
def test_slurm_starts_ray_on_each_node_and_builds(tmp_path: Path, n_nodes: int) -> None:
    """With stand-ins for the programs of SLURM and Ray; the stand-in for `srun` runs its command."""
    nodes, log = [f"node{n}" for n in range(n_nodes)], tmp_path / "log"
    programs = {
        "scontrol": f"printf '%s\\n' {' '.join(nodes)}",
        "srun": 'while [ "${1#--}" != "$1" ]; do [ "$1" = --overlap ] && shift || shift 2; done; exec "$@"',
        "ray": f'if [ "$1" = status ]; then cat {log}.nodes; exit; fi\necho ray "$@" >> {log}\n'
        f'[ "$2" = --head ] && n=1 || n={n_nodes - 1}\nfor _ in $(seq $n); do echo " 1 node_0"; done >> {log}.nodes\n'
        "exec sleep 30",
        "gpu-rag": f'echo gpu-rag "$@" >> {log}; echo $GPU_RAG_CACHE >> {log}',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    given = {
        "SLURM_JOB_NODELIST": "node[0-2]",
        "SLURM_NNODES": str(n_nodes),
        "GPU_RAG_CACHE": "",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    command = ["bash", str(CONFIGS / "slurm.sh"), "my corpus", "ix", "--for", "dense"]
    done = subprocess.run(
        command, env={**os.environ, **given}, cwd=tmp_path, capture_output=True, timeout=25, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    assert "ray start --head --port 6379 --block" in lines
    assert ("ray start --address node0:6379 --block" in lines) == (n_nodes > 1)
    assert f"gpu-rag index my corpus --out ix --shards {n_nodes} --on ray:node0:6379 --for dense" in lines
    assert lines[-1].endswith("gpu-rag-cache")


def test_the_kuberay_job_builds_in_as_many_shards_as_it_has_workers() -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((CONFIGS / "kuberay.yaml").read_text())["spec"]
    options = build_parser().parse_args(shlex.split(job["entrypoint"])[1:])
    cluster = job["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert options.command == "index" and options.on == "ray:auto"
    assert options.shards == workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], workers)]
    containers = [pod["containers"][0] for pod in pods]
    for key in ("image", "env", "volumeMounts"):  # the same program and the same paths
        assert containers[0][key] == containers[1][key], key
    assert pods[0]["volumes"] == pods[1]["volumes"]
    mounted = containers[0]["volumeMounts"][0]["mountPath"]
    assert all(path.is_relative_to(mounted) for path in [options.out, *options.corpus])
    version = re.search(r'"ray>=([\d.]+),<(\d+)"', (CONFIGS.parent / "pyproject.toml").read_text())
    assert version and version[1] <= cluster["rayVersion"] < version[2]
