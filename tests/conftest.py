"""What all tests share: the benchmark data, a tiny corpus of our own, a scripted language model."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

DATA_VARIABLE = "GPU_RAG_BENCHMARK_DATA"


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard():
    """A job that a shell put in the background ignores SIGINT, and so would the processes that tests start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
