"""The Ray connection of this process: started here or joined, shared by all users, and closed after the last one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import socket
import sys
import threading
from typing import Any

from gpu_rag.errors import MissingBackend, ModelError, UsageError
from gpu_rag.settings.sections import ScaleSettings

CONNECT_S = 10.0
OBJECT_STORE_BYTES = 256 * 2**20  # for a local Ray: it holds only texts and vectors in transit

_lock = threading.Lock()
_n_attached = 0
_address = ""  # address of the cluster that this module has joined; empty if none


def check_installed() -> None:
    """Raise MissingBackend if ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        do = "pip install 'gpu-rag[ray]', or --set scale.address=none"
        raise MissingBackend("models on workers need ray", given="no module ray", do=do)


def _import(settings: ScaleSettings) -> Any:
    """Import ray. It takes its settings from the environment at its first import."""
    check_installed()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # otherwise Ray sends usage data to its makers
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # it prints a C++ trace at SIGTERM
    if settings.address == "local" and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        # A local Ray listens on all addresses of the machine. Only holders of this token may use it.
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
    return importlib.import_module("ray")


def attach(settings: ScaleSettings) -> Any:
    """The module `ray`, attached to the cluster at `settings.address`. Each call needs one call of `detach`.

    A Ray that other code started in this process is used as it is, and left running. Raises MissingBackend, ModelError
    (no cluster answers), UsageError (this process uses another cluster).
    """
    global _n_attached, _address
    with _lock:
        ray = _import(settings)
        if not ray.is_initialized():
            _start(ray, settings)
            _address = settings.address
        elif _address not in ("", settings.address):
            given = f"scale.address={settings.address}"
            raise UsageError("one process joins one cluster", given=given, expected=_address)
        _n_attached += 1
    return ray


def detach() -> None:
    """End one use of the cluster. The last user stops a local Ray, or leaves the cluster."""
    global _n_attached, _address
    with _lock:
        _n_attached -= 1
        if _n_attached == 0 and _address:
            _address = ""
            sys.modules["ray"].shutdown()


def look_at(settings: ScaleSettings) -> str:
    """A line about the resources of the cluster; a local Ray is started for it. Raises as `attach`."""
    ray = attach(settings)
    try:
        return resources(ray)
    finally:
        detach()


def resources(ray: Any) -> str:
    """A line about the resources of the cluster."""
    found = ray.cluster_resources()
    n_nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    return f"{n_nodes} node{'' if n_nodes == 1 else 's'}, {found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs"


def _start(ray: Any, settings: ScaleSettings) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    local = settings.address == "local"
    if local:
        # its CPUs are only numbers here: workers should not wait for them
        wanted = settings.embed_workers * settings.embed_cpus + settings.llm_workers * settings.llm_cpus
        cpus = max(os.cpu_count() or 1, 2 * int(wanted + 1))
        quiet.update(num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    try:
        if settings.address not in ("local", "auto"):
            host, _, port = settings.address.rpartition(":")  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        ray.init(address=settings.address, **quiet)
    except (ConnectionError, TimeoutError, ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
        given = f"scale.address={settings.address}: {first_line(error)}"
        do = "start it (ray start --head), run this on one of its nodes, and set RAY_AUTH_MODE=token if it has a token"
        raise ModelError("no Ray cluster", given=given, do=None if local else do) from error


def first_line(error: BaseException) -> str:
    """The reason in an error message: the first line, or the last one if a creation task failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    behind = lines and "creation task" in lines[0]
    return lines[-1 if behind else 0][:300] if lines else type(error).__name__
