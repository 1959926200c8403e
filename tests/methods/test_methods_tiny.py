"""Each method on six articles, worked by hand: cosine, BM25, rank fusion, and a hop that only the graph can take."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from answer_notes import ranking

import gpu_rag
from gpu_rag.errors import MissingLayer, UsageError
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.settings.ranges import MAX_INTEGER
from gpu_rag.types import Answer

QUESTION = "Who taught the designer of the Halden Bridge?"
Settings = dict[str, Any]


def retrieve(index: gpu_rag.Index, method: str, settings: Settings, limit: int = 6, text: str = QUESTION) -> Answer:
    (answer,) = index.retrieve([text], method=method, settings=settings, k=limit)
    return answer


def test_hybrid_fuses_at_least_as_deep_as_it_returns(
    index: gpu_rag.Index, fast: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ranking(retrieve(index, "hybrid", fast, limit=6))
    monkeypatch.setattr("gpu_rag.methods.hybrid.program.Params.depth", 1)
    assert ranking(retrieve(index, "hybrid", fast, limit=6)) == whole
    # the three best are fused from the three best of each: d5 is 2nd of dense, d2 is 3rd and 2nd of the words
    assert ranking(retrieve(index, "hybrid", fast, limit=3)) == ["d0", "d2", "d5"]


def test_ppr_takes_the_hop_that_no_word_and_no_vector_takes(index: gpu_rag.Index, fast: Settings) -> None:
    """Marta Orlo's article shares no word with the question; the bridge's article and fact lead to it."""
    dense, words, graph = (ranking(retrieve(index, method, fast)) for method in ("dense", "bm25", "ppr"))
    assert dense[-1] == "d1" and "d1" not in words
    assert dense.index("d5") < dense.index("d1")  # the university, a distractor
    assert graph[0] == "d0" and graph.index("d1") <= 2 and graph.index("d1") < graph.index("d5")


@pytest.mark.parametrize("damage", ["no link", "no damping"])
def test_without_the_link_or_without_steps_ppr_does_not_take_the_hop(
    build: Callable[..., gpu_rag.Index], facts: dict[str, list[Any]], fast: Settings, damage: str
) -> None:
    if damage == "no link":
        facts = {name: [t for t in triples if "Marta Orlo" not in t] for name, triples in facts.items()}
    damping = 0.0 if damage == "no damping" else 0.85
    graph = ranking(retrieve(build(facts), "ppr", {**fast, "method": {"ppr": {"damping": damping}}}))
    assert graph.index("d1") > graph.index("d5")


def test_seed_facts_come_as_paths_with_a_passage_that_states_them(
    build: Callable[..., gpu_rag.Index], facts: dict[str, list[Any]], fast: Settings
) -> None:
    index = build(facts)
    answer = retrieve(index, "ppr", {**fast, "method": {"ppr": {"n_facts": 3}}}, limit=2)
    assert len(answer.paths) == 3
    for path in answer.paths:
        ((subject, label, object_, passage),) = path.edges
        assert path.text == f"{subject} - {label} - {object_}"
        assert (subject, label, object_) in facts[passage]
    vectors = HashEmbedder().embed([QUESTION, *(" ".join(index.relation_text(row)) for row in range(12))])
    nearest = np.argsort(-(vectors[1:] @ vectors[0]), kind="stable")[:3]
    assert [path.text for path in answer.paths] == [" - ".join(index.relation_text(int(row))) for row in nearest]


def test_of_the_passages_of_a_fact_the_one_in_the_evidence_is_shown(
    build: Callable[..., gpu_rag.Index], facts: dict[str, list[Any]], fast: Settings
) -> None:
    facts["d0"].append(("University of Loss", "founded in", "1640"))  # the bridge's article comes before d5
    answer = retrieve(build(facts), "ppr", fast, limit=1, text="When was the University of Loss founded?")
    assert ranking(answer) == ["d5"]
    assert next(path for path in answer.paths if "founded in" in path.text).edges[0][3] == "d5"


@pytest.mark.parametrize("method", ["dense", "bm25", "hybrid", "ppr"])
@pytest.mark.parametrize("limit", [1, 2, 50])
def test_a_limit_cuts_the_ranking_and_nothing_else(
    index: gpu_rag.Index, fast: Settings, method: str, limit: int
) -> None:
    whole, cut = retrieve(index, method, fast), retrieve(index, method, fast, limit)
    assert cut.evidence == whole.evidence[:limit]
    assert len(whole.evidence) == (2 if method == "bm25" else 6)


def test_a_corpus_without_any_entity_still_answers(
    build: Callable[..., gpu_rag.Index], fast: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_rag.methods.ppr.batched.Params.word_share", 0.0)
    index = build({})
    assert index.n_entities == 0 and index.relations.num_rows == 0
    answer = retrieve(index, "ppr", fast)
    assert answer.paths == ()
    assert ranking(answer) == ranking(retrieve(index, "dense", fast))


def test_a_question_of_nothing_is_answered_without_failing(index: gpu_rag.Index, fast: Settings) -> None:
    for text in ("?", "the of and", "\U0001f600"):
        for method in ("dense", "bm25", "hybrid", "ppr"):
            answer = retrieve(index, method, fast, text=text)
            assert answer.status == ("retrieved" if answer.evidence else "unsupported"), answer.error
            assert (method == "bm25") == (answer.evidence == ())


def test_a_missing_layer_and_an_unknown_method_are_named(build: Callable[..., gpu_rag.Index], fast: Settings) -> None:
    index = build({}, methods=["dense"])
    with pytest.raises(MissingLayer) as lacks:
        retrieve(index, "ppr", fast)
    assert all(fact in str(lacks.value) for fact in ("ppr", "bm25, extraction", "--for ppr", "dense | hybgrag-crag"))
    wrong: list[tuple[str, Settings, str]] = [("prp", {}, "prp"), ("dense", {"prp": {"damping": 0.5}}, "prp")]
    for method, params, fact in [*wrong, ("dense", {"ppr": {"dampin": 0.5}}, "dampin")]:
        with pytest.raises(UsageError, match=f"given {fact}"):
            retrieve(index, method, {**fast, "method": params})


def test_a_count_without_bound_is_all_there_is(build: Any, fast: Settings, facts: Any) -> None:
    """The largest count a setting takes needs no more room, and gives the same, as the size of the tiny corpus."""
    methods = ("hoprag", "bubblerag", "higra-retriever")
    index = build(facts, methods=methods)
    counts = {
        "hoprag": ("top_k",), "bubblerag": ("budget", "n_trees", "n_passages"),
        "higra-retriever": ("n_passages", "n_relations"),
    }  # fmt: skip
    for method, names in counts.items():
        for name in names:
            found = [
                retrieve(index, method, {**fast, "method": {method: {name: count}}}).evidence
                for count in (1000, MAX_INTEGER)
            ]
            assert found[0] == found[1] and found[0], (method, name)
