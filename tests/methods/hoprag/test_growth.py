"""Adding, removing and changing passages of a finished hop graph: the same bytes as a rebuild, with less comparing."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_rag.graph.join import JoinIndex, candidates
from gpu_rag.index import tables
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.stages.search import rows_by_key
from gpu_rag.index.verify import verify
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.methods.hoprag.stages import edges as hop_edges
from gpu_rag.methods.hoprag.stages import matching as hop_matching
from gpu_rag.methods.hoprag.stages import questions, words
from gpu_rag.methods.hoprag.stages.matching import Previous, Side, best_matches, carry_over, match_exactly
from gpu_rag.methods.hoprag.stages.questions import questions_stage
from gpu_rag.methods.hoprag.stages.vertices import vertices_stage
from gpu_rag.methods.hoprag.tables import (
    QUESTIONS,
    VERTICES,
    questions_file,
    read_questions,
    same_questions,
    same_texts,
)
from gpu_rag.methods.registry import stage_checks
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import make_settings
from gpu_rag.types import Ragged

NAMES = ["Orlo", "Ruyven", "Stroud", "Brandt", "Kessel", "Tamm", "Kerling", "Tamsin", "Halden"]
Rows = list[dict[str, str]]


def passage(k: int, shift: int = 0) -> dict[str, str]:
    a, b, c = (NAMES[(k * step + shift) % len(NAMES)] for step in (1, 2, 5))
    text = f"{a} {k} was born in {b}. {a} {k} studied under {c} {k + 1} in {1850 + k}. The town of {b} lies on {c}."
    return {"id": f"d{k:03d}", "title": f"{a} {k}", "text": text}


def write(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of the hop layers, by its place."""
    stages = Manifest.read(folder).stages
    hops = {name: folder / record.folder for name, record in stages.items() if name.startswith("hop_")}
    return {f"{name}/{p.name}": p.read_bytes() for name, stage in hops.items() for p in stage.iterdir()}


OLD = [passage(k) for k in (0, 2, 3, 5, 8, 9, 11, 12)]
CHANGES: dict[str, tuple[Rows, bool]] = {  # what the corpus becomes, and whether every old match can be kept
    "one added at the end": ([*OLD, passage(20)], True),
    "some added between": (sorted([*OLD, passage(1), passage(4), passage(7)], key=lambda row: row["id"]), True),
    "one removed": (OLD[:3] + OLD[4:], False),
    "one changed": ([*OLD[:4], passage(8, shift=1), *OLD[5:]], False),
    "all at once": ([passage(1), *OLD[1:5], passage(9, shift=1), passage(12), passage(30)], False),
    "nothing": (OLD, True),
    "none is left": ([passage(40), passage(41)], False),
    "many added": ([*OLD, *(passage(k) for k in range(20, 40))], True),
}


@pytest.fixture(scope="module")
def built(build_hops: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The report of a build of OLD, and its folder, of which tests take copies."""
    folder = tmp_path_factory.mktemp("old")
    return build_hops(write(folder / "c.jsonl", OLD), folder / "ix"), folder / "ix"


@pytest.fixture
def old(built: tuple[Any, Path], tmp_path: Path) -> tuple[Any, Path]:
    """The report of a build of OLD, and a folder with that index."""
    shutil.copytree(built[1], tmp_path / "ix")
    return built[0], tmp_path / "ix"


def check_growth(build_hops: Callable[..., Any], old: tuple[Any, Path], change: str, **hops: Any) -> tuple[Any, Any]:
    """Builds the change into the folder of OLD; it must be what a build from nothing gives."""
    before, grown = old
    rebuilt, corpus = grown.parent / "rebuilt", write(grown.parent / "c.jsonl", CHANGES[change][0])
    after = build_hops(corpus, grown, **hops)
    build_hops(corpus, rebuilt, **hops)
    assert files_of(grown) == files_of(rebuilt)
    assert Manifest.read(grown).digest() == Manifest.read(rebuilt).digest() and verify(grown, stage_checks()) == []
    return before, after


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_corpus_gives_the_bytes_of_a_rebuild(build_hops: Any, old: Any, change: str) -> None:
    before, after = check_growth(build_hops, old, change)
    n_before = before.count("hop_out_questions")
    stage = after.stages["hop_edges"]
    assert before.stages["hop_edges"].reused == 0
    if change == "nothing":
        assert stage.skipped
    elif change == "none is left":
        assert stage.reused == 0
    elif CHANGES[change][1]:
        assert n_before * 0.5 < stage.reused <= n_before  # questions whose type words changed are new
    else:
        assert 0 < stage.reused < n_before


def test_titles_that_stayed_keep_their_keywords(
    build_hops: Any, old: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong version keeps those of the changed title too."""
    corpus, wrong = write(tmp_path / "c.jsonl", CHANGES["one changed"][0]), tmp_path / "wrong"
    shutil.copytree(old[1], wrong)
    assert build_hops(corpus, old[1]).stages["hop_words"].reused == len(OLD) - 1
    monkeypatch.setattr(words, "unchanged_rows", lambda *_: np.arange(len(OLD)))
    build_hops(corpus, wrong)
    assert files_of(wrong) != files_of(old[1])


def test_added_passages_are_compared_and_nothing_else(
    build_hops: Any, old: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New out-questions with all in-questions, old ones with the new in-questions, each text once."""
    pairs: list[tuple[int, int]] = []
    join = JoinIndex.best

    def counting(self: JoinIndex, left: Any, *rest: Any, **named: Any) -> Any:
        pairs.append((len(left), len(self.vectors)))
        return join(self, left, *rest, **named)

    monkeypatch.setattr(JoinIndex, "best", counting)
    before, folder = old
    n_texts = len(text_counts(folder, "out"))
    after = build_hops(write(tmp_path / "c.jsonl", [*OLD, passage(20)]), folder)
    n_new_in, n_new_out = (after.count(n) - before.count(n) for n in ("hop_in_questions", "hop_out_questions"))
    assert after.stages["hop_edges"].reused == before.count("hop_out_questions")
    n_in = np.minimum(text_counts(folder, "in"), 2).sum()
    assert [pair for pair in pairs if pair[0]] == [(n_new_out, n_in), (n_texts, n_new_in)]


def text_counts(folder: Path, side: str) -> np.ndarray:
    """The number of vertices of each question."""
    questions = folder / Manifest.read(folder).stages["hop_questions"].folder
    return np.unique(read_questions(questions, side)["text"].to_pylist(), return_counts=True)[1]


def forgets_new_questions(previous: Previous) -> Any:
    carried = carry_over(previous)
    return (*carried[:2], carried[2][:0])


def keeps_lost_matches(previous: Previous) -> Any:
    old_in, old, matched, scores = previous
    question = np.where(old >= 0, np.minimum(matched[old], len(old_in) - 1), -2)
    return question, np.where(old >= 0, scores[old], -np.inf), carry_over(previous)[2]


@pytest.mark.parametrize(
    ("wrong", "change"), [(forgets_new_questions, "many added"), (keeps_lost_matches, "all at once")]
)
def test_wrong_ways_of_carrying_over_are_caught(
    build_hops: Any, old: Any, wrong: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hop_matching, "carry_over", wrong)
    with pytest.raises(AssertionError):
        check_growth(build_hops, old, change)


def test_a_damaged_or_older_state_is_not_carried_over(build_hops: Any, old: Any, tmp_path: Path) -> None:
    corpus, folder = tmp_path / "c.jsonl", old[1]
    path = folder / Manifest.read(folder).stages["hop_edges"].folder / "matches.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))  # the same size: only the checksum tells
    write(corpus, [*OLD, passage(20)])
    assert build_hops(corpus, folder).stages["hop_edges"].reused == 0
    assert verify(folder, stage_checks()) == []


@pytest.fixture
def near(build_hops: Any, old: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path]:
    """The same as `old`, with matches among candidates; words of more than 2 in-questions have buckets."""
    monkeypatch.setattr(candidates, "RATIO", 0)
    monkeypatch.setattr(candidates, "BUCKET", 2)
    report = build_hops(old[1].parent / "c.jsonl", old[1], exact_limit=10)
    assert report.stages["hop_edges"].reused == 0 and report.count("hop_candidates") == 1
    return report, old[1]


@pytest.fixture(autouse=True)
def _old_rows(tmp_path: Path) -> None:
    write(tmp_path / "c.jsonl", OLD)


@pytest.mark.parametrize("change", CHANGES)
def test_candidates_are_kept_too(build_hops: Any, near: Any, change: str) -> None:
    _, after = check_growth(build_hops, near, change, exact_limit=10)
    stage = after.stages["hop_edges"]
    kept = {"one added at the end", "all at once"}  # no word has other buckets
    assert stage.skipped or (stage.reused > 0) == (change in kept)


def test_buckets_that_changed_are_noticed(build_hops: Any, near: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong version that keeps all matches where a word got more buckets."""
    monkeypatch.setattr(hop_edges, "_buckets", lambda *_: {})
    with pytest.raises(AssertionError):
        test_candidates_are_kept_too(build_hops, near, "many added")


def test_matches_of_another_mode_are_not_kept(build_hops: Any, old: Any, tmp_path: Path) -> None:
    limit = old[0].count("hop_in_questions")
    build_hops(tmp_path / "c.jsonl", old[1], exact_limit=limit)
    _, after = check_growth(build_hops, old, "one added at the end", exact_limit=limit)
    assert after.stages["hop_edges"].reused == 0 and after.count("hop_candidates") == 1
    build_hops(write(tmp_path / "c.jsonl", OLD), old[1], exact_limit=limit)
    assert Manifest.read(old[1]).stages["hop_edges"].counts["hop_exact"] == 1


def test_an_interrupted_merge_goes_on_at_its_block(
    build_hops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hop_matching, "EXACT_ROWS", 4)
    corpus = write(tmp_path / "c.jsonl", OLD)
    calls: list[int] = []
    join = JoinIndex.best

    def counted(self: JoinIndex, left: Any, *rest: Any, **named: Any) -> Any:
        calls.append(len(left))
        return join(self, left, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(JoinIndex, "best", counted)
        build_hops(corpus, tmp_path / "whole")
    n_whole = sum(calls)
    calls.clear()

    def interrupted(self: JoinIndex, left: Any, *rest: Any, **named: Any) -> Any:
        if len(left):
            calls.append(len(left))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return join(self, left, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(JoinIndex, "best", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_hops(corpus, tmp_path / "ix")
    calls.clear()
    monkeypatch.setattr(JoinIndex, "best", counted)
    build_hops(corpus, tmp_path / "ix")
    assert sum(calls) == n_whole - 3 * 4
    assert Manifest.read(tmp_path / "ix").digest() == Manifest.read(tmp_path / "whole").digest()


def work_in(folder: Path) -> Work:
    settings = make_settings({"models": {"embedder": "hash", "llm": "none"}})
    return Work(folder, folder, {}, settings, Sources(), ModelSet(settings.models), Silent(), StageReport())


def universe(seed: int, n: int) -> list[tuple[int, list[int], np.ndarray, tuple[int, int]]]:
    """Questions (vertex, words, vector, key) in the order of their rows; directions and words are few."""
    generator = np.random.default_rng(seed)
    rows = []
    for vertex in np.sort(generator.integers(0, 6, n)).tolist():
        words = np.sort(generator.choice(5, generator.integers(0, 4), replace=False)).tolist()
        vector = np.eye(4)[generator.integers(0, 4)] * generator.choice([1, -1])
        rows.append((vertex, words, vector, tuple(generator.integers(1, 2**62, 2).tolist())))
    return rows


def side(rows: Sequence[tuple[int, list[int], np.ndarray, tuple[int, int]]]) -> Side:
    values = torch.tensor([word for _, words, _, _ in rows for word in words], dtype=torch.int32)
    offsets = torch.tensor(np.cumsum([0] + [len(words) for _, words, _, _ in rows]))
    vectors = torch.from_numpy(np.asarray([v for _, _, v, _ in rows], np.float16).reshape(-1, 4))
    vertex = torch.tensor([v for v, *_ in rows], dtype=torch.int64)
    return Side(vectors, Ragged(values, offsets), vertex, np.arange(len(rows)))


def earlier(new: Sequence[Any], old: Sequence[Any]) -> np.ndarray:
    """The earlier row of each question, by its key."""
    return np.asarray([next((k for k, row in enumerate(old) if row[3] == key), -1) for *_, key in new], np.int64)


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Work]:
    return (work_in(tmp_path / f"w{k}") for k in range(1000))


@pytest.mark.parametrize("seed", range(12))
def test_any_earlier_state_leads_to_the_same_matches(works: Iterator[Work], seed: int) -> None:
    choose = random.Random(seed)
    outs, ins = universe(seed, 14), universe(seed + 1000, 18)
    states = []
    for _ in range(2):
        states.append([[row for row in rows if choose.random() < 0.7] for rows in (outs, ins)])
    (old_out, old_in), (new_out, new_in) = states
    old = best_matches(next(works), side(old_out), side(old_in), None, match_exactly)
    expected = best_matches(next(works), side(new_out), side(new_in), None, match_exactly)
    previous = (earlier(new_in, old_in), earlier(new_out, old_out), *old)
    found = best_matches(next(works), side(new_out), side(new_in), previous, match_exactly)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected))


def test_another_order_of_the_in_questions_carries_nothing_over(works: Iterator[Work]) -> None:
    """Among equal SIM the lower row counts, so a match made in another order says nothing."""
    rows = [(1, [1], np.eye(4)[0], (7, 8)), (2, [1], np.eye(4)[0], (9, 9))]
    outs = side([(0, [1], np.eye(4)[0], (5, 5))])
    question, sim = best_matches(next(works), outs, side(rows), None, match_exactly)
    assert question.tolist() == [0]
    turned = [(1, *rows[1][1:]), (2, *rows[0][1:])]
    previous = earlier(turned, rows), np.asarray([0]), question, sim
    carried = carry_over(previous)
    assert carried[0].tolist() == [-2] and carried[2].tolist() == [0, 1]
    assert best_matches(next(works), outs, side(turned), previous, match_exactly)[0].tolist() == [0]


NAME = st.sampled_from(["Ves", "ves", "River", "Tamsin", "Stream"])
STATED = st.tuples(
    NAME, st.sampled_from(["is a", "IS", "crosses"]), st.sampled_from(["river", "stream", "tamsin", "Ves"])
)
TEXT = st.sampled_from(["", "River Ves.", "Ves is a river. Tamsin is a stream."])
TYPES = st.lists(st.sampled_from(["river", "Tamsin"]), max_size=2)
DOCUMENT = st.tuples(TEXT, st.lists(NAME, max_size=3), st.lists(STATED, max_size=3), TYPES)
DOCUMENTS = st.dictionaries(st.sampled_from("abcdefg"), DOCUMENT, min_size=1)
FREE = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def question_files(bench: Any, documents: dict[str, Any], granularity: str, before: Any = None) -> list[bytes]:
    ids = sorted(documents)
    texts, names, triples, types = zip(*(documents[id] for id in ids))
    rows = [{"id": i, "doc_id": i, "title": "", "text": t, "start": 0, "end": len(t)} for i, t in zip(ids, texts)]
    bench.put("passages", rows)
    bench.put_extractions(list(zip(names, triples)))
    profiles = [
        {"passage": row, "name": own[0], "aliases": [], "types": kinds, "description": ""}
        for row, (own, kinds) in enumerate(zip(names, types))
        if own
    ]
    tables.write_rows(bench.folder("extraction") / "profiles.parquet", tables.PROFILES, profiles)
    chosen = {"hops": {"granularity": granularity, "simulate": "templates"}}
    bench.run(vertices_stage, chosen)
    bench.run(questions_stage, chosen, before=before)
    return [path.read_bytes() for path in sorted(bench.folder("hop_questions").iterdir())]


def check_questions(benches: Iterator[Any], old: Any, new: Any, granularities: tuple[str, str]) -> None:
    before, bench = next(benches), next(benches)
    question_files(before, old, granularities[0])
    expected = question_files(next(benches), new, granularities[1])
    assert question_files(bench, new, granularities[1], before) == expected
    if old == new and granularities[0] == granularities[1]:
        assert bench.report.reused == 2 * tables.n_rows(bench.folder("hop_vertices") / "vertices.parquet")


GRANULARITY = st.sampled_from(["passage", "sentence"])


@given(DOCUMENTS, DOCUMENTS, st.sets(st.sampled_from("abcdefg")), st.tuples(GRANULARITY, GRANULARITY))
@FREE
def test_questions_of_any_earlier_run(benches: Iterator[Any], old: Any, more: Any, gone: Any, both: Any) -> None:
    new = {id: own for id, own in {**more, **old}.items() if id not in gone} or old
    check_questions(benches, old, new, both)


@pytest.mark.parametrize("relation", ["is a", "crosses"])
def test_a_name_whose_type_changed_is_asked_about_anew(
    benches: Iterator[Any], relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong version keeps the questions of all passages that stayed. Nothing is made anew if no type changed."""
    old = {"a": ("", ["Ves"], [], []), "b": ("", ["River"], [], [])}
    new = {**old, "c": ("", [], [("Ves", relation, "river")], [])}
    check_questions(benches, old, new, ("passage", "passage"))
    monkeypatch.setattr(questions, "_changed_names", lambda *_: pa.array([], pa.large_string()))
    if relation == "crosses":
        check_questions(benches, old, new, ("passage", "passage"))
        return
    with pytest.raises(AssertionError):
        check_questions(benches, old, new, ("passage", "passage"))


def put_pairs(bench: Any, pairs: list[tuple[str, str]]) -> dict[str, Path]:
    """Questions as pairs of a vertex and a text. Returns the folders of both stages."""
    ids, folders = sorted(dict(pairs)), {name: bench.folder(name) for name in ("hop_vertices", "hop_questions")}
    rows = [{"id": id, "passage": row, "start": 0, "end": 0} for row, id in enumerate(ids)]
    tables.write_rows(folders["hop_vertices"] / "vertices.parquet", VERTICES, rows)
    questions = [{"vertex": ids.index(id), "text": text} for id, text in pairs]
    tables.write_rows(questions_file(folders["hop_questions"], "in"), QUESTIONS, questions)
    return folders


PAIRS = st.sets(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")))


@given(PAIRS, PAIRS, PAIRS)
@FREE
def test_rows_of_earlier_questions(benches: Iterator[Any], both: Any, only_old: Any, only_new: Any) -> None:
    old, new = sorted(both | only_old), sorted(both | only_new)
    before, now = put_pairs(next(benches), old), put_pairs(next(benches), new)
    assert same_questions("in", now, before).tolist() == [old.index(pair) if pair in old else -1 for pair in new]
    rows = same_texts("in", now["hop_questions"], before["hop_questions"]).tolist()
    assert [old[row][1] if row >= 0 else "" for row in rows] == [
        t if t in dict(map(reversed, old)) else "" for _, t in new
    ]


def test_rows_by_key() -> None:
    known = np.asarray([[5, 1], [0, 0], [5, 2]], "<u8")
    keys = np.asarray([[5, 2], [5, 3], [0, 0]], "<u8")
    assert rows_by_key(keys, known).tolist() == [2, -1, 1]
    assert rows_by_key(keys[:0], known).tolist() == [] and rows_by_key(keys, known[:0]).tolist() == [-1] * 3
