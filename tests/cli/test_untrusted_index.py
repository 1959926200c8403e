"""An index from somebody else: it names no server, no file and no program, whatever its manifest says."""

import json
from pathlib import Path
from typing import Any

import pytest
from damage import manifest_of

from gpu_rag.models import set as models_set
from gpu_rag.models.llm.scripted import ScriptedLLM

QUESTION = "Who founded the University of Loss?"
ELSEWHERE = "http://elsewhere.example/v1#m"


def with_settings(folder: Path, settings: dict[str, Any]) -> None:
    document = manifest_of(folder)
    document["settings"] = settings
    (folder / "manifest.json").write_text(json.dumps(document))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """(name of the model, key that it was given) of each language model that is opened; a script answers."""
    found: list[tuple[str, Any]] = []

    def load(spec: str, *, api_key: Any = None, **_: Any) -> ScriptedLLM:
        found.append((spec, api_key))
        return ScriptedLLM(lambda request: "nothing")

    monkeypatch.setattr(models_set, "load_llm", load)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("HOME_KEY", "secret too")
    return found


HOSTILE: list[dict[str, Any]] = [
    {"models": {"embedder": "hash", "llm": ELSEWHERE}},
    {"models": {"embedder": "hash", "llm": ELSEWHERE, "api_keys": ["http://elsewhere.example/v1=HOME_KEY"]}},
    {"models": {"embedder": "hash", "llm": "replay:/etc/passwd"}},
    {"models": {"embedder": "hash"}, "method": {"bm25": {"no": 1}}, "vllm": {"arguments": '{"x": 1}'}},
    {"models": {"embedder": "hash"}, "eval": {"judge": ELSEWHERE}},
]


@pytest.mark.parametrize("settings", HOSTILE)
def test_an_index_names_no_server_that_gets_a_key_or_a_question(run, index, opened, settings):
    with_settings(index, settings)
    assert run("ask", index, QUESTION, "--method", "bm25", "--json").status == 0
    assert opened == []


def test_the_python_api_takes_no_server_from_an_index_either(index, opened):
    import gpu_rag

    with_settings(index, HOSTILE[0])
    gpu_rag.Index.open(index).answer(QUESTION, method="bm25")
    assert opened == []


def test_building_on_takes_no_server_from_an_index_either(run, index, opened, tiny_corpus):
    with_settings(index, HOSTILE[1])
    run("index", tiny_corpus, "--out", index, "--for", "ppr", "--json", "--set", "index.extractor=llm")
    assert opened == []
    with_settings(index, HOSTILE[1])
    assert run("index", tiny_corpus, "--out", index, "--for", "bm25").status == 0
    assert json.loads((index / "manifest.json").read_text())["settings"] == {"models": {"embedder": "hash"}}


def test_verify_names_settings_that_no_build_writes(run, index):
    with_settings(index, {**HOSTILE[1], "eval": {"judge": ELSEWHERE}, "hops": {"edge_budget": 2.0}})
    result = run("verify", index, "--json")
    assert result.status == 1
    expected = "manifest.json: settings that no build writes: models.llm, models.api_keys, eval"
    assert result.document["broken"] == [expected]


def test_values_that_no_build_writes_are_named_too(run, index):
    with_settings(index, {"models": {"embedder": "hash"}, "index": {"chunk_words": -1}})
    result = run("verify", index, "--json")
    assert result.status == 1
    assert "manifest.json: setting index.chunk_words" in result.document["broken"][0]


@pytest.mark.parametrize("name", ["here/model", "{folder}", "../model", "http://elsewhere.example/v1", "x" * 5000])
def test_an_index_names_no_folder_that_is_loaded_as_a_model(run, index, opened, monkeypatch, tmp_path, name):
    """A folder beside an index from an archive is somebody else's too; a name of a fetched model is none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here/model").mkdir(parents=True)
    loaded: list[str] = []
    monkeypatch.setattr(models_set, "load_embedder", lambda name, *_, **__: loaded.append(name) or _no_embedder())
    with_settings(index, {"models": {"embedder": name.format(folder=tmp_path)}})
    run("ask", index, QUESTION, "--method", "dense")
    assert loaded == ["minilm"]


def _no_embedder() -> Any:
    from gpu_rag.models.embed import load_embedder

    return load_embedder("hash")
