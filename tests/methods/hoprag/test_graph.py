"""The hop graph of a whole build: sound, loaded as its retrieval reads it, and its figures in a report."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.index.verify import verify
from gpu_rag.methods.hoprag.batched import hop_graph
from gpu_rag.methods.hoprag.report import hop_statistics
from gpu_rag.methods.hoprag.stages.words import union_of_rows
from gpu_rag.methods.hoprag.tables import EDGES, QUESTIONS
from gpu_rag.methods.registry import stage_checks
from gpu_rag.text.keywords import keywords
from gpu_rag.types import Ragged


@pytest.mark.parametrize("granularity", ["passage", "sentence"])
def test_a_build_is_sound_and_loads(build_hops: Any, tiny_corpus: Path, tmp_path: Path, granularity: str) -> None:
    report = build_hops(tiny_corpus, tmp_path / "ix", granularity=granularity)
    assert verify(tmp_path / "ix", stage_checks()) == []
    assert report.manifest.stages["hop_questions"].params["simulate"] == "templates"  # what auto became
    index = Index.open(tmp_path / "ix")
    graph = hop_graph(index)
    table = tables.read_table(index.folder("hop_edges") / "edges.parquet", EDGES)
    source = torch.repeat_interleave(torch.arange(graph.n_vertices), graph.indptr.diff())
    assert source.tolist() == table["source"].to_pylist() and graph.target.tolist() == table["target"].to_pylist()
    assert graph.indptr.dtype == torch.int64
    assert len(graph.target) == report.count("hop_edges") > 0
    assert len(graph.question_texts) == graph.question_vectors.shape[0] == report.count("hop_in_questions")
    assert graph.vertex_vectors.shape[0] == graph.n_vertices == report.count("hop_vertices")
    if granularity == "passage":
        assert torch.equal(graph.vertex_passage, torch.arange(6, dtype=torch.int32))
        assert torch.equal(graph.vertex_vectors, index.vectors("passage_vectors"))
    names = {number: word for word, number in graph.keyword_ids.items()}
    out = tables.read_table(index.folder("hop_questions") / "out_questions.parquet", QUESTIONS)["text"].to_pylist()
    for edge, row in enumerate(table.to_pylist()):
        first, last = graph.edge_keywords.offsets[edge : edge + 2].tolist()
        words = {names[v] for v in graph.edge_keywords.values[first:last].tolist()}
        assert words == keywords(out[row["out_question"]]) | keywords(graph.question_texts[row["question"]])


def test_union_of_rows() -> None:
    left = Ragged(torch.tensor([0, 2, 1], dtype=torch.int32), torch.tensor([0, 2, 2, 3]))
    right = Ragged(torch.tensor([2, 3, 0], dtype=torch.int32), torch.tensor([0, 2, 3]))
    united = union_of_rows((left, torch.tensor([0, 1, 2, 0])), (right, torch.tensor([0, 0, 1, 1])), n=4)
    assert united.offsets.tolist() == [0, 3, 5, 7, 9]
    assert united.values.tolist() == [0, 2, 3, 2, 3, 0, 1, 0, 2]


def test_the_report_has_the_figures_of_the_paper(build_hops: Any, tiny_corpus: Path, tmp_path: Path) -> None:
    report = build_hops(tiny_corpus, tmp_path / "ix")
    stages = {name: vars(stage) for name, stage in report.stages.items()}
    found = hop_statistics(stages)
    assert found is not None
    assert found["degree"] == report.count("hop_edges") / 6 and found["crossing"] == 1.0
    assert found["questions"] == (report.count("hop_in_questions") + report.count("hop_out_questions")) / 6
    assert hop_statistics({"passages": stages["passages"]}) is None
