"""The stage runner: skipping, staleness, refusal of strangers, locks, damaged folders, and kills at any moment."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpu_rag
from gpu_rag.errors import BadInput, IndexLocked, IndexMismatch, StorageError, UsageError
from gpu_rag.index.folder import WriteLock, storage_errors
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.stage import Stage, ordered
from gpu_rag.index.verify import verify

FAST = {"models": {"embedder": "hash", "llm": "none"}}


def digest(folder: Path) -> str:
    assert verify(folder) == []
    return Manifest.read(folder).digest()


def test_equal_builds_have_equal_digests_and_a_second_run_skips_all(tiny_corpus: Path, tmp_path: Path) -> None:
    first = gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    gpu_rag.build(tiny_corpus, tmp_path / "b", settings=FAST)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert not any(stage.skipped for stage in first.stages.values())
    again = gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    assert all(stage.skipped for stage in again.stages.values())
    assert first.count("passages") == 6


def test_the_digest_does_not_depend_on_where_the_corpus_lies(tiny_corpus: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other" / "place"
    elsewhere.mkdir(parents=True)
    moved = elsewhere / tiny_corpus.name
    moved.write_bytes(tiny_corpus.read_bytes())
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    gpu_rag.build(moved, tmp_path / "b", settings=FAST)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


def test_another_text_gives_another_digest(tiny_corpus: Path, tmp_path: Path) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    before = digest(tmp_path / "a")
    tiny_corpus.write_text(tiny_corpus.read_text().replace("1902", "1903"))
    report = gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    assert digest(tmp_path / "a") != before
    assert not report.stages["passages"].skipped


def test_a_setting_makes_only_its_own_stages_stale(tiny_corpus: Path, tmp_path: Path) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    report = gpu_rag.build(tiny_corpus, tmp_path / "a", settings={**FAST, "index": {"synonym_threshold": 0.95}})
    assert report.stages["entity_vectors"].skipped and report.stages["mentions"].skipped
    assert not report.stages["synonyms"].skipped


def test_fewer_methods_keep_valid_layers_and_drop_stale_ones(tiny_corpus: Path, tmp_path: Path) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["dense"], settings=FAST)
    assert "graph" in Manifest.read(tmp_path / "a").stages
    tiny_corpus.write_text(tiny_corpus.read_text().replace("1902", "1903"))
    gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["dense"], settings=FAST)
    assert sorted(Manifest.read(tmp_path / "a").stages) == ["passage_vectors", "passages"]
    assert sorted(p.name.rsplit("-", 1)[0] for p in (tmp_path / "a" / "stages").iterdir()) == [
        "passage_vectors",
        "passages",
    ]


def test_a_missing_file_is_rebuilt(tiny_corpus: Path, tmp_path: Path) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    before = digest(tmp_path / "a")
    record = Manifest.read(tmp_path / "a").stages["graph"]
    (tmp_path / "a" / record.folder / "graph.safetensors").unlink()
    assert verify(tmp_path / "a") == [f"{record.folder}/graph.safetensors: missing"]
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    assert digest(tmp_path / "a") == before


def test_another_embedder_is_refused_and_fresh_allows_it(tiny_corpus: Path, tmp_path: Path, monkeypatch) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    path = tmp_path / "a" / "manifest.json"
    text = path.read_text()
    built = json.loads(text)["stages"]["passage_vectors"]["models"]["embedder"]["content_hash"]
    path.write_text(text.replace(built, "0" * len(built)))  # as if another model of the same dimension had made it
    with pytest.raises(IndexMismatch, match="another model"):
        gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    with pytest.raises(IndexMismatch, match="another model"):
        gpu_rag.Index.open(tmp_path / "a").answer("Who?", method="dense", settings=FAST, retrieval_only=True)
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST, fresh=True)
    assert verify(tmp_path / "a") == []


def test_another_format_is_refused(tiny_corpus: Path, tmp_path: Path) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["bm25"], settings=FAST)
    path = tmp_path / "a" / "manifest.json"
    path.write_text(path.read_text().replace('"format":1', '"format":0'))
    with pytest.raises(IndexMismatch, match="format"):
        gpu_rag.Index.open(tmp_path / "a")


def test_a_folder_of_strangers_is_left_alone(tiny_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match="thesis.tex"):
        gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    assert (tmp_path / "a" / "thesis.tex").read_text() == "precious"


def test_one_writer_at_a_time(tiny_corpus: Path, tmp_path: Path) -> None:
    with WriteLock(tmp_path / "a"), pytest.raises(IndexLocked, match="another process"):
        gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    gpu_rag.build(tiny_corpus, tmp_path / "a", methods=["bm25"], settings=FAST)  # released


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="disk is full"), storage_errors(tmp_path):
        raise OSError(28, "No space left on device", str(tmp_path / "x"))


def test_an_empty_corpus_is_an_error_that_names_the_first_reject(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("not json\n")
    with pytest.raises(BadInput, match="bad.jsonl:1"):
        gpu_rag.build(path, tmp_path / "a", settings=FAST)


def test_strict_stops_at_the_first_bad_row(tiny_corpus: Path, tmp_path: Path) -> None:
    with tiny_corpus.open("a") as file:
        file.write("not json\n")
    with pytest.raises(BadInput, match=":7"):
        gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST, strict=True)
    report = gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    assert report.count("rejects") == 1
    (line,) = (tmp_path / "a" / "rejects.jsonl").read_text().splitlines()
    assert json.loads(line)["line"] == 7


def test_verify_names_an_altered_file(tiny_corpus: Path, tmp_path: Path) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "a", settings=FAST)
    record = Manifest.read(tmp_path / "a").stages["passage_vectors"]
    path = tmp_path / "a" / record.folder / "vectors.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    (line,) = verify(tmp_path / "a")
    assert "vectors.safetensors: altered" in line


BUILD = """
import sys, gpu_rag
from gpu_rag.models.embed import hashing
plain = hashing.HashEmbedder.embed
def embed(self, texts, on_batch=None):
    print("embeds", flush=True)
    sys.stdin.readline()
    return plain(self, texts, on_batch)
hashing.HashEmbedder.embed = embed
gpu_rag.build(sys.argv[1], sys.argv[2], settings={"models": {"embedder": "hash", "llm": "none"}, "index": {"block": 8}})
"""


@pytest.mark.slow
def test_a_build_killed_at_random_moments_ends_with_the_same_digest(tmp_path: Path) -> None:
    """SIGKILL again and again, soon after one of its blocks or another, then one run to the end: the digest of an
    undisturbed build. A block is only embedded when the test lets it, so that no run ends before it is killed."""
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
    command = [sys.executable, "-c", BUILD, str(corpus)]
    free = "\n" * 10_000
    whole = subprocess.run(
        [*command, str(tmp_path / "whole")], check=True, input=free, stdout=subprocess.PIPE, text=True
    )
    n_blocks, n_done, generator = whole.stdout.count("embeds\n"), 0, random.Random(5)
    for _ in range(9):
        n_let = generator.randint(1, 3)
        n_done += n_let
        process = subprocess.Popen(
            [*command, str(tmp_path / "killed")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n" * n_let)
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(n_let)] == ["embeds\n"] * n_let
        time.sleep(generator.uniform(0, 0.05))  # whatever it is at
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stdin.close()
        process.stdout.close()
    last = subprocess.run(
        [*command, str(tmp_path / "killed")], check=True, input=free, stdout=subprocess.PIPE, text=True
    )
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
