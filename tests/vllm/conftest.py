"""One vLLM server for all tests of this folder: a start takes about a minute on a CPU."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.vllm import VllmLLM
from gpu_rag.settings.sections import VllmSettings

SETTINGS = VllmSettings(max_model_len=2048, kv_cache_gib=0.25, max_num_seqs=8, dtype="float32")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is marked; without vllm none of them runs."""
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if missing:
                item.add_marker(pytest.mark.skip(reason="vllm is not installed: scripts/install_vllm.sh"))


@pytest.fixture(scope="session")
def served() -> Iterator[VllmLLM]:
    """The packaged model in float32, behind a server of our own."""
    llm = load_llm("vllm:smollm2", settings=SETTINGS)
    assert isinstance(llm, VllmLLM)
    yield llm
    llm.close()
