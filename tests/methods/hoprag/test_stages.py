"""The hop graph of small corpora: vertices, questions, keywords, edges by hand and by brute force."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_rag.errors import UsageError
from gpu_rag.graph.join import candidates, join_index
from gpu_rag.graph.ragged import ragged_of_lists
from gpu_rag.index import tables
from gpu_rag.index.work import Sources
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.stages import matching as hop_matching
from gpu_rag.methods.hoprag.stages.edges import edges_stage
from gpu_rag.methods.hoprag.stages.questions import questions_stage
from gpu_rag.methods.hoprag.stages.vertices import keywords_stage, vertices_stage
from gpu_rag.methods.hoprag.tables import EDGES, KEYWORDS, MATCHES, QUESTIONS, VERTICES, read_lists, write_lists
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import make_settings
from gpu_rag.text.keywords import keywords

FAST = {"models": {"embedder": "hash", "llm": "none"}}


def test_a_vertex_is_a_passage_or_a_sentence(bench: Any) -> None:
    bench.put_passages(["Ann won. She left.", "", "One sentence"])
    assert bench.run(vertices_stage) == {"hop_vertices": 3}
    file = bench.folder("hop_vertices") / "vertices.parquet"
    rows = tables.read_table(file, VERTICES).to_pylist()
    assert [(r["id"], r["passage"], r["start"], r["end"]) for r in rows] == [
        ("p000", 0, 0, 18), ("p001", 1, 0, 0), ("p002", 2, 0, 12)
    ]  # fmt: skip
    assert bench.run(vertices_stage, {"hops": {"granularity": "sentence"}}) == {"hop_vertices": 4}
    rows = tables.read_table(file, VERTICES).to_pylist()
    assert [(r["id"], r["passage"], r["start"], r["end"]) for r in rows] == [
        ("p000@0", 0, 0, 8), ("p000@1", 0, 9, 18), ("p001@0", 1, 0, 0), ("p002@0", 2, 0, 12)
    ]  # fmt: skip


FOUND = [
    (["Ann Lee", "Tamsin", "Ves"], [("Ann Lee", "is", "engineer"), ("Ann Lee", "born in", "Tamsin")]),
    (["Tamsin", "Ann Lee"], [("Tamsin", "lies on", "Ves")]),
]


def questions_of(bench: Any, side: str) -> list[tuple[int, str]]:
    table = tables.read_table(bench.folder("hop_questions") / f"{side}_questions.parquet", QUESTIONS)
    return list(zip(table["vertex"].to_pylist(), table["text"].to_pylist()))


def put_found(bench: Any, texts: Sequence[str]) -> None:
    bench.put_passages(texts)
    bench.put_extractions(FOUND)
    tables.write_rows(bench.folder("extraction") / "profiles.parquet", tables.PROFILES, [
        {"passage": 1, "name": "Ves", "aliases": [], "types": ["river"], "description": ""}
    ])  # fmt: skip


def test_templates_ask_both_kinds_of_questions(bench: Any) -> None:
    put_found(bench, ["Ann Lee is an engineer born in Tamsin.", "Tamsin lies on the Ves."])
    bench.run(vertices_stage)
    counts = bench.run(questions_stage, {"hops": {"simulate": "templates"}})
    assert counts == {"hop_in_questions": 6, "hop_out_questions": 3}
    assert questions_of(bench, "in") == [
        (0, "What is Ann Lee born in?"), (0, "What is Ann Lee?"),
        (0, "What is born in Tamsin?"), (0, "What is engineer?"),
        (1, "What does Tamsin lie on?"), (1, "What lies on Ves?"),
    ]  # fmt: skip
    assert questions_of(bench, "out") == [
        (0, "What about Tamsin?"), (0, "What about Ves, the river?"),
        (1, "What about Ann Lee, the engineer?"),
    ]  # fmt: skip


@pytest.mark.parametrize(("written", "kind"), [([], "river"), (["Stream"], "stream")])
def test_the_commonest_type_counts_and_ties_go_by_alphabet(bench: Any, written: list[str], kind: str) -> None:
    bench.put_passages(["Ves.", "Ann saw the Ves."])
    stated = [("Ves", "is a", "stream"), ("ves", "is a", "river"), ("Ves", "crosses", "plain")]
    bench.put_extractions([(["Ves"], stated), (["Ves", "River", "Plain"], [])])
    profile = {"passage": 1, "name": "VES", "aliases": [], "types": written, "description": ""}
    tables.write_rows(bench.folder("extraction") / "profiles.parquet", tables.PROFILES, [profile])
    bench.run(vertices_stage)
    bench.run(questions_stage, {"hops": {"simulate": "templates"}})
    asked = [text for vertex, text in questions_of(bench, "out") if vertex]
    known = [f"What about {name}?" for name in ("Plain", "River") if name.casefold() != kind]
    assert asked == sorted([*known, f"What about Ves, the {kind}?"])


def test_sentences_take_their_own_triples(bench: Any) -> None:
    """Where both ends stand, else where the object stands, else the first sentence."""
    put_found(bench, ["Ann Lee is an engineer. She was born in Tamsin.", "Ann Lee left. There it lies."])
    sentence = {"hops": {"granularity": "sentence", "simulate": "templates"}}
    bench.run(vertices_stage, sentence)
    bench.run(questions_stage, sentence)
    assert [v for v, _ in questions_of(bench, "in")] == [0, 0, 1, 1, 2, 2]
    assert (1, "What is Ann Lee born in?") in questions_of(bench, "in")
    assert (1, "What about Tamsin?") in questions_of(bench, "out")  # no subject of sentence 1


def test_an_unsettled_choice_is_an_error_and_no_llm_means_templates() -> None:
    settings = make_settings({**FAST})
    with pytest.raises(UsageError, match="not settled"):
        questions_stage.params(settings, Sources())
    settled = questions_stage.settled(settings, ModelSet(settings.models))
    assert (
        settled.section(HopSettings).simulate == "templates"
        and questions_stage.params(settled, Sources())["simulate"] == "templates"
    )


def test_keywords_are_those_of_each_text(bench: Any) -> None:
    put_found(bench, ["Ann Lee is an engineer.", "Tamsin lies on the Ves since 1902."])
    bench.run(vertices_stage)
    bench.run(questions_stage, {"hops": {"simulate": "templates"}})
    bench.run(keywords_stage)
    folder = bench.folder("hop_keywords")
    words = tables.read_table(folder / "keywords.parquet", KEYWORDS)["keyword"].to_pylist()
    assert words == sorted(set(words))
    for side in ("in", "out"):
        lists = read_lists(folder / f"{side}.parquet")
        found = [[words[v] for v in row.tolist()] for row in torch.tensor_split(lists.values, lists.offsets[1:-1])]
        assert found == [sorted(keywords(text)) for _, text in questions_of(bench, side)]
    lists = read_lists(folder / "vertex.parquet")
    assert {words[v] for v in lists.values[: int(lists.offsets[1])].tolist()} == keywords("Ann Lee is an engineer.")


def put_sides(bench: Any, n_vertices: int, sides: dict[str, list[tuple[int, set[int], Sequence[float]]]]) -> None:
    """sides["in" | "out"]: (vertex, words, unit vector) of each question, by vertex. Equal questions of different
    vertices have equal texts."""
    bench.put_passages(["text"] * n_vertices)
    bench.run(vertices_stage)
    for side, rows in sides.items():
        times: Counter[tuple[int, str]] = Counter()
        texts = []
        for vertex, words, vector in rows:
            text = f"{sorted(words)} {np.asarray(vector).tolist()}"
            times[vertex, text] += 1
            texts.append(f"{text} {times[vertex, text]}?")
        columns = {"vertex": [v for v, _, _ in rows], "text": texts}
        tables.write_table(bench.folder("hop_questions") / f"{side}_questions.parquet", QUESTIONS, columns)
        lists = ragged_of_lists([sorted(words) for _, words, _ in rows], "cpu")
        write_lists(bench.folder("hop_keywords") / f"{side}.parquet", lists)
        bench.put_vectors(f"hop_{side}_vectors", np.asarray([vector for _, _, vector in rows]).reshape(-1, 3))
    n_words = 1 + max((max(words, default=0) for rows in sides.values() for _, words, _ in rows), default=0)
    columns = {"keyword": [f"w{k:03d}" for k in range(n_words)]}
    tables.write_table(bench.folder("hop_keywords") / "keywords.parquet", KEYWORDS, columns)


def stored(bench: Any, name: str, schema: Any) -> list[tuple[Any, ...]]:
    table = tables.read_table(bench.folder("hop_edges") / f"{name}.parquet", schema)
    return [tuple(row.values()) for row in table.to_pylist()]


E0, E1, E2 = (1, 0, 0), (0, 1, 0), (0, 0, 1)
BY_HAND = {
    "in": [(0, {0}, E0), (1, {1, 2}, E1), (2, {1}, E0)],
    # 1.0 to row 2; twice .75 to row 1; .25 to row 2, row 1 (1.0) is of its own vertex; 0 to rows 0 and 1
    "out": [(0, {1}, E0), (0, {2}, E1), (0, {1}, E1), (1, {1, 2}, E1), (2, set(), E2)],
}


def check_by_hand(bench: Any) -> None:
    put_sides(bench, 3, BY_HAND)
    counts = bench.run(edges_stage)
    assert stored(bench, "matches", MATCHES) == [(2, 1.0), (1, 0.75), (1, 0.75), (2, 0.25), (0, 0.0)]
    edges = [(0, 1, 1, 1, 0.75), (0, 2, 2, 0, 1.0), (1, 2, 2, 3, 0.25), (2, 0, 0, 4, 0.0)]
    assert stored(bench, "edges", EDGES) == edges
    assert counts == {
        "hop_edges": 4, "hop_edges_uncut": 4, "hop_edges_crossing": 4, "hop_matched": 5, "hop_exact": 1
    }  # fmt: skip


def test_edges_by_hand(bench: Any) -> None:
    check_by_hand(bench)


def forget_exclusion(right: Any, words: Any, groups: Any) -> Any:
    index = join_index(right, words)
    return SimpleNamespace(best=lambda left, of_left, groups, **rest: index.best(left, of_left, **rest))


def ignore_words(right: Any, words: Any, groups: Any) -> Any:
    def none(lists: Any) -> Any:
        return type(lists)(lists.values[:0], lists.offsets * 0)

    index = join_index(right, none(words), groups=groups)
    return SimpleNamespace(best=lambda left, of_left, **rest: index.best(left, none(of_left), **rest))


@pytest.mark.parametrize("wrong", [forget_exclusion, ignore_words])
def test_wrong_joins_are_caught(bench: Any, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop_matching, "join_index", wrong)
    with pytest.raises(AssertionError):
        check_by_hand(bench)


def test_the_budget_cuts_and_keeps_the_last_edges(bench: Any) -> None:
    put_sides(bench, 3, BY_HAND)
    counts = bench.run(edges_stage, {"hops": {"edge_budget": 0}})
    assert stored(bench, "edges", EDGES) == [(0, 2, 2, 0, 1.0), (1, 2, 2, 3, 0.25), (2, 0, 0, 4, 0.0)]
    assert (counts["hop_edges"], counts["hop_edges_uncut"]) == (3, 4)
    assert len(stored(bench, "matches", MATCHES)) == 5  # kept before the cut


def drawn(seed: int) -> dict[str, list[tuple[int, set[int], Sequence[float]]]]:
    """Few directions and words, so that equal SIM is common; a third of the questions are of several vertices."""
    generator = np.random.default_rng(seed)

    def question() -> tuple[set[int], np.ndarray]:
        vector = np.eye(3)[generator.integers(0, 3)] * generator.choice([1, -1])
        return set(generator.choice(6, generator.integers(0, 4), replace=False).tolist()), vector

    sides, common = {}, [question() for _ in range(3)]
    for side, n in (("in", 14), ("out", 20)):
        vertices = np.sort(generator.integers(0, 5, n)).tolist()
        questions = [common[generator.integers(3)] if generator.random() < 0.4 else question() for _ in vertices]
        sides[side] = [(vertex, *asked) for vertex, asked in zip(vertices, questions)]
    return sides


def sim(a: tuple[int, set[int], Any], b: tuple[int, set[int], Any]) -> float:
    jaccard = len(a[1] & b[1]) / len(a[1] | b[1]) if a[1] | b[1] else 0.0
    return (jaccard + math.fsum(np.asarray(a[2], float) * np.asarray(b[2], float))) / 2


def edges_by_brute_force(
    sides: dict[str, list[Any]], n: int, factor: float, may_match: Callable[[Any, Any], bool] = lambda out, given: True
) -> list[tuple[Any, ...]]:
    best: dict[tuple[int, int], tuple[float, int, int]] = {}
    for o, out in enumerate(sides["out"]):
        others = [(-sim(out, given), i) for i, given in enumerate(sides["in"])]
        others = [other for other, given in zip(others, sides["in"]) if given[0] != out[0] and may_match(out, given)]
        if others:
            score, i = min(others)
            pair = (out[0], sides["in"][i][0])
            best[pair] = min(best.get(pair, (1.0, 0, 0)), (score, i, o))
    ranked = sorted(best, key=lambda pair: (best[pair][0], pair))
    lasts = {source: (source, target) for source, target in reversed(ranked)}
    kept = {*ranked[: math.floor(factor * n * math.log2(n))], *lasts.values()}
    return [(*pair, best[pair][1], best[pair][2], -best[pair][0]) for pair in sorted(kept)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_edges_against_brute_force(bench: Any, seed: int, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop_matching, "EXACT_ROWS", 7)
    sides = drawn(seed)
    put_sides(bench, 5, sides)
    bench.run(edges_stage, {"hops": {"edge_budget": factor}})
    assert stored(bench, "edges", EDGES) == edges_by_brute_force(sides, 5, factor)


def compare_one_row_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop_matching, "_are_first_two", lambda text: np.isin(np.arange(len(text)), unique_rows(text)))


def match_for_all_vertices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No vertex of a shared out-question is taken to have the in-question that it matches."""
    whole = hop_matching.match_texts

    def wrong(*args: Any) -> Any:
        *given, match = args
        return whole(*given, lambda *of: match(*of) if "-own" not in of[1] else (np.full(len(of[3]), -1), -np.inf))

    monkeypatch.setattr(hop_matching, "match_texts", wrong)


def exclude_the_first_vertex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop_matching, "replace", lambda side, **changed: side)


def unique_rows(text: np.ndarray) -> np.ndarray:
    return np.unique(text, return_index=True)[1]


@pytest.mark.parametrize("wrong", [compare_one_row_a_text, match_for_all_vertices, exclude_the_first_vertex])
def test_wrong_ways_to_compare_texts_once_are_caught(benches: Any, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(monkeypatch)
    right = 0
    for seed in range(12):
        bench, sides = next(benches), drawn(seed)
        put_sides(bench, 5, sides)
        bench.run(edges_stage, {"hops": {"edge_budget": 1.0}})
        right += stored(bench, "edges", EDGES) == edges_by_brute_force(sides, 5, 1.0)
    assert right < 12


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ratio", [0, 64])  # all keywords are common, or none
def test_above_the_limit_questions_that_share_a_word_are_matched(
    bench: Any, seed: int, ratio: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "RATIO", ratio)
    monkeypatch.setattr(candidates, "BLOCK", 30)
    monkeypatch.setattr(hop_matching, "NEAR_ROWS", 7)
    sides = drawn(seed)
    put_sides(bench, 5, sides)
    counts = bench.run(edges_stage, {"hops": {"exact_limit": 10}})
    expected = edges_by_brute_force(sides, 5, 1.0, lambda out, given: bool(out[1] & given[1]))
    assert stored(bench, "edges", EDGES) == expected
    n = n_sharing_a_word(sides)
    assert (counts["hop_candidates"], counts["hop_sampled"], counts["hop_sampled_and_found"]) == (1, n, n)
    assert 0 < n < 20


def n_sharing_a_word(sides: dict[str, list[Any]]) -> int:
    """The number of out-questions that share a word with their best match."""
    others = [[given for given in sides["in"] if given[0] != out[0]] for out in sides["out"]]
    best = [max(given, key=partial(sim, out)) for out, given in zip(sides["out"], others)]  # the first of equal ones
    return sum(not out[1].isdisjoint(given[1]) for out, given in zip(sides["out"], best))


def test_matches_that_buckets_hide_are_counted(benches: Iterator[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "RATIO", 0)
    monkeypatch.setattr(candidates, "BUCKET", 1)
    monkeypatch.setattr(candidates, "DRAWS", 1)
    monkeypatch.setattr(hop_matching, "SAMPLED_FROM", 5)
    hidden = []
    for seed in range(8):
        bench, sides = next(benches), drawn(seed)
        put_sides(bench, 5, sides)
        counts = bench.run(edges_stage, {"hops": {"exact_limit": 10}})
        assert counts["hop_sampled"] == n_sharing_a_word(sides)
        hidden.append(counts["hop_sampled"] - counts["hop_sampled_and_found"])
    assert min(hidden) >= 0 and max(hidden) > 0


@pytest.mark.parametrize("exact_limit", [0, 9])
def test_no_questions_no_edges(benches: Iterator[Any], exact_limit: int) -> None:
    for sides in ({"in": [], "out": [(0, {1}, E0)]}, {"in": [(0, {1}, E0)], "out": []}, {"in": [], "out": []}):
        bench = next(benches)
        put_sides(bench, 2, sides)
        counts = bench.run(edges_stage, {"hops": {"exact_limit": exact_limit}})
        assert (counts["hop_edges"], counts["hop_matched"]) == (0, 0)
