"""The script that records the golden files, as a module, and the index that both it and the tests use."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gpu_rag

HERE = Path(__file__).resolve().parent


def script(name: str) -> ModuleType:
    """A script of this folder as a module; those that share `record` share one."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    return importlib.import_module(name)


@pytest.fixture(scope="session")
def record() -> ModuleType:
    """tests/golden/record.py."""
    return script("record")


@pytest.fixture(scope="session")
def sample_index(record: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    index: gpu_rag.Index = record.build(tmp_path_factory.mktemp("golden") / "ix")
    return index
