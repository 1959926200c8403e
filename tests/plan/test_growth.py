"""Plans extrapolate with: lines through noisy costs, powers of counts, draws of streams, and pairs of hop questions."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.index.work import Silent, Sources
from gpu_rag.index.workers import START_S, n_workers
from gpu_rag.methods.hoprag.stages import edges
from gpu_rag.methods.registry import all_stages
from gpu_rag.models.set import ModelSet
from gpu_rag.plan import index_plan, trial
from gpu_rag.plan.index_plan import MIN_SHARE, growth, on_line, plan_index
from gpu_rag.plan.trial import BuildJob, read_corpus
from gpu_rag.settings import make_settings

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


@given(st.floats(0, 100), st.floats(0, 10), st.floats(1, 50), st.floats(1.1, 9))
@SETTINGS
def test_an_exact_line_is_found(fixed: float, each: float, size: float, more: float) -> None:
    points = (size, fixed + each * size, size * more, fixed + each * size * more)
    assert on_line(*points, size * more) == pytest.approx(points[3], abs=1e-6)
    if each * size * more >= MIN_SHARE * points[3]:
        assert on_line(*points, 1e4) == pytest.approx(fixed + 1e4 * each, rel=1e-6, abs=1e-3)


@given(st.floats(0, 5), st.floats(0, 5), st.floats(1, 9))
@SETTINGS
def test_noise_gives_neither_a_falling_nor_a_steeper_than_proportional_line(a: float, b: float, more: float) -> None:
    fixed, at = on_line(1, a, 1 + more, b, 0), on_line(1, a, 1 + more, b, 100)
    each = (at - fixed) / 100
    assert fixed >= -1e-9 and MIN_SHARE * b / (1 + more) <= each * (1 + 1e-9) + 1e-12
    assert each <= b / (1 + more) * (1 + 1e-6) + 1e-12


def test_nothing_to_extrapolate_from() -> None:
    assert on_line(0, 0, 0, 3, 100) == 3
    assert growth(0, 0, 0, 0, 0, 1) == {"k": 0, "beta": 1}


def test_powers() -> None:
    assert growth(10, 10, 20, 40, 1, 3)["beta"] == pytest.approx(2)
    assert growth(10, 10, 20, 15, 1, 1.5)["beta"] == 1
    assert growth(10, 1, 20, 40, 1, 1.5)["beta"] == 1.5
    assert growth(10, 10, 20, 10, 0, 1) == {"k": 10, "beta": 0}


@pytest.mark.parametrize("seed", range(3))
def test_two_samples_tell_how_names_grow(seed: int) -> None:
    """Passages of 12 names drawn from a long-tailed distribution, as names in text are."""
    draw = np.random.default_rng(seed)
    passages = [set((draw.pareto(0.6, 12) * 10).astype(np.int64).tolist()) for _ in range(2000)]
    sample = random.Random(seed).sample(passages, 100)
    small, full, whole = (len(set().union(*part)) for part in (sample[:50], sample, passages))
    law = growth(50, small, 100, full, 0, 1)
    assert law["k"] * 100 ** law["beta"] == pytest.approx(full)
    assert law["k"] * 2000 ** law["beta"] == pytest.approx(whole, rel=0.3)
    assert 0 < law["beta"] < 1 and full * 20 > 1.3 * whole  # linear would be off


def test_names_that_passages_share_are_seen_in_the_whole_corpus(tmp_path: Path) -> None:
    """Runs of words with a capital, each once. Passages repeat after 10, and a draw of 8 rarely shows it."""
    texts = [f"Marta Orlo met Bo {'abcdefghij'[k % 10].upper()} at the Port of Ves." for k in range(100)]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{k}", "text": text}) + "\n" for k, text in enumerate(texts)))
    _, corpus, sample = read_corpus(Sources((path,)), make_settings({}), 8, Silent())
    assert corpus.n_written_names() == 2 + 10  # Marta Orlo, Port of Ves
    assert sample.n_written_names() == 2 + len(set(sample.passages["text"].to_pylist()))


def rows(folder: Path, n: int) -> Path:
    path = folder / "c.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{k:03d}", "text": f"text {k}"}) + "\n" for k in range(n)))
    return path


def drawn(corpus: Path, k: int, seed: int) -> list[int]:
    settings = make_settings({"runtime": {"seed": seed}})
    counts, _, sample = read_corpus(Sources((corpus,)), settings, k, Silent())
    assert counts["passages"] == counts["extracted"] == counts["documents"] >= len(sample)
    return [int(id[1:]) for id in sample.passages["id"].to_pylist()]


def check_draw(draw: Callable[[Path, int, int], list[int]], folder: Path) -> None:
    for n in (1, 7, 8, 9, 100):
        corpus = rows(folder, n)
        for seed in range(2):
            found = draw(corpus, 8, seed)
            assert found == draw(corpus, 8, seed) and len(set(found)) == len(found) == min(n, 8)
    draws = [draw(corpus, 8, seed) for seed in range(60)]
    counts = np.bincount([i // 25 for found in draws for i in found], minlength=4) / 60
    assert np.all(abs(counts - 2) < 0.5)  # every part of the corpus has its share ...
    assert len({i for found in draws for i in found}) > 95  # ... and any passage may be drawn
    assert any(found[:4] > found[4:] for found in draws) and any(found[:4] < found[4:] for found in draws)


def test_a_draw_is_fair_and_repeats(tmp_path: Path) -> None:
    check_draw(drawn, tmp_path)


def test_the_check_of_draws_sees_wrong_ones(tmp_path: Path) -> None:
    def first(corpus: Path, k: int, seed: int) -> list[int]:
        return list(range(min(len(corpus.read_text().splitlines()), k)))

    def spread(corpus: Path, k: int, seed: int) -> list[int]:
        n = len(corpus.read_text().splitlines())
        return [i * n // k for i in range(min(n, k))]

    for wrong in (first, spread):
        with pytest.raises(AssertionError):
            check_draw(wrong, tmp_path)


def test_a_trial_reads_the_ready_extractions_of_its_passages_alone(tmp_path: Path) -> None:
    corpus, openie = rows(tmp_path, 30), tmp_path / "openie.jsonl"
    ids = [*(f"d{k:03d}" for k in range(30)), "other"]
    openie.write_text("".join(json.dumps({"id": id, "entities": [id], "triples": []}) + "\n" for id in ids))
    sources = Sources((corpus,), openie=(openie,))
    _, _, sample = read_corpus(sources, make_settings({}), 8, Silent())
    (kept,) = trial.keep_drawn(sources, sample, tmp_path).openie
    kept_rows = [(row["id"], row["entities"]) for row in map(json.loads, kept.open())]
    assert kept_rows == [(id, [id]) for id in sorted(sample.passages["id"].to_pylist())]


def test_names_are_counted_on_the_whole_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the other stages stop at a smaller one, because they take long."""
    draw, path = np.random.default_rng(0), tmp_path / "c.jsonl"
    names = (draw.pareto(0.6, (512, 2)) * 10).astype(np.int64).tolist()
    texts = [f"Mr {chr(65 + a % 26)}x{a}o met Bo {chr(65 + b % 26)}y{b}." for a, b in names]
    path.write_text("".join(json.dumps({"id": f"d{k}", "text": text}) + "\n" for k, text in enumerate(texts)))
    chosen = make_settings({"models": {"embedder": "hash", "llm": "none"}})
    layers = [all_stages()[name] for name in ("passages", "extraction", "entities")]
    job = BuildJob(tmp_path / "ix", layers, chosen, Sources((path,)), ModelSet(chosen.models))
    whole = plan_index(job, n_sample=512)
    monkeypatch.setattr(index_plan, "LONG_S", -1.0)
    short = plan_index(job)
    assert short["sample"] < whole["sample"] == 512
    assert (short["entities"], short["relations"]) == (whole["entities"], whole["relations"]) != (0, 0)
    monkeypatch.setattr(index_plan, "COUNTING", ("",))
    assert plan_index(job)["relations"] != whole["relations"], "the smaller sample tells it too"


def test_memory_grows_from_the_largest_run_of_each_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = trial.run_stages

    def run_stages(*args: Any) -> dict[str, trial.Cost]:
        costs = really(*args)
        for cost in costs.values():
            cost.base_bytes, cost.peak_memory_bytes = 100, 1000 * len(args[-1])
        return costs

    monkeypatch.setattr(trial, "run_stages", run_stages)
    for name, value in {"DEFAULT_SAMPLE": 64, "LEAST": 1, "LONG_S": -1.0, "KEPT": 0.0}.items():
        monkeypatch.setattr(index_plan, name, value)
    chosen = make_settings({"models": {"embedder": "hash", "llm": "none"}})
    layers = [all_stages()[name] for name in ("passages", "bm25", "extraction", "entities")]
    job = BuildJob(tmp_path / "ix", layers, chosen, Sources((rows(tmp_path, 256),)), ModelSet(chosen.models))
    stages = plan_index(job)["stages"]
    assert stages["entities"]["peak_memory_bytes"] == pytest.approx(100 + 64_000 * 4**0.7, rel=0.01)
    assert stages["bm25"]["peak_memory_bytes"] == pytest.approx(100 + 4_000 * 64**0.7, rel=0.05)  # ran on 4 at most
    monkeypatch.setattr(index_plan, "KEPT", 0.5)
    kept = plan_index(job)["stages"]["entities"]["peak_memory_bytes"] - stages["entities"]["peak_memory_bytes"]
    assert kept == pytest.approx(max(stages[layer.name]["peak_memory_bytes"] - 100 for layer in layers[:3]) / 2, abs=2)


def test_what_workers_share_is_divided_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = trial.run_stages

    def run_stages(job: BuildJob, *args: Any) -> dict[str, trial.Cost]:
        assert n_workers(job.settings) == 1, "a trial measures one"
        costs = really(job, *args)
        for cost in costs.values():
            cost.s, cost.shared_s = 1.0 * len(args[-1]), 0.75 * len(args[-1])
        return costs

    monkeypatch.setattr(trial, "run_stages", run_stages)
    layers = [all_stages()[name] for name in ("passages", "extraction")]
    seconds = []
    for n in (1, 2, 16):
        chosen = make_settings({"models": {"embedder": "hash", "llm": "none"}, "index": {"workers": n}})
        job = BuildJob(tmp_path / f"i{n}", layers, chosen, Sources((rows(tmp_path, 256),)), ModelSet(chosen.models))
        seconds.append(plan_index(job, n_sample=64)["stages"]["extraction"]["s"])
    assert seconds == pytest.approx([256 - (192 - START_S) * share for share in (0, 1 / 2, 15 / 16)], abs=0.1)


def test_a_slow_small_run_does_not_make_seconds_negative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small run that something held up looks as if the rest did not grow, and the shared part did."""
    really = trial.run_stages

    def run_stages(job: BuildJob, *args: Any) -> dict[str, trial.Cost]:
        costs = really(job, *args)
        for cost in costs.values():
            n = len(args[-1])
            cost.s, cost.shared_s = (2.5, 2.4) if n == 64 else (1.8, 2.4 * n / 64)
        return costs

    monkeypatch.setattr(trial, "run_stages", run_stages)
    chosen = make_settings({"models": {"embedder": "hash", "llm": "none"}, "index": {"workers": 16}})
    layers = [all_stages()[name] for name in ("passages", "extraction")]
    job = BuildJob(tmp_path / "ix", layers, chosen, Sources((rows(tmp_path, 4096),)), ModelSet(chosen.models))
    assert plan_index(job, n_sample=64)["stages"]["extraction"]["s"] > 2.5


def hop_plan(folder: Path, corpus: Path, **hops: int) -> dict[str, float]:
    settings = make_settings({"models": {"embedder": "hash", "llm": "none"}, "hops": hops})
    names = ["passages", "extraction", "hop_vertices", "hop_questions", "hop_keywords", "hop_in_vectors"]
    layers = [all_stages()[name] for name in [*names, "hop_out_vectors", "hop_edges"]]
    job = BuildJob(folder, layers, settings, Sources((corpus,)), ModelSet(settings.models))
    stage: dict[str, float] = plan_index(job)["stages"]["hop_edges"]
    return stage


def test_pairs_of_questions_are_counted_where_all_are_compared(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_plan, "pairs_per_second", lambda dim, are_all: 1.0)
    stage = hop_plan(tmp_path / "ix", tiny_corpus)
    assert stage["grows_with"] == "questions squared" and stage["s"] > 100  # at one pair a second
    assert hop_plan(tmp_path / "iy", tiny_corpus, exact_limit=0)["s"] > edges.CANDIDATES_COST
    monkeypatch.setattr(edges, "CANDIDATES_COST", 0.0)
    assert hop_plan(tmp_path / "iz", tiny_corpus, exact_limit=0)["s"] < 100


def test_other_texts_get_vectors_that_are_not_near(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = ModelSet(make_settings({"models": {"embedder": "hash", "llm": "none"}}).models).embedder()
    texts = [f"word{k} of {k * k}" for k in range(40)]
    monkeypatch.setattr(trial, "MAX_TEXTS", 10)
    quick = trial.CappedEmbedder(inner)
    assert np.array_equal(quick.embed(texts), inner.embed(texts)) and quick.owed_s == 0, "a fast one embeds all"
    monkeypatch.setattr(trial, "QUICK_S", 0.0)
    slow = trial.CappedEmbedder(inner)
    vectors = slow.embed(texts)
    assert np.array_equal(vectors[:10], inner.embed(texts[:10])) and slow.owed_s > 0
    assert np.abs(np.triu(vectors @ vectors.T, 1)).max() < 0.9, "copies would have a cosine of 1"
    assert slow.embed([]).shape == (0, inner.dim)
    narrow = SimpleNamespace(embed=lambda texts, _: np.eye(32, dtype=np.float32)[: len(texts)] + np.arange(1, 33))
    assert len(np.unique(trial.CappedEmbedder(narrow).embed(texts * 9), axis=0)) == 360, "more than dimensions"
