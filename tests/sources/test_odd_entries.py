"""Entries of a folder that cannot be read, or are no documents of people: a Reject with its name, never the end."""

import contextlib
import json
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from gpu_rag.errors import BadInput
from gpu_rag.index.stages.passages import corpus_hash
from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.corpus.html import MAX_ATTRIBUTES, read_html
from gpu_rag.sources.rows import LIMITS, MAX_TITLE_CHARS
from gpu_rag.types import Document, Reject

NOBODY = 65534


@contextlib.contextmanager
def without_privileges(folder):
    """In `folder`, as a user whom rights bind."""
    before, user = Path.cwd(), os.geteuid()
    os.chdir(folder)
    try:
        if user == 0:
            os.seteuid(NOBODY)
        yield Path(".")
    finally:
        os.seteuid(user)
        os.chdir(before)


def read(path):
    items = list(read_corpus([path]))
    documents = {item.id: item for item in items if isinstance(item, Document)}
    return documents, {Path(item.file).name: item.reason for item in items if isinstance(item, Reject)}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "corpus"
    made.mkdir()
    (made / "good.txt").write_text("The bridge was built in 1931.")
    return made


def test_files_and_folders_without_rights_are_rejects(folder):
    (folder / "secret.txt").write_text("x")
    (folder / "rows.jsonl").write_text('{"text": "x"}')
    (folder / "closed").mkdir()
    (folder / "closed" / "inside.txt").write_text("x")
    for name in ("secret.txt", "rows.jsonl", "closed"):
        (folder / name).chmod(0)
    folder.chmod(0o755)
    with without_privileges(folder) as here:
        documents, rejects = read(here)
        digest = corpus_hash((here,))
    assert list(documents) == ["good.txt"] and len(digest) == 64
    assert set(rejects) == {"secret.txt", "rows.jsonl", "closed"}
    assert all("Permission denied" in reason for reason in rejects.values())


def test_a_folder_that_cannot_be_listed_is_an_error(folder):
    folder.chmod(0o711)
    with without_privileges(folder) as here, pytest.raises(BadInput, match="Permission denied"):
        list(read_corpus([here]))


@pytest.mark.parametrize("target", ["/proc/kmsg", "/proc/self/mem", "/proc/self/environ", "/dev/zero", "/dev/stdin"])
@pytest.mark.parametrize("name", ["link.txt", "link.bin", "link.jsonl"])
def test_links_to_what_the_system_makes_up_are_neither_read_nor_hashed(folder, target, name):
    (folder / name).symlink_to(target)
    start = time.monotonic()
    documents, rejects = read(folder)
    corpus_hash((folder,))
    assert list(documents) == ["good.txt"] and "leads out" in rejects[name]
    assert time.monotonic() - start < 60


def test_a_file_of_the_system_named_on_the_command_line_is_no_endless_text(tmp_path):
    """/proc/kmsg says that it is empty, and reading it waits for the kernel."""
    (tmp_path / "log.txt").symlink_to("/proc/kmsg")
    documents, rejects = read(tmp_path / "log.txt")
    assert not documents and "empty" in rejects["log.txt"] and corpus_hash((tmp_path / "log.txt",))


def test_a_path_that_is_too_long_is_a_reject(folder):
    before = Path.cwd()
    os.chdir(folder)
    try:
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        Path("deep.txt").write_text("x")
    finally:
        os.chdir(before)
    documents, rejects = read(folder)
    assert list(documents) == ["good.txt"] and len(rejects) == 1
    assert "too long" in next(iter(rejects.values()))
    corpus_hash((folder,))


@pytest.mark.parametrize("mark", ["manifest.json", "lock"])  # finished, and begun
def test_an_index_inside_the_corpus_is_one_reject(tmp_path, mark):
    (tmp_path / "ix" / "stages" / "passages-0").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("A bridge.")
    (tmp_path / "ix" / "stages" / "passages-0" / "b.txt").write_text("Its table.")
    assert len(read(tmp_path)[0]) == 2  # a folder of this name
    (tmp_path / "ix" / mark).write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "ix")
    documents, reasons = read(tmp_path)
    assert [*documents] == ["a.txt"] and reasons["ix"] == "an index is not a corpus" and "link" in reasons["link"]


def test_what_is_not_read_is_not_hashed(folder):
    (folder / "film.mp4").write_bytes(b"1")
    first = corpus_hash((folder,))
    (folder / "film.mp4").write_bytes(b"2")
    assert corpus_hash((folder,)) == first
    (folder / "good.txt").write_text("another text")
    assert corpus_hash((folder,)) != first
    (folder / "film.mp4").rename(folder / "other.mp4")
    assert corpus_hash((folder,)) != first  # its reject has another name


def test_a_long_title_of_a_row_is_a_reject(tmp_path):
    file = tmp_path / "rows.jsonl"
    titles = ["t" * MAX_TITLE_CHARS, "t" * (MAX_TITLE_CHARS + 1)]
    file.write_text("".join(json.dumps({"id": str(i), "title": t, "text": "x"}) + "\n" for i, t in enumerate(titles)))
    documents, rejects = read(file)
    assert list(documents) == ["0"] and f"{MAX_TITLE_CHARS + 1} characters" in rejects["rows.jsonl"]


def test_a_large_row_with_a_title_takes_memory_in_proportion(tmp_path):
    file = tmp_path / "rows.jsonl"
    row = {"title": "t" * MAX_TITLE_CHARS, "text": "some words here. " * 400_000}
    file.write_text(json.dumps(row))
    tracemalloc.start()
    documents, _ = read(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(documents) == 1 and peak < 20 * len(row["text"])


@pytest.mark.parametrize("name", ["long.md", "long.html"])
def test_a_paragraph_that_is_marked_as_a_heading_is_no_title(folder, name):
    words = "word " * 400_000
    (folder / name).write_text(f"# {words}\n\nText.\n" if name.endswith("md") else f"<h1>{words}</h1><p>Text.")
    documents, rejects = read(folder)
    assert documents[name].title == "long" and "word word" in documents[name].text and not rejects


def test_a_cell_of_a_header_may_be_long(tmp_path):
    file = tmp_path / "wide.csv"
    file.write_text(f"id,text,{'h' * 140_000}\n1,hello,3\n")
    documents, rejects = read(file)
    assert documents["1"].text == "hello" and not rejects


def test_japanese_mail_is_read(folder):
    text = "東京は日本の首都です。"
    (folder / "mail.txt").write_bytes(text.encode("iso2022_jp"))
    (folder / "rows.csv").write_bytes(f"id,text\n1,{text}\n".encode("iso2022_jp"))
    (folder / "terminal.txt").write_bytes(b"\x1b(Bplain\x1b[0m text")
    documents, rejects = read(folder)
    assert documents["mail.txt"].text == text and documents["1"].text == text and not rejects
    assert documents["terminal.txt"].text == "\x1b(Bplain\x1b[0m text"


@pytest.mark.parametrize("attribute", ["a{}=x ", "a{} ", "a{}='<b>'", '<a{}="y" '])
def test_a_tag_of_200_000_attributes_is_read_in_time(attribute):
    flood = "".join(attribute.format(i) for i in range(200_000))
    start = time.process_time()
    parsed = read_html(f"<title>Page</title><p>Before.<p {flood}>After.".encode(), LIMITS)
    assert time.process_time() - start < 20
    assert parsed.title == "Page" and "Before." in parsed.text and "After." in parsed.text


def test_tags_of_some_attributes_stay_whole():
    most = " ".join(f"a{i}=x" for i in range(MAX_ATTRIBUTES - 2))
    page = f"<p {most} hidden>Hidden.</p><p>Shown.</p><p {most} hidden b=1 c=2 d=3>Flood.</p>"
    text = read_html(page.encode(), LIMITS).text
    assert "Shown." in text and "Flood." in text and "Hidden." not in text
