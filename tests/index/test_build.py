"""The stage runner: skipping, staleness, refusal of strangers, locks, damaged folders, and kills at any moment."""

import gc
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gpu_rag
from gpu_rag.errors import BadInput, GpuRagError, ModelError, UsageError
from gpu_rag.index.build import build_index, few_collections
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.stage import Stage, ordered
from gpu_rag.index.verify import verify
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import Settings, make_settings

FAST = {"models": {"embedder": "hash", "llm": "none"}}


def digest(folder: Path) -> str:
    assert verify(folder) == []
    return Manifest.read(folder).digest()


def test_equal_builds_have_equal_digests_and_a_second_run_skips_all(tiny_corpus: Path, tmp_path: Path) -> None:
    first = gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST).report
    gpu_rag.build(tiny_corpus, tmp_path / "b", settings=FAST)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert not any(stage.skipped for stage in first.stages.values())
    again = gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST).report
    assert all(stage.skipped for stage in again.stages.values())
    assert first.count("passages") == 6


def test_blocks_of_a_stage_go_with_it(tiny_corpus: Path, tmp_path: Path) -> None:
    """Not with the build: else vectors lie on the disk twice until its end."""
    left = list[tuple[str, set[str]]]()

    class Watch(Silent):
        def start(self, stage: str, total: int | None, unit: str) -> None:
            left.append((stage, {path.name.rpartition("-")[0] for path in (tmp_path / "a" / "work").glob("*-*")}))

    given = {**FAST, "index": {"block": 8}}
    gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["ppr", "hoprag"], settings=given, progress=Watch())
    assert all(names <= {stage} for stage, names in left), left
    assert len(left) > 10


def test_a_build_that_has_no_stage_yet_is_told_from_a_folder_of_other_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="^not an index; "):
        gpu_rag.Index.open(tmp_path)
    with pytest.raises(BadInput):
        gpu_rag.build(tmp_path, tmp_path / "a", settings=FAST)  # the folder holds no document
    with pytest.raises(BadInput, match="^the index is not finished; .*run it again"):
        gpu_rag.Index.open(tmp_path / "a")


def test_a_setting_makes_only_its_own_stages_stale(tiny_corpus: Path, tmp_path: Path) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    report = gpu_rag.build(tiny_corpus, tmp_path / "a", settings={**FAST, "index": {"synonym_threshold": 0.95}}).report
    assert report.stages["entity_vectors"].skipped and report.stages["mentions"].skipped
    assert not report.stages["synonyms"].skipped


def test_fewer_methods_keep_the_others_and_bring_them_up_to_date(tiny_corpus: Path, tmp_path: Path) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["dense"], settings=FAST)
    assert "graph" in Manifest.read(tmp_path / "a").stages
    tiny_corpus.write_text(tiny_corpus.read_text().replace("1902", "1903"))
    gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["dense"], settings=FAST)
    gpu_rag.build(tiny_corpus, tmp_path / "b", settings=FAST)
    kept, made = (Manifest.read(tmp_path / name) for name in "ab")
    assert "graph" in kept.stages and kept.digest() == made.digest()
    assert len(list((tmp_path / "a" / "stages").iterdir())) == len(kept.stages)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({"embedder": "/no/such/folder"}, "no such embedding model"),
        ({"llm": "/no/such/folder"}, "no such language model"),
        ({"llm": "http://127.0.0.1:9/v1#some"}, "does not answer.*2 times"),
    ],
)
def test_models_are_opened_before_the_corpus_is_read_or_an_index_erased(
    models: dict, words: str, tiny_corpus: Path, tmp_path: Path
) -> None:
    """In a new folder, and with fresh=True in one that holds an index."""
    gpu_rag.build(tiny_corpus, tmp_path / "old", settings=FAST)
    before = digest(tmp_path / "old")
    settings = {
        "models": {**FAST["models"], **models},
        "index": {"extractor": "llm" if "llm" in models else "patterns"},
    }
    began = time.perf_counter()
    for out in ("old", "new"):
        with pytest.raises(GpuRagError, match=words):
            gpu_rag.build(tiny_corpus, tmp_path / out, settings=settings, fresh=True)
    assert time.perf_counter() - began < 10, "two looks at a server that is not there, not six"
    assert digest(tmp_path / "old") == before
    assert not (tmp_path / "new" / "stages").exists()


def test_verify_names_what_a_build_that_was_ended_has_not_made(tiny_corpus: Path, tmp_path: Path, monkeypatch) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["bm25"], settings=FAST)
    from gpu_rag.models.embed.hashing import HashEmbedder

    def dies(self, texts, on_batch=None):
        raise ModelError("the embedder died")

    with monkeypatch.context() as patch, pytest.raises(ModelError):
        patch.setattr(HashEmbedder, "embed", dies)
        gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["dense", "bm25"], settings=FAST)
    assert verify(tmp_path / "a") == [
        "missing: passage_vectors, which the last build was to make; run the same gpu-rag index again"
    ]
    gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["dense", "bm25"], settings=FAST)
    assert verify(tmp_path / "a") == []


def test_a_build_looks_seldom_for_unused_objects_and_leaves_that_as_it_was() -> None:
    before = gc.get_threshold()
    with few_collections():
        assert gc.get_threshold()[0] > 10 * before[0]
        with few_collections():  # another build of this process
            pass
        assert gc.get_threshold()[0] > 10 * before[0]
    assert gc.get_threshold() == before


BUILD = """
import sys, gpu_rag
from gpu_rag.index import workers
from gpu_rag.models.embed import hashing
workers.START_S = 0
plain = hashing.HashEmbedder.embed
def embed(self, texts, on_batch=None):
    print("embeds", flush=True)
    sys.stdin.readline()
    return plain(self, texts, on_batch)
hashing.HashEmbedder.embed = embed
corpus, out, memory, threads = sys.argv[1:]
models = {"embedder": "hash", "llm": "none", "threads": int(threads)}
settings = {"models": models, "index": {"block": 8, "memory": float(memory), "workers": int(threads)}}
gpu_rag.build(corpus, out, methods=["ppr", "bubblerag", "higra-retriever", "hoprag"], settings=settings)
"""
LIMITS = [("0.5", "1"), ("1", "2"), ("4", "1"), ("0.5", "2")]


@pytest.mark.slow
def test_a_build_killed_at_random_moments_ends_with_the_same_digest(tmp_path: Path) -> None:
    """SIGKILL again and again, soon after one of its blocks or another, and each run with another limit of memory and
    number of threads and workers, then one run to the end: the digest of an undisturbed build. A block is only embedded
    when the test lets it, so that no run ends before it is killed."""
    corpus = tmp_path / "c.jsonl"
    names = ["Orlo", "Ruyven", "Stroud", "Brandt", "Kessel", "Tamm"]
    rows = [
        {
            "title": f"{names[i % 6]} {i}",
            "text": f"{names[i % 6]} {i} was born in Kerling. He met {names[(i + 1) % 6]} {i + 1} in 19{i:02d}.",
        }
        for i in range(60)
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def command(name: str, *limits: str) -> list[str]:
        return [sys.executable, "-c", BUILD, str(corpus), str(tmp_path / name), *limits]

    free = "\n" * 10_000
    whole = subprocess.run(command("whole", "0", "1"), check=True, input=free, stdout=subprocess.PIPE, text=True)
    n_blocks, n_done, generator = whole.stdout.count("embeds\n"), 0, random.Random(5)
    for limits in LIMITS:
        n_let = generator.randint(1, 3)
        n_done += n_let
        process = subprocess.Popen(command("killed", *limits), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n" * n_let)
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(n_let)] == ["embeds\n"] * n_let
        time.sleep(generator.uniform(0, 0.05))  # whatever it is at
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stdin.close()
        process.stdout.close()
    last = subprocess.run(command("killed", *LIMITS[0]), check=True, input=free, stdout=subprocess.PIPE, text=True)
    assert n_done < n_blocks and 0 < last.stdout.count("embeds\n") < n_blocks, "what is embedded is kept"
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    assert not (tmp_path / "killed" / "work").exists()


def test_stages_stand_behind_what_they_need_and_otherwise_as_given():
    def made(name: str, *needs: str) -> Stage:
        return Stage(name, lambda work: {}, needs)

    given = [made("c", "b"), made("x"), made("b", "a"), made("a"), made("y")]
    assert [one.name for one in ordered(given)] == ["x", "a", "b", "c", "y"]
    with pytest.raises(UsageError, match=r"c: \['b'\]"):
        ordered(given[:2])


def test_a_damaged_block_of_an_unfinished_stage_is_made_anew(tmp_path):
    """Every bit of it: an array, or the place of one."""
    made: list[int] = []

    def make() -> np.ndarray:
        made.append(1)
        return np.arange(3, dtype=np.float16)

    work = Work(tmp_path, tmp_path, {}, Settings(), Sources(), None, Silent(), StageReport())  # type: ignore[arg-type]
    work.array_block("7", make)
    (path,) = tmp_path.glob("block-*")
    data = path.read_bytes()
    assert work.array_block("7", make).tolist() == [0, 1, 2] and len(made) == 1
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert work.array_block("7", make).tolist() == [0, 1, 2] and len(made) == at + 2
    assert path.read_bytes() == data


def test_inputs_that_the_same_build_overwrote_are_not_taken_over(tmp_path: Path) -> None:
    """A stage that is tried again keeps its folder: its readers cannot start from its earlier files."""
    content, seen = ["first"], []

    def source(work: Work) -> dict[str, int]:
        (work.out / "text").write_text(content[0])
        return {"failed": int(content[0] == "first")}

    def copy(work: Work) -> dict[str, int]:
        seen.append((work.previous is not None, bool(work.previous_inputs)))
        (work.out / "text").write_bytes((work.stage_folders["source"] / "text").read_bytes())
        return {}

    settings = make_settings(FAST)
    models = ModelSet(settings.models)
    for content[0] in ("first", "second", "second"):
        build_index(
            tmp_path / "a",
            [Stage("source", source, retry=("failed",)), Stage("copy", copy, ("source",))],
            settings,
            Sources(),
            models,
        )
    assert seen == [(False, False), (True, False)]
