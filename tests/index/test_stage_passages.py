"""The passage layer: offsets into the source, chunk ids, names of files, rejects, ids that would collide."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpu_rag
from gpu_rag.errors import BadInput
from gpu_rag.index.stages.passages import content_hash, passages_stage, short_name
from gpu_rag.index.verify import verify
from gpu_rag.index.work import Sources
from gpu_rag.sources.rows import MAX_TITLE_CHARS

Row = dict[str, Any]
CHUNKED = {"index": {"chunk_words": 8, "overlap_words": 3}}
FAST = {"models": {"embedder": "hash", "llm": "none"}}


def write_corpus(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def check_passages(sources: dict[str, str], rows: list[Row]) -> None:
    """Every passage is its source between its offsets, and the passages of a document cover all that is not space."""
    assert [row["id"] for row in rows] == sorted({row["id"] for row in rows})
    assert {row["doc_id"] for row in rows} == set(sources)
    for doc_id, source in sources.items():
        mine = sorted((row for row in rows if row["doc_id"] == doc_id), key=lambda row: row["start"])
        names = [doc_id] if len(mine) == 1 else [f"{doc_id}#{k}" for k in range(len(mine))]
        assert [row["id"] for row in mine] == names
        covered: set[int] = set()
        for row in mine:
            assert row["text"] == source[row["start"] : row["end"]] != ""
            covered.update(range(row["start"], row["end"]))
        assert all(source[i].isspace() for i in range(len(source)) if i not in covered)


def test_the_title_of_many_passages_takes_the_room_of_few(bench: Any, tmp_path: Path) -> None:
    title = "".join(chr(0x4E00 + i) for i in range(MAX_TITLE_CHARS))  # nothing in it repeats
    rows = [{"id": "a", "title": title, "text": "It crosses the river Ves. " * 2_000}]
    bench.run(passages_stage, CHUNKED, sources=Sources((write_corpus(tmp_path / "c.jsonl", rows),)))
    assert len(bench.rows("passages")) > 1_000
    with pq.ParquetFile(next(tmp_path.rglob("passages.parquet"))) as file:
        column = file.metadata.row_group(0).column(file.schema_arrow.names.index("title"))
    assert column.total_compressed_size < 8 * len(title.encode())  # of 2,000 copies


@given(
    st.lists(st.text("aB. \nß\u0301\U0001f600é!", min_size=1, max_size=120).filter(str.strip), min_size=1, max_size=5)
)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_offsets_hold_for_any_text(benches: Iterator[Any], tmp_path: Path, texts: list[str]) -> None:
    sources = {f"d{i}": text for i, text in enumerate(texts)}
    rows = [{"id": name, "text": text} for name, text in sources.items()]
    bench = next(benches)
    bench.run(passages_stage, CHUNKED, sources=Sources((write_corpus(tmp_path / "c.jsonl", rows),)))
    check_passages(sources, bench.rows("passages"))


def files_of(bench: Any) -> tuple[list[Row], str]:
    return bench.rows("documents"), (bench.folder("passages") / "rejects.jsonl").read_text()


def lay_out(root: Path) -> tuple[Path, Path]:
    folder = root / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("Alpha text.")
    (folder / "deep" / "b.md").write_text("Beta text.")
    (folder / "deep" / "bad.txt").write_bytes(b"\xff\xfe\xff")
    return folder, write_corpus(root / "rows.jsonl", [{"id": "r", "text": "Rho."}, {"id": "r", "text": "Other."}])


def test_names_of_files_do_not_depend_on_where_the_corpus_lies(
    benches: Iterator[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for root in (tmp_path / "one", tmp_path / "quite" / "another" / "place"):
        bench = next(benches)
        bench.run(passages_stage, sources=Sources(lay_out(root)))
        found.append(files_of(bench))
    monkeypatch.chdir(tmp_path / "one")
    for corpus in ((Path("texts"), Path("rows.jsonl")), (Path("../one/texts"), Path("../one/rows.jsonl"))):
        bench = next(benches)
        bench.run(passages_stage, sources=Sources(corpus))
        found.append(files_of(bench))
    assert all(entry == found[0] for entry in found[1:])
    assert [row["file"] for row in found[0][0]] == ["texts/a.txt", "texts/deep/b.md", "rows.jsonl"]
    rejects = [json.loads(line) for line in found[0][1].splitlines()]
    assert {(row["file"], row["line"]) for row in rejects} == {("texts/deep/bad.txt", 0), ("rows.jsonl", 2)}


@pytest.mark.parametrize(
    ("file", "corpus", "name"),
    [
        ("/data/wiki/a.txt", "/data/wiki", "wiki/a.txt"),
        ("/wiki/a.txt", "/wiki", "wiki/a.txt"),  # a corpus at the root, as in a container
        ("/wiki.jsonl", "/wiki.jsonl", "wiki.jsonl"),
        ("wiki.jsonl", "wiki.jsonl", "wiki.jsonl"),
        ("x/wiki.jsonl", "x/wiki.jsonl", "wiki.jsonl"),
    ],
)
def test_short_names(file: str, corpus: str, name: str) -> None:
    assert short_name(file, (Path("/elsewhere/z"), Path(corpus))) == name


def test_the_hash_of_a_corpus_is_of_its_names_and_bytes(tmp_path: Path) -> None:
    one, two = lay_out(tmp_path / "one"), lay_out(tmp_path / "two")
    assert content_hash(one) == content_hash(two)
    assert content_hash(one[:1]) != content_hash(one)
    (two[0] / "a.txt").rename(two[0] / "c.txt")
    assert content_hash(one) != content_hash(two)
    with pytest.raises(BadInput, match="no such corpus"):
        content_hash((tmp_path / "missing",))


@pytest.mark.parametrize("plain_first", [True, False])
def test_a_document_named_like_a_chunk_of_another_is_rejected(tmp_path: Path, plain_first: bool) -> None:
    """`a` in three chunks and a document `a#1`: two passages of one id could not be told apart."""
    rows = [{"id": "a", "text": "One two three four five six. " * 3}, {"id": "a#1", "text": "Seven."}]
    corpus = write_corpus(tmp_path / "c.jsonl", rows[::-1] if plain_first else rows)
    report = gpu_rag.build(corpus, tmp_path / "ix", methods=["bm25"], settings={**FAST, **CHUNKED}).report
    assert verify(tmp_path / "ix") == []
    (line,) = (tmp_path / "ix" / "rejects.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert (reject["file"], reject["line"], reject["id"]) == ("c.jsonl", 2, "a" if plain_first else "a#1")
    assert "a#1" in reject["reason"]
    assert report.count("documents") == 1 and report.count("rejects") == 1


def test_an_empty_corpus_names_its_first_reject(bench: Any, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", [{"id": "a", "text": "  "}])
    with pytest.raises(BadInput, match="1 rows rejected, the first: c.jsonl:1 text is empty"):
        bench.run(passages_stage, sources=Sources((corpus,)))
    with pytest.raises(BadInput, match="no corpus given"):
        bench.run(passages_stage)
