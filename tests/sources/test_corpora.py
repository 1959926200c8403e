"""Corpora in every format: the same documents, the same ids, on every machine."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from package_files import chapter, docx, epub, paragraph
from pdf_files import pdf
from source_files import DOCS, lines, plain, sha
from source_files import documents_of as read

from gpu_rag.errors import BadInput
from gpu_rag.sources.corpus import read_corpus, unread


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.json", "C.JSONL", "c.parquet"])
def test_the_same_rows_in_every_container(tmp_path, name):
    path = tmp_path / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(DOCS), path)
    elif name.endswith(".json"):
        path.write_text(json.dumps(DOCS))
    else:
        lines(path, DOCS)
    documents, rejects = read(path)
    assert plain(documents) == [(d["id"], d["title"], d["text"]) for d in DOCS] and not rejects
    assert [(d.file, d.line) for d in documents] == [(str(path), i) for i in (1, 2, 3)]


def test_ids_that_are_missing_come_from_title_and_text(tmp_path):
    path = lines(
        tmp_path / "c.jsonl", [{"title": "T", "text": "x"}, {"text": "x"}, {"id": 7, "title": None, "text": "y"}]
    )
    assert [d.id for d in read(path)[0]] == [sha("T", "x"), sha("", "x"), "7"]


def test_a_byte_order_mark_and_line_ends_are_accepted(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(json.dumps(d).encode() for d in DOCS))
    documents, rejects = read(path)
    assert [d.id for d in documents] == ["a", "b", "c"] and [d.line for d in documents] == [1, 3, 5] and not rejects


def test_beir_folder(tmp_path):
    rows = [{"_id": d["id"], "title": d["title"], "text": d["text"], "metadata": {}} for d in DOCS]
    for suffix in (".jsonl", ".jsonl.gz"):
        folder = tmp_path / suffix
        folder.mkdir()
        lines(folder / f"corpus{suffix}", rows)
        (folder / "notes.txt").write_text("not a document: the folder is a BEIR folder")
        (folder / "queries.jsonl").write_text("")
        assert plain(read(folder)[0]) == [(d["id"], d["title"], d["text"]) for d in DOCS]
    lines(tmp_path / ".jsonl" / "corpus.jsonl.gz", rows)
    with pytest.raises(BadInput, match="two corpora"):
        read_corpus([tmp_path / ".jsonl"])


SENTENCES = [["Vell", ["Vell is a town.", " It lies on the Orn."]], ["Orn", ["A river."]]]


@pytest.mark.parametrize(("extra", "joint"), [({}, ""), ({"evidences": []}, " "), ({"evidences_id": []}, " ")])
@pytest.mark.parametrize("name", ["q.json", "q.jsonl", "q.json.gz"])
def test_hotpotqa_and_2wiki_contexts_are_each_one_document(tmp_path, extra, joint, name):
    rows = [
        {"_id": "1", "question": "q", "context": SENTENCES, **extra},
        {"_id": "2", "question": "q", "context": [*SENTENCES[:1], ["Vell", ["Another Vell."]]], **extra},
    ]
    path = tmp_path / name
    raw = json.dumps(rows) if ".jsonl" not in name else "\n".join(map(json.dumps, rows))
    path.write_bytes(gzip.compress(raw.encode()) if name.endswith("gz") else raw.encode())
    documents, rejects = read(path, path)
    texts = [("Vell", f"Vell is a town.{joint} It lies on the Orn."), ("Orn", "A river."), ("Vell", "Another Vell.")]
    assert plain(documents) == [(sha(*t), *t) for t in texts] and not rejects


def test_broken_contexts_are_rejects_and_the_others_stay(tmp_path):
    context = [["A", "not a list"], ["B"], ["C", ["fine"]], ["D", [3]], 5, ["E", []], [None, ["x"]]]
    path = tmp_path / "h.json"
    path.write_text(json.dumps([{"_id": "1", "question": "q", "context": context}]))
    documents, rejects = read(path)
    assert [d.title for d in documents] == ["C"] and len(rejects) == 6
    paragraphs = [{"title": "A", "paragraph_text": "x"}, {"title": 3, "paragraph_text": "x"}, {"title": "B"}, "C"]
    path.write_text(json.dumps([{"id": "1", "question": "q", "paragraphs": paragraphs}]))
    documents, rejects = read(path)
    assert [d.title for d in documents] == ["A"] and len(rejects) == 3


CODE = "```a``` b\n````md\n# code\n```\n# code\n~~~~~\n# code\n````py\n# code\n`````"  # only the last mark closes


def test_folder_of_text_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in {
        "z.txt": "# not a heading in a text file",
        "b/two.md": f"intro\n\n{CODE}\n  ## The *second* ##  \nbody",
        "b/Ünï.MD": "no heading #here\n#nor here\n",
        "a.md": "\ufeff# First\r\nbody\r\n",
        ".hidden.md": "x",
        ".git/config.txt": "x",
        "table.doc": "1,2",
    }.items():
        (tmp_path / name).write_bytes(text.encode())
    documents, rejects = read(tmp_path)
    assert plain(documents) == [
        ("a.md", "First", "# First\r\nbody\r\n"),
        ("b/two.md", "The *second*", f"intro\n\n{CODE}\n  ## The *second* ##  \nbody"),
        ("b/Ünï.MD", "Ünï", "no heading #here\n#nor here\n"),
        ("z.txt", "z", "# not a heading in a text file"),
    ]
    assert [Path(r.file).name for r in rejects] == [".git", ".hidden.md", "table.doc"] and ".doc" in rejects[2].reason
    assert plain(read(tmp_path / "a.md")[0]) == plain(documents)[:1]


CHARSETS = {
    "utf-8-sig": "Ünï",
    "utf-16": "Ünï",
    "utf-32": "Ünï",
    "utf-16-le": "Words without a mark.",
    "cp1252": "Le café de Montréal où l’on dîne – à 5 €.",
    "cp1250": "Zażółć gęślą jaźń. Most zbudowano w Łodzi.",
    "iso8859-2": "Zażółć gęślą jaźń. Most zbudowano w Łodzi.",
    "cp1251": "Мост построили в 1902 году.",
    "cp866": "Мост построили в 1902 году.",
    "cp1253": "Η γέφυρα χτίστηκε το 1902.",
    "gb18030": "这座桥由工程师建造，横跨河流。",
    "big5": "這座橋由工程師建造，橫跨河流。",
    "shift_jis": "この橋は1902年に建てられた。",
    "euc_jp": "この橋は1902年に建てられた。",
    "euc_kr": "이 다리는 1902년에 지었다.",
}


@pytest.mark.parametrize("charset", CHARSETS)
def test_the_charset_of_a_text_is_found(tmp_path, charset):
    text = f"Halden Bridge\r\n{CHARSETS[charset]}\n"
    (tmp_path / "a.txt").write_bytes(text.encode(charset))
    (tmp_path / "b.csv").write_bytes(("id,text\r\n1," + CHARSETS[charset]).encode(charset))
    documents, rejects = read(tmp_path)
    if charset == "utf-16-le":  # such a table is for its mark alone
        assert documents[0].text == text
        return
    assert [d.text for d in documents] == [text, CHARSETS[charset]] and not rejects


def test_a_folder_of_files_of_all_kinds(tmp_path):
    (tmp_path / "sub").mkdir()
    lines(tmp_path / "a.jsonl", [{"id": 1, "text": "one", "year": 1999}])
    (tmp_path / "b.csv").write_text("id,text,year\n1,two,2001\n2,both\n")
    (tmp_path / "sub" / "c.tsv").write_text("id\ttext\n1\tthree\n2\tboth\n")
    pq.write_table(pa.Table.from_pylist([{"text": "four", "year": 7}]), tmp_path / "d.parquet")
    (tmp_path / "e.json").write_text(json.dumps([{"title": "T", "text": "five"}]))
    (tmp_path / "f.docx").write_bytes(docx(paragraph("six")))
    (tmp_path / "g.epub").write_bytes(epub({"a.xhtml": chapter("seven")}))
    (tmp_path / "h.pdf").write_bytes(pdf(["eight"]))
    (tmp_path / "i.html").write_text("<p>nine")
    (tmp_path / "j.txt").write_text("ten")
    (tmp_path / "k.md").write_text("# K\neleven")
    (tmp_path / "l.key").write_text("no")
    (tmp_path / "Makefile").write_text("no")
    outside = lines(tmp_path.parent / "outside.jsonl", DOCS)
    (tmp_path / "m.jsonl").symlink_to(outside)
    documents, rejects = read(tmp_path)
    texts = ["one", "two", "both", "four", "five", "six", "seven", "eight", "nine", "ten", "#", "K\neleven", "three"]
    assert [d.text for d in documents] == [*texts[:10], "# K\neleven", "three"]
    ids = [d.id for d in documents]
    assert ids[:3] == ["1", "b.csv:1", "2"] and ids[-1] == "sub/c.tsv:1" and ids[5:7] == ["f.docx", "g.epub"]
    assert [d.metadata.get("year") for d in documents[:4]] == [1999, 2001, None, 7]
    reasons = {Path(r.file).name: r.reason for r in rejects}
    assert reasons.keys() == {"Makefile", "l.key", "m.jsonl", "c.tsv"}
    assert ".key" in reasons["l.key"] and "leads out" in reasons["m.jsonl"] and "duplicate" in reasons["c.tsv"]
    assert unread([tmp_path, outside]) == [
        f"not read in {tmp_path}: 1 without an ending (no reader), 1 .key (no reader)"
    ]


def test_hidden_entries_of_a_folder_are_rejects_and_are_read_where_they_are_named(tmp_path):
    for name in ("a.txt", ".b.txt", ".git/objects/c.txt", "sub/.d/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    documents, rejects = read(tmp_path)
    assert [d.id for d in documents] == ["a.txt"]
    hidden = [r.file.removeprefix(f"{tmp_path}/") for r in rejects if "hidden" in r.reason]
    assert hidden == [".b.txt", ".git", "sub/.d"]
    named = read(tmp_path / ".b.txt"), read(tmp_path / "sub" / ".d")
    assert [([d.text for d in found], left) for found, left in named] == [([".b.txt"], []), (["sub/.d/e.txt"], [])]
    (tmp_path / "a.txt").unlink()
    with pytest.raises(BadInput, match="no document"):
        read(tmp_path)


def test_what_cannot_be_read_in_a_folder_is_a_reject(tmp_path):
    contents = {
        "bom16.txt": "x".encode("utf-16") + b"y",
        "empty.md": b" \n\t",
        "half.txt": "Ünïcode".encode() + b"\xe9",
        "long.txt": b"0123456789a",
        "huge.txt": b"x" * 100,
        "nul.txt": b"a\x00b",
        "ok.txt": b"0123456789",
    }
    for name, raw in contents.items():
        (tmp_path / name).write_bytes(raw)
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "loop.txt").symlink_to(tmp_path)
    with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb") as odd:
        odd.write(b"x")
    documents, rejects = read(tmp_path, max_document_chars=10)
    assert [d.id for d in documents] == ["ok.txt"]
    reasons = {r.file.rsplit("/", 1)[1]: r.reason for r in rejects}
    expected = {
        "bom16.txt": "not UTF-16-LE, the charset of the file: byte 0x79 at offset 4",
        "empty.md": "text is empty",
        "half.txt": "not UTF-8, the charset of the file: byte 0xe9 at offset 9",
        "long.txt": "11 characters, more than max_document_chars = 10",
        "huge.txt": "more than",
        "nul.txt": "NUL",
        "pipe.txt": "not a regular file",
        "gone.txt": "No such file",
        "loop": "a link to a folder",
        "loop.txt": "a link to a folder",
        "\\xff.txt": "the name of the file is not UTF-8",
    }
    assert reasons.keys() == expected.keys()
    for name, said in expected.items():
        assert said in reasons[name], (name, reasons[name])


def test_ids_and_order_do_not_depend_on_the_locale(tmp_path):
    for name in ("Zeta.txt", "alpha.txt", "Österreich.txt", "日本.txt", "b.txt"):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_text("text", encoding="utf-8")
    code = (
        "import sys, pathlib; from gpu_rag.sources.corpus import read_corpus; "
        "sys.stdout.buffer.write(repr([d.id for d in read_corpus([pathlib.Path(sys.argv[1])])]).encode())"
    )
    results = []
    for environment in ({"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        run = [sys.executable, "-c", code, str(tmp_path / "d")]
        results.append(subprocess.run(run, env={**os.environ, **environment}, capture_output=True, check=True).stdout)
    assert results[0] == results[1]
    assert results[0].decode() == repr(["Zeta.txt", "alpha.txt", "b.txt", "Österreich.txt", "日本.txt"])


def test_paths_that_are_not_utf8_are_shown_with_their_bytes(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(folder)
    path = lines(Path(folder) / "c.jsonl", [DOCS[0], 3])
    documents, rejects = read(path)
    assert documents[0].file == rejects[0].file == f"{tmp_path}/\\xff/c.jsonl"


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "n"), [("musique_openie", 1890), ("2wiki_openie", 841), ("hotpotqa/corpus.jsonl.gz", 15219)]
)
def test_real_corpora(shared_data, name, n):
    documents, rejects = read(shared_data / name)
    assert (len(documents), rejects) == (n, [])
    assert all(d.id == sha(d.title, d.text) for d in documents)


def test_the_front_matter_of_a_markdown_file_has_its_title_and_metadata(tmp_path):
    text = "---\r\ntitle: 'Weekly: Heron'\r\ndate: 2025-01-20\r\ntags: [a, b]\r\n---\r\n# Decisions\r\n\r\nGreen.\r\n"
    (tmp_path / "a.md").write_bytes(text.encode())
    (tmp_path / "b.md").write_text("# Rule\n\n---\ntitle: no\n---\n")
    (tmp_path / "c.md").write_text("---\nAll of it is old.\nWarning: no\n---\n")
    fields = "".join(f"f{i}: '{i} # {i}'\n" for i in range(200))
    (tmp_path / "d.md").write_text(f"""---\ntitle: "A: B" # c\nby: Ida's "x" # c\n{fields}---\n""")
    (one, other, prose, many), rejects = read(tmp_path)
    assert (prose.title, prose.metadata, many.title, len(many.metadata)) == ("c", {}, "A: B", 99)
    assert many.metadata["f3"] == "3 # 3" and many.metadata["by"] == "Ida's \"x"
    assert (one.title, one.text, one.metadata) == ("Weekly: Heron", text, {"date": "2025-01-20"})
    assert (other.title, other.metadata, rejects) == ("Rule", {}, [])


def test_values_in_front_matter_have_the_types_of_cells_in_a_table(tmp_path):
    (tmp_path / "a.md").write_text(
        "---\ntitle: 1.10\nyear: 1911\nold: '1911'\nscore: 1.5\ndraft: true\ncode: 007\n---\nx"
    )
    ((document,), _) = read(tmp_path / "a.md")
    assert document.title == "1.10"
    assert document.metadata == {"year": 1911, "old": "1911", "score": 1.5, "draft": True, "code": "007"}
