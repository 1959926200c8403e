"""An index remembers how it was built, and refuses to lose some of it; --for all."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.errors import IndexMismatch
from gpu_rag.index.folder import stage_files
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.verify import verify
from gpu_rag.methods.registry import method_names, stage_checks
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.settings import make_settings
from gpu_rag.types import JsonSchema, Request

FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}


def skipped(result: Any) -> set[str]:
    assert result.status == 0, result.err
    return {name for name, stage in result.document["stages"].items() if stage["skipped"]}


@pytest.fixture
def build(run: Any, cli: Any, tiny_corpus: Path, tmp_path: Path) -> Any:
    """build("--for", "ppr"): `gpu-rag index` of the tiny corpus into tmp_path/i, as JSON."""
    return lambda *options: run("index", tiny_corpus, "--out", tmp_path / "i", "--json", *cli.NO_LLM, *options)


def test_settings_of_the_build_are_found_back(build, tmp_path):
    small = ("--set", "index.chunk_words=8", "--set", "index.overlap_words=0")
    assert skipped(build("--for", "dense", *small)) == set()
    assert skipped(build("--for", "bm25")) == {"passages", "passage_vectors"}
    assert Manifest.read(tmp_path / "i").settings == {
        "models": {"embedder": "hash"}, "index": {"chunk_words": 8, "overlap_words": 0},
    }  # fmt: skip
    assert skipped(build("--for", "bm25", "--set", "index.chunk_words=300")) == set()  # asked for: made anew
    assert Manifest.read(tmp_path / "i").settings["index"] == {"overlap_words": 0}
    assert skipped(build("--for", "bm25", "--fresh")) == set()
    assert Manifest.read(tmp_path / "i").settings == {
        "models": {"embedder": "hash"}
    }  # the defaults are not spelled out


def test_from_python_settings_are_over_what_is_remembered(tiny_corpus, tmp_path):
    sections = {**FAST, "index": {"chunk_words": 8, "overlap_words": 0}}
    gpu_rag.build(tiny_corpus, tmp_path / "i", methods=["bm25"], settings=sections)
    assert gpu_rag.build(tiny_corpus, tmp_path / "i", methods=["bm25"], settings=FAST).report.stages["passages"].skipped
    whole = make_settings(FAST)  # all settings, not some: nothing is remembered
    assert (
        not gpu_rag.build(tiny_corpus, tmp_path / "i", methods=["bm25"], settings=whole)
        .report.stages["passages"]
        .skipped
    )


def write(request: Request) -> str:
    """Extraction of a triple, or questions about it."""
    assert isinstance(request.constraint, JsonSchema)
    if "triples" in request.constraint.schema:
        return '{"entities": ["Ann", "Bo"], "triples": [["Ann", "knows", "Bo"]]}'
    return json.dumps({"questions": ["Who knows Bo?", "Whom does Ann know?"]})


def by(name: str, out: Path, corpus: Path, *, capable: bool = True, **sections: Any) -> Any:
    settings = {"models": {"embedder": "hash"}, **sections}
    llm = ScriptedLLM(write, name=name, capable=capable)
    return gpu_rag.build(corpus, out, methods=["hoprag"], settings=settings, llm=llm).report


@pytest.fixture
def written(tiny_corpus: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose triples and questions the model "a" has written: made once."""
    made = tmp_path_factory.getbasetemp() / "written"
    if not made.exists():
        report = by("a", made, tiny_corpus, index={"extractor": "llm", "min_yield": 0.0})
        assert {n for n, r in report.manifest.stages.items() if "llm" in r.models} == {"extraction", "hop_questions"}
    return Path(shutil.copytree(made, tmp_path / "i"))


def test_what_is_damaged_is_made_anew_from_kept_replies(written, tiny_corpus):
    digest, whole = Manifest.read(written).digest(), by("a", written, tiny_corpus)
    files = (path for stage in (written / "stages").iterdir() for path in stage_files(stage))
    for file in sorted(path for path in files if path.suffix in (".parquet", ".safetensors")):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1  # of equal size
        file.write_bytes(bytes(data))
        report = by("a", written, tiny_corpus)
        assert [name for name, stage in report.stages.items() if not stage.skipped] == [file.parent.name.split("-")[0]]
        assert sum(stage.llm_calls for stage in report.stages.values()) == 0
    assert Manifest.read(written).digest() == digest and verify(written, stage_checks()) == []
    assert all(stage.skipped for stage in whole.stages.values())


def test_fresh_keeps_replies_and_forgetting_them_asks_again(written, tiny_corpus):
    digest, calls = Manifest.read(written).digest(), []
    for options in ({"fresh": True}, {"forget_replies": True}):
        settings = {"models": {"embedder": "hash"}, "index": {"extractor": "llm", "min_yield": 0.0}}
        llm = ScriptedLLM(write, name="a")
        report = gpu_rag.build(tiny_corpus, written, methods=["hoprag"], settings=settings, llm=llm, **options).report
        assert not any(stage.skipped for stage in report.stages.values()) and report.manifest.digest() == digest
        calls.append(len(llm.calls))
    assert calls[0] == 0 < calls[1]


def test_another_model_does_not_write_over_it(written, tiny_corpus):
    before = (written / "manifest.json").read_bytes()
    with pytest.raises(IndexMismatch, match="stage extraction was written by another model; given b; expected a"):
        by("b", written, tiny_corpus)
    with pytest.raises(IndexMismatch, match="stage hop_questions was written by another model; .*not capable"):
        by("a", written, tiny_corpus, capable=False)  # then auto would mean templates
    assert (written / "manifest.json").read_bytes() == before
    settings = {"models": {"embedder": "hash"}, "index": {"extractor": "llm", "min_yield": 0.0}}
    fresh = gpu_rag.build(
        tiny_corpus, written, methods=["hoprag"], settings=settings, llm=ScriptedLLM(write, name="b"), fresh=True
    ).report
    assert fresh.manifest.stages["extraction"].models["llm"]["name"] == "b"


def test_a_served_model_counts_and_not_where_it_listens(tiny_corpus, tmp_path):
    manifests = []
    for address in ("http://10.0.0.7:8000/v1", "https://elsewhere/v1"):
        llm = ScriptedLLM(write, name=f"{address}#qwen")
        llm.content_hash = "of the model"
        settings = {"models": {"embedder": "hash"}, "index": {"extractor": "llm", "min_yield": 0.0}}
        out = tmp_path / str(len(manifests))
        gpu_rag.build(tiny_corpus, out, methods=["hoprag"], settings=settings, llm=llm)
        manifests.append(Manifest.read(out))
        assert b"10.0.0.7" not in (out / "manifest.json").read_bytes()
    assert manifests[0].digest() == manifests[1].digest()
    assert manifests[0].stages["extraction"].models["llm"]["name"] == "server#qwen"


def test_rules_that_are_asked_for_by_name_take_its_place(written, tiny_corpus):
    named = {"index": {"extractor": "patterns"}, "hops": {"simulate": "templates"}}
    report = by("b", written, tiny_corpus, capable=False, **named)
    assert not any("llm" in record.models for record in report.manifest.stages.values())


def test_for_all_builds_what_every_method_needs(build, run, cli, questions, tmp_path):
    every = build("--for", "all").ok
    assert skipped(build("--for", ",".join(method_names()))) == set(every.document["stages"])
    names = ",".join(name for name in method_names() if name != "auto")  # which stands for one that `tune` found
    given = ("eval", tmp_path / "i", questions, "--method", names, "--retrieval-only", "--limit", 1)
    assert run(*given, *cli.NO_LLM).status == 0


def test_for_all_of_a_knowledge_base_alone_is_what_runs_over_it(run, cli, tmp_path):
    (tmp_path / "facts.tsv").write_text("Bern\tcapital of\tSwitzerland\n", encoding="utf-8")
    given = ("index", "--kg", tmp_path / "facts.tsv", "--out", tmp_path / "i", "--json", *cli.NO_LLM)
    every = run(*given, "--for", "all").ok
    assert "extraction" not in every.document["stages"]
    assert skipped(run(*given, "--for", "hybgrag,hydrarag,hydrarag-e")) == set(every.document["stages"])
