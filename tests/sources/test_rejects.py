"""Whatever is wrong in a corpus is a Reject with its line and reason, and nothing is lost."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_files import DOCS, lines, plain, sha
from source_files import documents_of as read

from gpu_rag.errors import BadInput
from gpu_rag.sources.corpus import read_corpus


def test_missing_paths_and_unknown_types_are_refused_at_once(tmp_path):
    (tmp_path / "x.doc").touch()
    (tmp_path / "empty").mkdir()
    for paths in ([], [tmp_path / "absent.jsonl"], [tmp_path / "x.doc"], [tmp_path / "empty"]):
        with pytest.raises(BadInput, match=r"\.jsonl.*HotpotQA"):
            read_corpus(paths)


BAD_LINES = {
    "broken\n": "broken JSON",
    '{"id": "x", "text": "cut\n': "broken JSON",
    "[1, 2]\n": "a list; expected a JSON object",
    "null\n": "missing or null; expected a JSON object",
    '{"id": "x"}\n': "text is missing or null",
    '{"id": "x", "text": "  "}\n': "text is empty",
    '{"id": "x", "text": 3}\n': "text is a number",
    '{"id": "x", "text": ["a"]}\n': "text is a list",
    '{"id": ["x"], "text": "a"}\n': "id is a list",
    '{"id": true, "text": "a"}\n': "id is true or false",
    '{"id": "", "text": "a"}\n': "id has 0 characters",
    '{"id": "x", "title": {}, "text": "a"}\n': "title is an object",
    '{"id": "x", "text": "\\ud800"}\n': "surrogate",
    '{"id": "x", "text": "a\\u0000b"}\n': "NUL",
    '{"id": "x", "text": "a", "n": NaN}\n': "NaN",
    '{"id": "x", "text": "a", "text": "b"}\n': "twice",
    '{"id": "x", "text": "\udc80"}\n': "not UTF-8",
    "[" * 100_000 + "\n": "nested",
    '{"id": "' + "x" * 1001 + '", "text": "a"}\n': "id has 1001 characters",
}


def check_reasons(path, reader):
    documents, rejects = reader(path)
    assert [d.id for d in documents] == ["a", "b", "c"]
    assert [r.line for r in rejects] == list(range(2, 2 + len(BAD_LINES)))
    for reject, said in zip(rejects, BAD_LINES.values()):
        assert said in reject.reason, reject


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_every_bad_line_is_a_reject_with_its_line_and_reason(tmp_path, name):
    path = lines(tmp_path / name, [DOCS[0], *BAD_LINES, *DOCS[1:]])
    check_reasons(path, read)


def test_duplicate_ids(tmp_path):
    first = lines(tmp_path / "1.jsonl", [DOCS[0], {"text": "x"}, {"text": "x"}])
    second = lines(
        tmp_path / "2.jsonl", [DOCS[1], DOCS[0], {**DOCS[0], "text": "Other."}, {**DOCS[0], "title": "Other"}]
    )
    documents, rejects = read(second, first)
    assert [d.id for d in documents] == ["a", sha("", "x"), "b"]
    assert [r.reason for r in rejects] == [
        f"duplicate of '{sha('', 'x')}' in {first} line 2",
        f"duplicate of 'a' in {first} line 1",
        f"the id 'a' was already used, with another text, in {first} line 1",
        f"the id 'a' was already used, with another text, in {first} line 1",
    ]
    assert [r.id for r in rejects] == [sha("", "x"), "a", "a", "a"]


def test_contexts_may_repeat_a_document_but_not_take_the_id_of_another(tmp_path):
    questions = lines(tmp_path / "q.jsonl", [{"question": "q", "context": [["T", ["x"]], ["U", ["y"]]]}])
    rows = [{"id": sha("T", "x"), "title": "T", "text": "x"}, {"id": sha("U", "y"), "title": "U", "text": "other"}]
    documents, rejects = read(lines(tmp_path / "c.jsonl", rows), questions)
    assert [d.text for d in documents] == ["x", "other"]
    assert [(r.file, r.line, r.id) for r in rejects] == [(str(questions), 1, sha("U", "y"))]


def test_long_lines_and_documents(tmp_path):
    long = {"id": "long", "text": "x" * 5000}
    for name in ("c.jsonl", "c.jsonl.gz"):
        path = lines(tmp_path / name, [DOCS[0], long, DOCS[1], json.dumps({"id": "end", "text": "x" * 5000})])
        documents, rejects = read(path, max_line_bytes=2000)
        assert [d.id for d in documents] == ["a", "b"]
        assert [(r.line, "max_line_bytes = 2000" in r.reason) for r in rejects] == [(2, True), (4, True)]
        assert [r.id for r in read(path, max_document_chars=4999)[1]] == ["long", "end"]
        exact = len(json.dumps(long))
        assert not read(path, max_line_bytes=exact)[1]
        assert [r.line for r in read(path, max_line_bytes=exact - 1)[1]] == [2]


def test_encodings_that_are_not_utf8(tmp_path):
    path = tmp_path / "c.jsonl"
    for encoding in ("utf-16", "utf-32", "utf-16-be"):
        mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
        path.write_bytes(mark + "\n".join(map(json.dumps, DOCS)).encode(encoding))
        documents, rejects = read(path)
        assert not documents and len(rejects) == 1 and "UTF-16 or UTF-32" in rejects[0].reason
        path.with_suffix(".json").write_bytes(path.read_bytes())
        assert "UTF-16 or UTF-32" in read(path.with_suffix(".json"))[1][0].reason


def test_broken_gzip_keeps_the_rows_before_it(tmp_path):
    random.seed(0)
    rows = [{"id": str(i), "text": "".join(random.choices("abcdefgh ", k=200)) + "."} for i in range(2000)]
    path = lines(tmp_path / "c.jsonl.gz", rows)
    whole = path.read_bytes()
    for raw, least in ((whole[: len(whole) // 2], 500), (whole[:-4] + b"abcd", 2000), (whole + b"trailing", 2000)):
        path.write_bytes(raw)
        documents, rejects = read(path)
        assert len(documents) >= least and len(rejects) == 1 and "gzip" in rejects[0].reason
        assert [d.id for d in documents] == [str(i) for i in range(len(documents))]
    for raw in (b"not gzip", whole[:5]):
        path.write_bytes(raw)
        documents, rejects = read(path, lines(tmp_path / "z.jsonl", DOCS))
        assert len(documents) == 3 and "gzip" in rejects[0].reason
    (tmp_path / "plain.jsonl").write_bytes(whole)
    assert "does not end in .gz" in read(tmp_path / "plain.jsonl")[1][0].reason
    path.write_bytes(b"")
    assert read(path) == ([], [])


def test_a_gzip_bomb_is_read_in_bounded_memory(tmp_path):
    import tracemalloc

    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=9) as stream:
        stream.write(json.dumps(DOCS[0]).encode() + b"\n")
        for _ in range(64):
            stream.write(b" " * (1 << 20))
        stream.write(b"\n" + json.dumps(DOCS[1]).encode())
    path.with_name("bomb.json.gz").write_bytes(path.read_bytes())
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    documents, rejects = read(path, max_line_bytes=4 << 20)
    whole = read(path.with_name("bomb.json.gz"), max_json_bytes=4 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [d.id for d in documents] == ["a", "b"] and [r.line for r in rejects] == [2]
    assert whole[0] == [] and "max_json_bytes" in whole[1][0].reason
    assert peak < 16 << 20, peak


def test_json_arrays_that_are_wrong(tmp_path):
    path = tmp_path / "c.json"
    cases = {
        "": (0, ["not an array"]),
        '{"a": 1}': (0, ["text is missing"]),
        '{"id": "a", "text": "x"} {"id": "b", "text": "y"}': (0, ["more text"]),
        json.dumps(DOCS)[:-20]: (2, ["broken JSON"]),
        json.dumps(DOCS) + "x": (3, ["more text"]),
        '[{"id": "a", "text": "x"}, 3, {"id": "b", "text": NaN}, {"id": "c", "text": "y"}]': (2, ["a number", "NaN"]),
        "[" * 100_000: (0, ["nested"]),
    }
    for text, (n, reasons) in cases.items():
        path.write_text(text)
        documents, rejects = read(path)
        assert len(documents) == n and len(rejects) == len(reasons), text[:40]
        for reject, said in zip(rejects, reasons):
            assert said in reject.reason
    for value in ({"documents": DOCS}, {"n": 3, "docs": DOCS, "none": []}):
        path.write_text(json.dumps(value, indent=1))
        assert [(d.id, d.text) for d in read(path)[0]] == [(d["id"], d["text"]) for d in DOCS] and read(path)[1] == []
    path.write_text(json.dumps(DOCS))
    assert "max_json_bytes = 10" in read(path, max_json_bytes=10)[1][0].reason


def test_parquet_that_is_wrong(tmp_path):
    path = tmp_path / "c.parquet"
    bad = pa.array([b"fine", b"\xff", b""], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": pa.array([1, 2, None]), "text": bad}), path)
    documents, rejects = read(path)
    assert plain(documents) == [("1", "", "fine")]
    assert [(r.line, r.reason) for r in rejects] == [(2, "not UTF-8: byte 0xff at offset 0"), (3, "text is empty")]
    for table, said in (
        (pa.table({"text": [1, 2]}), "int64"),
        (pa.table({"body": ["a"]}), "columns body"),
        (pa.table({"id": [1.5], "text": ["a"]}), "double"),
    ):
        pq.write_table(table, path)
        documents, rejects = read(path)
        assert not documents and len(rejects) == 1 and said in rejects[0].reason
    pq.write_table(pa.Table.from_pylist(DOCS), path)
    path.write_bytes(path.read_bytes()[:-10])
    assert "Parquet" in read(path)[1][0].reason or "parquet" in read(path)[1][0].reason


def test_parquet_types(tmp_path):
    path = tmp_path / "c.parquet"
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        columns = {key: pa.array([d[key] for d in DOCS]).cast(kind) for key in ("id", "title", "text")}
        pq.write_table(pa.table({**columns, "other": [[1], [2], [3]]}), path)
        assert plain(read(path)[0]) == [(d["id"], d["title"], d["text"]) for d in DOCS]
    pq.write_table(pa.table({"title": pa.nulls(2), "text": ["x", None]}), path)
    documents, rejects = read(path)
    assert plain(documents) == [(sha("", "x"), "", "x")] and [r.line for r in rejects] == [2]
