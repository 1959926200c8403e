"""Zip files as folders, and zip files made to exhaust or to mislead a reader."""

import io
import json
import zipfile
from pathlib import Path

from package_files import docx, paragraph, zipped
from source_files import DOCS, plain
from source_files import documents_of as read

from gpu_rag.sources.corpus import package as package_module
from gpu_rag.sources.corpus import reader_versions
from gpu_rag.sources.corpus.parser import PARSED_SUFFIXES, versions_for

LINES = "".join(json.dumps(row) + "\n" for row in DOCS)
MEMBERS = {
    "a.txt": "one",
    "sub/b.docx": docx(paragraph("two")),
    "rows.jsonl": LINES,
    "c.key": b"x" * 100,
    ".hidden/d.txt": "no",
    "__MACOSX/._a.txt": "no",
}


def test_a_zip_file_is_a_folder(tmp_path):
    (tmp_path / "a.ZIP").write_bytes(zipped(MEMBERS))
    documents, rejects = read(tmp_path / "a.ZIP")
    rows = [(row["id"], row["title"], row["text"]) for row in DOCS]
    assert plain(documents) == [("a.ZIP/a.txt", "a", "one"), *rows, ("a.ZIP/sub/b.docx", "b", "two")]
    assert documents[0].file == f"{tmp_path}/a.ZIP/a.txt" and documents[1].line == 1
    reasons = {r.file.removeprefix(f"{tmp_path}/a.ZIP/"): r.reason.split()[0] for r in rejects}
    assert reasons == {"c.key": "files", ".hidden": "hidden", "__MACOSX/._a.txt": "hidden"}
    assert reader_versions([tmp_path]) == reader_versions([tmp_path / "a.ZIP"]) == versions_for(PARSED_SUFFIXES)


def test_files_beside_a_zip_file_keep_their_ids(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.zip").write_bytes(zipped({"x.txt": "zipped", "rows.csv": "id,text\na,other\nz,new\n"}))
    (tmp_path / "x.txt").write_text("plain")
    (tmp_path / "rows.jsonl").write_text(LINES)
    documents, rejects = read(tmp_path)
    ids = {d.id: d.text for d in documents}
    assert ids["x.txt"] == "plain" and ids["sub/a.zip/x.txt"] == "zipped" and not rejects
    assert ids["sub/a.zip/rows.csv:a"] == "other" and ids["a"] == DOCS[0]["text"] and ids["z"] == "new"


def test_a_zipped_collection_with_questions_is_its_corpus(tmp_path):
    (tmp_path / "a.zip").write_bytes(zipped({"corpus.jsonl": LINES, "queries.jsonl": '{"_id": "q", "text": "who?"}\n'}))
    documents, rejects = read(tmp_path / "a.zip")
    assert [d.id for d in documents] == ["a", "b", "c"] and not rejects


def squeezed():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as package:
        package.writestr("x.txt", "no", zipfile.ZIP_LZMA)
        package.writestr("z.txt", "fine")
    return out.getvalue()


def linked():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as package:
        link = zipfile.ZipInfo("passwd.txt")
        link.external_attr = 0o120777 << 16
        package.writestr(link, "/etc/passwd")
        package.writestr("z.txt", "fine")
    return out.getvalue()


GOOD = zipped({"a.txt": "fine"})
QUINE = zipped({"a.zip": GOOD, "z.txt": "fine"})
HOSTILE = {
    "bomb.zip": (zipped({"a.txt": b" " * (80 << 20), "z.txt": "fine"}), "a.txt", "over 200 times as many"),
    "out.zip": (zipped({"../../x.txt": "no", "z.txt": "fine"}), "../../x.txt", "leads out"),
    "root.zip": (zipped({"/tmp/x.txt": "no", "z.txt": "fine"}), "/tmp/x.txt", "leads out"),
    "squeezed.zip": (squeezed(), "x.txt", "compression"),
    "link.zip": (linked(), "passwd.txt", "link"),
    "nested.zip": (QUINE, "a.zip", "a zip file in a zip file"),
    "under.zip": (zipped({"a.txt": "fine", "a.txt/b.txt": "no"}), "a.txt/b.txt", "cannot be unpacked"),
    "long.zip": (zipped({"n" * 300 + ".txt": "no", "z.txt": "fine"}), "n" * 300 + ".txt", "cannot be unpacked"),
    "nameless.zip": (zipped({"z.txt": "fine", "q.txt": "no"}).replace(b"q.txt", b"\0.txt"), "", "no name"),
    "broken.zip": (b"PK" + GOOD[2:-30], "", "not a zip file"),
    "empty.zip": (zipped({}), "", "no document"),
    "words.zip": (b"just text", "", "not a zip file"),
}


def test_hostile_zip_files_cost_what_is_hostile_in_them_alone(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, (raw, _, _) in HOSTILE.items():
        (corpus / name).write_bytes(raw)
    documents, rejects = read(corpus)
    assert {d.text for d in documents} == {"fine"}
    whole = {"broken.zip", "empty.zip", "words.zip", "bomb.zip"}  # what follows a bomb is over the limit as well
    assert {d.id.partition("/")[0] for d in documents} == HOSTILE.keys() - whole
    for name, (_, member, reason) in HOSTILE.items():
        place = str(Path(corpus / name, member)) if member.startswith("/") else str(corpus / name / member)
        found = [r.reason for r in rejects if r.file == place.rstrip("/")]
        assert found and reason in found[0], (name, rejects)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"] and not Path("/tmp/x.txt").exists()


def test_zip_files_keep_to_the_limits(tmp_path, monkeypatch):
    (tmp_path / "a.zip").write_bytes(zipped({f"{i}.txt": "words " * 100 for i in range(20)}))
    documents, rejects = read(tmp_path / "a.zip", max_file_bytes=5000)
    assert len(documents) == 8 and len(rejects) == 12 and "max_file_bytes = 5000" in rejects[-1].reason
    documents, rejects = read(tmp_path / "a.zip", max_file_bytes=100)
    assert not documents and len(rejects) == 1 and "max_file_bytes = 100" in rejects[0].reason
    monkeypatch.setattr(package_module, "_MAX_MEMBERS", 19)
    documents, rejects = read(tmp_path / "a.zip")
    assert not documents and "more than 19 files" in rejects[0].reason
