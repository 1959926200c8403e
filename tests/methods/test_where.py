"""Answers under a filter: what is excluded is nowhere, and what is left is ranked as if it were all there is."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_rag
from gpu_rag.cli.trace_text import trace_text
from gpu_rag.engine import MAX_VIEWS, Engine
from gpu_rag.errors import UsageError
from gpu_rag.index import narrow
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.tables import KB_TABLES
from gpu_rag.jobs import row_of
from gpu_rag.methods.higra.graph import higra_graph
from gpu_rag.methods.higra.tables import read_of
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.misbehave.replies import well_formed
from gpu_rag.types import Answer, Choice, JsonSchema, Question, Rank, Request

METHODS = (
    "dense", "bm25", "hybrid", "ppr", "hoprag", "bubblerag", "higra-retriever", "dual-agent", "higra-agent", "fused",
)  # fmt: skip
MADE = {"bm25", "title_names", "entities", "entity_names", "graph", "relation_graph"}  # for ppr, not masked
OPEN = [
    ("Halden Bridge", "Halden Bridge was designed by Marta Orlo. Halden Bridge crosses the river Ves in Kerling."),
    ("Marta Orlo", "Marta Orlo was born in Tamsin. Marta Orlo studied under Piet Ruyven."),
    ("Piet Ruyven", "Piet Ruyven taught at the University of Loss. Piet Ruyven was born in Kerling."),
    ("Kerling", "Kerling is a town on the river Ves. Anna Stroud was the mayor of Kerling."),
    ("Lighthouse of Tamsin", "The Lighthouse of Tamsin was built by Hugo Brandt in Tamsin."),
    ("University of Loss", "The University of Loss was founded by Hugo Brandt in Kerling."),
    ("Hugo Brandt", "Hugo Brandt was born in Loss. Hugo Brandt married Anna Stroud."),
]
# Every name that only an excluded document has begins with "Qux"; what it says of the others is a fact of its own.
SECRET = [
    ("Marta Orlo", "Marta Orlo, also known as Quxine Orlo, secretly quxed Piet Ruyven in Quxberg."),
    ("Quxberg", "Quxberg is a town on the river Ves. Marta Orlo designed the Quxberg Bridge in Quxberg."),
    ("Halden Bridge", "Halden Bridge was paid for by Quxley Brandt. Quxley Brandt was born in Kerling."),
    ("MARTA ORLO", "MARTA ORLO taught Quxley Brandt at the University of Loss."),
    ("Quxford", "Quxford was founded by Hugo Brandt. Quxford lies near the Lighthouse of Tamsin."),
]
QUESTIONS = [
    Question("q1", "Who taught the designer of the Halden Bridge?"),
    Question("q2", "Where was the founder of the University of Loss born, and whom did Marta Orlo teach?"),
]
WHERE = 'side = "open" and not n > 100'
SETTINGS: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}, "method": {"higra-agent": {"max_turns": 2}}}
SETTINGS["method"]["dual-agent"] = {"max_turns": 2}


def replying(request: Request) -> str:
    """A well-formed reply, made of names in the prompt."""
    if isinstance(request.constraint, (Choice, Rank)):
        return request.constraint.options[0]
    wanted = {"json": request.constraint.schema} if isinstance(request.constraint, JsonSchema) else {}
    return well_formed({"messages": [{"content": request.prompt}], "structured_outputs": wanted})


def corpus(path: Path, sides: Sequence[str]) -> Path:
    rows = [
        {"id": f"{side}{i}", "title": title, "text": text, "side": side, "n": i}
        for side, texts in (("open", OPEN), ("secret", SECRET))
        for i, (title, text) in enumerate(texts)
        if side in sides
    ]
    rows.sort(key=lambda row: str(row["n"]))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("where")


@pytest.fixture(scope="module")
def index(folder: Path) -> gpu_rag.Index:
    """All documents, extracted, aligned and asked about by a model."""
    settings = {**SETTINGS, "index": {"extractor": "llm"}, "alignment": {"decider": "llm", "link_radius": 2.0}}
    llm = ScriptedLLM(replying)
    files = corpus(folder / "all.jsonl", ("open", "secret"))
    gpu_rag.build(files, folder / "ix", methods=METHODS, settings=settings, llm=llm)
    return gpu_rag.Index.open(folder / "ix")


@pytest.fixture(scope="module")
def engines(index: gpu_rag.Index) -> Iterator[dict[str, Asked]]:
    """An engine and its model for each driver."""
    made = {driver: asked(index, driver) for driver in ("rounds", "streaming")}
    yield made
    for engine, _ in made.values():
        engine.models.close()


Asked = tuple[Engine, ScriptedLLM]


def asked(index: gpu_rag.Index, driver: str = "rounds") -> Asked:
    llm = ScriptedLLM(replying)
    return index.engine({**SETTINGS, "runtime": {"driver": driver}}, llm=llm), llm


def check(by: Asked, method: str) -> None:
    """Raises AssertionError where an excluded document is to be seen, or fewer passages come than are allowed."""
    engine, llm = by
    llm.calls.clear()
    found = engine.run(method, QUESTIONS, where=WHERE).answers
    rows = [row_of(answer) for answer in found]
    assert all(answer.status != "failed" for answer in found), [answer.error for answer in found]
    assert {e.metadata["side"] for answer in found for e in answer.evidence} == {"open"}
    seen = [json.dumps(rows), *map(trace_text, rows), *(request.system + request.prompt for request in llm.calls)]
    assert not [text for text in seen if "qux" in text.casefold()]
    assert llm.calls
    for k in (3, 5):
        for answer in engine.run(method, QUESTIONS, where=WHERE, limit=k, retrieval_only=True).answers:
            allowed = k if method != "bm25" else min(k, len(answer.evidence))
            assert len(answer.evidence) == allowed and "qux" not in json.dumps(row_of(answer)).casefold()


@pytest.mark.parametrize("driver", ["rounds", "streaming"])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_of_excluded_documents_is_to_be_seen(engines: dict[str, Asked], method: str, driver: str) -> None:
    check(engines[driver], method)


def test_without_the_filter_it_would_be_seen(engines: dict[str, Asked]) -> None:
    engine, _ = engines["rounds"]
    for method in METHODS:
        found = engine.run(method, QUESTIONS, retrieval_only=True).answers
        assert "qux" in json.dumps([row_of(answer) for answer in found]).casefold(), method


NARROWED = narrow.narrowed  # before a test replaces it


def _all(base: Index, documents: np.ndarray, *others: Any) -> Index:
    return base


def _after(base: Index, documents: np.ndarray, *others: Any) -> Index:
    """Excludes passages when the ranking is made."""
    found = Index.open(base.path)
    found.evidence = lambda *given: tuple(e for e in base.evidence(*given) if e.metadata["side"] == "open")  # type: ignore[method-assign]
    return found


def _of_passages(base: Index, documents: np.ndarray, *others: Any) -> Index:
    """Leaves what is said of entities as it is: names, types and descriptions of all documents."""
    found = NARROWED(base, documents, *others)
    n, take = higra_graph(found).n_entities, found.take
    old = higra_graph(base).entities.slice(0, n).to_pylist()

    def of_all(stage: str, file: str, schema: Any, rows: Iterable[int]) -> list[dict[str, Any]]:
        return [old[row] for row in rows] if file == "higra_entities.parquet" else take(stage, file, schema, rows)

    found.take = of_all  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    ("wrong", "method"), [(_all, "bm25"), (_after, "dense"), (_after, "ppr"), (_of_passages, "higra-retriever")]
)
def test_wrong_versions_are_caught(
    index: gpu_rag.Index, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Index], method: str
) -> None:
    monkeypatch.setattr("gpu_rag.index.narrow.narrowed", wrong)
    with pytest.raises(AssertionError):
        check(asked(index), method)


@pytest.mark.parametrize("method", METHODS)
def test_a_filter_that_all_fit_changes_nothing_and_one_that_none_fits_leaves_nothing(
    engines: dict[str, Asked], method: str
) -> None:
    engine, llm = engines["rounds"]
    told, prompts = [], []
    for where in ("", "n >= 0"):
        llm.calls.clear()
        told.append([brief(answer) for answer in engine.run(method, QUESTIONS, where=where).answers])
        prompts.append([request.prompt for request in llm.calls])
    assert told[0] == told[1] and prompts[0] == prompts[1]
    for answer in engine.run(method, QUESTIONS, where="n > 1000").answers:
        assert (answer.status, answer.text, answer.evidence, answer.paths) == ("unsupported", None, (), ())
        assert answer.usage.llm_calls == 0


def brief(answer: Answer) -> dict[str, Any]:
    """A row without times, the filter and its hash."""
    row = row_of(answer)
    row.pop("where", None)
    row["trace"] = [{**step, "s": 0} for step in row["trace"]]
    row["usage"] = {name: n for name, n in row["usage"].items() if not name.endswith("_s")}
    return {**row, "config_hash": ""}


def test_a_part_has_the_stages_that_were_asked_for(index: gpu_rag.Index) -> None:
    engine, _ = asked(index)
    view = engine.part_for("dense", WHERE)
    assert isinstance(view, narrow.View) and not view._files
    assert engine.part_for("ppr", WHERE) is view and set(view._files) == MADE
    assert engine.narrowed("n >= 0") is index
    for n in range(MAX_VIEWS):
        engine.part_for("bm25", f"n != {n % 3} and n < {50 + n}")
    gone = weakref.ref(view)
    del view
    gc.collect()
    assert gone() is None


def test_a_method_whose_stages_cannot_be_narrowed_is_refused(
    index: gpu_rag.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_rag.engine.stage_narrowers", dict)
    engine, _ = asked(index)
    with pytest.raises(UsageError, match="hoprag cannot be filtered by metadata of documents"):
        engine.run("hoprag", QUESTIONS, where=WHERE)
    assert engine.run("ppr", QUESTIONS, where=WHERE, retrieval_only=True).answers[0].evidence


@pytest.fixture(scope="module")
def by_hand(folder: Path) -> Iterator[tuple[Index, Index, gpu_rag.Index]]:
    """(the part, an index of the open documents alone, the whole), extracted by patterns."""
    for name, sides in (("whole", ("open", "secret")), ("alone", ("open",))):
        files = corpus(folder / f"{name}.jsonl", sides)
        gpu_rag.build(files, folder / name, methods=["ppr", "hoprag", "higra-agent"], settings=SETTINGS)
    whole = gpu_rag.Index.open(folder / "whole")
    part = whole.engine(SETTINGS).narrowed(WHERE)
    assert part is not None
    yield part, gpu_rag.Index.open(folder / "alone"), whole


def test_the_part_is_the_index_that_the_allowed_documents_make(by_hand: tuple[Index, Index, Any]) -> None:
    part, alone, _ = by_hand
    for name in ("documents", "passages", "entities", "relations", "mentions", "metadata"):
        found, expected = getattr(part, name), getattr(alone, name)
        if name == "documents":  # their files and lines are others
            found, expected = found.select(["id", "title"]), expected.select(["id", "title"])
        assert found.num_rows and found.to_pylist() == expected.to_pylist(), name
    for name in ("higra_entities", "higra_relations", "higra_links"):
        assert read_of(part, name).num_rows and read_of(part, name).equals(read_of(alone, name)), name
    vectors = ("passage_vectors", "relation_vectors", "hop_in_vectors", "hop_vertex_vectors", "higra_entity_vectors")
    for stage in vectors:
        assert part.vectors(stage).equal(alone.vectors(stage)), stage
    graphs = (ix.arrays("graph", "graph.safetensors") for ix in (part, alone))
    found, expected = graphs
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_dense_ranks_as_alone_and_bm25_scores_as_in_the_whole(by_hand: tuple[Index, Index, gpu_rag.Index]) -> None:
    _, alone, whole = by_hand

    def rankings(index: Any, method: str, where: str, limit: int) -> list[dict[str, float]]:
        found = gpu_rag.Index.open(index.path).engine(SETTINGS)
        run = found.run(method, QUESTIONS, where=where, limit=limit, retrieval_only=True)
        return [{e.passage_id: e.score for e in answer.evidence} for answer in run.answers]

    assert rankings(whole, "dense", WHERE, 4) == rankings(alone, "dense", "", 4)
    of_part, of_all = rankings(whole, "bm25", WHERE, 50), rankings(whole, "bm25", "", 50)
    assert of_part == [{id: score for id, score in one.items() if id.startswith("open")} for one in of_all]
    assert [set(one) for one in of_part] == [set(one) for one in rankings(alone, "bm25", "", 50)]


def test_questions_of_several_filters_share_one_driver(index: gpu_rag.Index) -> None:
    engine = index.engine(SETTINGS, llm=ScriptedLLM(replying))
    with closing(engine.models):
        driver, found = engine.live(), {}
        for where in ("", WHERE, "side = 'secret'"):
            prepared = engine.prepare("ppr", retrieval_only=True, where=where)
            driver.submit(
                QUESTIONS[0], prepared.bind(QUESTIONS[0]), lambda end, key=where: found.update({key: end.draft})
            )
        driver.close()
        driver.run()
        expected = {w: engine.run("ppr", QUESTIONS[:1], where=w, retrieval_only=True).answers[0] for w in found}
    assert len(found) == 3 and all(found[w].evidence == expected[w].evidence for w in found)
    sides = {w: {e.metadata["side"] for e in draft.evidence} for w, draft in found.items()}
    assert sides[WHERE] == {"open"} and sides["side = 'secret'"] == {"secret"}


GRAPH = [
    ("Marta Orlo", "designed", "Halden Bridge"),
    ("Piet Ruyven", "taught", "Marta Orlo"),
    ("Hugo Brandt", "founded", "University of Loss"),
    ("Kerling", "lies on", "Ves"),
]
SKB = (
    [
        {"id": "1", "name": "Hugo Brandt", "type": "person", "text": "Hugo Brandt was a founder of schools."},
        {"id": "2", "name": "Loss", "type": "town", "text": "Loss is a town with a university."},
    ],
    [{"head": "1", "relation": "born in", "tail": "2"}],
)
KB_METHODS = ("hybgrag", "hydrarag", "hydrarag-e")


def kb_build(folder: Path, name: str, sides: Sequence[str]) -> gpu_rag.Index:
    """An index of some documents beside a knowledge graph and a knowledge base, extracted by patterns."""
    (folder / "facts.tsv").write_text("".join("\t".join(triple) + "\n" for triple in GRAPH))
    (folder / "skb").mkdir(exist_ok=True)
    for file, rows in zip(("nodes", "edges"), SKB):
        (folder / "skb" / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = corpus(folder / f"{name}.jsonl", sides)
    given: dict[str, Any] = {"kg": [folder / "facts.tsv"], "skb": [folder / "skb"]}
    gpu_rag.build(files, folder / name, methods=["hybgrag", "hydrarag"], settings=SETTINGS, **given)
    return gpu_rag.Index.open(folder / name)


@pytest.fixture(scope="module")
def kb_index(tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    return kb_build(tmp_path_factory.mktemp("kb"), "whole", ("open", "secret"))


@pytest.mark.parametrize("driver", ["rounds", "streaming"])
def test_nothing_of_excluded_documents_is_to_be_seen_beside_a_knowledge_base(
    kb_index: gpu_rag.Index, driver: str
) -> None:
    engine, llm = asked(kb_index, driver)
    with closing(engine.models):
        for method in KB_METHODS:
            llm.calls.clear()
            found = engine.run(method, QUESTIONS, where=WHERE).answers
            rows = [row_of(answer) for answer in found]
            seen = [json.dumps(rows), *map(trace_text, rows), *(r.system + r.prompt for r in llm.calls)]
            assert llm.calls and not [text for text in seen if "qux" in text.casefold()], method
            assert {e.metadata["side"] for answer in found for e in answer.evidence} <= {"open"}
            assert any(answer.paths or answer.nodes or answer.evidence for answer in found)
            for answer in engine.run(method, QUESTIONS, where="n > 1000").answers:
                assert (answer.status, answer.evidence, answer.nodes, answer.paths) == ("unsupported", (), (), ())


def test_the_knowledge_base_of_a_part_is_that_of_the_allowed_documents(kb_index: gpu_rag.Index, tmp_path: Path) -> None:
    # texts of nodes have no metadata, and stay here
    part = kb_index.engine(SETTINGS).narrowed("side = 'open' or side is missing")
    assert part is not None
    alone = kb_build(tmp_path, "alone", ("open",))
    for name, schema in KB_TABLES.items():
        found, expected = (ix.table("kb", f"kb_{name}.parquet", schema) for ix in (part, alone))
        ours, theirs = (table.drop(["files"]) if name == "sources" else table for table in (found, expected))
        assert ours.num_rows or name == "links"
        assert ours.to_pylist() == theirs.to_pylist(), name
    for stage in ("kb_name_vectors", "kb_edge_vectors", "kb_relation_vectors", "kb_text_vectors"):
        assert part.vectors(stage).shape == alone.vectors(stage).shape
    assert part.vectors("kb_relation_vectors").equal(alone.vectors("kb_relation_vectors"))


def test_a_knowledge_base_without_documents_has_nothing_to_filter(tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text("".join("\t".join(triple) + "\n" for triple in GRAPH))
    gpu_rag.build((), tmp_path / "ix", kg=[tmp_path / "facts.tsv"], methods=["hydrarag"], settings=SETTINGS)
    with pytest.raises(UsageError, match="have no metadata to filter by"):
        gpu_rag.Index.open(tmp_path / "ix").answer("Who?", method="hydrarag", settings=SETTINGS, where="year = 1")
