"""Pairs of entities that share a key: all pairs to which a rule applies, in parts of any size, after a change too."""

import shutil
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from gpu_rag.index import tables
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.methods.higra.stages import sharing
from gpu_rag.methods.higra.stages.sharing import sharing_pairs
from gpu_rag.methods.higra.tables import EXACT_ENTITIES
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import make_settings
from gpu_rag.text.rules.same_name import NameRules, rule_keys

NAMES = {
    "ann b. orlo": ["Ann B. Orlo"],
    "ann orlo": ["Ann Orlo", "A. Orlo"],
    "bo": ["Bo", "Vale Society"],
    "j. vale": ["J. Vale"],
    "john vale": ["John Vale"],
    "josef vale": ["Josef Vale"],
    "the vale": ["The Vale"],
    "vale": ["Vale", "The Vale"],
    "vale society": ["Vale Society"],
}
EXPECTED = {(0, 1), (2, 8), (3, 4), (3, 5), (6, 7)}  # John and Josef are no pair by the initial of J.


Names = dict[str, list[str]]


def found(root: Path, names: Names, before: Path | None = None) -> tuple[list[tuple[int, int]], int]:
    """The pairs as they come, and the number of rows whose keys were kept."""
    (root / "higra_exact").mkdir(parents=True)
    (root / "out").mkdir()
    others = {"types": [], "descriptions": [], "members": [0], "passages": []}
    rows = [{"id": id, "name": ways[0], "aliases": ways[1:], **others} for id, ways in sorted(names.items())]
    tables.write_rows(root / "higra_exact" / FILE, EXACT_ENTITIES, rows)
    folders, models = {"higra_exact": root / "higra_exact"}, cast(ModelSet, None)
    work = Work(root / "out", root, folders, make_settings({}), Sources(), models, Silent(), StageReport())
    if before is not None:
        work.previous, work.previous_inputs = before / "out", {"higra_exact": before / "higra_exact"}
    table = tables.read_table(root / "higra_exact" / FILE, EXACT_ENTITIES)
    parts = [np.stack(part, 1).tolist() for part in sharing_pairs(work, table)]
    return [(a, b) for part in parts for a, b in part], work.report.reused


FILE = "higra_exact_entities.parquet"


@pytest.mark.parametrize("most", [1, 3, 1 << 20])
def test_pairs_in_parts_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(sharing, "PAIRS", most)
    pairs, kept = found(tmp_path, NAMES)
    assert set(pairs) == EXPECTED and all(a < b for a, b in pairs) and kept == 0


def test_every_pair_of_a_rule_shares_a_key(tmp_path: Path) -> None:
    rules = NameRules({row: NAMES[id] for row, id in enumerate(sorted(NAMES))}, None)
    pairs = [pair for pair in combinations(range(len(NAMES)), 2) if rules.rule(*pair, True)]
    assert pairs and set(pairs) <= set(found(tmp_path, NAMES)[0])


def test_no_names_have_no_pairs(tmp_path: Path) -> None:
    assert found(tmp_path, {}) == ([], 0)


def test_keys_of_names_that_stay_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {**{id: NAMES[id] for id in list(NAMES)[2:]}, "zed": ["Zed"], "vale": ["Vale"]}
    found(tmp_path / "before", before)
    asked: list[str] = []
    monkeypatch.setattr(sharing, "rule_keys", lambda way: asked.append(way) or rule_keys(way))
    pairs, kept = found(tmp_path / "after", NAMES, tmp_path / "before")
    assert set(pairs) == EXPECTED and kept == len(NAMES) - 3
    assert sorted(asked) == sorted(way for id in ("ann b. orlo", "ann orlo", "vale") for way in NAMES[id])


def test_a_damaged_record_of_keys_is_not_used(tmp_path: Path) -> None:
    found(tmp_path / "before", NAMES)
    less = dict(list(NAMES.items())[:-2])
    shutil.rmtree(tmp_path / "before" / "higra_exact")
    (tmp_path / "before" / "higra_exact").mkdir()
    tables.write_rows(
        tmp_path / "before" / "higra_exact" / FILE, EXACT_ENTITIES, []
    )  # rows of the record are no rows now
    assert found(tmp_path / "after", less, tmp_path / "before") == (found(tmp_path / "alone", less)[0], 0)
