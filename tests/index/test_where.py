"""Filters by metadata: the language against SQLite, its errors, and the table that it reads."""

import json
import random
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

import gpu_rag
from gpu_rag.errors import IndexCorrupt, UsageError
from gpu_rag.index.metadata import MAX_COLUMNS, read_metadata, to_text, write_metadata
from gpu_rag.index.tables import read_table
from gpu_rag.index.verify import verify
from gpu_rag.index.where import MAX_CHARS, matching

FAST = {"models": {"embedder": "hash", "llm": "none"}}
YEARS = [2019, 2020, 2021, None, 2020, 1999]
LANGS = ["de", None, "fr", "en", "it's", 'a "b"']
SHARES = [0.5, 1.0, None, -2.5, 3.0, 0.0]
GOOD = [True, False, None, None, True, False]
DAYS = ["2020-01-02", "2020-01-10", "2019-12-31", None, "2021", "2020-01-02T03:04:05"]
TABLE = pa.table({"year": YEARS, "lang": LANGS, "share": SHARES, "good": GOOD, "day": DAYS, "a b": [1] * 6})


def kept(where: str, table: pa.Table = TABLE) -> list[int]:
    return [row for row, stays in enumerate(matching(where, table)) if stays]


def by_sqlite(where: str) -> list[int]:
    base = sqlite3.connect(":memory:")
    base.execute('create table t (n, year, lang, share, good, day, "a b")')
    rows = ((n, *row.values()) for n, row in enumerate(TABLE.to_pylist()))
    base.executemany("insert into t values (?, ?, ?, ?, ?, ?, ?)", rows)
    said = where.replace("missing", "null").replace("\\'", "''")
    return [n for (n,) in base.execute(f"select n from t where {said} order by n")]


def test_expressions_keep_what_sqlite_keeps() -> None:
    rng = random.Random(0)
    values = {"year": ["2020", "2019.5", "-1", "1e3"], "share": ["0", "0.5", "-2.5"], "good": ["true", "FALSE"]}
    values |= {"lang": ["'de'", "'it\\'s'", "'zz'", "''"], "day": ["'2020-01-02'", "'2020'"], "`a b`": ["1", "2"]}

    def test(depth: int) -> str:
        kind = rng.randrange(5) if depth else 4
        if kind == 0:
            return f"not {test(depth - 1)}"
        if kind < 3:
            return f"({test(depth - 1)} {('and', 'OR')[kind - 1]} {test(depth - 1)})"
        if kind == 3:
            return f"{test(depth - 1)} or {test(depth - 1)} and {test(depth - 1)}"
        column = rng.choice(list(values))
        if rng.random() < 0.15:
            return f"{column} is {rng.choice(('', 'not '))}missing"
        if rng.random() < 0.25:
            return f"{column} {rng.choice(('', 'not '))}in ({', '.join(rng.choices(values[column], k=2))})"
        signs = ["=", "!="] if column == "good" else ["=", "!=", "<", "<=", ">", ">="]
        return f"{column} {rng.choice(signs)} {rng.choice(values[column])}"

    for _ in range(300):
        where = test(3)
        assert kept(where) == by_sqlite(where), where


def test_missing_is_neither_true_nor_false() -> None:
    assert kept("year = 2020") == [1, 4] and kept("not year = 2020") == kept("year != 2020") == [0, 2, 5]
    assert kept("year is missing") == [3] and kept("year is not missing or good is missing") == [0, 1, 2, 3, 4, 5]
    assert kept("year = 2020 or good = true") == [0, 1, 4]  # of row 0 the first is false, of row 3 both are unknown


def test_whole_numbers_of_any_length() -> None:
    ends = pa.table({"n": [2**63 - 1, -(2**63), 0]})
    for digits in (25, 400, 5000):  # floats end at 308 digits, and int() reads 4,300
        assert kept(f"n < {'9' * digits}", ends) == [0, 1, 2] and kept(f"n < -{'9' * digits}", ends) == []
        assert kept(f"n = {'0' * digits}", ends) == [2]
    assert kept(f"n = {2**63 - 1}", ends) == [0] and kept(f"n >= {2**63 - 2}", ends) == [0]
    assert kept(f"n = {-(2**63)}", ends) == [1]


def test_texts_numbers_and_columns_as_they_are_written() -> None:
    assert kept('lang = "a \\"b\\""') == [5] and kept("lang = 'it\\'s'") == [4]
    assert kept("year>=2020and lang in('fr',\"it's\")".replace("2020and", "2020 and")) == [2, 4]
    assert kept("year < 99999999999999999999999999") == [0, 1, 2, 4, 5] and kept("`a b` = 1.0") == list(range(6))
    assert kept('day >= "2020-01-02" and day < "2020-02"') == [0, 1, 5]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("yaer = 1", "year, lang, share, good, day, `a b`; did you mean"), ("Year = 1", "did you mean year?"),
        ("`A b` = 1", "did you mean `a b`?"),
        ("year = 'x'", "given year = 'x'; expected number"), ("lang < 5", 'expected text: lang < "5"'),
        ("lang < 5", "character by character"), ("`a b` = 'x'", "given `a b` = 'x'; expected number"),
        ("good = 1", "expected boolean"), ("good < true", "order"), ("year = ", "its end"), ("year", "its end"),
        ("year = 2020 lang = 'x'", "'lang' at character 13"), ("(year = 2020", "expected )"),
        ("year in 2020", "'2020' at character 9"), ("year in ()", "')' at character 10"),
        ("year ~ 1", "'~ 1' at character 6"), ("lang = 'x", "at character 8"), ("year not 3", "'3' at character 10"),
        ("and = 3", "'and' at character 1"), ("not " * 101 + "year = 1", "100"), ("(" * 5000 + "year", "100"),
        ("x" * (MAX_CHARS + 1), str(MAX_CHARS)), ("__import__('os') = 1", "__import__"),
    ],
)  # fmt: skip
def test_errors_say_what_and_where(where: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        matching(where, TABLE)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_dates_of_a_form_without_order_are_not_compared() -> None:
    table = pa.table({"day": ["02/03/2024", None, "21/03/2024"], "iso": ["2024-03-02", "2024-03-21", None]})
    for where in ('day >= "2024-03-01"', 'day < "10/03/2024"'):
        with pytest.raises(UsageError) as error:
            matching(where, table)
        assert "expected YYYY-MM-DD" in str(error.value)
    kept = [matching(where, table).tolist() for where in ('day = "02/03/2024"', 'iso > "2024-03-10"')]
    assert kept == [[True, False, False], [False, True, False]]


def test_the_table_has_a_type_a_column_and_the_commonest_columns(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": 1, "c": True, "d": "x"}, {"a": 2.5, "b": "x", "c": False, "e": 3}, {}]
    assert write_metadata(tmp_path / "m.parquet", [to_text(row) for row in rows])
    types = [("a", pa.float64()), ("b", pa.string()), ("c", pa.bool_()), ("d", pa.string()), ("e", pa.int64())]
    table = read_table(tmp_path / "m.parquet", pa.schema(types))
    assert table.to_pylist()[:2] == [
        {"a": 1.0, "b": "1", "c": True, "d": "x", "e": None},
        {"a": 2.5, "b": "x", "c": False, "d": None, "e": 3},
    ]
    many = [{f"x{i:04}": 1 for i in range(MAX_COLUMNS + 9)}, {"z": 1}, {"z": 2}]
    write_metadata(tmp_path / "many.parquet", [to_text(row) for row in many])
    names = pa.parquet.read_table(tmp_path / "many.parquet").column_names
    assert len(names) == MAX_COLUMNS and names[-1] == "z"
    assert not write_metadata(tmp_path / "none.parquet", ["", ""]) and not (tmp_path / "none.parquet").exists()


def test_only_an_index_of_documents_with_metadata_has_the_table(tmp_path: Path) -> None:
    plain = [{"id": "a", "title": "T", "text": "one text"}, {"id": "b", "title": "T", "text": "another text"}]
    more = [{**plain[1], "year": 2020, "lang": "de"}, plain[0]]  # in another order
    for name, rows in (("plain", plain), ("more", more)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        gpu_rag.build(tmp_path / f"{name}.jsonl", tmp_path / name, methods=["bm25"], settings=FAST)
    index = gpu_rag.Index.open(tmp_path / "plain")
    assert index.metadata is None and not list(tmp_path.glob("plain/stages/*/metadata.parquet"))
    assert vars(index.evidence([0], [1.0], "")[0])["metadata"] == {}
    with pytest.raises(UsageError, match="have no metadata"):
        index.answer("text", method="bm25", settings=FAST, where="year = 1")
    index = gpu_rag.Index.open(tmp_path / "more")
    assert index.metadata_of(0) == {} and index.metadata_of(1) == {"year": 2020, "lang": "de"}
    assert not verify(tmp_path / "more")
    with pytest.raises(IndexCorrupt, match="not what a build writes"):
        read_metadata(next(tmp_path.glob("more/stages/*/metadata.parquet")), 3)


def test_a_passage_of_no_document_belongs_to_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": name, "text": f"text {name}", "year": 2020 + place} for place, name in enumerate("abc")]
    index = gpu_rag.build(rows, tmp_path / "ix", methods=["bm25"], settings=FAST)
    monkeypatch.setattr(type(index), "_column", lambda *given: pa.chunked_array([[*given[-1]]]))  # "id", "doc_id"
    with pytest.raises(IndexCorrupt):
        index.answer("text", method="bm25", settings=FAST, where="year = 2020")
