"""gpu-rag models: convert, fetch from a repository on 127.0.0.1, and probe."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_stub import JsonHandler, Stub

from gpu_rag.models import packaged, stored
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.probe import passages, probe, requests
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

FILES = {
    "config.json": b'{"model_type": "tiny"}',
    "model.safetensors": b"weights of a model",
    "tokenizer.json": b"{}",
    "modeling_tiny.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickled",
}


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Iterator[Path]:
    monkeypatch.setenv("GPU_RAG_CACHE", str(tmp_path / "cache"))
    packaged.set_cache_dir(tmp_path / "cache")
    yield tmp_path / "cache"
    packaged.set_cache_dir(None)


def imitated(source: Path, folder: Path) -> None:
    """Stands for the conversion, which takes 20 s and has tests of its own."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes(FILES[name])


def test_convert_writes_once_and_says_what(run, cache, tmp_path, monkeypatch):
    monkeypatch.setattr(packaged, "_convert", imitated)
    out = tmp_path / "model"
    first = run("models", "convert", "--out", out, "--json").document
    assert first["written"] and first["bytes"] == sum(len(FILES[f["path"]]) for f in first["files"])
    assert [f["path"] for f in first["files"]] == ["config.json", "model.safetensors"]
    again = run("models", "convert", "--out", out, "--json").document
    assert not again["written"] and again["sha256"] == first["sha256"] and len(first["sha256"]) == 64
    assert "was there already" in run("models", "convert", "--out", out).out
    below = run("models", "convert", "--json").document
    assert Path(below["folder"]).parent == cache / "models" and below["sha256"] == first["sha256"]


def test_convert_refuses_a_folder_that_is_no_model(run, cache, tmp_path):
    (tmp_path / "notes").mkdir()
    result = run("models", "convert", "--out", tmp_path / "notes")
    assert result.status == 2 and "not a model folder" in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("convert", "some/model"), "NAME"),
        (("fetch",), "fetch"),
        (("fetch", "no-owner"), "OWNER/NAME"),
        (("fetch", "a/b", "--fresh"), "--fresh"),
        (("probe", "smollm2", "--out", "x"), "--out"),
        (("convert", "--port", "0"), "--port"),
        (("improve",), "improve"),
    ],
)
def test_bad_usage(run, cache, words, said):
    result = run("models", *words)
    assert result.status == 2 and said in result.err


class Hub(Stub):
    """The part of the Hugging Face protocol that a download needs, for one repository a/tiny."""

    REVISION = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, files: dict[str, bytes]):
        self.files, self.asked = files, []
        hub = self

        class Handler(JsonHandler):
            def do_HEAD(self) -> None:
                hub.answer(self)

            do_GET = do_HEAD

        super().__init__(Handler)

    def answer(self, request: JsonHandler) -> None:
        path = request.path.split("?")[0]
        self.asked.append((request.command, path))
        if path.startswith("/api/models/a/tiny"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in self.files.items()]
            about = {"id": "a/tiny", "modelId": "a/tiny", "sha": self.REVISION, "siblings": siblings}
            if "/tree/" in path:
                about = [{"type": "file", "path": n, "size": len(d), "oid": etag(d)} for n, d in self.files.items()]
            return request.send(200, about, {"content-type": "application/json"})
        name = path.rsplit("/", 1)[-1]
        if f"/resolve/{self.REVISION}/" not in path or name not in self.files:
            return request.send(404, b"", {"X-Error-Code": "RepoNotFound"})
        data = self.files[name]
        return request.send(200, data, {"ETag": f'"{etag(data)}"', "X-Repo-Commit": self.REVISION})


def etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub(dict(FILES))
    yield server
    server.close()


@pytest.fixture
def fetch(cli):
    """fetch(url, "a/tiny"): in a process of its own, since huggingface_hub reads its address when it is imported."""

    def fetch(url, *words):
        environment = {**os.environ, "HF_ENDPOINT": url, "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}
        return cli.run_process("models", "fetch", *words, env=environment)

    return fetch


def test_fetch_takes_weights_and_settings_and_no_code(fetch, hub, cache):
    done = fetch(hub.url, "a/tiny", "--json").ok
    document = done.document
    assert {f["path"] for f in document["files"]} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert Path(document["folder"]) == cache / "models" / "a--tiny"
    assert (cache / "models" / "a--tiny" / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert f"a/tiny, revision {Hub.REVISION}: 3 files" in done.err
    assert not any(name in path for _, path in hub.asked for name in ("modeling_tiny.py", "pytorch_model.bin"))
    assert [p.name for p in (cache / "models").iterdir()] == ["a--tiny"]
    assert stored.model_folder("a/tiny") == cache / "models" / "a--tiny"
    n_asked = len(hub.asked)
    assert not fetch(hub.url, "a/tiny", "--json").document["written"] and len(hub.asked) == n_asked


def test_fetch_of_what_cannot_be_had(fetch, hub, cache, tmp_path):
    del hub.files["model.safetensors"]
    pickled = fetch(hub.url, "a/tiny", "--out", tmp_path / "m")
    assert pickled.status == 2 and "no weights as safetensors" in pickled.err
    missing = fetch(hub.url, "b/none", "--out", tmp_path / "m")
    assert missing.status == 2 and "no such repository" in missing.err
    offline = fetch("http://127.0.0.1:9", "a/tiny", "--out", tmp_path / "m")
    assert offline.status == 1 and "cannot be reached" in offline.err and "Traceback" not in offline.err
    assert not (tmp_path / "m").exists()


def perfect(request: Request) -> str:
    item = next(p for p in passages() if p.text in request.prompt or p.question in request.prompt)
    if isinstance(request.constraint, JsonSchema):
        return json.dumps({"names": item.names})
    if isinstance(request.constraint, (Choice, Rank)) and "yes" not in request.constraint.options:
        return item.title
    if isinstance(request.constraint, Choice):
        return "yes" if item.true in request.prompt else "no"
    return f"It is {item.answer}."


def test_a_perfect_model_is_good_for_everything():
    document = probe(ScriptedLLM(perfect))
    assert all(right == n for right, n in document["tests"].values()) and document["failed"] == 0
    assert document["good_for"] == ["extraction", "judging", "answers"]
    assert len(requests()) == 6 * len(passages())


def test_a_model_that_says_no_and_invents_names_is_good_for_nothing():
    def careless(request: Request) -> str | Reply:
        if isinstance(request.constraint, JsonSchema):
            return json.dumps({"names": ["Paris", passages()[0].names[0]]})
        options = request.constraint.options if request.constraint else ("I do not know",)
        return "no" if "no" in options else options[0]

    document = probe(ScriptedLLM(careless))
    tests = document["tests"]
    assert tests["judged"] == [6, 12] and tests["chosen"] == [1, 6] and tests["answered"] == [0, 6]
    assert tests["json"] == [6, 6] and tests["names_verbatim"] == [1, 12] and tests["names_found"][0] == 1
    assert document["good_for"] == []


def test_probe_of_a_recording_and_again(run, cache, replay):
    first = run("models", "probe", f"replay:{replay}", "--json").document
    assert first["failed"] == 36 and not first["kept"] and first["good_for"] == []
    assert run("models", "probe", f"replay:{replay}", "--json").document == {**first, "kept": True}
    assert not run("models", "probe", f"replay:{replay}", "--json", "--fresh").document["kept"]
    assert "good for none" in run("models", "probe", f"replay:{replay}").out
