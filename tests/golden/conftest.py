"""The scripts that record the golden files, as modules, and the index that both they and the tests use."""

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


@pytest.fixture(scope="module")
def higra() -> ModuleType:
    """tests/golden/record_higra.py."""
    return script("record_higra")


@pytest.fixture(scope="module")
def hoprag() -> ModuleType:
    """tests/golden/record_hoprag.py."""
    return script("record_hoprag")


@pytest.fixture(scope="module")
def bubblerag() -> ModuleType:
    """tests/golden/record_bubblerag.py."""
    return script("record_bubblerag")


@pytest.fixture(scope="module")
def hybgrag() -> ModuleType:
    """tests/golden/record_hybgrag.py."""
    return script("record_hybgrag")


@pytest.fixture(scope="module")
def hydrarag() -> ModuleType:
    """tests/golden/record_hydrarag.py."""
    return script("record_hydrarag")


@pytest.fixture(scope="session")
def sample_index(record: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    index: gpu_rag.Index = record.build(tmp_path_factory.mktemp("golden") / "ix")
    return index
