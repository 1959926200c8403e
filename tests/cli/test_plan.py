"""--plan: exact counts, sane predictions, nothing written but plan and replies, and predicted against actual later."""

import gzip
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kb_rows import read_edges, read_kg

from gpu_rag.index.folder import stage_files
from gpu_rag.index.stages.knowledge_base.read import read_source
from gpu_rag.index.work import NamedSource
from gpu_rag.plan import index_plan
from gpu_rag.plan.trial import count_triples
from gpu_rag.sample import corpus_path
from gpu_rag.settings import IndexSettings
from gpu_rag.types import Reject

ALL = ("--for", "dense,bm25,hybrid,ppr")
EXTRACT = ("--set", "index.extractor=llm", "--set", "models.capable=true", *ALL)
ENDINGS = ("", "mor", "dal")
Json = dict[str, Any]


def renamed(text: str, ending: str) -> str:
    """The same text about others: two of three names have another ending."""

    def change(match: re.Match[str]) -> str:
        return match[1] + ending if sum(map(ord, match[1])) % 3 else match[1]

    return re.sub(r"\b([A-Z][a-zé]{2,})\b(?! [a-z])", change, text)


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample articles three times, with changed names, and three rows that cannot be used."""
    path = tmp_path_factory.mktemp("repeated") / "repeated.jsonl"
    articles = [json.loads(line) for line in corpus_path().read_text("utf-8").splitlines()]
    rows = [
        {"id": f"{row['id']}-{ending}", "title": renamed(row["title"], ending), "text": renamed(row["text"], ending)}
        for ending in ENDINGS
        for row in articles
    ]
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join([*lines[:100], "no json", *lines[100:], '{"id": "x"}', lines[0]]) + "\n", "utf-8")
    return path


def near(actual: float, predicted: float, share: float) -> bool:
    return abs(actual - predicted) <= share * predicted


def check_index_plan(plan: Json, built: Json, tokens: float = 0.35, names: float = 0.35, seconds: float = 10) -> None:
    """Compare a plan with the build that followed. seconds: the factor by which its seconds may be wrong."""
    for name in ("documents", "passages", "rejects"):
        assert plan[name] == built[name], name
    for name in ("entities", "relations", "mentions"):
        assert near(built[name], plan[name], names), name
    stages = built["stages"]
    assert list(plan["stages"]) == list(stages)
    for kind in ("prompt_tokens", "generated_tokens"):
        assert near(sum(stage[kind] for stage in stages.values()), plan[kind], tokens), kind
    assert 1 / seconds < built["wall_s"] / plan["wall_s"] < seconds
    assert all(0 < stage["s"] < max(10 * seconds * stages[name]["s"], 5) for name, stage in plan["stages"].items())
    assert 0.5 < max(s["peak_memory_bytes"] for s in stages.values()) / plan["peak_memory_bytes"] < 2
    assert near(built["plan"]["disk"]["actual_bytes"], plan["disk_bytes"], 0.35)


@pytest.fixture
def by_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of plan and build are those of the processor: what else a machine does may change between the two."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)


@pytest.fixture(scope="module")
def planned(cli, repeated) -> tuple[Json, Json]:
    """(plan, build) of the repeated articles with the hash embedder, in a folder beside them."""
    given = ("index", repeated, "--out", repeated.parent / "i", *ALL, *cli.NO_LLM, "--json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", time.process_time)
        plan = cli.run(*given, "--plan", "--plan-sample", 64).ok
        return plan.document, cli.run(*given).document


def test_a_plan_of_a_build_comes_true(planned):
    plan, built = planned
    check_index_plan(plan, built)
    assert (plan["documents"], plan["rejects"], plan["sample"]) == (225, 3, 64)
    assert plan["characters"] > 100_000 and plan["extraction"] == {"ok": 64}
    assert plan["stages"]["synonyms"]["grows_with"] == "entities squared"
    assert any("quadratic" in note for note in plan["notes"])
    assert 0 < plan["growth"]["entities"]["beta"] < 1


WRONG: dict[str, Callable[[float], float]] = {
    "passages": lambda n: n + 1,
    "entities": lambda n: n**2 // 500,  # in proportion to the passages
    "prompt_tokens": lambda n: n + 1,
    "wall_s": lambda seconds: seconds * 0.01,  # those of the sample
    "disk_bytes": lambda size: size * 64 / 225,
}


@pytest.mark.parametrize("name", WRONG)
def test_the_check_of_plans_sees_wrong_ones(planned, name):
    plan, built = planned
    with pytest.raises(AssertionError):
        check_index_plan({**plan, name: WRONG[name](plan[name])}, built)


def test_later_the_build_is_held_against_the_plan(planned, repeated):
    plan, built = planned
    found = built["plan"]
    assert set(found) == set(built["stages"]) | {"wall", "tokens", "memory", "disk"}
    for name in built["stages"]:
        predicted, actual = plan["stages"][name]["s"], built["stages"][name]["s"]
        assert found[name] == {"predicted_s": predicted, "actual_s": actual, "ratio": pytest.approx(actual / predicted)}
    assert found["wall"]["actual_s"] == built["wall_s"]
    assert found["tokens"] == {kind: {"predicted": 0, "actual": 0, "ratio": None} for kind in ("prompt", "generated")}
    files = [file for folder in (repeated.parent / "i" / "stages").iterdir() for file in stage_files(folder)]
    assert found["disk"]["actual_bytes"] == sum(path.stat().st_size for path in files)


def test_predicted_against_actual_of_a_build_in_words(run, cli, tiny_corpus, tmp_path):
    given = ("index", tiny_corpus, "--out", tmp_path / "i", *ALL, *cli.NO_LLM)
    assert run(*given, "--plan").status == 0
    told = run(*given, "--fresh")
    assert (tmp_path / "i" / "plan.json").exists()  # --fresh keeps it
    assert re.search(r"^stage +predicted +actual +actual / predicted$", told.out, re.M)
    assert re.search(r"^synonyms s +[\d.]+ +[\d.]+ +[\d.]+$", told.out, re.M)
    assert "plan" not in run(*given, "--json").document  # nothing was left to do


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_plan_writes_nothing_else(run, cli, tiny_corpus, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    before = files_below(tmp_path)
    result = run("index", tiny_corpus, "--out", tmp_path / "i", *ALL, *cli.NO_LLM, "--plan").ok
    assert files_below(tmp_path) - before == {"i/plan.json"}
    assert not list((tmp_path / "temporary").iterdir())
    stored = json.loads((tmp_path / "i" / "plan.json").read_text())
    table = result.out
    assert all(re.search(rf"^{name} ", table, re.M) for name in stored["stages"])
    assert "6 documents, 6 passages" in table and f"{stored['entities']} entities" in table


def test_what_is_up_to_date_is_not_planned_again(run, cli, tiny_corpus, tmp_path):
    given = ("index", tiny_corpus, "--out", tmp_path / "i", *cli.NO_LLM)
    assert run(*given, "--for", "bm25").status == 0
    words = run(*given, "--for", "bm25", "--plan", "--json").document
    assert words["entities"] is words["mentions"] is None and list(words["stages"]) == ["passages", "bm25"]
    assert words["wall_s"] == words["load_s"]  # nothing would run
    plan = run(*given, *ALL, "--plan", "--json").document
    assert {name for name, stage in plan["stages"].items() if stage["skipped"]} == {"passages", "bm25"}
    assert plan["wall_s"] < plan["load_s"] + sum(stage["s"] for stage in plan["stages"].values())
    fresh = run(*given, *ALL, "--plan", "--fresh", "--json").document
    assert not any(stage["skipped"] for stage in fresh["stages"].values())
    assert "up to date" in run(*given, *ALL, "--plan").out


def test_a_plan_of_other_settings_is_not_compared(run, cli, tiny_corpus, tmp_path, monkeypatch):
    given = ("index", tiny_corpus, "--out", tmp_path / "i", "--for", "bm25", *cli.NO_LLM)
    assert run(*given, "--plan").status == 0
    other = run(*given, "--set", "index.chunk_words=8", "--set", "index.overlap_words=2", "--json")
    assert "plan" not in other.document and "not compared" in other.err
    usual = ("--set", "index.chunk_words=300", "--set", "index.overlap_words=50")  # an index remembers what was said
    with monkeypatch.context() as other_bm25:
        other_bm25.setattr(IndexSettings, "bm25_b", 0.5)
        assert run(*given, *usual, "--plan").status == 0
    found = run(*given, *usual, "--json").document["plan"]
    assert "passages" in found and "bm25" not in found


def test_bad_usage(run, cli, tiny_corpus, tmp_path):
    given = ("index", tiny_corpus, "--out", tmp_path / "i", *cli.NO_LLM)
    for options in (("--plan-sample", 3), ("--plan", "--plan-sample", 0)):
        assert run(*given, *options).status == 2
    assert not (tmp_path / "i").exists()
    (tmp_path / "bad.jsonl").write_text("[]\n")
    result = run("index", tmp_path / "bad.jsonl", "--out", tmp_path / "i", *cli.NO_LLM, "--plan")
    assert result.status == 2 and "bad.jsonl" in result.error
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "thesis.tex").write_text("precious")
    assert "thesis.tex" in run(*given, "--plan").error
    (tmp_path / "i" / "thesis.tex").unlink()
    (tmp_path / "i" / "plan.json").write_text('{"format": 1}')
    assert "not a plan" in run(*given).error


def extracted(prompt: str) -> str:
    """A reply as long as a model's: the first names of the passage, and facts between neighbours."""
    text = prompt.split("Passage:", 1)[1]
    names = list(dict.fromkeys(re.findall(r"\b[A-Z][a-z]{3,}\b", text)))[:20]
    entities = [{"name": name, "aliases": [], "types": ["thing"], "description": ""} for name in names]
    return json.dumps({"entities": entities, "triples": [[a, "is near", b] for a, b in zip(names, names[1:])]})


@pytest.fixture
def extractor(chat_server):
    return chat_server(lambda prompt: (200, extracted(prompt)))


def test_an_llm_is_asked_about_eight_passages_and_about_none_of_them_again(run, cli, extractor, tmp_path, by_processor):
    llm = (*EXTRACT, *cli.HASH, "--set", f"models.llm={extractor.spec}")
    corpus = cli.write_rows(tmp_path / "forty.jsonl", cli.read_rows(corpus_path())[:40])
    assert run("index", corpus, "--out", tmp_path / "warm", *cli.NO_LLM).status == 0  # compiles loops
    given = ("index", corpus, "--out", tmp_path / "i", *llm, "--json")
    first = run(*given, "--plan").ok
    assert sum(extractor.begun.values()) == 8
    assert files_below(tmp_path / "i") == {"plan.json", "replies.sqlite"}
    assert first.document["llm_calls"] == 40 - 8 and first.document["extraction"] == {"ok": 8}
    assert first.document["stages"]["extraction"]["s"] > 0
    second = run(*given, "--plan").document  # asks about others: known replies take no time
    assert sum(extractor.begun.values()) == 16 == len(extractor.begun)
    assert second["llm_calls"] == 40 - 16
    built = run(*given).document
    assert sum(extractor.begun.values()) == 40 == len(extractor.begun)
    for plan in (first.document, second):
        # Eight requests on a busy machine say little of the build's seconds.
        check_index_plan(plan, built, names=0.5, seconds=1000)
    assert built["plan"]["tokens"]["prompt"]["actual"] > 5_000
    for kind in ("prompt", "generated"):
        assert built["plan"]["tokens"][kind]["ratio"] == pytest.approx(1, abs=0.35)


def test_a_yield_too_low_for_the_build_is_told_and_is_no_error(run, cli, chat_server, tiny_corpus, tmp_path):
    server = chat_server(lambda prompt: (400, "no capacity"))
    llm = (*EXTRACT, *cli.HASH, "--set", f"models.llm={server.spec}")
    result = run("index", tiny_corpus, "--out", tmp_path / "i", *llm, "--plan", "--json").ok
    assert result.document["extraction"] == {"failed": 6}
    assert result.document["stages"]["extraction"]["failures"] == 6
    assert any("below index.min_yield" in note for note in result.document["notes"])


ROWS = [(f"node {k % 40}", f"r{k % 3}", f"node {k * 7 % 60}") for k in range(900)]


def tsv(path: Path, rows: list[tuple[str, str, str]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join("\t".join(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix.lower() == ".gz" else text)
    return path


def skb(folder: Path) -> Path:
    tsv(folder / "edges.tsv")
    names = sorted({end for head, _, tail in ROWS for end in (head, tail)})
    texts = [f"{name} text" if k < 5 else "" for k, name in enumerate(names)]
    rows = [{"id": name, "name": name, "type": "t", "text": text} for name, text in zip(names, texts)]
    (folder / "nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def stark(folder: Path) -> Path:
    folder.mkdir()
    (folder / "node_info.json").write_text(json.dumps({str(k): {"name": f"n{k}"} for k in range(20)}))
    (folder / "edge_type_dict.json").write_text('{"0": "likes"}')
    np.save(folder / "edge_index.npy", np.arange(900).reshape(2, 450) % 20)
    np.save(folder / "edge_types.npy", np.zeros(450, np.int64))
    return folder


def table(path: Path) -> Path:
    columns = dict(zip(("head", "relation", "tail"), map(list, zip(*ROWS))))
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("ending", ["tsv", "TSV.GZ", "parquet", "skb", "stark"])
def test_a_sample_is_the_beginning_and_all_triples_are_counted(tmp_path, ending):
    makers = {"skb": skb, "stark": stark, "parquet": table}
    path = makers.get(ending.lower(), tsv)(tmp_path / f"kg.{ending}")
    kind = "skb" if ending in ("skb", "stark") else "kg"
    source = NamedSource("s", kind, path)
    whole = list((read_edges if kind == "skb" else read_kg)(path))
    assert count_triples([source]) == {source: len(whole)}
    rejects: list[Reject] = []
    of = {n: read_source(replace(source, most=n), rejects.append, 1000) for n in (90, 2000)}
    assert [len(one.edges.line) for one in of.values()] == [90, len(whole)] and not rejects
    assert of[90].edges.line.tolist() == of[2000].edges.line.tolist()[:90]
    if kind == "skb":
        assert of[90].ids.equals(of[2000].ids)


def test_a_base_may_have_the_corpus_alone_for_a_source(run, cli, tiny_corpus, tmp_path):
    given = ("index", tiny_corpus, "--out", tmp_path / "ix", "--for", "hydrarag", *cli.NO_LLM, "--json")
    planned = run(*given, "--plan")
    assert planned.status == 0, planned.err
    built, kb = run(*given).document["kb"], planned.document["kb"]
    assert (kb["triples"], kb["nodes"], kb["relations"]) == (built["edges"], built["nodes"], built["relations"])


def test_every_stage_of_a_base_is_predicted_and_compared(run, cli, tmp_path):
    base = skb(tmp_path / "base")
    given = ("index", "--skb", base, "--out", tmp_path / "ix", "--for", "hybgrag,hydrarag", *cli.NO_LLM, "--json")
    planned = run(*given, "--plan").document
    built = run(*given).document
    assert planned["kb"] == {"triples": 120, "nodes": 60, "relations": 3, "stand-ins": 55}
    assert {name: built["kb"][name] for name in ("nodes", "relations")} == {"nodes": 60, "relations": 3}
    assert planned["stages"].keys() - {"kb_web"} == built["stages"].keys() - {"kb_web"}
    assert {"kb", "kb_texts", "kb_edge_vectors"} < built["plan"].keys()
    assert built["plan"]["disk"]["ratio"] == pytest.approx(1, abs=0.1)
    assert run(*given, "--plan").document["stages"]["kb"]["skipped"]


def test_sizes_of_a_cut_graph_are_predicted_from_its_beginning(run, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(index_plan, "N_TRIPLES", 450)
    rows = [(f"a{k}", "r", f"b{k % 50}") for k in range(900)]  # a new head each
    given = ("index", "--kg", tsv(tmp_path / "kg.tsv", rows), "--out", tmp_path / "ix", *cli.NO_LLM)
    document = run(*given, "--plan", "--json").document
    assert document["kb"]["triples"] == pytest.approx(900, rel=0.05)
    assert document["kb"]["nodes"] == pytest.approx(950, rel=0.12)
    assert document["passages"] == 0 and any("extrapolated from 450" in note for note in document["notes"])
    assert "predicted: " in run(*given, "--plan").out
