"""Whole methods over an index on the stand-in device: the answers are those of the CPU."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in import CUDA, Device, OnDevice

import gpu_rag
from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.jobs import row_of
from gpu_rag.methods.hydrarag.batched.facts import ComposedVectors
from gpu_rag.sample import corpus_path, questions_path
from gpu_rag.settings import merge
from gpu_rag.types import Answer, Question, Ragged

METHODS = ("dense", "bm25", "hybrid", "ppr", "hoprag", "bubblerag", "higra-retriever", "hybgrag", "hydrarag")
CPU: dict[str, Any] = {
    "models": {"embedder": "hash", "llm": "none", "decider": "rule", "device": "cpu", "vector_cache_gib": 0},
    "graph": {"pagerank": "torch", "ops": "torch"},
    "method": {"hydrarag": {"d_max": 2, "w1": 20}},
}
GPU = merge(CPU, {"models": {"device": "cuda"}, "graph": {"pagerank": "auto", "ops": "auto"}})
N_ARTICLES, N_QUESTIONS = 22, 4


def questions() -> list[Question]:
    with questions_path().open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, N_QUESTIONS)]
    return [Question(row["id"], row["question"]) for row in rows]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "articles.jsonl"
    with corpus_path().open(encoding="utf-8") as lines:
        path.write_text("".join(islice(lines, N_ARTICLES)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(corpus: Path) -> Path:
    gpu_rag.build(corpus, corpus.parent / "ix", methods=METHODS, settings=CPU)
    return corpus.parent / "ix"


def asked(index: gpu_rag.Index, method: str, settings: Any) -> list[Answer]:
    answers = index.retrieve(questions(), method=method, settings=settings, k=5)
    assert not [answer.error for answer in answers if answer.error]
    return answers


def told(answers: list[Answer]) -> list[Any]:
    """An answer without its seconds."""
    rows = [json.loads(json.dumps(row_of(answer))) for answer in answers]
    return [{name: row.get(name) for name in ("evidence", "paths", "nodes", "text")} for row in rows]


def check_alike(found: list[Any], expected: list[Any]) -> None:
    """The same but for the last bits of scores: cosines with all passages are products of f16 parts on a GPU."""
    scores = [[one.pop("score") for row in rows for one in row["evidence"]] for rows in (found, expected)]
    assert found == expected
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_of_the_cpu(device: Device, folder: Path, method: str) -> None:
    """Beside torch on the CPU; nothing that has the size of the index is moved in a question."""
    index = gpu_rag.Index.open(folder)
    found = told(asked(index, method, GPU))
    check_alike(found, told(asked(gpu_rag.Index.open(folder), method, CPU)))
    assert any(row["evidence"] or row["nodes"] for row in found)
    assert method == "bm25" or device.launches
    assert not device.atomic_sums


@pytest.mark.parametrize("place", [63, 64, 127, 128])
def test_a_question_of_a_wide_tile_has_the_bits_that_it_has_alone(device: Device, folder: Path, place: int) -> None:
    index, few = gpu_rag.Index.open(folder), questions()
    asking = [Question(str(i), f"{few[i % len(few)].text} ({i})") for i in range(130)]
    together, alone = (
        list(index.retrieve(part, method="ppr", settings=GPU, k=5)) for part in (asking, asking[place : place + 1])
    )
    assert told(together[place : place + 1]) == told(alone)


@pytest.mark.parametrize("method", ["dense", "ppr", "hoprag", "bubblerag", "higra-retriever", "hydrarag"])
def test_one_index_may_change_its_device(device: Device, folder: Path, method: str) -> None:
    """Arrays of the one device are not mixed with those that it loads on the other."""
    index = gpu_rag.Index.open(folder)
    before = told(asked(index, method, CPU))
    again = told(asked(index, method, GPU)), told(asked(index, method, CPU))
    assert again[1] == before
    check_alike(again[0], before)


def test_what_an_index_holds_is_on_its_device(device: Device, folder: Path) -> None:
    index = gpu_rag.Index.open(folder, device="cuda")
    assert index.graph.device == CUDA and index.vectors("passage_vectors").dtype == torch.float16
    on_cpu = gpu_rag.Index.open(folder)
    for name in ("indptr", "indices", "weight"):
        assert torch.equal(device.back(getattr(index.graph.pull, name)), getattr(on_cpu.graph.pull, name))
    assert all(isinstance(index.vectors(f"{kind}_vectors"), OnDevice) for kind in ("passage", "entity"))
    index.device = "cpu"
    assert index.graph.device.type == "cpu" and index.vectors("passage_vectors").dtype == torch.float32


def test_an_index_is_built_alike(device: Device, corpus: Path, folder: Path, tmp_path: Path) -> None:
    """Edges between questions and synonyms are found on the device."""
    gpu_rag.build(corpus, tmp_path / "ix", methods=METHODS, settings=GPU)
    assert {copy.where.split(":")[0] for copy in device.copies} >= {"matching.py", "synonyms.py"}
    made, expected = (gpu_rag.Index.open(path).manifest for path in (tmp_path / "ix", folder))
    assert made.digest() == expected.digest()


def test_composed_vectors_have_one_order_of_sums(device: Device) -> None:
    """Edges with several facts, as in a graph too large for a vector of each: the bits of the CPU, by no sum whose
    order a GPU chooses."""
    drawn = torch.Generator().manual_seed(4)
    sizes = torch.randint(1, 6, (40,), generator=drawn)
    n = int(sizes.sum())
    triples = Ragged(torch.randperm(n, generator=drawn), offsets_of(sizes))
    ends = [torch.randint(9, (n,), generator=drawn) for _ in range(3)]
    rows = [torch.nn.functional.normalize(torch.randn(9, 16, generator=drawn)).half() for _ in range(2)]
    composed, edges = ComposedVectors(triples, *ends, *rows), torch.randperm(40, generator=drawn)
    assert torch.equal(device.back(device.put(composed).vectors(device.put(edges))), composed.vectors(edges))
    assert not device.atomic_sums
