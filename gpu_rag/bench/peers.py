"""Peers of the cases: in a checkout, in scripts/bench_peers, one file for each folder of ops; not in the wheel."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

from gpu_rag.errors import MissingBackend

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "bench_peers"
_PACKAGE = "gpu_rag_bench_peers"


def check_peers() -> None:
    """Raise MissingBackend if there is no checkout."""
    if not FOLDER.is_dir():
        raise MissingBackend(
            "the peers of gpu-rag bench are not in the installed package",
            given=FOLDER,
            expected="a checkout of gpu-rag",
            do="run it in one, installed by pip install -e '.[bench]', or leave --peers out",
        )


@cache
def peer_file(name: str) -> Any:
    """The module of the peers of one folder of ops. Raises MissingBackend."""
    check_peers()
    spec = importlib.util.spec_from_file_location(_PACKAGE, FOLDER / "__init__.py")
    assert spec is not None and spec.loader is not None
    if _PACKAGE not in sys.modules:
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[_PACKAGE])
    return importlib.import_module(f"{_PACKAGE}.{name}")
