"""Shared by the tests of workers: one local Ray for all of them, and pools of scripted models."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.cluster.pool import Plan, Pool
from gpu_rag.cluster.worker import EmbedWorker, LLMWorker, Loaded
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.settings.sections import ScaleSettings

LOCAL = ScaleSettings(address="local", embed_workers=8, llm_workers=8)
LIMIT_S = 600  # only a hang is so slow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("ray") is None:
        for item in items:
            if item.get_closest_marker("ray"):
                item.add_marker(pytest.mark.skip(reason="ray is not installed; scripts/test_ray.sh installs it"))


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A local Ray that outlives the pools of a test."""
    from gpu_rag.cluster.ray import attach, detach

    attach(LOCAL)
    yield
    detach()


class Pools:
    """Pools of models that a function of a test makes; a worker is given the function, not its module."""

    def __init__(self) -> None:
        self._open: list[Pool] = []

    def _started(self, plan: Plan, changes: dict[str, Any]) -> Pool:
        settings = ScaleSettings(address="local", **changes)
        pool = Pool(settings, plan)
        self._open.append(pool)
        return pool

    def llm(
        self, answer: Callable[..., Any], *, n: int = 2, window: int = 64, name: Any = None, **changes: Any
    ) -> Pool:
        """Workers with a ScriptedLLM over answer(request); name() tells what a worker calls it."""

        def build() -> Loaded:
            return Loaded(ScriptedLLM(answer, name=name() if name else "scripted"), window)

        return self._started(Plan("llm", LLMWorker, build, n, 1.0, 0.0), changes)

    def built(self, build: Callable[[], Any], *, n: int = 2, actor: type = EmbedWorker, **changes: Any) -> Pool:
        """Workers with what build() gives."""
        role = "embedder" if actor is EmbedWorker else "llm"
        return self._started(Plan(role, actor, build, n, 1.0, 0.0), changes)

    def close(self) -> None:
        for pool in self._open:
            pool.close()


@pytest.fixture
def pools(local_ray: None) -> Iterator[Pools]:
    made = Pools()
    yield made
    made.close()


def _until(state: Callable[[], Any], step: Callable[[], Any] = lambda: time.sleep(0.01)) -> Any:
    """Takes steps until `state()` is there; returns it."""
    end = time.monotonic() + LIMIT_S
    while not (found := state()):
        assert time.monotonic() < end, "it did not happen"
        step()
    return found


@pytest.fixture
def until() -> Callable[..., Any]:
    return _until


@pytest.fixture
def all_ready() -> Callable[[Pool], None]:
    """all_ready(pool): every worker has loaded its model."""
    return lambda pool: _until(lambda: len(pool.ready()) == pool.plan.n_workers, lambda: pool.pump(0.2)) and None


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A folder in which workers leave marks."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder
