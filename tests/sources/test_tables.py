"""Tables in .csv and .tsv files: every dialect that programs write, and rows that are broken."""

import csv
import gzip
import io
import json
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from office_files import row, xlsx
from source_files import DOCS, plain, sha
from source_files import documents_of as read

from gpu_rag.errors import UsageError
from gpu_rag.sources.columns import columns_of
from gpu_rag.sources.corpus import check_named, guessed
from gpu_rag.sources.json_rows import read_rows
from gpu_rag.sources.rows import Limits

ROWS = [(d["id"], d["title"], d["text"]) for d in DOCS]


def written(rows, **dialect):
    out = io.StringIO(newline="")
    csv.writer(out, **dialect).writerows(rows)
    return out.getvalue()


def table(path, text, charset="utf-8", **limits):
    raw = text.encode(charset) if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return read(path, **limits)


DIALECTS = {
    "a.csv": {},
    "b.csv.gz": {},
    "c.csv": {"delimiter": ";", "lineterminator": "\n"},
    "d.csv": {"delimiter": "\t", "quoting": csv.QUOTE_ALL},
    "e.CSV": {"delimiter": "|", "lineterminator": "\r", "quoting": csv.QUOTE_ALL},
    "f.tsv": {"delimiter": "\t"},
    "g.tsv.gz": {"delimiter": "\t", "lineterminator": "\n"},
}


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_same_rows_in_every_dialect(tmp_path, name, charset):
    documents, rejects = table(tmp_path / name, written([("id", "title", "text"), *ROWS], **DIALECTS[name]), charset)
    assert plain(documents) == ROWS and not rejects
    assert [(d.file, d.line) for d in documents] == [(str(tmp_path / name), line) for line in (2, 3, 5)]


JAPANESE = "日付,担当,内容\n2026-05-03,中村,水門点検\n2026-05-04,小林,配管修理\n"
CHINESE = "日期,负责人,内容\n2026-05-03,王伟,水闸检查\n2026-05-04,李娜,管道维修\n"


def test_a_few_kanji_are_read_or_their_charset_is_doubted(tmp_path):
    for charset, text in {"shift_jis": JAPANESE, "gb18030": CHINESE}.items():
        documents, rejects = table(tmp_path / "a.csv", text, charset)
        assert len(documents) == 2 and text.split(",")[3] in documents[0].text and not rejects
    documents, rejects = table(tmp_path / "a.csv", JAPANESE, "euc_jp")  # its bytes are those of Chinese too
    assert len(documents) == 2 and [r.line for r in rejects] == [0]
    assert "read as GB18030 but may be EUC-JP" in rejects[0].reason
    for line in ("Größe,Preis\nÖl,5 €\n", "Дата,место\n1902,Москва\n"):
        assert not table(tmp_path / "a.csv", line, "cp1251" if "М" in line else "cp1252")[1]


def test_columns_in_any_case_and_order_others_are_metadata_with_types(tmp_path):
    text = (
        "sep=;\nYear;TEXT;_Id;score;free;code;day;far;;note;Year\n"
        '1999;"He said ""no"".";7;-1.50;TRUE;007;2020-01-02;1e400;x; ;5\n\n'
        "12345678901234567890;b;;1e3;no\n"
    )
    (first, second), rejects = table(tmp_path / "a.csv", text)
    assert not rejects and (first.id, first.title, first.text, first.line) == ("7", "", 'He said "no".', 3)
    known = {"Year": 1999, "score": -1.5, "free": True, "code": "007", "day": "2020-01-02", "far": "1e400"}
    assert first.metadata == known and [type(v) for v in first.metadata.values()] == list(map(type, known.values()))
    assert second.id.startswith("p_") and second.line == 5
    assert second.metadata == {"Year": "12345678901234567890", "score": 1000.0, "free": "no"}


def test_broken_rows_are_rejects_with_their_lines_and_the_others_are_read(tmp_path):
    text = (
        "id,text\n1,fine\n2,a,b\n"
        '3,"shut" badly\n4,fine too\n'
        "5,\n6\n"
        + "7,caf\xe9\n"
        + "8," + "x" * 300 + "\n"
        '9,"never\nclosed\n10,last\n'
    )  # fmt: skip
    raw = text.encode("latin-1").replace(b"fine", "fïné".encode() * 3)
    (tmp_path / "a.csv").write_bytes(raw)
    documents, rejects = read(tmp_path / "a.csv", max_line_bytes=200)
    assert [(d.id, d.line) for d in documents] == [("1", 2), ("4", 5), ("10", 12)]
    assert [(r.line, r.id) for r in rejects] == [
        (3, ""),
        (4, ""),
        (6, "5"),
        (7, "6"),
        (8, ""),
        (9, ""),
        (10, ""),
        (11, "closed"),
    ]
    said = [
        "3 cells for 2 columns",
        "quotation is broken",
        "text",
        "text",
        "not UTF-8",
        "max_line_bytes = 200",
        "quotation",
    ]
    assert all(words in reject.reason for words, reject in zip(said, rejects)), rejects


def test_quotes_in_a_tsv_may_be_quotes(tmp_path):
    text = 'id\ttext\n1\t"Yes" she said\n2\t5" pipe\n3\t"two\nlines"\n4\t"open\n5\tx\n'
    documents, rejects = table(tmp_path / "a.tsv", text)
    texts = [("1", '"Yes" she said'), ("2", '5" pipe'), ("3", "two\nlines"), ("4", '"open'), ("5", "x")]
    assert [(d.id, d.text) for d in documents] == texts and not rejects


def test_files_that_are_no_table_of_texts_are_rejects(tmp_path):
    cases = {
        "a.csv": (b"question,answer\n1,2\n", "the table has the columns question, answer; expected id, title and text"),
        "b.csv": (b"text,Text\n1,2\n", "two columns text"),
        "c.csv": (b"", "no line of names"),
        "d.csv": (b"\n\n", "no line of names"),
        "e.csv.gz": (b"id,text\n", "gzip"),
        "f.csv": (b"\xff\xfei\x00d", "truncated data"),
        "g.tsv": (b"id,text\n1,2\n", "the table has the columns id,text;"),
    }
    for name, (raw, _) in cases.items():
        (tmp_path / name).write_bytes(raw)
    documents, rejects = read(tmp_path)
    assert not documents and [Path(r.file).name for r in rejects] == list(cases)[: len(rejects)]
    for reject in rejects:
        assert cases[Path(reject.file).name][1] in reject.reason, reject


def test_rows_that_open_a_quotation_each_are_not_read_once_for_each_line(tmp_path):
    """Every line leaves a quotation open, whether it begins inside of one or not."""
    (tmp_path / "a.csv").write_text("id,text\n" + 'a","""b\n' * 100_000)
    documents, rejects = read(tmp_path / "a.csv", max_line_bytes=10_000)
    assert not documents and 50 < len(rejects) < 5_000


def test_a_line_without_end_is_a_reject_in_bounded_memory(tmp_path):
    with (tmp_path / "a.csv").open("wb") as stream:
        stream.write(b"id,text\n1,fine\n2,")
        stream.truncate(1 << 25)
        stream.seek(0, 2)
        stream.write(b'\n3,"open\nfine"\n')
    tracemalloc.start()
    documents, rejects = read(tmp_path / "a.csv", max_line_bytes=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(d.id, d.line) for d in documents] == [("1", 2), ("3", 4)] and peak < 20 << 20, peak
    assert [(r.line, r.reason) for r in rejects] == [(3, "the row is longer than max_line_bytes = 1048576")]


CELLS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(CELLS, CELLS), max_size=6),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(
        [("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL), ("\r\n", csv.QUOTE_ALL), ("\r", csv.QUOTE_ALL)]
    ),
)
def test_what_python_writes_is_read_back(rows, delimiter, how):
    end, quoting = how
    text = written([("title", "text"), *rows], delimiter=delimiter, lineterminator=end, quoting=quoting)
    assert rows == [tuple(row) for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)][1:]
    with TemporaryDirectory() as folder:
        found, rejects = table(Path(folder) / "a.csv", text)
    wanted = list(dict.fromkeys(row for row in rows if row[1].strip()))
    assert [(d.title, d.text) for d in found] == wanted
    assert len(found) + len(rejects) == sum(any(row) or len(row) > 1 for row in rows)


PRODUCTS = [("sku", "name", "description", "price"), ("7", "Chair", "A chair of oak.", 40), ("8", "Lamp", "Red.", 3.5)]


def products(path):
    """Writes a table without a column `text` in the format of a file name."""
    names, *rows = PRODUCTS
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict(zip(names, row)) for row in rows]), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(names, row))) + "\n" for row in rows))
    elif path.suffix == ".xlsx":
        path.write_bytes(xlsx("".join(row(number, *cells) for number, cells in enumerate(PRODUCTS, 1))))
    else:
        path.write_text("".join(";".join(map(str, row)) + "\n" for row in PRODUCTS))
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl", "xlsx"])
@pytest.mark.parametrize("in_folder", [False, True])
def test_columns_that_the_user_names(tmp_path, ending, in_folder):
    path = products(tmp_path / f"products.{ending}")
    documents, rejects = read(tmp_path if in_folder else path, columns=columns_of("id=sku,title=name,text=description"))
    assert not rejects
    found = [(d.id, d.title, d.text, d.metadata) for d in documents]
    prices = ("40", "3.5") if ending == "xlsx" else (40, 3.5)
    assert found == [
        ("7", "Chair", "A chair of oak.", {"price": prices[0]}),
        ("8", "Lamp", "Red.", {"price": prices[1]}),
    ]
    assert all(document.line > 0 for document in documents)


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_table_without_texts_has_all_columns_as_text(tmp_path, ending):
    path = products(tmp_path / f"products.{ending}")
    (chair, lamp), rejects = read(path)
    assert not rejects and (chair.title, lamp.title) == ("Chair", "Lamp")
    assert lamp.text.splitlines() == ["sku: 8", "name: Lamp", "description: Red.", "price: 3.5"]
    assert lamp.metadata["price"] == 3.5
    (line,) = guessed([tmp_path], Limits())
    assert "products" in line and "sku, name, description, price" in line
    assert guessed([tmp_path], Limits(columns=columns_of("text=description"))) == []


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "parquet"])
def test_an_id_is_searched_where_all_columns_are_the_text(tmp_path, ending):
    rows = [{"id": "K3", "litres": 350, "maker": "Inoxa"}, {"id": "9", "litres": 7, "maker": "Hirz"}]
    path = tmp_path / f"vats.{ending}"
    if ending == "csv":
        path.write_text("".join(f"{','.join(map(str, line))}\n" for line in (rows[0], *(r.values() for r in rows))))
    elif ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps({"vats": rows}) if ending == "json" else "\n".join(map(json.dumps, rows)))
    (k3, nine), rejects = read(path)
    assert (k3.id, k3.title, k3.text) == ("K3", "K3", "id: K3\nlitres: 350\nmaker: Inoxa") and not rejects
    assert (nine.id, nine.title) == ("9", "litres 7")
    assert "id, litres, maker" in guessed([tmp_path], Limits())[0]


def test_an_id_leaves_a_title_in_words_alone(tmp_path):
    documents, _ = table(tmp_path / "a.csv", "id,customer,town\nC1,Hotel Falkensee,Brugg\n")
    assert [(d.title, d.text.split("\n")[0]) for d in documents] == [("Hotel Falkensee", "id: C1")]


COMPLAINT = {"date": "2024-01-09", "customer": "Falkensee", "text": "The rind had a hole."}


def test_columns_beside_a_text_without_a_title_are_said_to_be_unsearched(tmp_path):
    (tmp_path / "complaints.jsonl").write_text(json.dumps(COMPLAINT))
    (line,) = guessed([tmp_path], Limits())
    assert "date, customer" in line and "--columns title=customer,text=text" in line
    columns = columns_of("title=customer,text=text")
    assert guessed([tmp_path], Limits(columns=columns)) == []
    assert [d.title for d in read(tmp_path, columns=columns)[0]] == ["Falkensee"]
    for quiet in ({"title": "Hole"}, {"customer": 7}):
        (tmp_path / "complaints.jsonl").write_text(json.dumps(COMPLAINT | quiet))
        assert guessed([tmp_path], Limits()) == []


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "xlsx"])
def test_named_columns_leave_tables_without_them_alone(tmp_path, ending):
    (tmp_path / "complaints.jsonl").write_text(json.dumps(COMPLAINT))
    products(tmp_path / f"products.{ending}")
    chat = {"name": "room", "messages": [{"from": "Ewa", "date": "2025", "text": "Rows are lost."}]}
    (tmp_path / "chat.json").write_text(json.dumps(chat))
    columns = columns_of("id=sku,title=customer,text=text")
    check_named([tmp_path], columns)
    named, rejects = read(tmp_path, columns=columns)
    plain, _ = read(tmp_path)
    assert not rejects and [d.title for d in named if d not in plain] == ["Falkensee"] and len(named) == len(plain)


def test_columns_that_no_table_has_are_refused(tmp_path):
    products(tmp_path / "products.csv")
    with pytest.raises(UsageError, match="sku, name, description, price"):
        check_named([tmp_path], columns_of("title=name,text=txet"))
    check_named([tmp_path], columns_of("title=name,text=description"))
    products(tmp_path / "other.xlsx")
    check_named([tmp_path], columns_of("title=name,text=txet"))  # of a sheet, which is not opened


def test_a_column_of_the_same_name_gives_way(tmp_path):
    (document,), rejects = table(tmp_path / "a.csv", "text,body\nshort,long\n", columns=(("text", "body"),))
    assert document.text == "long" and "short" not in document.metadata.values() and not rejects


def test_a_json_file_of_one_object_is_one_document(tmp_path):
    seats = {"people": [{"name": "Ida", "seat": 2}, {"name": "Orm"}], "topics": ["Roof", "Well"]}
    whole = {"name": "Board", "place": {"room": "Hall", "floor": None}, **seats, "moves": [{"of": "Ida"}]}
    (path := tmp_path / "minutes.json").write_text(json.dumps(whole))
    (document,), _ = read(path)
    lines = ["name: Board", "place room: Hall", "people name: Ida", "people seat: 2", "people name: Orm"]
    assert document.title == "Board" and document.text.split("\n") == [*lines, "topics: Roof, Well", "moves of: Ida"]


def test_a_json_object_with_more_than_a_list_of_rows_is_one_row(tmp_path):
    path = tmp_path / "a.json"
    rows = [{"name": "Ida", "seat": 2}, {"name": "Orm"}]
    for other in ({"text": "All"}, {"question": "Who"}, {"query": "Who"}, {"tags": ["x"]}, {"minutes": "All " * 251}):
        path.write_text(json.dumps({"n": 2, "people": rows, **other}))
        assert [row.value for row in read_rows(path, Limits())] == [{"n": 2, "people": rows, **other}]
    path.write_text('{"people": []}')
    assert read(path) == ([], [])


@pytest.mark.parametrize("row", [{"seat": 2, "of": "Ida"}, {"title": "Seat", "text": "Of Ida."}])
def test_words_beside_a_list_of_rows_are_a_document(tmp_path, row):
    (path := tmp_path / "a.json").write_text(json.dumps({"insurer": "Polder", "n": 2, "rows": [row]}))
    documents, rejects = read(path)
    assert [d.text for d in documents] == [row.get("text", "seat: 2\nof: Ida"), "insurer: Polder\nn: 2"] and not rejects
    assert (documents[1].title, documents[1].metadata) == ("Polder", {"insurer": "Polder", "n": 2})
    path.write_text(json.dumps({"n": 2, "next": None, "rows": [row]}))
    assert len(read(path)[0]) == 1
    path.write_text(json.dumps({"by": "Ida", "questions": [{"question": "Who?"}]}))
    assert [row.value for row in read_rows(path, Limits())] == [{"question": "Who?"}]


def test_nulls_vectors_and_bytes_of_a_row_are_no_text(tmp_path):
    row = {"name": "Ida", "tags": ["x", None, "y"], "vector": [0.5] * 32 + [None], "at": [1, 2], "all": ["w"] * 33}
    (tmp_path / "a.json").write_text(json.dumps(row))
    pq.write_table(pa.table({"name": ["Orm"], "image": [b"png"], "seat": [3]}), tmp_path / "b.parquet")
    assert [d.text for d in read(tmp_path)[0]] == [
        "name: Ida\ntags: x, y\nat: 1, 2\nall: " + ", ".join(["w"] * 33),
        "name: Orm\nseat: 3",
    ]


def test_names_are_not_repeated_beyond_the_limit_of_a_text(tmp_path):
    (path := tmp_path / "a.json").write_text(
        json.dumps({"k" * 5000: {"of": {"it": [[n] for n in range(5000)]}}, "n": 1})
    )
    tracemalloc.start()
    assert [r.reason[-25:] for r in read(path, max_document_chars=9000)[1]] == ["max_document_chars = 9000"]
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()
    (document,), _ = read(path)
    assert max(len(line) for line in document.text.split("\n")) == 109


def test_json_rows_without_a_text_are_rejects_where_others_have_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"title": "A", "text": "a"}\n{"name": "B", "price": 3}\n')
    (document,), rejects = read(path)
    assert document.text == "a" and len(rejects) == 1 and "--columns" in rejects[0].reason
    path.write_text('{"name": "B", "price": 3, "tags": ["x"]}\n{"title": "A", "text": "a"}\n')
    documents, rejects = read(path)
    assert [d.text for d in documents] == ["name: B\nprice: 3\ntags: x", "a"] and not rejects


@pytest.mark.parametrize("text", ["name", "body=text", "text=a,text=b", "text=", "=a"])
def test_columns_that_cannot_be_read(text):
    with pytest.raises(UsageError, match="columns"):
        columns_of(text)


def test_lines_above_the_names_of_a_table_are_its_caption(tmp_path):
    text = "# Gull Cup 2024,,\n,,\nRank,Boat,Skipper\n1,Holly,Mads\n,,\n2,Drift,Oona\n"
    documents, rejects = table(tmp_path / "a.csv", text)
    assert [(d.title, d.text, d.line) for d in documents] == [
        ("Gull Cup 2024, Rank 1", "Rank: 1\nBoat: Holly\nSkipper: Mads", 4),
        ("Gull Cup 2024, Rank 2", "Rank: 2\nBoat: Drift\nSkipper: Oona", 6),
    ]
    assert not rejects and documents[0].metadata == {"Rank": 1, "Boat": "Holly", "Skipper": "Mads"}
    (document,), _ = table(tmp_path / "b.csv", "All notes\nid;text\n1;A note, long.\n")
    assert (document.id, document.title, document.text) == ("1", "", "A note, long.")
    documents, _ = table(tmp_path / "c.csv", ",score\nann,1\nbob,2\n")
    assert [(d.title, d.text) for d in documents] == [("ann", "score: 1"), ("bob", "score: 2")]
    documents, _ = table(tmp_path / "g.csv", ",city,pop\n0,Oslo,7\n")
    assert [(d.title, d.text) for d in documents] == [("Oslo", "city: Oslo\npop: 7")]
    for n in (2, 9):
        documents, rejects = table(tmp_path / "h.csv", "Name,\n" + "".join(f"ann{i},\n" for i in range(n)))
        assert [d.text for d in documents] == [f"Name: ann{i}" for i in range(n)] and not rejects
    (document,), _ = table(tmp_path / "d.csv", "Gulls\nsep=;\nRank;Boat\n1;Holly\n")
    assert document.title.startswith("Gulls, ")
    _, rejects = table(tmp_path / "f.tsv", 'name\tsize\tat\nann\tb\tc\t\nbob\t"inch\t3\n')
    assert not rejects
    assert "the columns first;" in table(tmp_path / "e.csv", "first\n" + "other\n" * 9)[1][0].reason


def test_messages_keep_their_speaker_and_date(tmp_path):
    rich = [{"type": "bold", "text": "Tested"}, " and\nfine."]
    rows = [{"from": "Ewa", "date": "2025-02-10T09:05:00", "text": text} for text in ("Rows are lost.", rich, "")]
    (path := tmp_path / "chat.json").write_text(json.dumps({"name": "room", "messages": rows}))
    (chat,), rejects = read(path)
    assert (chat.title, rejects) == ("room", [])
    assert chat.text == "[2025-02-10T09:05:00] Ewa: Rows are lost.\n[2025-02-10T09:05:00] Ewa: Tested and fine."
    (other := tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    documents, rejects = read(other)
    assert [d.text for d in documents] == ["Rows are lost.", "Tested and\nfine."] and len(rejects) == 1
    assert {d.title for d in documents} == {"Ewa, 2025-02-10T09:05:00"}
    assert [len(d.text) for d in read(path, max_document_chars=60)[0]] == [14, 16, 10]  # rows, name
    path.write_text(json.dumps({"id": 7, "kind": "chat", "messages": rows}))
    assert [(d.id, d.metadata) for d in read(path)[0]] == [("7", {"kind": "chat"})]


MESSAGE = {"from": "Ewa", "date": "2025-02-10", "text": "Rows are lost."}


@pytest.mark.parametrize(
    "other",
    [{"title": "News"}, {"text": "x" * 4001}, {"from": "x" * 101}, {"from": ""}, {"date": True}, {"date": {"y": 2025}}],
)
def test_a_file_with_rows_that_are_no_messages_is_read_as_rows(tmp_path, other):
    other = {**MESSAGE, "text": "Other.", **other}
    (path := tmp_path / "chat.json").write_text(json.dumps({"rows": [MESSAGE, MESSAGE | {"text": "Found."}, other]}))
    documents, rejects = read(path)
    assert [d.text for d in documents] == ["Rows are lost.", "Found.", other["text"]] and not rejects
    title = other.get("title", "") if len(other["text"]) < 99 else "Ewa, 2025-02-10"
    assert (documents[2].title, documents[2].id) == (title, sha(other.get("title", ""), other["text"]))


@pytest.mark.parametrize("text", [None, ["a", "b"], {"x": 1}, 3, [{"text": None}], "a\0"])
def test_a_message_without_a_readable_text_is_a_reject(tmp_path, text):
    (path := tmp_path / "chat.json").write_text(json.dumps({"rows": [MESSAGE, MESSAGE | {"text": text}]}))
    documents, rejects = read(path)
    assert [d.text for d in documents] == ["Rows are lost."] and [r.line for r in rejects] == [2]
