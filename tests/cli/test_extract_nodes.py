"""index.extract_nodes=false: texts of nodes are passages that nothing is extracted from, and a plan counts exactly."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.api.builds import sources_of
from gpu_rag.index import tables
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.verify import verify
from gpu_rag.methods.registry import stages_for
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.set import ModelSet
from gpu_rag.plan.index_plan import plan_index
from gpu_rag.plan.trial import BuildJob
from gpu_rag.settings import make_settings

LEFT_OUT = ("--set", "index.extract_nodes=false")
FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}


def skb(folder: Path, n: int) -> Path:
    """n nodes; two of three have a text, every seventh of several passages."""
    folder.mkdir()
    texts = [("" if k % 3 == 2 else f"Node number {k} lies in Tamsin. " * (60 if k % 7 == 0 else 1)) for k in range(n)]
    rows = [{"id": f"n{k}", "name": f"Node {k}", "text": text} for k, text in enumerate(texts)]
    (folder / "nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "edges.tsv").write_text("".join(f"n{k}\tnear\tn{(k + 1) % n}\n" for k in range(n)), "utf-8")
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return skb(tmp_path / "base", 30)


def extractions(folder: Path) -> dict[str, Any]:
    """The row of each passage in the table of extractions, by its id."""
    index = gpu_rag.Index.open(folder)
    table = tables.read_table(index.folder("extraction") / "extractions.parquet", tables.EXTRACTIONS)
    return dict(zip(index.passage_ids, table.to_pylist(), strict=True))


def test_texts_of_nodes_are_passages_without_extraction(tiny_corpus, base, tmp_path):
    settings = {**FAST, "index": {"extract_nodes": False}}
    gpu_rag.build(tiny_corpus, tmp_path / "i", methods=["ppr", "hybgrag"], skb=base, settings=settings)
    assert verify(tmp_path / "i") == []
    index, rows = gpu_rag.Index.open(tmp_path / "i"), extractions(tmp_path / "i")
    of_nodes = {id for id in rows if id.startswith("n")}
    assert len(of_nodes) > 20 and len(rows) - len(of_nodes) == 6
    for id, row in rows.items():
        assert (row["status"] == "skipped") == (id in of_nodes)
        assert id not in of_nodes or not (row["entities"] or row["triples"])
    counts = index.manifest.stages["extraction"].counts
    assert counts == {"extraction_ok": 6, "extraction_skipped": len(of_nodes)}
    assert "Tamsin" in index.entity_names and "Node 1" not in index.entity_names
    tamsin = index.entity_names.index("Tamsin")
    found = {
        index.passage_ids[p]
        for e, p in zip(*(index.mentions[c].to_pylist() for c in ("entity", "passage")))
        if e == tamsin
    }
    assert found & of_nodes, "names are still searched in the texts of nodes"
    for method in ("ppr", "hybgrag"):
        (answer,) = index.retrieve(["What lies in Tamsin?"], method=method, settings=FAST)
        assert answer.evidence or answer.nodes


def test_without_the_setting_nothing_changes(tiny_corpus, base, tmp_path):
    gpu_rag.build(tiny_corpus, tmp_path / "a", skb=base, settings=FAST)
    gpu_rag.build(tiny_corpus, tmp_path / "b", skb=base, settings={**FAST, "index": {"extract_nodes": True}})
    one, two = (Manifest.read(tmp_path / name) for name in ("a", "b"))
    assert one.digest() == two.digest() and one.stages["extraction"].params == {"extractor": "patterns"}
    gpu_rag.build(tiny_corpus, tmp_path / "c", settings=FAST)
    again = gpu_rag.build(tiny_corpus, tmp_path / "c", settings={**FAST, "index": {"extract_nodes": False}}).report
    assert all(stage.skipped for stage in again.stages.values()), "without knowledge bases it is no other build"


def test_it_is_remembered_and_undone(run, cli, tiny_corpus, base, tmp_path):
    given = ("index", tiny_corpus, "--skb", base, "--out", tmp_path / "i", "--json", *cli.NO_LLM)
    first = run(*given, *LEFT_OUT).document["extraction"]
    assert first["ok"] == 6 and first["skipped"] > 20
    assert Manifest.read(tmp_path / "i").settings["index"] == {"extract_nodes": False}
    again = run(*given).document
    assert again["extraction"] == first and all(stage["skipped"] for stage in again["stages"].values())
    undone = run(*given, "--set", "index.extract_nodes=true").document
    assert "skipped" not in undone["extraction"] and not undone["stages"]["extraction"]["skipped"]
    assert undone["stages"]["passages"]["skipped"]


def test_a_base_alone_has_nothing_to_extract_from(base, tmp_path):
    settings = {**FAST, "index": {"extract_nodes": False}}
    report = gpu_rag.build(
        (), tmp_path / "i", methods=["ppr", "hoprag", "bubblerag"], skb=base, settings=settings
    ).report
    assert verify(tmp_path / "i") == []
    assert report.count("entities") == 0 and report.count("passages") == report.count("extraction_skipped") > 20
    index = gpu_rag.Index.open(tmp_path / "i")
    (answer,) = index.retrieve(["Which node lies in Tamsin?"], method="ppr", settings=FAST)
    assert answer.evidence


def test_rows_of_openie_for_texts_of_nodes_are_rejects(tiny_corpus, base, tmp_path):
    rows = [{"id": id, "entities": ["Tamsin"], "triples": []} for id in ("d0", "n1")]
    (tmp_path / "o.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {**FAST, "index": {"extract_nodes": False}}
    gpu_rag.build(tiny_corpus, tmp_path / "i", skb=base, openie=tmp_path / "o.jsonl", settings=settings)
    found = extractions(tmp_path / "i")
    assert (found["d0"]["status"], found["d1"]["status"], found["n1"]["status"]) == ("ok", "absent", "skipped")
    (reject,) = [json.loads(line) for line in (tmp_path / "i/rejects.jsonl").read_text().splitlines()]
    assert reject["id"] == "n1" and "index.extract_nodes is false" in reject["reason"]


def test_pronouns_are_replaced_where_something_is_extracted(tiny_corpus, base, tmp_path):
    llm = ScriptedLLM(lambda request: json.dumps({"text": "x"}), capable=True)
    settings = {"models": {"embedder": "hash"}, "index": {"extract_nodes": False, "coref": "llm"}}
    gpu_rag.build(tiny_corpus, tmp_path / "i", skb=base, settings=settings, llm=llm)
    assert len(llm.calls) == 6 and not any("Node number" in request.prompt for request in llm.calls)


def said(prompt: str) -> str:
    names = list(dict.fromkeys(re.findall(r"\b[A-Z][a-z]{3,}\b", prompt.split("Passage:", 1)[1])))[:5]
    entities = [{"name": name, "aliases": [], "types": [], "description": ""} for name in names]
    return json.dumps({"entities": entities, "triples": []})


@pytest.mark.parametrize("n_nodes", [3, 200])
def test_tokens_are_exact_where_all_extracted_passages_are_in_the_sample(tiny_corpus, tmp_path, n_nodes):
    """By a model that counts as its replies do: the prompts of the six passages, and of no other."""
    settings = make_settings({"models": {"embedder": "hash"}, "index": {"extractor": "llm", "extract_nodes": False}})
    llm, out = ScriptedLLM(lambda request: said(request.prompt)), tmp_path / "i"
    sources = sources_of(tiny_corpus, out, skb=skb(tmp_path / "b", n_nodes))
    job = BuildJob(out, stages_for(["ppr"], sources), settings, sources, ModelSet(settings.models, llm=llm))
    plan = plan_index(job)
    asked = llm.calls[:]
    report = gpu_rag.build(tiny_corpus, out, skb=tmp_path / "b", settings=settings, llm=llm).report
    built, planned = report.stages["extraction"], plan["stages"]["extraction"]
    assert (plan["extracted"], planned["llm_calls"], built.llm_calls) == (6, 6, 6)
    assert planned["prompt_tokens"] == built.prompt_tokens
    assert not any("Node number" in request.prompt for request in asked)
