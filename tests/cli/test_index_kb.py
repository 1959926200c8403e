"""Knowledge graphs and bases through the command line: index, verify, export, eval; killed builds; real data."""

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.index.manifest import Manifest


@pytest.fixture
def kg(tmp_path: Path) -> Path:
    path = tmp_path / "facts.tsv"
    path.write_text("Marta Orlo\tborn in\tTamsin\nTamsin\tlies at\tVes\nbad row\n")
    return path


@pytest.fixture
def skb(tmp_path: Path) -> Path:
    folder = tmp_path / "towns"
    folder.mkdir()
    rows = [
        {"id": "n0", "name": "Bern", "type": "town", "text": "Bern has bears & a <river>."},
        {"id": "n1", "name": "Aare", "type": "river"},
    ]
    (folder / "nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "edges.tsv").write_text("n0\tlies at\tn1\n")
    return folder


def test_a_graph_alone(run, cli, kg, tmp_path):
    result = run("index", "--kg", kg, "--out", tmp_path / "ix", *cli.NO_LLM, "--json").ok
    document = result.document
    assert document["kb"] == {
        "sources": 1, "nodes": 3, "edges": 2, "relations": 2, "types": 1, "records": 3, "links": 0, "ambiguous": 0,
        "repeated": 0,
    }  # fmt: skip
    assert (document["passages"], document["rejects"], list(document["stages"])) == (0, 1, ["passages", "kb"])
    assert run("verify", tmp_path / "ix", "--digest").status == 0
    told = run("index", "--kg", kg, "--out", tmp_path / "ix", *cli.NO_LLM)
    assert "knowledge base: 3 nodes, 2 edges, 2 relations, 1 types, 0 links" in told.out
    assert "no method can search this yet: run again with --for hybgrag" in told.out
    asked = run("ask", tmp_path / "ix", "Where was Marta Orlo born?", "--method", "dense", *cli.NO_LLM)
    assert asked.status in (1, 2) and "lacks what dense needs" in asked.error and "--kg" in asked.error


def test_an_index_without_passages_says_so_to_methods_that_rank_them(run, cli, kg, tmp_path):
    assert run("index", "--kg", kg, "--out", tmp_path / "ix", "--for", "bm25,dense", *cli.NO_LLM).status == 0
    questions = cli.write_rows(tmp_path / "q.jsonl", [{"id": "1", "question": "Who?", "answers": ["x"]}])
    for words in (("ask", tmp_path / "ix", "Who?"), ("eval", tmp_path / "ix", questions, "--retrieval-only")):
        result = run(*words, "--method", "bm25", *cli.HASH)
        assert result.status in (1, 2) and "no passages, which bm25 ranks" in result.error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is nothing to index"),
        (("--kg", "none.tsv"), "does not exist"),
        (("--kg", "pyproject.toml"), "type of the file of triples is not known"),
        (("--skb", "docs"), "without nodes"),
        (("--source", "x=rdf:y"), "expected NAME=kg:PATH"),
    ],
)
def test_what_cannot_be_read_is_said_before_anything_is_done(run, cli, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    result = run("index", *words, "--out", tmp_path / "ix", *cli.NO_LLM)
    assert result.status == 2 and said in result.error and not (tmp_path / "ix").exists()


def test_strict_stops_at_the_bad_row(run, cli, kg, tmp_path):
    result = run("index", "--kg", kg, "--out", tmp_path / "ix", "--strict", *cli.NO_LLM)
    assert result.status == 2 and "facts.tsv:3" in result.error


def test_a_plan_says_what_it_does_not_predict(run, cli, kg, tiny_corpus, tmp_path):
    pages = tmp_path / "pages.jsonl"
    pages.write_text('{"url": "https://w/1", "title": "Ves", "text": "A river."}\n')
    words = ("index", tiny_corpus, "--kg", kg, "--out", tmp_path / "ix", "--for", "bm25", *cli.NO_LLM)
    words += ("--source", f"net=web:{pages}")
    plan = run(*words, "--plan", "--json").document
    assert any("not predicted: kb_web;" in note for note in plan["notes"]) and "kb_web" not in plan["stages"]
    built = run(*words, "--json").document
    assert "kb_web" in built["stages"] and {"bm25", "kb"} < built["plan"].keys() and "kb_web" not in built["plan"]


def test_exports_have_the_knowledge_base(run, cli, skb, tmp_path):
    assert run("index", "--skb", skb, "--out", tmp_path / "ix", *cli.NO_LLM).status == 0
    assert run("export", tmp_path / "ix", "--format", "graphml", "--out", tmp_path / "g.graphml").status == 0
    graph = nx.read_graphml(tmp_path / "g.graphml")
    assert graph.nodes["n0"] == {"kind": "node", "name": "Bern", "type": "town"}
    assert graph.nodes["p0"]["text"] == "Bern has bears & a <river>."
    assert graph.edges["n0", "n1"]["label"] == "lies at" and graph.edges["n0", "p0"]["kind"] == "document"
    assert run("export", tmp_path / "ix", "--format", "parquet", "--out", tmp_path / "tables").status == 0
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names >= {
        "passages.parquet",
        "kb_passages.parquet",
        "kb_nodes.parquet",
        "kb_edges.parquet",
        "origins.parquet",
    }
    pyg = run("export", tmp_path / "ix", "--format", "pyg", "--out", tmp_path / "pyg")
    assert pyg.status == 0 and "the knowledge base is not in the graph for PyG" in pyg.err


def test_eval_of_node_questions(run, cli, skb, tmp_path):
    words = ("index", "--skb", skb, "--out", tmp_path / "ix", "--for", "dense,bm25", *cli.NO_LLM)
    assert run(*words).status == 0
    rows = [
        {"id": "1", "question": "Which town has bears?", "answer_ids": [0], "answers": ["Bern"], "topic_entity": "x"}
    ]
    questions = cli.write_rows(tmp_path / "q.jsonl", rows)
    call = ("eval", tmp_path / "ix", questions, "--method", "dense,bm25", "--retrieval-only", *cli.NO_LLM)
    entry = run(*call, "--json").document["methods"]["bm25"]
    assert [entry[name] for name in ("hit@1", "hit@5", "recall@20", "mrr")] == [1.0] * 4
    shown = run(*call, "--report", tmp_path / "r.html")
    assert "hit@1" in shown.out and "recall@2 " not in shown.out and (tmp_path / "r.html").exists()


def test_answers_from_paths_of_a_graph_are_checked(run, cli, kg, tmp_path):
    assert run("index", "--kg", kg, "--out", tmp_path / "ix", *cli.NO_LLM).status == 0
    right = ["Marta Orlo", "born in", "Tamsin", "facts.tsv:1"]
    edges = {"q1": right, "q2": [*right[:3], "facts.tsv:2"], "q3": ["Tamsin", "born in", "Ves", "facts.tsv:2"]}
    usage = dict.fromkeys(("llm_calls", "prompt_tokens", "cached_tokens", "generated_tokens", "malformed", "cut"), 0)
    usage |= dict.fromkeys(("llm_s", "graph_s", "embed_s", "wall_s", "replies_read"), 0) | {"fallbacks": {}}
    rows = [
        {"id": id, "question": "?", "method": "m", "status": "answered", "answer": "Tamsin", "evidence": [],
         "paths": [{"text": "", "edges": [edge], "source": "facts"}], "trace": [], "usage": usage, "error": None,
         "config_hash": "", "fallbacks": {}, "grounding": {"status": "none", "sentences": []}}
        for id, edge in edges.items()
    ]  # fmt: skip
    answers = cli.write_rows(tmp_path / "a.jsonl", rows)
    result = run("verify-answers", answers, tmp_path / "ix", "--json")
    assert result.status == 1
    # the rows made by hand have no marks
    wrong_paths = [row["id"] for row in result.document["differences"] if row["where"] != "grounding"]
    assert wrong_paths == ["q2", "q3"]

    node = {"id": "Tamsin", "name": "Tamsin", "type": "entity", "source": "facts", "score": 0.5}
    wrong = {"id": {"id": "Nowhere"}, "name": {"name": "tamsin"}, "type": {"type": "city"}, "score": {"score": "high"}}
    nodes = {"right": node, **{key: {**node, **change} for key, change in wrong.items()}, "no node": []}
    rows = [{**rows[0], "id": id, "nodes": [one]} for id, one in nodes.items()]
    result = run("verify-answers", cli.write_rows(tmp_path / "n.jsonl", rows), tmp_path / "ix", "--json")
    found = [(row["id"], row["where"]) for row in result.document["differences"] if row["where"] != "grounding"]
    assert result.status == 1 and found == [(id, "node 1") for id in (*wrong, "no node")]


def test_texts_of_nodes_are_not_looked_for_in_the_corpus(run, cli, skb, tiny_corpus, tmp_path):
    out = tmp_path / "ix"
    assert run("index", tiny_corpus, "--skb", skb, "--out", out, "--for", "bm25", *cli.NO_LLM).status == 0
    from gpu_rag import Index
    from gpu_rag.jobs import row_of

    (found,) = Index.open(out).retrieve(
        ["Which town by the river Ves has bears?"],
        method="bm25",
        settings={"models": {"embedder": "hash", "llm": "none"}},
    )
    assert {e.passage_id for e in found.evidence} >= {"n0", "d3"}
    answers = cli.write_rows(tmp_path / "a.jsonl", [row_of(found)])
    assert run("verify-answers", answers, out, "--corpus", tiny_corpus).status == 0
    other = cli.write_rows(tmp_path / "other.jsonl", [{"id": "zz", "text": "x"}])
    result = run("verify-answers", answers, out, "--corpus", other, "--json")
    assert result.status == 1 and not any("n0" in d["what"] for d in result.document["differences"])


KILLED = """
import os, signal, sys
from gpu_rag.index.stages.knowledge_base import stage as kb
plain = getattr(kb, sys.argv[1])
def killed(*given):
    plain(*given)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kb, sys.argv[1], killed)
from gpu_rag.cli.main import main
main(sys.argv[2:])
"""


def test_a_killed_build_ends_with_the_digest_of_an_undisturbed_one(run, cli, tmp_path):
    path = tmp_path / "large.tsv.gz"
    rows = "".join(f"node {k % 997}\trelation {k % 7}\tnode {k * 31 % 1009}\n" for k in range(60_000))
    path.write_bytes(gzip.compress(rows.encode()))
    words = ("index", "--kg", path, "--out", tmp_path / "ix", *cli.NO_LLM)
    for after in ("read_source", "write_edges"):  # in the middle of the stage, and when most of it is written
        killed = subprocess.run([sys.executable, "-c", KILLED, after, *map(str, words)], capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert list(tmp_path.glob("ix/stages/.tmp-kb-*")) and "kb" not in Manifest.read(tmp_path / "ix").stages
    assert run(*words).status == 0
    assert run("index", "--kg", path, "--out", tmp_path / "other", *cli.NO_LLM).status == 0
    digests = {Manifest.read(tmp_path / name).digest() for name in ("ix", "other")}
    assert len(digests) == 1 and run("verify", tmp_path / "ix").status == 0


def index_of(folder: Path) -> Any:
    import gpu_rag

    return gpu_rag.Index.open(folder).loaded("kb", load_kb)


@pytest.mark.shared
def test_gold_paths_of_pathquestion_are_in_the_base(run, cli, shared_data, tmp_path):
    data = shared_data / "pathquestion"
    call = ("index", "--kg", data / "PQ-2H_kg.tsv", "--out", tmp_path / "ix", *cli.NO_LLM, "--json")
    document = run(*call).document
    assert (document["kb"]["edges"], document["rejects"]) == (1211, 0)
    kb = index_of(tmp_path / "ix")
    held = {kb.triple(edge)[:3] for edge in range(kb.n_edges)}
    for row in cli.read_rows(data / "PQ-2H_questions.jsonl"):
        assert {tuple(edge) for edge in row["path"]} <= held
        assert kb.named(row["topic_entity"])


@pytest.mark.shared
def test_primekg_is_a_base_and_starks_answers_are_its_nodes(run, cli, shared_data, tmp_path):
    call = ("index", "--skb", shared_data / "primekg_partial", "--out", tmp_path / "ix", *cli.NO_LLM, "--json")
    document = run(*call).document
    counts = document["kb"]
    assert [counts[name] for name in ("nodes", "edges", "types")] == [16_717, 62_559, 9]
    assert (document["passages"], document["rejects"]) == (0, 0)
    kb = index_of(tmp_path / "ix")
    assert set(kb.type_names) >= {"drug", "disease", "gene/protein", "entity"}
    for row in cli.read_rows(shared_data / "stark_prime" / "questions_in_partial_kg.jsonl"):
        assert all(kb.row_of(f"n{id}") is not None for id in row["answer_ids"])
