"""Files made to exhaust or to crash a reader cost one Reject each, in bounded memory and time."""

import gzip
import io
import subprocess
import sys
import tracemalloc
import zlib
from contextlib import closing
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pdf_files import pdf_of
from pypdf import PdfReader, PdfWriter
from source_files import documents_of as read

from gpu_rag.sources.corpus import parser as parser_module
from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.corpus.parser import Parser
from gpu_rag.sources.parquet import DOCUMENTS, read_parquet, read_table_blocks
from gpu_rag.sources.rows import Limits, RowError


def packed(raw, times=1):
    for _ in range(times):
        raw = zlib.compress(raw, 9)
    return b"<< /Length %d /Filter [%s] >>\nstream\n%s\nendstream" % (len(raw), b"/FlateDecode " * times, raw)


CATALOGUE = b"<< /Type /Catalog /Pages 2 0 R >>"
FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
PAGE = b"<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 3 0 R >> >> /Contents 5 0 R >>"


def kids(references, count=1):
    return b"<< /Type /Pages /Kids [%s] /Count %d >>" % (references, count)


def one_page(content):
    return pdf_of(CATALOGUE, kids(b"4 0 R"), FONT, PAGE, content)


def text_of(n):
    return b"BT /F1 1 Tf " + b"(so many words) Tj\n" * n + b"ET"


PLAIN = one_page(packed(text_of(1)))
LOCKED = io.BytesIO()
with PdfWriter(clone_from=PdfReader(io.BytesIO(PLAIN))) as writer:
    writer.encrypt("secret", "owner", algorithm="RC4-128")
    writer.write(LOCKED)

HOSTILE_PDFS = {
    "bomb": (one_page(packed(bytes(1 << 28))), "no page of the PDF has text"),
    "bomb in a bomb": (one_page(packed(b" " * 70_000_000, times=3)), "no page of the PDF has text"),
    "operators without end": (one_page(packed(b"q Q " * 5_000_000)), "no page of the PDF has text"),
    "deep array in a page": (one_page(packed(b"[" * 1_000_000)), "no page of the PDF has text"),
    "deep dictionary in a page": (one_page(packed(b"<< /A " * 500_000)), "no page of the PDF has text"),
    "page tree in a circle": (pdf_of(CATALOGUE, kids(b"3 0 R"), kids(b"2 0 R")), "cannot be read"),
    "page tree that holds itself": (
        pdf_of(CATALOGUE, kids(b"2 0 R 4 0 R"), FONT, PAGE, packed(b"")),
        "no page of the PDF has text",
    ),
    "pages without end": (
        pdf_of(CATALOGUE, kids(b"4 0 R " * 30_000, 30_000), FONT, PAGE, packed(b"")),
        "max_pages = 20000",
    ),
    "deep page tree": (
        pdf_of(CATALOGUE, *(kids(b"%d 0 R" % i) for i in range(3, 3000)), PAGE),
        "page 1 cannot be read",
    ),
    "deep array": (pdf_of(CATALOGUE, b"<< /Type /Pages /Kids " + b"[" * 200_000 + b" >>"), "cannot be read"),
    "a length that is its own": (
        one_page(b"<< /Length 5 0 R >>\nstream\nabc\nendstream"),
        "no page of the PDF has text",
    ),
    "a catalogue that is its own": (pdf_of(b"1 0 R"), "cannot be read"),
    "xref in a circle": (pdf_of(b"<< >>", trailer=b"/Prev 9 "), "cannot be read"),
    "encrypted": (LOCKED.getvalue(), "encrypted with a password"),
    "cut off": (PLAIN[: len(PLAIN) // 2], "not a whole PDF"),
    "no pdf": (b"just text", "not a whole PDF"),
    "only an end": (b"%%EOF", "cannot be read"),
    "empty": (b"", "the file is empty"),
    "nothing": (one_page(packed(b"q Q")), "no page of the PDF has text"),
}


def test_hostile_pdfs_are_rejects_and_the_files_between_them_are_read(tmp_path):
    for name, (raw, _) in HOSTILE_PDFS.items():
        (tmp_path / f"{name}.pdf").write_bytes(raw)
        (tmp_path / f"{name}~.pdf").write_bytes(PLAIN)
    documents, rejects = read(tmp_path)
    assert [d.id for d in documents] == sorted(f"{name}~.pdf" for name in HOSTILE_PDFS)
    assert {d.text for d in documents} == {"so many words"}
    reasons = {r.file.rsplit("/", 1)[1].removesuffix(".pdf"): r.reason for r in rejects}
    assert len(rejects) == len(HOSTILE_PDFS)
    for name, (_, said) in HOSTILE_PDFS.items():
        assert said in reasons[name], (name, reasons[name])


def test_every_cut_of_a_pdf_is_a_reject(tmp_path):
    whole = PLAIN.rstrip()
    for cut in range(1, len(whole), 29):
        (tmp_path / f"{cut}.pdf").write_bytes(whole[:cut])
    documents, rejects = read(tmp_path)
    assert not documents and len(rejects) == len(range(1, len(whole), 29))


HOSTILE_PAGES = {
    "line.html": b"x" * 100_000_000,
    "nested.html": b"<div>" * 200_000 + b"end",  # a minute and a half
    "attributes.html": b"<a " + b" ".join(b"a%d=1" % i for i in range(200_000)) + b">end",  # a minute
    "tags.html": b"<b>" * 20_000_000,
}


@pytest.fixture
def busy_machine(monkeypatch):
    """Seconds of the processor count alone, as if the limit by the clock, which is 4 times as many, were far away."""
    monkeypatch.setattr(parser_module, "_CLOCK_FACTOR", 600)


def test_hostile_pages_are_rejects_within_the_limits(tmp_path, busy_machine):
    slow, wide = tmp_path / "slow", tmp_path / "wide"  # what breaks a limit of time, and what breaks another one first
    for name, raw in HOSTILE_PAGES.items():
        folder = slow if name in ("nested.html", "attributes.html") else wide
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(raw)
        (folder / "z.html").write_text("fine")
    documents, rejects = read(slow, max_parse_s=1, max_parse_bytes=512 << 20)
    more_documents, more_rejects = read(wide, max_parse_s=600, max_parse_bytes=512 << 20)
    assert [d.text for d in (*documents, *more_documents)] == ["end", "fine", "fine"]  # a flood of attributes is read
    reasons = {r.file.rsplit("/", 1)[1]: r.reason for r in (*rejects, *more_rejects)}
    assert reasons.keys() == HOSTILE_PAGES.keys() - {"attributes.html"}
    assert "max_parse_bytes" in reasons["line.html"] or "max_document_chars" in reasons["line.html"]
    assert reasons["nested.html"] == "parsing it takes more than max_parse_s = 1 s of processor time"
    assert "memory" in reasons["tags.html"]


def test_a_hundred_thousand_nested_tags_keep_their_text(tmp_path, busy_machine):
    (tmp_path / "a.html").write_bytes(b"<title>T</title>" + b"<span>" * 100_000 + b"end")
    documents, rejects = read(tmp_path / "a.html", max_parse_s=1000)
    assert (documents[0].title, documents[0].text, rejects) == ("T", "end", [])
    (tmp_path / "a.html").write_bytes(b"<table><tr><td>word<table><tr><th>word" * 20_000)  # quadratic: over a minute
    assert not read(tmp_path / "a.html", max_parse_s=20)[1]


def test_a_gigabyte_of_one_line_is_a_reject_in_bounded_memory(tmp_path):
    names = ("a.txt", "a.md", "a.html", "a.pdf")
    for name in names:
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(1 << 30)
    tracemalloc.start()
    documents, rejects = read(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not documents and len(rejects) == len(names) and peak < 100 << 20, peak
    assert all("bytes" in reject.reason and "more than" in reject.reason for reject in rejects)


def test_limits_of_size_memory_and_time(tmp_path, busy_machine):
    path = tmp_path / "a.pdf"
    path.write_bytes(one_page(packed(text_of(20_000))))
    cases = {
        "max_file_bytes = 100": {"max_file_bytes": 100},
        "max_parse_bytes = 10000000": {"max_parse_bytes": 10_000_000},
        "max_document_chars = 1000": {"max_document_chars": 1000},
        "1 pages, more than max_pages = 0": {"max_pages": 0},
    }
    for said, limits in cases.items():
        documents, rejects = read(path, **limits)
        assert not documents and said in rejects[0].reason, rejects
    assert len(read(path)[0]) == 1
    path.write_bytes(one_page(packed(text_of(800_000))))  # a minute
    assert "max_parse_s = 1 s of processor time" in read(path, max_parse_s=1)[1][0].reason


def start(code, *_, **_pipes):
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)


def test_a_parser_that_only_waits_is_ended_by_the_clock(tmp_path, monkeypatch):
    for said, code in BAD_PARSERS.items():
        # all others answer or end by themselves, however long Python takes to start here
        monkeypatch.setattr(parser_module, "_CLOCK_FACTOR", 0.5 if said == "takes more than" else 600)
        monkeypatch.setattr(parser_module, "start_module", partial(start, code))
        with closing(Parser(Limits(max_parse_s=1, max_ocr_s=1, max_document_chars=10, max_pages=1))) as parser:
            for _ in range(2):
                with pytest.raises(RowError, match=said):
                    parser.parse(tmp_path / "a.pdf")


BAD_PARSERS = {
    "takes more than": "import time; time.sleep(600)",
    "max_ocr_s = 1 s": "import os, time\nwhile True: os.write(1, b'\\n'); time.sleep(0.05)",  # each page in time
    "status 3": "raise SystemExit(3)",
    "signal 9": "import os; os.kill(os.getpid(), 9)",
    "more than the limits allow": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "not answer in JSON": "import os, time; os.write(1, b'hm\\n'); time.sleep(600)",
}


def test_the_process_serves_many_files_and_ends_with_its_block(tmp_path):
    path = tmp_path / "a.pdf"
    path.write_bytes(PLAIN)
    with closing(Parser(Limits())) as parser:
        assert parser.parse(path).text == "so many words"
        process = parser._process
        with pytest.raises(RowError, match="No such file"):
            parser.parse(tmp_path / "gone.pdf")
        assert parser.parse(path).pages == (0,) and parser._process is process
        process.kill()
        process.wait()
        assert parser.parse(path).text == "so many words"
        process = parser._process
    assert process.poll() is not None
    documents = read_corpus([path])
    assert next(documents).id == "a.pdf"
    documents.close()


REPEATED = "x" * 2_600_000


def dictionary_bomb(path):
    """One text in some 5 KB that 2,000 rows repeat: 5 GB where the rows are unpacked together."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array([REPEATED]))
    table = pa.table({"id": [str(i) for i in range(2000)], "text": text})
    pq.write_table(table, path, compression="zstd", store_schema=False)


def one_text_bomb(path):
    pq.write_table(pa.table({"text": ["x" * 100_000_000]}), path, compression="zstd", use_dictionary=False)


def test_a_table_whose_rows_repeat_a_long_text_is_read_a_few_rows_at_a_time(tmp_path):
    dictionary_bomb(tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    sizes = []
    for block in read_table_blocks(tmp_path / "a.parquet", DOCUMENTS, 1, 1):
        sizes.append(block.n_bytes)
        if len(sizes) == 3:
            break
    assert len(sizes) == 3 and max(sizes) < 80 << 20
    rows = read_parquet(tmp_path / "a.parquet")
    assert next(rows).value == {"id": "0", "text": REPEATED}


def test_bombs_are_rejects_before_they_are_unpacked(tmp_path):
    one_text_bomb(tmp_path / "b.parquet")
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(b"[" + b" " * 100_000_000))
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    for name in ("b.parquet", "c.json.gz"):
        documents, (reject,) = read(tmp_path / name)
        assert not documents and "over 200 times as many" in reject.reason
    assert tracemalloc.get_traced_memory()[1] < 100 << 20 and pa.total_allocated_bytes() - before < 1 << 20
    tracemalloc.stop()


def test_tables_that_pack_well_are_no_bombs(tmp_path):
    """Lists of which all are empty, a text that is the same everywhere, and much text in several groups of rows."""
    n = 100_000
    columns = {
        "id": [str(i) for i in range(n)],
        "title": ["same"] * n,
        "text": [f"{i} " + "words " * 40 for i in range(n)],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=30_000, compression="zstd")
    assert sum(1 for _ in read_parquet(tmp_path / "a.parquet")) == n
    aliases = pa.array([[]] * n, pa.list_(pa.string()))
    wanted = replace(DOCUMENTS, names=("text", "aliases"), lists=("aliases",))
    pq.write_table(pa.table({"text": ["x"] * n, "aliases": aliases}), tmp_path / "b.parquet")
    blocks = list(read_table_blocks(tmp_path / "b.parquet", wanted, 1 << 16, 4 << 20))
    assert sum(block.n_rows for block in blocks) == n and blocks[-1].problem is None
