"""The extraction layer with ready results: how a document's rows reach its chunks, rejects, absent passages."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpu_rag
from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.stages.extraction import extraction_stage
from gpu_rag.index.work import Sources
from gpu_rag.settings import make_settings

Row = dict[str, Any]
IMPORT = {"index": {"extractor": "import"}}


def put_documents(bench: Any, documents: dict[str, list[str]], title: str = "") -> None:
    """Documents as lists of chunk texts; starts ascend with the chunk number."""
    rows: list[Row] = []
    for doc_id, chunks in documents.items():
        for k, text in enumerate(chunks):
            name = doc_id if len(chunks) == 1 else f"{doc_id}#{k}"
            rows.append({"id": name, "doc_id": doc_id, "title": title, "text": text, "start": k * 100, "end": k * 100})
    bench.put("passages", sorted(rows, key=lambda row: row["id"]))


def write_openie(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def extracted(bench: Any, tmp_path: Path, rows: Sequence[Row], *, strict: bool = False) -> dict[str, Row]:
    """Runs the import; its rows by passage id."""
    openie = write_openie(tmp_path / "openie.jsonl", rows)
    bench.run(extraction_stage, IMPORT, sources=Sources(openie=(openie,), strict=strict))
    ids = [row["id"] for row in bench.rows("passages")]
    found = bench.rows("extraction")
    assert [row["passage"] for row in found] == list(range(len(ids)))
    return dict(zip(ids, found))


def rejects(bench: Any) -> list[Row]:
    return [json.loads(line) for line in (bench.folder("extraction") / "rejects.jsonl").read_text().splitlines()]


def test_a_title_counts_as_text_of_every_chunk(bench: Any, tmp_path: Path) -> None:
    put_documents(bench, {"d": ["one", "two"]}, title="Halden Bridge")
    found = extracted(bench, tmp_path, [{"id": "d", "entities": ["Halden"], "triples": []}])
    assert found["d#0"]["entities"] == found["d#1"]["entities"] == ["Halden"]


def test_the_first_chunk_is_the_one_that_starts_first(bench: Any, tmp_path: Path) -> None:
    put_documents(bench, {"d": [f"chunk {k}" for k in range(12)]})  # d#10 and d#11 sort before d#2
    found = extracted(bench, tmp_path, [{"id": "d", "entities": ["Lost", "chunk 10"], "triples": []}])
    assert found["d#0"]["entities"] == ["Lost"]
    assert found["d#10"]["entities"] == ["chunk 10"]
    assert found["d#1"]["status"] == "empty"  # its document was in the file, nothing of it lies here


def test_a_row_of_one_chunk_stays_there_and_joins_the_document_s(bench: Any, tmp_path: Path) -> None:
    put_documents(bench, {"d": ["Orlo here.", "Orlo there."]})
    document = {"id": "d", "entities": ["Orlo"], "triples": [["Orlo", "is", "Orlo"]]}
    chunk = {"id": "d#1", "entities": ["Orlo", "Absent"], "triples": [["Orlo", "is", "Orlo"], ["x", "y", "z"]]}
    for rows in ([document, chunk], [chunk, document]):
        found = extracted(bench, tmp_path, rows)
        assert found["d#0"]["entities"] == ["Orlo"]
        assert sorted(found["d#1"]["entities"]) == ["Absent", "Orlo"]  # joined without repeats
        assert sorted(found["d#1"]["triples"]) == [["Orlo", "is", "Orlo"], ["x", "y", "z"]]


def test_rows_without_a_passage_are_rejects_and_passages_without_a_row_absent(bench: Any, tmp_path: Path) -> None:
    put_documents(bench, {"a": ["Alpha."], "b": ["Beta."], "c": ["Gamma."]})
    rows: list[Row] = [
        {"id": "a", "entities": ["Alpha"], "triples": [["Alpha", "", "x"]]},
        {"id": "nobody", "entities": ["x"], "triples": []},
        {"id": "c", "entities": [], "triples": []},
    ]
    found = extracted(bench, tmp_path, rows)
    assert {name: row["status"] for name, row in found.items()} == {"a": "ok", "b": "absent", "c": "empty"}
    assert bench.counts == {"extraction_absent": 1, "extraction_empty": 1, "extraction_ok": 1, "rejects": 2}
    by_id = {row["id"]: row for row in rejects(bench)}
    assert set(by_id) == {"nobody", "a"}
    assert "no passage has this id" in by_id["nobody"]["reason"] and "triple 1" in by_id["a"]["reason"]
    with pytest.raises(BadInput, match="bad row"):
        extracted(bench, tmp_path, rows, strict=True)


def test_rejects_do_not_tell_where_the_results_lie(benches: Iterator[Any], tmp_path: Path) -> None:
    written = []
    for place in ("one", "two/deeper"):
        (tmp_path / place).mkdir(parents=True)
        bench = next(benches)
        put_documents(bench, {"a": ["Alpha."]})
        extracted(bench, tmp_path / place, [{"id": "gone", "entities": [], "triples": []}])
        written.append((bench.folder("extraction") / "rejects.jsonl").read_bytes())
    assert written[0] == written[1] and b'"file": "openie.jsonl"' in written[0]


def test_the_import_needs_a_file_and_the_build_reports_its_rejects(tiny_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--openie"):
        extraction_stage.params(make_settings(IMPORT), Sources())
    openie = write_openie(tmp_path / "o.jsonl", [{"id": "d1", "entities": ["Marta Orlo"], "triples": []}, {"id": "x"}])
    fast = {"models": {"embedder": "hash", "llm": "none"}}
    report = gpu_rag.build(tiny_corpus, tmp_path / "ix", openie=openie, settings=fast).report
    assert (report.count("extraction_ok"), report.count("extraction_absent")) == (1, 5)
    assert len((tmp_path / "ix" / "rejects.jsonl").read_text().splitlines()) == 1


Chunks = list[str]
Shares = list[tuple[list[str], list[list[str]]]]


def by_rule(chunks: Chunks, row: Row) -> Shares:
    """The rule once more: what holds all of it verbatim gets it; what nobody holds goes to the first chunk."""
    shares: Shares = [([], []) for _ in chunks]
    for slot, items, needed in ((0, row["entities"], lambda name: [name]), (1, row["triples"], lambda t: [t[0], t[2]])):
        for item in items:
            holders = [k for k, text in enumerate(chunks) if all(name in text for name in needed(item))]
            for k in holders if holders and len(chunks) > 1 else [0]:
                shares[k][slot].append(item)
    return shares


NAMES = st.sampled_from(["Ann", "Bo", "Cy", "Ann Bo", "Di"])
CHUNKS = st.lists(st.lists(NAMES, max_size=4).map(" and ".join).map("{}.".format), min_size=2, max_size=4)
ROWS = st.fixed_dictionaries(
    {
        "entities": st.lists(NAMES, max_size=4, unique=True),
        "triples": st.lists(
            st.tuples(NAMES, st.sampled_from("rs"), NAMES).map(list), max_size=4, unique_by=lambda t: (t[0], t[1])
        ),
    }
)


def import_one(bench: Any, tmp_path: Path, chunks: Chunks, row: Row) -> Shares:
    put_documents(bench, {"d": chunks})
    found = extracted(bench, tmp_path, [{"id": "d", **row}])
    return [(found[f"d#{k}"]["entities"], found[f"d#{k}"]["triples"]) for k in range(len(chunks))]


@given(CHUNKS, ROWS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_against_the_rule(benches: Iterator[Any], tmp_path: Path, chunks: Chunks, row: Row) -> None:
    assert import_one(next(benches), tmp_path, chunks, row) == by_rule(chunks, row)


IDS = ["a", "a#1", "b", "c", "d"]
DOCUMENTS = st.dictionaries(st.sampled_from(IDS), st.lists(st.sampled_from(["Ann.", "Bo."]), min_size=1, max_size=3))
READY = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from([*IDS, "b#0", "b#1"]), "entities": st.lists(st.sampled_from(["Ann", "Bo", ""]))},
        optional={"triples": st.just([["Ann", "knows", "Bo"], ["Ann"]])},
    ),
    max_size=5,
)


def import_files(
    bench: Any, documents: dict[str, Chunks], paths: Sequence[Path], before: Any = None
) -> dict[str, bytes]:
    """Files of an import into these documents, for which an earlier one is on the bench `before`."""
    claimed = {f"{id}#{k}" for id, chunks in documents.items() for k in range(len(chunks)) if len(chunks) > 1}
    put_documents(bench, {id: chunks for id, chunks in documents.items() if len(chunks) > 1 or id not in claimed})
    bench.run(extraction_stage, IMPORT, sources=Sources(openie=tuple(paths)), before=before)
    return {path.name: path.read_bytes() for path in bench.folder("extraction").iterdir() if path.stem != "carried"}


@given(st.lists(DOCUMENTS, min_size=2, max_size=4), READY, READY)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_import_after_others_equals_one_from_nothing(
    benches: Iterator[Any], tmp_path: Path, states: list[dict[str, Chunks]], one: list[Row], two: list[Row]
) -> None:
    paths = [write_openie(tmp_path / name, rows) for name, rows in (("one.jsonl", one), ("two.jsonl", two))]
    before = None
    for documents in states:
        bench = next(benches)
        assert import_files(bench, documents, paths, before) == import_files(next(benches), documents, paths)
        before = bench


def test_ready_rows_are_read_again_only_where_one_names_a_changed_passage(
    benches: Iterator[Any], tmp_path: Path
) -> None:
    rows = [{"id": name, "entities": ["Ann"], "triples": []} for name in ("x", "a", "b")]
    path = write_openie(tmp_path / "o.jsonl", rows)
    old = {"a": ["Ann."], "b": ["Bo."], "c": ["Cy."]}
    before = next(benches)
    import_files(before, old, [path])
    for change, reused in (({"d": ["Di."]}, 3), ({"a": ["Ann and Bo."]}, 3), ({"a": []}, 0), ({"x": ["Ex."]}, 0)):
        bench = next(benches)
        import_files(bench, {**old, **change}, [path], before)
        assert bench.report.reused == reused
