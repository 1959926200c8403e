"""Shared by all tests: the benchmark data, a tiny corpus of our own, a scripted language model."""

import gc
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DATA_VARIABLE = "GPU_RAG_BENCHMARK_DATA"
SHARED = str(Path(__file__).resolve().parent / "shared")
if SHARED not in sys.path:  # its modules are importable from every test: `from ragged_lists import ragged`
    sys.path.insert(0, SHARED)

if importlib.util.find_spec("hypothesis") is not None:  # the environment of tests/vllm has none
    from hypothesis import HealthCheck, settings

    # A slow machine is no failure; in CI the same examples are drawn each time, at home new ones are looked for.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.register_profile("home", patient)
    settings.register_profile("repeatable", patient, derandomize=True, database=None)
    settings.load_profile("repeatable" if os.environ.get("CI") else "home")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Thousands of tests and the libraries that they import stay: garbage is not looked for while they come, nor among
    them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no process is left with a long one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard():
    """A job that a shell put in the background ignores SIGINT, and so would the processes that tests start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _disks_are_not_waited_for():
    """Without a power cut, files are whole for every process before they lie on a disk, which takes most of a build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def takes_linear_time() -> Callable[[Callable[[int], object], int], None]:
    """takes_linear_time(work, n): work(n) takes about 8 times what work(n // 8) takes, on any machine, busy or not.

    Processor time of this thread; one good run of a few is enough. What grows as a square takes 64 times.
    """

    def seconds(work: Callable[[int], object], n: int) -> float:
        began = time.thread_time()
        work(n)
        return time.thread_time() - began

    def check(work: Callable[[int], object], n: int) -> None:
        for _ in range(4):
            part, whole = seconds(work, n // 8), seconds(work, n)
            if whole < 24 * part + 0.02:  # a clock may tick in hundredths of a second
                return
        raise AssertionError(f"{part:.3g} s for {n // 8}, {whole:.3g} s for {n}")

    return check


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public benchmark data. Missing: the test is skipped, in CI it fails."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get(DATA_VARIABLE, default))
    if folder.is_dir():
        return folder
    reason = f"no benchmark data at {folder}; set {DATA_VARIABLE} to a folder with musique_openie/ and 2wiki_openie/"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 40,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A cache folder for this test alone."""
    from gpu_rag.models import packaged

    monkeypatch.setattr(packaged, "_cache_dir", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def misbehaving(own_cache: None) -> Iterator[Callable]:
    """misbehaving(share=0.5): a model server with these manners, until the test ends; a cache folder of its own."""
    from gpu_rag.models.misbehave import Manners, MisbehavingServer

    servers: list[MisbehavingServer] = []

    def opened(port: int = 0, kind: type[MisbehavingServer] = MisbehavingServer, **manners: Any) -> MisbehavingServer:
        servers.append(kind(Manners(**manners), port=port))
        return servers[-1]

    yield opened
    for server in servers:
        server.close()  # also a closed one


TINY = [
    ("Halden Bridge", "The Halden Bridge was designed by Marta Orlo. It crosses the river Ves at Kerling."),
    ("Marta Orlo", "Marta Orlo was an engineer born in Tamsin. She studied under Piet Ruyven."),
    ("Piet Ruyven", "Piet Ruyven taught at the University of Loss. He was born in 1871."),
    ("Kerling", "Kerling is a town on the river Ves. Its mayor was Anna Stroud."),
    ("Tamsin", "Tamsin is a fishing port. The lighthouse of Tamsin was built in 1902."),
    ("University of Loss", "The University of Loss was founded in 1640 by Hugo Brandt."),
]


@pytest.fixture
def tiny_corpus(tmp_path: Path) -> Path:
    """Six short invented articles that link to each other, as a .jsonl file."""
    path = tmp_path / "tiny.jsonl"
    rows = [{"id": f"d{i}", "title": title, "text": text} for i, (title, text) in enumerate(TINY)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
