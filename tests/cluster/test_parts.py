"""The surroundings of workers, without Ray: settings, workers as plain objects, the model set, kept parts."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_rag.cluster import check_scale, worker
from gpu_rag.cluster.worker import EmbedWorker, LLMWorker, Loaded
from gpu_rag.errors import MissingBackend, ModelError, UsageError
from gpu_rag.models.embed.cache import CachedEmbedder, VectorFile
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import ModelSettings, make_settings
from gpu_rag.settings.sections import ScaleSettings
from gpu_rag.types import Request

MODELS = ModelSettings(embedder="hash", llm="smollm2")


@pytest.fixture
def installed(monkeypatch):
    """installed(True): ray seems to be there; nothing imports it."""

    def pretend(found: bool) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found or None if name == "ray" else find(name))

    return pretend


# --- settings --------------------------------------------------------------------------------------


def test_workers_are_off_unless_an_address_is_set() -> None:
    from gpu_rag.api.models import workers_of

    assert make_settings({}).scale == ScaleSettings() and workers_of(make_settings({})) is None
    assert workers_of(make_settings({"scale": {"address": "local"}})) is not None


@pytest.mark.parametrize("address", ["local", "auto", "10.0.0.7:6379", "head.example:6379", "[fe80::1]:6379"])
def test_addresses_that_can_be(address: str, installed) -> None:
    installed(True)
    check_scale(ScaleSettings(address=address), MODELS)


@pytest.mark.parametrize("address", ["", "Local", "10.0.0.7", "ray://10.0.0.7:10001", "a:b", "http://a:1", "h:123456"])
def test_addresses_that_cannot_be_are_refused_with_those_that_can(address: str, installed) -> None:
    installed(True)
    with pytest.raises(UsageError, match=r"not the address .* expected none \| local \| auto \| HOST:PORT"):
        check_scale(ScaleSettings(address=address), MODELS)


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"embed_workers": 0, "llm_workers": 0}, {}, "a cluster without workers"),
    ({}, {"llm": "http://h/v1#m"}, "a model server is not put on workers.*scale.llm_workers=0"),
    ({"embed_gpus": 0.5}, {"device": "cpu"}, "given models.device=cpu, scale.embed_gpus=0.5"),
    ({"embed_gpus": 1.0}, {"device": "cuda"}, "given models.device=cuda, scale.llm_gpus=0"),
]


@pytest.mark.parametrize(("scale", "models", "message"), WRONG)
def test_settings_that_contradict_each_other_are_refused(scale: Any, models: Any, message: str, installed) -> None:
    installed(True)
    with pytest.raises(UsageError, match=message):
        check_scale(ScaleSettings(address="local", **scale), replace(MODELS, **models))


def test_a_role_without_workers_is_not_checked(installed) -> None:
    installed(True)
    check_scale(ScaleSettings(address="local", llm_workers=0), replace(MODELS, llm="http://h/v1#m"))
    check_scale(ScaleSettings(address="local", llm_workers=0, embed_gpus=1), replace(MODELS, device="cuda"))


def test_without_ray_the_extra_is_named_before_anything_runs(installed, tiny_corpus, tmp_path) -> None:
    import gpu_rag

    installed(False)
    given = {"models": {"embedder": "hash", "llm": "none"}, "scale": {"address": "local"}}
    with pytest.raises(MissingBackend, match=r"need ray; .*pip install 'gpu-rag\[ray\]'"):
        gpu_rag.build(tiny_corpus, tmp_path / "index", settings=given)
    assert not (tmp_path / "index").exists()


PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"


def test_the_profile_of_the_page_is_one() -> None:
    page = PAGE.read_text(encoding="utf-8")
    (profile,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert make_settings(tomllib.loads(profile)).scale.embed_gpus == 0.25


# --- what runs on a worker -------------------------------------------------------------------------


def test_a_worker_embeds_what_it_is_given_under_its_numbers() -> None:
    worker, here = EmbedWorker(HashEmbedder), HashEmbedder()
    facts = worker.load()
    assert facts.about == {**facts.about, "name": "hash", "content_hash": here.content_hash, "dim": 256}
    found = worker.work([(7, ["a b", "c"]), (3, ["d"])], [], 0.0)
    assert [number for number, _ in found] == [7, 3]
    assert np.array_equal(found[0][1][0], here.embed(["a b", "c"])) and found[0][1][1] == 0


def test_other_bits_make_other_facts() -> None:
    class Shifted(HashEmbedder):
        def embed(self, texts, on_batch=None):
            return np.nextafter(super().embed(texts, on_batch), np.float32(2))

    assert EmbedWorker(HashEmbedder).load().about == EmbedWorker(HashEmbedder).load().about
    one, other = EmbedWorker(HashEmbedder).load().about, EmbedWorker(Shifted).load().about
    assert {name for name in one if one[name] != other[name]} == {"bits"}


def test_a_worker_replies_under_the_numbers_it_was_given() -> None:
    worker = LLMWorker(lambda: Loaded(ScriptedLLM(lambda request: request.prompt.upper()), 9, {"a.json": b"{}"}))
    facts = worker.load()
    assert (facts.window, facts.about["capable"], worker.tokenizer()) == (9, True, {"a.json": b"{}"})
    found = dict(worker.work([(5, Request("", "five")), (2, Request("", "two"))], [], 5.0))
    while len(found) < 2:
        found.update(worker.work([], [], 5.0))
    assert {number: reply.text for number, reply in found.items()} == {5: "FIVE", 2: "TWO"}
    assert worker.count_tokens("12 letters") == 4


def test_the_tokenizer_travels_without_the_weights(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "notes.py"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "1_Pooling").mkdir()
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(worker.LARGEST_FILE + 1)
    assert worker.tokenizer_files(tmp_path) == {
        name: name.encode() for name in ("chat_template.jinja", "config.json", "tokenizer.json")
    }


# --- the model set ---------------------------------------------------------------------------------


class Workers:
    """Workers that hold nothing; what they are asked for is in `log`."""

    def __init__(self, embedder: Any, llm: Any):
        self.roles, self.log = {"embedder": embedder, "llm": llm}, list[str]()

    def embedder(self) -> Any:
        self.log.append("embedder")
        return self.roles["embedder"]

    def llm(self) -> Any:
        self.log.append("llm")
        return self.roles["llm"]

    def describe(self) -> dict[str, Any]:
        return {"embedder": {"workers": 3}}

    def close(self) -> None:
        self.log.append("close")


def test_a_model_set_takes_its_models_from_the_workers_and_ends_them(tmp_path: Path) -> None:
    embedder, llm = HashEmbedder(), ScriptedLLM(lambda request: "far away")
    workers = Workers(embedder, llm)
    models = ModelSet(MODELS, tmp_path / "replies.sqlite", workers=lambda settings, vllm: workers)
    assert workers.log == []
    assert models.embedder() is embedder and models.llm().complete([Request("", "where")])[0].text == "far away"
    assert models.on_workers() == {"embedder": {"workers": 3}}
    models.close()
    assert workers.log == ["embedder", "llm", "close"]


def test_a_role_that_the_workers_leave_stays_here(tmp_path: Path) -> None:
    workers = Workers(None, None)
    models = ModelSet(replace(MODELS, llm="replay:none"), workers=lambda settings, vllm: workers)
    assert models.embedder().name == "hash"
    with pytest.raises(UsageError, match="the recording cannot be read"):
        models.llm()
    assert ModelSet(MODELS).on_workers() == {}


class InParts(HashEmbedder):
    """Gives out its vectors two by two, the last first, and fails at the text "end"."""

    def parts(self, texts, on_batch=None):
        for start in reversed(range(0, len(texts), 2)):
            some = texts[start : start + 2]
            if "end" in some:
                raise ModelError("the end")
            yield list(range(start, start + len(some))), super().embed(some)


def test_parts_are_kept_as_they_come(tmp_path: Path) -> None:
    texts = ["end", "b", "c", "d", "e"]
    cached = CachedEmbedder(InParts(), tmp_path / "cache.vectors", 2**30)
    assert np.array_equal(cached.embed(["x", "y", "z", "x"]), HashEmbedder().embed(["x", "y", "z", "x"]))
    with pytest.raises(ModelError, match="the end"):
        cached.embed(texts)
    cached.close()
    keys = np.frombuffer(b"".join(sha256(text.encode()).digest()[:16] for text in [*"xyz", *texts]), "<u8")
    known = VectorFile(tmp_path / "cache.vectors", 256).read(keys.reshape(-1, 2))[1]
    assert known.tolist() == [True] * 3 + [text in "cde" for text in texts]
