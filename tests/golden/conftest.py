"""The script that records the golden files, as a module, and the index that both it and the tests use."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import gpu_rag


@pytest.fixture(scope="session")
def record() -> ModuleType:
    """tests/golden/record.py."""
    spec = importlib.util.spec_from_file_location("golden_record", Path(__file__).with_name("record.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sample_index(record: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    index: gpu_rag.Index = record.build(tmp_path_factory.mktemp("golden") / "ix")
    return index
