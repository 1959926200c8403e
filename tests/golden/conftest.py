"""The scripts that record the golden files, as modules, and the index that both they and the tests use."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import gpu_rag


def script(name: str) -> ModuleType:
    """A script of this folder as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"golden_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


@pytest.fixture(scope="session")
def sample_index(record: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    index: gpu_rag.Index = record.build(tmp_path_factory.mktemp("golden") / "ix")
    return index
