"""Adding, removing and changing passages of a finished hop graph: the same bytes as a rebuild, with less comparing."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_rag.graph.join import JoinIndex
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.verify import verify
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.methods.hoprag.stages import matching as hop_matching
from gpu_rag.methods.hoprag.stages.matching import Previous, Side, carry_over, match_exactly, rows_by_key
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


def check_growth(build_hops: Callable[..., Any], old: tuple[Any, Path], change: str) -> tuple[Any, Any]:
    """Builds the change into the folder of OLD; it must be what a build from nothing gives."""
    before, grown = old
    rebuilt, corpus = grown.parent / "rebuilt", write(grown.parent / "c.jsonl", CHANGES[change][0])
    after = build_hops(corpus, grown)
    build_hops(corpus, rebuilt)
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


def test_added_passages_are_compared_and_nothing_else(
    build_hops: Any, old: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New out-questions with all in-questions, old ones with the new in-questions."""
    pairs: list[tuple[int, int]] = []
    join = JoinIndex.best

    def counting(self: JoinIndex, left: Any, *rest: Any, **named: Any) -> Any:
        pairs.append((len(left), len(self.vectors)))
        return join(self, left, *rest, **named)

    monkeypatch.setattr(JoinIndex, "best", counting)
    before, folder = old
    after = build_hops(write(tmp_path / "c.jsonl", [*OLD, passage(20)]), folder)
    n_in, n_out = after.count("hop_in_questions"), after.count("hop_out_questions")
    n_new_in, kept = n_in - before.count("hop_in_questions"), after.stages["hop_edges"].reused
    assert [pair for pair in pairs if pair[0]] == [(n_out - kept, n_in), (kept, n_new_in)]


def forgets_new_questions(outs: Side, ins: Side, previous: Previous | None) -> Any:
    carried = carry_over(outs, ins, previous)
    return carried if previous is None else (*carried[:2], carried[2][:0])


def keeps_lost_matches(outs: Side, ins: Side, previous: Previous | None) -> Any:
    carried = carry_over(outs, ins, previous)
    if previous is None:
        return carried
    old = rows_by_key(outs.keys, previous[1])
    question = np.where(old >= 0, np.minimum(previous[2][old], len(ins.keys) - 1), -2)
    return question, np.where(old >= 0, previous[3][old], -np.inf), carried[2]


@pytest.mark.parametrize(
    ("wrong", "change"), [(forgets_new_questions, "some added between"), (keeps_lost_matches, "all at once")]
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


def test_the_approximate_mode_carries_nothing_over(build_hops: Any, old: Any, tmp_path: Path) -> None:
    corpus, folder = write(tmp_path / "c.jsonl", [*OLD, passage(20)]), old[1]
    near = {"exact_limit": 10}
    report = build_hops(corpus, folder, **near)
    assert report.stages["hop_edges"].reused == 0 and report.count("hop_candidates") == 1
    assert verify(folder, stage_checks()) == []
    assert build_hops(corpus, folder).stages["hop_edges"].reused == 0  # back to exact: from nothing


def test_an_interrupted_merge_goes_on_at_its_block(
    build_hops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hop_matching, "EXACT_ROWS", 4)
    corpus = write(tmp_path / "c.jsonl", OLD)
    build_hops(corpus, tmp_path / "whole")
    calls: list[int] = []
    join = JoinIndex.best

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
    monkeypatch.setattr(
        JoinIndex, "best", lambda self, left, *a, **k: calls.append(len(left)) or join(self, left, *a, **k)
    )
    report = build_hops(corpus, tmp_path / "ix")
    assert sum(calls) == report.count("hop_out_questions") - 3 * 4
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
    keys = np.asarray([key for *_, key in rows], "<u8").reshape(-1, 2)
    return Side(vectors, Ragged(values, offsets), torch.tensor([v for v, *_ in rows], dtype=torch.int64), keys)


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Work]:
    return (work_in(tmp_path / f"w{k}") for k in range(1000))


@pytest.mark.parametrize("seed", range(12))
def test_any_earlier_state_leads_to_the_same_matches(works: Iterator[Work], seed: int) -> None:
    choose = random.Random(seed)
    outs, ins = universe(seed, 14), universe(seed + 1000, 18)
    states = []
    for _ in range(2):
        part_out, part_in = ([row for row in rows if choose.random() < 0.7] for rows in (outs, ins))
        states.append((side(part_out), side(part_in)))
    (old_out, old_in), (new_out, new_in) = states
    old = match_exactly(next(works), old_out, old_in, None)
    expected = match_exactly(next(works), new_out, new_in, None)
    found = match_exactly(next(works), new_out, new_in, (old_in.keys, old_out.keys, *old))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected))


def test_another_order_of_the_in_questions_carries_nothing_over(works: Iterator[Work]) -> None:
    """Among equal SIM the lower row counts, so a match made in another order says nothing."""
    rows = [(1, [1], np.eye(4)[0], (7, 8)), (2, [1], np.eye(4)[0], (9, 9))]
    outs = side([(0, [1], np.eye(4)[0], (5, 5))])
    old_in = side(rows)
    question, sim = match_exactly(next(works), outs, old_in, None)
    assert question.tolist() == [0]
    turned = side([(1, *rows[1][1:]), (2, *rows[0][1:])])
    carried = carry_over(outs, turned, (old_in.keys, outs.keys, question, sim))
    assert carried[0].tolist() == [-2] and carried[2].tolist() == [0, 1]
    previous = (old_in.keys, outs.keys, question, sim)
    assert match_exactly(next(works), outs, turned, previous)[0].tolist() == [0]


def test_rows_by_key() -> None:
    known = np.asarray([[5, 1], [0, 0], [5, 2]], "<u8")
    keys = np.asarray([[5, 2], [5, 3], [0, 0]], "<u8")
    assert rows_by_key(keys, known).tolist() == [2, -1, 1]
    assert rows_by_key(keys[:0], known).tolist() == [] and rows_by_key(keys, known[:0]).tolist() == [-1] * 3
