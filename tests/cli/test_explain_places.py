"""explain: file and line, lines or page of every quotation, from the row or looked up in the index."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pdf_files import pdf

SMALL = ("--set", "index.chunk_words=12", "--set", "index.overlap_words=4")
BRIDGE = "The Halden Bridge crosses the river Ves at Kerling.\nMarta Orlo of Tamsin designed the bridge.\n\n"


@pytest.fixture
def asked(run, cli, tmp_path):
    """asked(corpus): indexes it in small passages; (index folder, answers file of one question, its row)."""

    def asked(corpus: Path, question: str = "Who designed the Halden Bridge at Kerling?") -> tuple[Path, Path, Any]:
        from gpu_rag import Index
        from gpu_rag.jobs import row_of
        from gpu_rag.models.llm.scripted import ScriptedLLM

        folder = tmp_path / "i"
        assert run("index", corpus, "--out", folder, "--for", "bm25", *cli.NO_LLM, *SMALL).ok
        settings = {"models": {"embedder": "hash"}, "reader": {"passages": 20}}
        llm = ScriptedLLM(lambda _: "Marta Orlo")
        (answer,) = Index.open(folder).answer(question, method="bm25", settings=settings, llm=llm)
        row = row_of(answer)
        assert row["evidence"]
        return folder, cli.write_rows(tmp_path / "a.jsonl", [row]), row

    return asked


def lines_of(source: str, text: str, start: int) -> str:
    """Where the characters stand, by counting lines the plain way."""
    assert source[start : start + len(text)] == text
    numbers = [n for n, line in enumerate(source.split("\n"), 1) for _ in line + "\n"]
    first, last = numbers[start], numbers[start + len(text) - 1]
    return f"line {first}" if first == last else f"lines {first}-{last}"


@pytest.mark.parametrize("lead", ["", "\n\n \n", "# Bridge\r\n\r\n"])
def test_lines_of_text_files(asked, run, tmp_path, lead):
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    bridges = "".join(BRIDGE.replace("Tamsin", f"Tamsin {n}") for n in range(5))
    source = lead + (bridges.replace("\n", "\r\n") if "\r" in lead else bridges)
    (folder / "deep" / "bridge.md").write_bytes(source.encode())
    (folder / "one.txt").write_text("Kerling has a bridge.")
    _, answers, row = asked(folder)
    places = {}
    for item in row["evidence"]:
        name = item["file"].removeprefix("texts/")
        text = (folder / name).read_bytes().decode()
        assert item["place"] == lines_of(text, item["text"], item["start"])
        places[item["passage_id"]] = (
            f"[{item['passage_id']}, {item['file']} {item['place']}, characters {item['start']}-"
        )
    assert len(places) > 4 and {item["file"] for item in row["evidence"]} == {"texts/deep/bridge.md", "texts/one.txt"}
    told = run("explain", answers, "q1").out
    assert all(place in told for place in places.values())


def test_lines_of_json_lines_and_rows_of_tables(asked, run, cli, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"id": f"d{i}", "title": f"T{i}", "text": f"Kerling bridge number {i}."} for i in range(3)]
    packed = [{**row, "id": row["id"] + "z"} for row in rows]
    table = [{**row, "id": row["id"] + "p"} for row in rows]
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "a.jsonl").write_text("\n\n" + "\n\n".join(map(json.dumps, rows)))  # blank lines count
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, packed)).encode()))
    pq.write_table(pa.Table.from_pylist(table), folder / "c.parquet")
    given = [folder / name for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")]
    assert run("index", *given, "--out", tmp_path / "i", "--for", "bm25", *cli.NO_LLM).status == 0
    from gpu_rag import Index

    index = Index.open(tmp_path / "i")
    found = dict(zip(index.passage_ids, index.places(range(index.n_passages))))
    expected = {"d0": ("a.jsonl", "line 3"), "d1": ("a.jsonl", "line 5"), "d2": ("a.jsonl", "line 7")}
    expected |= {f"d{i}z": ("b.jsonl.gz", f"line {i + 1}") for i in range(3)}
    expected |= {f"d{i}p": ("c.parquet", f"row {i + 1}") for i in range(3)}
    assert found == expected


def test_pages_of_a_pdf(asked, run, tmp_path):
    pytest.importorskip("pypdfium2")
    pages = ["The Halden Bridge crosses the Ves at Kerling.", "It is old.", "Marta Orlo designed the bridge in Tamsin."]
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "bridge.pdf").write_bytes(pdf(pages))
    index, answers, row = asked(folder)
    assert run("verify", index).status == 0
    for item in row["evidence"]:
        numbers = [n for n, page in enumerate(pages, 1) if page[:20] in item["text"] or page[-15:] in item["text"]]
        first, last = min(numbers), max(numbers)
        assert item["place"] == (f"page {first}" if first == last else f"pages {first}-{last}")
    assert re.search(r"papers/bridge\.pdf pages? \d", run("explain", answers, "q1").out)


def test_the_index_is_asked_where_the_row_does_not_know(asked, run, cli, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "bridge.txt").write_text(BRIDGE * 3)
    folder, answers, row = asked(tmp_path / "texts")
    old = json.loads(json.dumps(row))
    for item in old["evidence"]:
        del item["file"], item["place"]
    cli.write_rows(answers, [old])
    plain = run("explain", answers, "q1")
    first = row["evidence"][0]
    span = f"characters {first['start']}-{first['end']}]"
    assert plain.status == 0 and f"[{first['passage_id']}, {span}" in plain.out and "bridge.txt line" not in plain.out
    told = run("explain", answers, "q1", "--index", folder)
    assert f"[{first['passage_id']}, texts/bridge.txt {first['place']}, {span}" in told.out
    assert run("explain", answers, "q1", "--index", folder, "--json").document == row
    assert run("explain", answers, "q1", "--json").document == old


def test_an_index_that_does_not_hold_what_is_quoted(asked, run, cli, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "bridge.txt").write_text(BRIDGE)
    folder, answers, row = asked(tmp_path / "texts")
    for name, value in (("passage_id", "nowhere"), ("text", "Another text.")):
        changed = json.loads(json.dumps(row))
        changed["evidence"][0][name] = value
        cli.write_rows(answers, [changed])
        result = run("explain", answers, "q1", "--index", folder)
        assert result.status == 2 and "quotes texts that this index lacks" in result.error
        assert run("explain", answers, "q1").status == 0
    assert run("explain", answers, "q1", "--index", tmp_path / "texts").status == 2
