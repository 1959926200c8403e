"""An index that is only read: nothing is ever opened for writing in its folder, nor is any file of it changed."""

import os
import sys
from pathlib import Path

import pytest

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink"}


class Watch:
    """Notes every attempt to change something below a folder, whether or not it would be let through."""

    def __init__(self) -> None:
        self.folder, self.seen = "", []
        sys.addaudithook(self._hook)  # for the life of the process; it watches only where `folder` is set

    def _hook(self, event: str, given: tuple) -> None:
        if not self.folder:
            return
        if event == "open":
            path, mode, flags = given
            changes = bool((flags or 0) & WRITES) or any(c in (mode or "") for c in "wax+")
        elif event == "sqlite3.connect" or event in CHANGES:
            path, changes = given[0], True
        else:
            return
        if changes and isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self.folder):
            self.seen.append((event, os.fspath(path)))


@pytest.fixture(scope="session")
def watch_all():
    return Watch()


@pytest.fixture
def watch(watch_all):
    watch_all.seen = []
    yield watch_all
    watch_all.folder = ""


@pytest.fixture
def locked(index, watch):
    """The index, without the permission to write, and watched."""
    paths = [index, *index.rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & 0o555)
    watch.folder = str(index)
    yield index
    watch.folder = ""
    for path in paths:
        path.chmod(path.stat().st_mode | 0o200)


def state(folder: Path) -> dict[str, tuple]:
    paths = sorted(folder.rglob("*"))
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *paths]
    }


def test_all_that_reads_an_index_works_where_nothing_may_be_written(
    locked, watch, run, cli, questions, replay, tmp_path
):
    llm = (*cli.HASH, "--set", f"models.llm=replay:{replay}")
    before = state(locked)
    for method in cli.METHODS:
        out = tmp_path / f"{method}.jsonl"
        assert run("answer", locked, questions, "--method", method, "--out", out, *llm).status == 0
    assert run("ask", locked, cli.QUESTIONS[0]["question"], "--method", "ppr", *llm).status == 0
    assert run("eval", locked, questions, "--method", ",".join(cli.METHODS), *llm).status == 0
    assert run("verify", locked).status == run("verify-answers", out, locked).status == 0
    for form in ("graphml", "parquet", "pyg"):
        assert run("export", locked, "--format", form, "--out", tmp_path / form).status == 0
    assert watch.seen == []
    assert state(locked) == before


def test_building_into_a_folder_without_permission_is_one_line(locked, run, cli, tiny_corpus):
    if os.access(locked, os.W_OK):
        pytest.skip("this user may write everywhere")
    result = run("index", tiny_corpus, "--out", locked, "--fresh", *cli.NO_LLM)
    assert result.status == 1 and "no permission to write here" in result.error
