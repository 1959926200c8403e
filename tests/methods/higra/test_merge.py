"""The semantic merge and inferred relations: by rules and by a scripted model, with edits, malformed replies, a log."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_rag.errors import RequestFailed
from gpu_rag.index import tables
from gpu_rag.index.stage import settle
from gpu_rag.index.work import Sources
from gpu_rag.methods.higra.merges import FORCE, REJECT, Edit, merge_id, write_edits
from gpu_rag.methods.higra.report import coverage_lines, pair_coverage
from gpu_rag.methods.higra.settings import AlignmentSettings
from gpu_rag.methods.higra.stages.asks import entity_text, listed
from gpu_rag.methods.higra.stages.links import links_stage
from gpu_rag.methods.higra.stages.merge import BY_LLM, merge_stage, near_enough
from gpu_rag.methods.higra.stages.windows import window_pairs
from gpu_rag.methods.higra.tables import (
    EXACT_ENTITIES,
    HIGRA_BECAME,
    HIGRA_ENTITIES,
    HIGRA_MERGES,
    HIGRA_RELATIONS,
    HIGRA_SOURCES,
)
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import make_settings
from gpu_rag.text.lenient import REPAIR
from gpu_rag.types import Request

LLM = {"alignment": {"decider": "llm"}}
Row = dict[str, Any]

# id, angle of its vector in degrees, types, passages
ENTITIES = [
    ("ann orlo", 0, [], [0, 1]),
    ("anne orlo", 5, [], [1, 2]),
    ("bo", 90, [], [0]),
    ("the vale", 40, ["valley"], [3]),
    ("vale", 42, ["valley"], [1, 3]),
    ("vale  [song]", 44, ["song"], [2]),
]
RELATIONS = [
    ("ann orlo", "knows", "bo", [0]),
    ("anne orlo", "knows", "bo", [2]),
    ("anne orlo", "is", "ann orlo", [1]),
    ("bo", "sang", "vale  [song]", [2]),
]


def put(bench: Any) -> None:
    """The stages before the merge."""
    bench.put_passages(["Ann Orlo.", "Anne Orlo.", "Bo sang.", "In the vale."])
    rows, ids = [], sorted(id for id, *_ in ENTITIES)
    for id, _, types, passages in sorted(ENTITIES):
        name = id.split("  ")[0].title()
        found = {"id": id, "name": name, "aliases": [name.upper()], "types": types, "descriptions": [f"about {id}"]}
        rows.append({**found, "members": [ids.index(id)], "passages": passages})
    folder = bench.folder("higra_exact")
    tables.write_rows(folder / "higra_exact_entities.parquet", EXACT_ENTITIES, rows)
    facts = [
        {"subject": ids.index(s), "label": r, "object": ids.index(o), "passages": where,
         "origin": "extraction", "confidence": 1.0} for s, r, o, where in RELATIONS
    ]  # fmt: skip
    tables.write_rows(folder / "higra_exact_relations.parquet", HIGRA_RELATIONS, facts)
    exact = {"id": "m_x", "why": "exact", "rule": "alias", "score": 1.0, "members": ["bo", "bob"], "entity": "bo"}
    tables.write_rows(folder / "higra_exact_merges.parquet", HIGRA_MERGES, [exact])
    radians = np.radians([angle for _, angle, *_ in sorted(ENTITIES)])
    bench.put_vectors("higra_exact_vectors", np.stack([np.cos(radians), np.sin(radians)], 1))


def run(bench: Any, settings: Row | None = None, llm: Any = None, edits: Path | None = None) -> dict[str, Row]:
    """The entities by id after the merge."""
    put(bench)
    bench.run(merge_stage, settings, sources=Sources(edits=edits), llm=llm)
    found = read(bench, "higra_merge", "higra_entities", HIGRA_ENTITIES)
    assert [row["id"] for row in found] == sorted({row["id"] for row in found})
    return {row["id"]: row for row in found}


def read(bench: Any, stage: str, file: str, schema: Any) -> list[Row]:
    rows: list[Row] = tables.read_table(bench.folder(stage) / f"{file}.parquet", schema).to_pylist()
    return rows


def log(bench: Any) -> list[Row]:
    return [row for row in read(bench, "higra_merge", "higra_merges", HIGRA_MERGES) if row["why"] != "exact"]


REPAIR_BEGINS = REPAIR.split("{")[0]


def says(*replies: Any) -> ScriptedLLM:
    """Replies to the first, second, ... request; a repair try gets what its first try got."""
    order: dict[str, int] = {}

    def answer(request: Request) -> Any:
        said = replies[order.setdefault(request.prompt.split(REPAIR_BEGINS)[0], len(order))]
        return said if isinstance(said, (str, RequestFailed)) else json.dumps(said)

    return ScriptedLLM(answer)


def test_names_that_agree_become_one_and_lose_nothing(bench: Any) -> None:
    entities = run(bench)
    assert set(entities) == {"ann orlo", "anne orlo", "bo", "vale", "vale  [song]"}  # Ann and Anne are two
    vale = entities["vale"]  # in more passages than "the vale"
    assert (vale["name"], vale["aliases"], vale["types"]) == ("Vale", ["The Vale", "VALE", "THE VALE"], ["valley"])
    assert vale["descriptions"] == ["about vale", "about the vale"]
    assert (vale["members"], vale["n_passages"]) == ([3, 4], 2)
    (row,) = log(bench)
    assert (row["why"], row["rule"], row["entity"]) == ("semantic", "article", "vale")
    assert row["members"] == ["the vale", "vale"]
    assert row["score"] == pytest.approx(np.cos(np.radians(2)), abs=1e-3)
    assert row["id"] == merge_id("semantic", ["vale", "the vale"])
    assert len(read(bench, "higra_merge", "higra_merges", HIGRA_MERGES)) == 2  # with that of the exact merge
    ids = list(entities)
    sources = read(bench, "higra_merge", "higra_sources", HIGRA_SOURCES)
    assert [s["passage"] for s in sources if ids[s["entity"]] == "vale"] == [1, 3]


@pytest.mark.parametrize("least", [-1.0, 0.0, 0.5])
def test_pairs_of_windows_that_are_near_enough(least: float) -> None:
    vectors = torch.from_numpy(np.random.default_rng(1).normal(size=(9, 4))).half()
    vectors = (vectors / vectors.float().norm(dim=1, keepdim=True)).half()
    windows = [[0, 1, 2], [1, 2, 5, 8], [3, 4], [7]]
    pairs = {pair for window in windows for pair in combinations(window, 2)}
    expected = sorted(pair for pair in pairs if vectors[pair[0]].double() @ vectors[pair[1]].double() >= least)
    found, cosines = near_enough(vectors, window_pairs(windows), least)
    assert list(map(tuple, found.T.tolist())) == expected
    assert cosines.tolist() == [float(vectors[a].double() @ vectors[b].double()) for a, b in expected]
    assert near_enough(vectors, [], least)[0].shape == (2, 0)


def test_types_that_differ_never_agree(bench: Any) -> None:
    assert "vale  [song]" in run(bench, {"alignment": {"tau": 1.0, "min_cosine": 0.0}})


def test_a_cosine_below_the_least_merges_nothing(bench: Any) -> None:
    assert len(run(bench, {"alignment": {"min_cosine": 0.9999}})) == len(ENTITIES)
    assert len(run(bench, {"alignment": {"tau": 0.0001}})) == len(ENTITIES)  # nor one outside every cluster


def test_without_refinement_nothing_merges(bench: Any) -> None:
    assert len(run(bench, {"alignment": {"refine": False}})) == len(ENTITIES)
    assert log(bench) == []


def test_what_would_be_too_many_is_set_aside_and_listed(bench: Any) -> None:
    pairs = {"groups": [[1, 2]]}
    entities = run(bench, {"alignment": {"decider": "llm", "max_cluster": 2}}, says(pairs, pairs, pairs, pairs))
    aside = [row for row in log(bench) if row["why"] == "quarantined"]
    assert {row["why"] for row in log(bench)} == {"semantic", "quarantined"}
    assert "vale" in entities and "the vale" in entities and "anne orlo" not in entities
    assert [(row["rule"], row["members"], row["entity"]) for row in aside] == [
        ("more than 2 entities", ["the vale", "vale", "vale  [song]"], "")
    ]
    assert bench.counts["higra_quarantined_merges"] == 1


def test_a_model_s_groups_are_merged(bench: Any) -> None:
    llm = says({"groups": [[1, 2]]}, {"groups": [[2, 1, 2], [3, 2]]})
    entities = run(bench, LLM, llm)
    assert set(entities) == {"ann orlo", "bo", "vale"}  # groups that share one become one
    assert [row["rule"] for row in log(bench)] == [BY_LLM] * 3
    assert len(llm.calls) == 2 and len({request.system for request in llm.calls}) == 1
    assert "1. The Vale | valley | about the vale\n2. Vale | valley" in llm.calls[1].prompt
    assert bench.report.llm_calls == 2 and bench.counts["higra_merge_clusters"] == 2
    stages = {"higra_merge": SimpleNamespace(counts=bench.counts)}
    pairs = pair_coverage(SimpleNamespace(stages=stages))  # type: ignore[arg-type]
    assert coverage_lines(pairs) == ["merge: 4 of 4 near pairs seen together, 2 windows"]
    ids = list(entities)
    bench.run(links_stage, {"alignment": {"decider": "similarity"}})
    facts = read(bench, "higra_links", "higra_relations", HIGRA_RELATIONS)
    assert [(ids[f["subject"]], f["label"], ids[f["object"]], f["passages"]) for f in facts] == [
        ("ann orlo", "is", "ann orlo", [1]),
        ("ann orlo", "knows", "bo", [0, 2]),  # one relation now, with the passages of both
        ("bo", "sang", "vale", [2]),
    ]


def test_a_group_of_names_with_other_numbers_is_not_believed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    years = {"ann orlo": "1885", "anne orlo": "1887"}
    named = [(years.get(id, id), *rest) for id, *rest in ENTITIES]
    monkeypatch.setattr(sys.modules[__name__], "ENTITIES", named)
    monkeypatch.setattr(sys.modules[__name__], "RELATIONS", [])
    entities = run(bench, LLM, says({"groups": [[1, 2]]}, {"groups": [[1, 2]]}))
    assert {"1885", "1887"} < set(entities) and "the vale" not in entities  # the other cluster's group is merged
    assert bench.counts["higra_merge_numbers_differ"] == 1


MALFORMED = ["no", '{"groups": [[1]]}', '{"groups": [[0, 1]]}', '{"groups": [[1, 9]]}', '{"groups": [["a", "b"]]}']


@pytest.mark.parametrize("reply", MALFORMED)
def test_a_reply_that_cannot_be_read_merges_nothing_and_is_counted(bench: Any, reply: str) -> None:
    entities = run(bench, LLM, says(reply, {"groups": [[1, 2]]}))
    assert set(entities) == {"ann orlo", "anne orlo", "bo", "vale", "vale  [song]"}
    assert bench.counts["higra_merge_malformed"] == 1 and bench.report.failures == 1


def test_a_failed_request_makes_the_stage_run_again(bench: Any) -> None:
    run(bench, LLM, says(RequestFailed("refused"), {"groups": []}))
    assert bench.counts["higra_merge_failed"] == 1 and "higra_merge_failed" in merge_stage.retry


def test_who_decides() -> None:
    def decider(llm: ScriptedLLM | None, **alignment: Any) -> str:
        settings = make_settings({"models": {"llm": "smollm2" if llm else "none"}, "alignment": alignment})
        settled = settle([merge_stage, links_stage], settings, ModelSet(settings.models, llm=llm))
        return settled.section(AlignmentSettings).decider

    def by_name(llm: str, **models: Any) -> bool:
        return ModelSet(make_settings({"models": {"llm": llm, **models}}).models).is_capable()

    assert not by_name("smollm2") and not by_name("none") and not by_name("none", capable=True)
    assert by_name("http://127.0.0.1:8000/v1#Qwen2.5-7B") and not by_name("http://127.0.0.1:8000/v1#SmolLM-135M")
    assert by_name("smollm2", capable=True)
    small = ScriptedLLM(lambda _: "", capable=False)
    assert decider(None) == decider(small) == "similarity"
    assert decider(ScriptedLLM(lambda _: "")) == "llm"
    assert decider(small, decider="llm") == "llm"


def test_the_text_of_an_entity() -> None:
    row = {"name": "Java", "aliases": ["JAVA", "Jawa", "jawa"], "types": ["island"], "descriptions": ["a", "b"]}
    assert entity_text(row) == "Java | Jawa | island | a b"
    assert entity_text(row, descriptions=False) == "Java | Jawa | island"
    assert entity_text({"name": "Bo", "aliases": [], "types": [], "descriptions": []}) == "Bo"


def test_a_prompt_stays_short() -> None:
    row = {
        "name": "Bo",
        "aliases": [f"Bo {i}" for i in range(90)],
        "types": ["person"],
        "descriptions": ["x " * 90] * 9,
    }
    lines = listed([row] * 20, range(20)).splitlines()
    assert len(lines) == 20 and all(len(line) <= 304 for line in lines)
    assert lines[0].startswith("1. Bo | Bo 0, Bo 1, ") and "Bo 8" not in lines[0] and "| person | x x" in lines[0]


def edited(tmp_path: Path, *edits: Edit) -> Path:
    path = tmp_path / "merges.jsonl"
    write_edits(path, edits)
    return tmp_path


def reject(*members: str) -> Edit:
    return Edit(merge_id("semantic", members), REJECT, members)


def force(*members: str) -> Edit:
    return Edit(merge_id("forced", members), FORCE, members)


def test_a_rejected_merge_stays_apart(bench: Any, tmp_path: Path) -> None:
    assert set(run(bench, edits=edited(tmp_path, reject("the vale", "vale")))) == {id for id, *_ in ENTITIES}
    assert bench.counts["higra_merges_refused"] == 1 and log(bench) == []


def test_a_rejected_pair_stays_apart_through_others(bench: Any, tmp_path: Path) -> None:
    llm = says({"groups": []}, {"groups": [[1, 2, 3]]})
    entities = run(bench, LLM, llm, edited(tmp_path, reject("the vale", "vale")))
    assert set(entities) == {"ann orlo", "anne orlo", "bo", "the vale", "vale"}  # the song is with the first


def test_a_forced_merge_counts_for_more(bench: Any, tmp_path: Path) -> None:
    edits = edited(tmp_path, force("ann orlo", "bo"), reject("the vale", "vale"), force("the vale", "vale"))
    entities = run(bench, edits=edits)
    assert set(entities) == {"ann orlo", "anne orlo", "vale", "vale  [song]"}
    assert {(row["why"], tuple(row["members"])) for row in log(bench)} == {
        ("forced", ("ann orlo", "bo")),
        ("forced", ("the vale", "vale")),
        ("semantic", ("the vale", "vale")),
    }
    assert entities["ann orlo"]["members"] == [0, 2]


def test_edits_of_what_is_gone_are_counted(bench: Any, tmp_path: Path) -> None:
    run(bench, edits=edited(tmp_path, force("ann orlo", "nobody"), reject("x", "y")))
    assert bench.counts["higra_edits_unused"] == 2


def test_edits_are_part_of_what_a_stage_depends_on(tmp_path: Path) -> None:
    settings = make_settings({})
    layer = merge_stage
    one, other = force("a", "b"), reject("c", "d")
    plain = layer.params(settings, Sources())
    assert layer.params(settings, Sources(edits=tmp_path / "none")) == plain
    first = layer.params(settings, Sources(edits=edited(tmp_path, one, other)))
    assert first != plain and layer.params(settings, Sources(edits=edited(tmp_path, other, one))) == first


def relation(source: int, label: str, target: int, confidence: float) -> Row:
    return {"source": source, "label": label, "target": target, "confidence": confidence}


def put_merged(bench: Any) -> None:
    rows = [
        {"id": id, "name": id, "aliases": [], "types": [], "descriptions": [], "members": [0], "n_passages": 1}
        for id in ("bridge of ves", "river of ves", "ves bridge")
    ]
    tables.write_rows(bench.folder("higra_merge") / "higra_entities.parquet", HIGRA_ENTITIES, rows)
    fact = {"subject": 0, "label": "crosses", "object": 1, "passages": [0], "origin": "extraction"}
    facts = [{**fact, "confidence": 1.0}]
    tables.write_rows(bench.folder("higra_exact") / "higra_exact_relations.parquet", HIGRA_RELATIONS, facts)
    became = {"entity": [0, 1, 2]}
    tables.write_table(bench.folder("higra_merge") / "higra_became.parquet", HIGRA_BECAME, became)


def linked(bench: Any, settings: Row, llm: Any = None) -> list[Any]:
    put_merged(bench)
    bench.run(links_stage, {"models": {"embedder": "hash", "llm": "none"}, **settings}, llm=llm)
    rows = read(bench, "higra_links", "higra_relations", HIGRA_RELATIONS)
    return [(r["subject"], r["label"], r["object"], r["origin"], round(r["confidence"], 4)) for r in rows]


EXTRACTED = (0, "crosses", 1, "extraction", 1.0)
WIDE = {"alignment": {"decider": "llm", "link_radius": 0.9}}


def test_sure_relations_are_added(bench: Any) -> None:
    said = [
        relation(1, "Crosses", 2, 0.9),  # extracted already
        relation(3, "crosses", 2, 0.8),
        relation(3, "crosses", 2, 0.95),  # twice: the surer counts
        relation(2, "is near", 1, 0.79),
        relation(2, "is", 2, 1.0),
        relation(2, " ", 1, 1.0),
    ]
    llm = says({"relations": said})
    assert linked(bench, WIDE, llm) == [EXTRACTED, (2, "crosses", 1, "inferred", 0.95)]
    assert bench.counts["higra_inferred"] == 1 and bench.counts["higra_inferred_unsure"] == 3
    assert "1. bridge of ves\n2. river of ves\n3. ves bridge" in llm.calls[0].prompt


@pytest.mark.parametrize(
    "reply",
    [
        "no",
        {"relations": [relation(0, "x", 1, 0.9)]},
        {"relations": [relation(1, "x", 4, 0.9)]},
        {"relations": [relation(1, "x", 2, 1.5)]},
        {"relations": [{"source": 1, "target": 2, "confidence": 1}]},
    ],
)
def test_malformed_relations_add_nothing(bench: Any, reply: Any) -> None:
    assert linked(bench, WIDE, says(reply)) == [EXTRACTED]
    assert bench.counts["higra_link_malformed"] == 1


@pytest.mark.parametrize("settings", [{}, {"alignment": {"decider": "llm", "refine": False}}])
def test_without_a_model_there_are_none(bench: Any, settings: Row) -> None:
    assert linked(bench, settings) == [EXTRACTED]
    assert links_stage.roles(make_settings(settings)) == ()


def keep_only_the_first(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "aliases": row["aliases"][:1]} for row in rows]


def passages_added_up(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "n_passages": row["n_passages"] + (len(row["members"]) > 1)} for row in rows]


def named_by_the_alphabet(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "name": min([row["name"], *row["aliases"]], key=str.casefold)} for row in rows]


@pytest.mark.parametrize("wrong", [keep_only_the_first, passages_added_up, named_by_the_alphabet])
def test_wrong_ways_of_applying_are_told_apart(bench: Any, wrong: Callable[[Sequence[Row]], list[Row]]) -> None:
    run(bench)
    rows = read(bench, "higra_merge", "higra_entities", HIGRA_ENTITIES)

    def check(found: Sequence[Row]) -> bool:
        vale = next(row for row in found if row["id"] == "vale")
        kept = {re.sub("^The ", "", way.title()) for way in [vale["name"], *vale["aliases"]]}
        ways = len(vale["aliases"]) == 3 and kept == {"Vale"}
        return ways and vale["name"] == "Vale" and vale["n_passages"] == 2

    assert check(rows) and not check(wrong(rows))
