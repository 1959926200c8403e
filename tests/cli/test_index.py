"""gpu-rag index: counts, resuming, --fresh, --strict, rejects, --max-failures, ready extractions."""

import json
from itertools import starmap
from pathlib import Path

import pytest
from package_files import chapter, docx, epub, paragraph

EXTRACT = ("--set", "index.extractor=llm", "--set", "models.capable=true")
EXTRACTED = {
    "d0": [["Halden Bridge", "was designed by", "Marta Orlo"]],
    "d1": [["Marta Orlo", "was born in", "Tamsin"]],
}


@pytest.fixture
def build(run, cli, tiny_corpus, tmp_path):
    """build(*options): `gpu-rag index` of the tiny corpus into tmp_path/i, the result as JSON."""

    def build(*options, corpus=tiny_corpus):
        return run("index", corpus, "--out", tmp_path / "i", *cli.NO_LLM, *options, "--json")

    return build


def test_the_document_has_the_counts_of_the_tables(build, tmp_path):
    import pyarrow.parquet as parquet

    result = build()
    assert result.status == 0
    document = result.document
    stages = list(document["stages"])
    assert (stages[0], stages[-1]) == ("passages", "graph")
    assert len(list((tmp_path / "i" / "stages").iterdir())) == len(stages) >= 9
    tables = {path.stem: parquet.read_table(path) for path in (tmp_path / "i" / "stages").rglob("*.parquet")}
    for name in ("documents", "passages", "entities", "relations", "mentions"):
        assert document[name] == tables[name].num_rows, name
    assert document["passages"] == 6 and document["entities"] > 6 and document["rejects"] == 0
    assert document["extraction"] == {"ok": 6}
    assert document["out"] == str(tmp_path / "i")
    assert sum(stage["s"] for stage in document["stages"].values()) <= document["wall_s"]
    assert not any(stage["skipped"] for stage in document["stages"].values())


def test_only_the_layers_that_a_method_needs(build):
    document = build("--for", "dense,bm25").document
    assert list(document["stages"]) == ["passages", "bm25", "passage_vectors"]
    assert (document["entities"], document["mentions"]) == (0, 0)


def test_a_folder_with_other_files_is_left_alone(build, tmp_path):
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "thesis.tex").write_text("precious")
    for options in ((), ("--fresh",)):
        result = build(*options)
        assert result.status == 2 and "thesis.tex" in result.error
    assert [path.name for path in (tmp_path / "i").iterdir()] == ["thesis.tex"]


def test_a_second_writer_is_turned_away(build, tmp_path):
    from gpu_rag.index.folder import writing

    with writing(tmp_path / "i"):
        (tmp_path / "i" / "lock").write_bytes(b"\xff")  # by another program
        result = build()
    assert result.status == 1 and "another process is writing this index" in result.error
    assert build().status == 0


@pytest.fixture
def flawed(tiny_corpus):
    """The tiny corpus with three bad rows."""
    with tiny_corpus.open("a", encoding="utf-8") as file:
        file.write('{"id": "d6", "title": "No text"}\nnot json\n{"id": "d0", "title": "Again", "text": "d0 again."}\n')
    return tiny_corpus


def test_bad_rows_are_written_down_with_file_line_and_reason_and_are_no_failure(build, flawed, tmp_path):
    result = build()
    assert result.status == 0
    assert (result.document["rejects"], result.document["passages"]) == (3, 6)
    rejects = [json.loads(line) for line in (tmp_path / "i" / "rejects.jsonl").read_text().splitlines()]
    assert [Path(reject["file"]).name for reject in rejects] == ["tiny.jsonl"] * 3
    assert [reject["line"] for reject in rejects] == [7, 8, 9]
    for reject, part in zip(rejects, ("text", "JSON", "d0"), strict=True):
        assert part in reject["reason"]


def test_strict_stops_at_the_first_bad_row_and_a_mended_file_goes_on(build, flawed):
    result = build("--strict")
    assert result.status == 2 and result.out == ""
    assert "tiny.jsonl:7" in result.error and "--strict" in result.error
    flawed.write_text("".join(line + "\n" for line in flawed.read_text().splitlines()[:6]))
    assert build("--strict").status == 0


def extraction_server(chat_server, broken=frozenset()):
    """Extracts from d0 and d1; passages whose title is in `broken` are refused by the server."""

    def behave(prompt):
        title = next((name for name in broken if f"{name}" in prompt.splitlines()[1]), None)
        if title is not None:
            return 400, f"no {title}"
        found = next((t for t in EXTRACTED.values() if t[0][0] in prompt), [["Ves", "flows by", "Kerling"]])
        names = (found[0][0], found[0][2])
        entities = [{"name": name, "aliases": [], "types": [], "description": ""} for name in names]
        return 200, json.dumps({"entities": entities, "triples": found})

    return chat_server(behave)


def test_failed_extractions_end_with_status_3_and_only_they_are_asked_again(build, chat_server):
    server = extraction_server(chat_server, broken={"Kerling"})
    llm = (*EXTRACT, "--set", f"models.llm={server.spec}")
    result = build(*llm)
    assert result.status == 3, result.err
    assert result.document["extraction"] == {"failed": 1, "ok": 5}
    assert "1 extractions failed, above --max-failures 0" in result.err
    again = build(*llm)
    assert not again.document["stages"]["extraction"]["skipped"]
    assert again.document["stages"]["extraction"]["llm_calls"] == 0  # five replies are kept, the sixth failed again
    assert again.status == 3
    assert build(*llm, "--max-failures", "1").status == 0
    assert build(*llm, "--max-failures", "20%").status == 0
    assert build(*llm, "--max-failures", "10%").status == 3


def test_a_run_that_makes_other_entities_says_so_and_drops_nothing(run, cli, tiny_corpus, tmp_path):
    rows = [{"id": f"d{i}", "entities": ["Marta Orlo"], "triples": []} for i in range(6)]
    ready, out = cli.write_rows(tmp_path / "ie.jsonl", rows), tmp_path / "i"
    first = run("index", tiny_corpus, "--out", out, "--openie", ready, *cli.NO_LLM)
    assert first.status == 0 and "extractor" not in first.err and "dropped" not in first.err
    again = run("index", tiny_corpus, "--out", out, "--openie", ready, "--for", "hoprag", *cli.NO_LLM)
    assert again.status == 0 and "extractor" not in again.err and "dropped" not in again.err
    forgot = run("index", tiny_corpus, "--out", out, "--for", "hoprag", *cli.NO_LLM)
    assert forgot.status == 2
    assert "extractor import needs results to import" in forgot.error and "--openie" in forgot.error
    patterns = ("--set", "index.extractor=patterns")
    forgot = run("index", tiny_corpus, "--out", out, "--for", "hoprag", *patterns, *cli.NO_LLM)
    assert forgot.status == 0
    assert "made by the extractor import, now patterns makes them again" in forgot.err
    assert "--openie FILE keeps them" in forgot.err
    assert "dropped" not in forgot.err  # what depends on them is made anew
    fresh = run("index", tiny_corpus, "--out", out, "--openie", ready, "--fresh", *cli.NO_LLM)
    assert fresh.status == 0 and "dropped" not in fresh.err


def test_a_folder_of_many_kinds_of_files_and_what_of_it_cannot_be_read(run, cli, tmp_path, monkeypatch):
    import importlib.util

    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.csv").write_text("id,text,year\n1,Halden Bridge crosses the Ves.,1902\n")
    (folder / "b.tsv").write_text("id\ttext\n1\tMarta Orlo was born in Tamsin.\n")
    (folder / "c.docx").write_bytes(docx(paragraph("Hugo Brandt founded the University of Loss.")))
    (folder / "d.epub").write_bytes(epub({"a.xhtml": chapter("<p>Anna Stroud was mayor of Kerling.</p>")}))
    (folder / "e.txt").write_bytes("Le café de Montréal.".encode("cp1252"))
    (folder / "f.pages").write_text("no")
    (folder / "g.pages").write_text("no")
    command = ("index", folder, "--for", "bm25", *cli.NO_LLM, "--json")
    whole = run(*command, "--out", tmp_path / "i").ok
    assert (whole.document["documents"], whole.document["rejects"]) == (5, 2)
    said = f"gpu-rag: not read in {folder}: 2 .pages (no reader)"
    assert whole.err.startswith(f"{said}; each such file is a reject\n"), whole.err
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "selectolax" else find(name, *rest)
    )
    without = run(*command, "--out", tmp_path / "j").ok
    assert (without.document["documents"], without.document["rejects"]) == (4, 3)
    assert without.err.startswith(f"{said}, 1 .epub (pip install 'gpu-rag[documents]');"), without.err
    rejects = [json.loads(line) for line in (tmp_path / "j" / "rejects.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rejects] == ["mine/d.epub", "mine/f.pages", "mine/g.pages"]
    shown = run(*command[:-1], "--out", tmp_path / "j").ok.out
    assert "rejects: 3; 4 of 7 files taken" in shown and str(tmp_path / "j" / "rejects.jsonl") in shown
    (kind,) = [line.split() for line in shown.splitlines() if ".pages" in line]
    assert kind[0] == "2" and kind[-2:] == ["mine/f.pages,", "mine/g.pages"]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "h.pages").write_text("no")
    (tmp_path / "more" / "h.txt").write_text("Piet Ammer founded Ves.")
    added = run("add", tmp_path / "j", tmp_path / "more", *cli.NO_LLM).ok.out
    assert "new rejects: 1;" in added and "h.pages" in added and "g.pages" not in added
    (tmp_path / "j" / "rejects.jsonl").write_text("{}\n")
    broken = run("add", tmp_path / "j", tmp_path / "more", *cli.NO_LLM)
    assert broken.status == 1 and "the rejects of an index cannot be read" in broken.error
    (folder / "only").mkdir()
    (folder / "d.epub").rename(folder / "only" / "d.epub")
    nothing = run("index", folder / "only", "--out", tmp_path / "k", *cli.NO_LLM)
    assert nothing.status != 0 and "gpu-rag[documents]" in nothing.err


def test_columns_of_all_tables_that_the_index_reads_are_taken(build, run, cli, tmp_path):
    """Tables of a source of documents and of a source that stays count too, and a missing path is named."""
    (tabs := tmp_path / "tabs").mkdir()
    (tabs / "a.csv").write_text("name,description\nVat,Holds milk.\n")
    columns = ("--for", "bm25", "--columns", "title=name,text=description")
    missing = build(*columns, corpus=tmp_path / "nope")
    assert missing.status == 2 and f"no such corpus; given {tmp_path}/nope" in missing.error
    assert build("--for", "bm25").ok.document["documents"] == 6
    assert "no table has the columns" in build(*columns).error
    assert run("add", tmp_path / "i", tabs, *cli.NO_LLM).status == 0
    assert build(*columns).ok.document["documents"] == 7
    wrong = build(*columns[:-1], "title=name,text=txet")
    assert wrong.status == 2 and "description" in wrong.error
    assert run("remove", tmp_path / "i", "--file", "tabs", *cli.NO_LLM).status == 0
    assert build(*columns, "--source", f"t=documents:{tabs}").ok.document["documents"] == 7


def test_what_was_removed_stays_out_and_is_told(run, cli, tiny_corpus, tmp_path):
    build = ("index", tiny_corpus, "--out", tmp_path / "i", "--for", "bm25", *cli.NO_LLM)
    assert "stay out" not in run(*build).ok.out
    assert run("remove", tmp_path / "i", "--doc", "d1", *cli.NO_LLM).status == 0
    for made in (run(*build), run("update", tmp_path / "i", *cli.NO_LLM)):
        assert "1 removed documents or files stay out; gpu-rag add" in made.ok.out


def test_rejects_are_shown_by_kind_the_most_frequent_first():
    from gpu_rag.report.runs import reject_kinds
    from gpu_rag.types import Reject

    rows = [
        ("a.csv", 2, "the row has 3 cells for 2 columns"),
        ("b.pdf", 0, "page 7 is broken"),
        *(("a.csv", n, f"the row has {n} cells for 2 columns") for n in range(4, 9)),
        ("c.jsonl", 3, "duplicate of 'x' in a.csv line 7"),
        ("c.jsonl", 4, "duplicate of 'y\u0085z' in b/a.csv line 12"),
    ]
    kinds = reject_kinds(starmap(Reject, rows))
    assert kinds[0][0] == "the row has ... cells for ... columns"
    assert [(n, places) for _, n, places in kinds] == [
        (6, ["a.csv:2", "a.csv:4", "a.csv:5"]),
        (2, ["c.jsonl:3", "c.jsonl:4"]),
        (1, ["b.pdf"]),
    ]
    assert kinds[2][0] == "page 7 is broken"


def test_rejects_that_a_person_can_mend_are_shown_before_types_of_files_that_are_not_read():
    """Each type was a kind of its own, so that a few photos and programs hid a scan and its remedy."""
    from gpu_rag.cli.index_command import kinds_of_rejects
    from gpu_rag.sources.corpus import scan
    from gpu_rag.sources.corpus.folder import HIDDEN
    from gpu_rag.types import Reject

    types = [f"t{n:02}" for n in range(12)]
    rows = [(f"f.{kind}", 0, f"files of the type .{kind} are not read") for kind in (*types, "t03", "t03")]
    rows += [("bin", 0, "files without an ending are not read"), (".a", 0, HIDDEN), (".b", 0, HIDDEN)]
    rows += [("old.xlsx", 0, "not a whole file"), ("a.jsonl", 1, "no text"), ("a.jsonl", 2, "no text")]
    rows += [(name, 0, f"2 pages are scans; {scan.INSTALL}") for name in ("a.pdf", "b.pdf")]
    lines = [line.strip() for line in kinds_of_rejects(starmap(Reject, rows))]
    assert lines[0] == f"2  ... pages are scans; {scan.INSTALL}: a.pdf, b.pdf"
    assert lines[1:3] == ["2  no text: a.jsonl:1, a.jsonl:2", "1  not a whole file: old.xlsx"]
    shown = ", ".join(["3 .t03", *(f"1 .{kind}" for kind in types if kind != "t03"), "1 without an ending"])
    assert lines[3:4] == [f"15  files of types that are not read ({shown}): f.t00, f.t01, f.t02, ..."]
    assert lines[4:] == [f"2  {HIDDEN}: .a, .b"]
