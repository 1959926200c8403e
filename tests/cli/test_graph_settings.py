"""The code that runs the graph ops: chosen by `[graph]`, printed, and recorded by every command that runs them."""

from typing import Any

import pytest
from gpu_rag_kernels import dispatch


def ops(result: Any) -> dict[str, str]:
    assert result.status == 0, result.err
    recorded: dict[str, str] = result.document["graph_ops"]
    return recorded


def check_searched(ran: dict[str, str], by: str) -> None:
    """faiss searches whole tables of vectors where it is asked for, and never `nearest` in its place."""
    found = {name: ran.get(name) for name in ("nearest", "nearest_index")}
    assert found == {"nearest": None if by == "faiss" else "numba", "nearest_index": "faiss" if by == "faiss" else None}


def test_answer_records_and_prints_what_ran_the_ops(answer):
    assert "graph ops: nearest by numba, personalized_pagerank by numba" in answer("--limit", 2).out
    assert ops(answer("--json")) == {"nearest": "numba", "personalized_pagerank": "numba"}


@pytest.mark.parametrize("pagerank", ["torch", "numba"])
def test_settings_choose(answer, pagerank):
    found = ops(answer("--json", "--set", f"graph.pagerank={pagerank}", "--set", "graph.ops=torch"))
    kernels = {"ppr_step": "reference"} if pagerank == "torch" else {}
    assert found == {"nearest": "torch", "personalized_pagerank": pagerank, **kernels}


@pytest.fixture
def by_both(run, cli, tmp_path):
    """by_both(question, methods, measures, *sources): scores by torch, and by faiss, each where it is asked."""

    def scores(question, methods, measures, *sources):
        questions, chosen = cli.write_rows(tmp_path / "q.jsonl", [question]), ("--method", methods, *cli.NO_LLM)
        assert run("index", *sources, "--out", tmp_path / "ix", "--for", methods, *cli.NO_LLM).ok
        found = []
        for by in ("torch", "faiss"):
            given = ("--retrieval-only", "--json", "--set", f"graph.neighbours={by}")
            entries = run("eval", tmp_path / "ix", questions, *chosen, *given).ok.document["methods"]
            for entry in entries.values():  # the last one too, which searches what was made ready for another
                check_searched(entry["graph_ops"], by)
            found.append({method: [entry[name] for name in measures] for method, entry in entries.items()})
        return found

    return scores


def test_faiss_searches_the_vectors_of_every_text_method(by_both, tiny_corpus):
    asked = {"id": "q", "question": "Where was Marta Orlo born?", "gold_ids": ["d1"]}
    measures = ("recall@2", "recall@5", "recall@10")
    torch, faiss = by_both(asked, "dense,ppr,bubblerag,higra-retriever", measures, tiny_corpus)
    assert torch == faiss and len(torch) == 4


def test_faiss_searches_the_names_and_documents_of_a_knowledge_base(by_both, cli, tmp_path):
    (tmp_path / "towns").mkdir()
    names = ("Bern", "Thun", "Kerling", "Halden")
    rows = [{"id": f"t{i}", "type": "town", "name": n, "text": f"{n} has a bridge."} for i, n in enumerate(names)]
    cli.write_rows(tmp_path / "towns" / "nodes.jsonl", [*rows, {"id": "r", "type": "river", "name": "Aare"}])
    (tmp_path / "towns" / "edges.tsv").write_text("t0\tlies on\tr\nt1\tlies on\tr\n", encoding="utf-8")
    asked = {"id": "1", "question": "Which town on the Aare has a bridge, Bern or Thun?", "answer_ids": ["t0"]}
    torch, faiss = by_both(asked, "hybgrag,hydrarag,dense", ("hit@1", "hit@5", "mrr"), "--skb", tmp_path / "towns")
    assert torch == faiss and len(torch) == 3


def test_what_cannot_be_had_is_an_error(answer, monkeypatch):
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    for chosen, said in {"neighbours=faiss": "faiss is not installed", "pagerank=fast": "auto | numba | torch"}.items():
        result = answer("--set", f"graph.{chosen}")
        assert result.status == 2 and said in result.err


def test_index_records_the_ops_of_each_stage(run, cli, tiny_corpus, tmp_path):
    result = run("index", tiny_corpus, "--out", tmp_path / "ix", "--for", "ppr,hoprag", "--json", *cli.NO_LLM).ok
    stages = result.document["stages"]
    assert stages["synonyms"]["graph_ops"]["near_pairs"] == "numba"
    assert stages["hop_edges"]["graph_ops"]["hybrid_argmax"] == "numba"
    assert stages["passages"]["graph_ops"] == {}
