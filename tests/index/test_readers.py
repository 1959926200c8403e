"""An index that is rebuilt, sent to another process, or inherited by a fork while somebody answers with it."""

import multiprocessing
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ragged_lists import ragged

import gpu_rag
from gpu_rag.errors import IndexCorrupt, IndexMismatch, UsageError
from gpu_rag.graph.pagerank import personalized_pagerank, prepare
from gpu_rag.index import index as module
from gpu_rag.index.folder import has_readers, is_held
from gpu_rag.index.index import Index
from gpu_rag.index.manifest import Manifest
from gpu_rag.types import CSR

FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}
SHORT: dict[str, Any] = {**FAST, "index": {"chunk_words": 8, "overlap_words": 2}}
QUESTION = "Who designed the Halden Bridge?"


@pytest.fixture
def folder(tiny_corpus: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that is made once."""
    made = tmp_path_factory.getbasetemp() / "of-readers"
    if not made.exists():
        gpu_rag.build(tiny_corpus, made, methods=["ppr"], settings=FAST)
    return Path(shutil.copytree(made, tmp_path / "ix"))


def ids(index: gpu_rag.Index) -> list[str]:
    return [evidence.passage_id for evidence in index.retrieve(QUESTION, method="ppr", k=4).evidence]


def stages(folder: Path) -> set[str]:
    return {path.name for path in (folder / "stages").iterdir()}


def ids_into(index: gpu_rag.Index, queue: Any) -> None:
    queue.put(ids(index))


@pytest.mark.parametrize("fresh", [False, True])
def test_a_reader_keeps_the_stages_that_it_opened(folder: Path, tiny_corpus: Path, fresh: bool) -> None:
    """No table was read before the build: all of them lie in folders that it replaced."""
    expected, before = ids(gpu_rag.Index.open(folder)), stages(folder)
    index = gpu_rag.Index.open(folder)
    assert has_readers(folder)
    gpu_rag.build(tiny_corpus, folder, methods=["ppr"], settings=SHORT, fresh=fresh)
    assert ids(index) == expected and before < stages(folder)
    index.close()
    del index
    gpu_rag.build(tiny_corpus, folder, methods=["ppr"], settings=SHORT)
    assert not before & stages(folder) - {record.folder.rpartition("/")[2] for record in named(folder)}


def named(folder: Path) -> list[Any]:
    return list(gpu_rag.Index.open(folder).manifest.stages.values())


def test_a_stage_that_was_replaced_while_the_index_was_opened_is_free(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Manifest.read(folder)
    new = now.stages["passages"]
    old = replace(new, folder="stages/passages-old")
    (folder / old.folder).mkdir()
    manifests = [replace(now, stages={**now.stages, "passages": record}) for record in (old, new, new)]
    monkeypatch.setattr(Manifest, "read", lambda path: manifests.pop(0))
    index = Index.open(folder)
    assert [is_held(folder / name) for name in ("stages", old.folder, new.folder)] == [True, False, True]
    del index
    assert not has_readers(folder) and not is_held(folder / new.folder)


def test_a_later_state_reads_only_the_files_in_use_that_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, later, read = Index.open(folder), Index.open(folder), list[str]()
    for stage in ("passages", "entities"):
        earlier.folder(stage)
    records = earlier.manifest.stages
    before = {**records, "entities": replace(records["entities"], folder="stages/entities-old")}
    earlier.manifest = replace(earlier.manifest, stages=before)
    monkeypatch.setattr(module, "checked_folder", lambda path, manifest, stage: read.append(stage))
    later.check_as(earlier)
    later.folder("passages")
    assert read == ["entities"]
    later.folder("bm25")
    assert read == ["entities", "bm25"]


def test_the_same_build_again_leaves_the_files_that_are_read(folder: Path, tiny_corpus: Path) -> None:
    index = gpu_rag.Index.open(folder)
    inodes = {path: path.stat().st_ino for path in (folder / "stages").rglob("*.parquet")}
    gpu_rag.build(tiny_corpus, folder, methods=["ppr"], settings=FAST, fresh=True)
    assert inodes == {path: path.stat().st_ino for path in (folder / "stages").rglob("*.parquet")}
    assert ids(index)


def test_where_nothing_holds_them_a_rebuilt_index_is_changed_not_damaged(folder: Path, tiny_corpus: Path) -> None:
    index = gpu_rag.Index.open(folder)
    index._reading = []  # as on a file system without locks
    gpu_rag.build(tiny_corpus, folder, methods=["ppr"], settings=SHORT)
    with pytest.raises(IndexMismatch, match="open it again"):
        index.folder("graph")
    damaged = gpu_rag.Index.open(folder)
    shutil.rmtree(folder / damaged.manifest.stages["graph"].folder)
    with pytest.raises(IndexCorrupt):
        damaged.folder("graph")


def test_an_index_is_sent_as_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = gpu_rag.Index.open(folder)
    expected = ids(index)
    sent = pickle.dumps(index)
    assert len(sent) < 1000
    monkeypatch.chdir("/")
    assert ids(pickle.loads(sent)) == expected  # noqa: S301


def test_a_spawned_process_answers_and_the_parent_goes_on(folder: Path) -> None:
    """Torch moves the tensors that it sends into shared memory: what was made of them read freed memory."""
    index = gpu_rag.Index.open(folder)
    expected = ids(index)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    queue.put(index)  # the other way to send one
    process = context.Process(target=ids_into, args=(index, queue))
    process.start()
    replies = [queue.get(timeout=120), queue.get(timeout=120)]
    process.join(120)
    assert expected in replies and process.exitcode == 0
    assert ids(index) == expected


def test_a_forked_index_is_refused_in_one_line(folder: Path) -> None:
    index = gpu_rag.Index.open(folder)
    ids(index)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # nothing but bytes leaves this process
        try:
            ids(index)
            os.write(writing, b"answered")
        except UsageError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reading, 10_000).decode()
    assert "fork" in said and "Index.open" in said and "\n" not in said
    assert ids(index)


def test_a_graph_that_is_sent_has_the_same_ranks_here_and_there() -> None:
    generator = np.random.default_rng(5)
    n, dense = 40, generator.random((40, 40)) < 0.1
    dense |= dense.T
    src, dst = np.nonzero(dense)
    indptr = torch.from_numpy(np.searchsorted(src, np.arange(n + 1)))
    weight = torch.ones(len(dst), dtype=torch.float32)
    graph = prepare(CSR(indptr, torch.from_numpy(dst.astype(np.int32)), weight))
    seeds = ragged([[0], [1, 5]])
    before = personalized_pagerank(graph, seeds)
    sent = pickle.loads(pickle.dumps(graph))  # noqa: S301
    for tensor in (graph.pull.indptr, graph.pull.indices, graph.pull.weight, graph.scale):
        tensor.share_memory_()  # as a queue of torch.multiprocessing does
    assert torch.equal(personalized_pagerank(sent, seeds), before)
    assert torch.equal(personalized_pagerank(graph, seeds), before)
