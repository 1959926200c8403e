"""Stages that keep rows of an earlier run: the files are those of a run from nothing, and little is computed."""

import json
import random
import sys
import unicodedata
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import gpu_rag
from gpu_rag.index import tables, work
from gpu_rag.index.folder import CARRIED
from gpu_rag.index.metadata import FILE as METADATA
from gpu_rag.index.metadata import LANGUAGE, read_metadata, rows_of, to_text
from gpu_rag.index.removed import DOCUMENT, key_of
from gpu_rag.index.stage import Stage
from gpu_rag.index.stages import kept, mentions, passages, search, synonyms
from gpu_rag.index.stages.extraction import extraction_stage
from gpu_rag.index.stages.kept import ABOUT, kept_files
from gpu_rag.index.stages.passages import passages_stage
from gpu_rag.index.stages.search import bm25_stage, passage_texts, rows_by_key, text_hashes, vector_stage
from gpu_rag.index.stages.synonyms import synonyms_stage
from gpu_rag.index.work import Sources
from gpu_rag.methods.hoprag.stages import vertices
from gpu_rag.methods.hoprag.stages.vertices import keywords_stage, vertices_stage
from gpu_rag.methods.hoprag.tables import QUESTIONS, questions_file
from gpu_rag.models import packaged
from gpu_rag.settings import IndexSettings
from gpu_rag.sources import corpus
from gpu_rag.sources.corpus import read_corpus, read_file
from gpu_rag.text.mentions import ascii_words

FREE = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Names = dict[str, tuple[int, ...]]  # a vector of small numbers for each name, so that many cosines are equal


def put_names(bench: Any, names: Names) -> Any:
    vectors = np.asarray([names[name] for name in sorted(names)], float).reshape(-1, 3) + 0.01
    bench.put_entities(sorted(names))
    bench.put_vectors("entity_vectors", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return bench


def synonym_bytes(bench: Any, k: int, before: Any = None) -> bytes:
    with patch.object(IndexSettings, "synonym_k", k):
        bench.run(synonyms_stage, before=before)
    return bytes((bench.folder("synonyms") / "synonyms.parquet").read_bytes())


NAME = st.builds(lambda word, number: f"{word}{number}", st.sampled_from(["abc", "abd", "bcd", "d", "xyzz"]),
                 st.sampled_from(["", " 1", " 2", "a", "b", "c", "d", "e"]))  # fmt: skip
NAMES = st.dictionaries(NAME, st.tuples(*[st.integers(0, 3)] * 3), max_size=24)


@given(NAMES, NAMES, st.sampled_from([1, 2, 3, 20]), st.floats(0, 1), st.integers(0, 99))
@FREE
def test_synonyms(benches: Iterator[Any], old: Names, more: Names, k: int, share: float, seed: int) -> None:
    draw = random.Random(seed)
    new = {name: vector for name, vector in {**more, **old}.items() if draw.random() < share}
    changed = {name: more.get(name, vector) if draw.random() < 0.2 else vector for name, vector in new.items()}
    before = put_names(next(benches), old)
    synonym_bytes(before, k)
    expected = synonym_bytes(put_names(next(benches), changed), k)
    carried = put_names(next(benches), changed)
    assert synonym_bytes(carried, k, before) == expected
    same = sum(old.get(name) == vector for name, vector in changed.items())
    assert carried.report.reused <= same


def test_synonyms_of_one_new_name_are_one_search(benches: Iterator[Any]) -> None:
    draw = np.random.default_rng(4)
    old: Names = {
        f"name{chr(97 + n // 26)}{chr(97 + n % 26)}": tuple(draw.integers(0, 9, 3).tolist()) for n in range(90)
    }
    before, bench = put_names(next(benches), old), put_names(next(benches), {**old, "new name": (1, 2, 3)})
    synonym_bytes(before, 20)
    synonym_bytes(bench, 20, before)
    assert bench.report.reused == 90


@pytest.mark.parametrize("wrong", ["the lost are not searched", "changed vectors are kept"])
def test_wrong_synonyms_are_noticed(benches: Iterator[Any], wrong: str) -> None:
    """abc has three close names, and k = 1: without its nearest, the next takes its place."""
    old: Names = {"abc": (9, 0, 0), "abca": (9, 1, 0), "abcb": (9, 2, 0), "abcd": (9, 3, 0), "abce": (9, 3, 1)}
    new = {**old, "abcd": (0, 9, 0)} if wrong[0] == "c" else {n: v for n, v in old.items() if n != "abca"}
    before, bench = put_names(next(benches), old), put_names(next(benches), new)
    synonym_bytes(before, 1)
    expected = synonym_bytes(put_names(next(benches), new), 1)

    def lost(work: Any, base: Any) -> Any:
        pairs, is_new = synonyms_earlier(work, base)
        return pairs, is_new & False

    def unchanged(work: Any, base: Any) -> Any:
        rows, n = synonyms_unchanged(work, base)
        return np.arange(len(rows)), n

    synonyms_earlier, synonyms_unchanged = synonyms._earlier_pairs, synonyms._unchanged
    planted = {"_unchanged": unchanged} if wrong[0] == "c" else {"_earlier_pairs": lost}
    with patch.multiple(synonyms, **planted):
        assert synonym_bytes(bench, 1, before) != expected
    assert synonym_bytes(bench, 1, before) == expected


LONG = "One two three four five six. Seven eight nine ten."
ROWS = st.lists(
    st.fixed_dictionaries(
        {"text": st.sampled_from([*["", LONG, "a b"] * 4, "Das ist ein Turm auf einer Insel im Meer."])},
        optional={
            "id": st.sampled_from(["a", "b", "c", "a#1", "d"]),
            "title": st.just("T"),
            "year": st.sampled_from([1, 1, 1, 2.5, "x", True]),
        },
    ),
    max_size=4,
)
FILES = st.dictionaries(st.sampled_from(["a.jsonl", "b.jsonl", "f/a.jsonl", "f/d.jsonl", "f/e.txt"]), ROWS, max_size=5)
CHUNKS: Any = {"index": {"chunk_words": 8, "overlap_words": 0}}


def sources_in(folder: Path, files: dict[str, list[Any]], removed: set[str]) -> Sources:
    for name, rows in {"0.jsonl": [{"id": "first", "text": "It is here."}], **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    paths = tuple(sorted(folder.iterdir()))
    return Sources(paths, removed=frozenset(key_of(DOCUMENT, id) for id in removed))


def passage_files(bench: Any, sources: Sources, chosen: Any = CHUNKS, before: Any = None) -> dict[str, bytes]:
    bench.run(passages_stage, chosen, sources=sources, before=before)
    return {path.name: path.read_bytes() for path in sorted(bench.folder("passages").iterdir())}


@pytest.mark.slow
@given(
    old=FILES,
    more=FILES,
    removed=st.sets(st.sampled_from(["a", "b", "c", "d"])),
    n=st.integers(0, 4),
    seed=st.integers(),
)
@FREE
def test_documents(
    benches: Iterator[Any], tmp_path_factory: Any, old: Any, more: Any, removed: set[str], n: int, seed: int
) -> None:
    folders = [tmp_path_factory.mktemp("corpus") for _ in range(2)]
    before, bench = next(benches), next(benches)
    passage_files(before, sources_in(folders[0], old, set(sorted(removed)[:n])))
    draw = random.Random(seed)
    stay = {name: rows for name, rows in old.items() if draw.random() < 0.7}
    sources = sources_in(folders[1], {**more, **stay} if draw.random() < 0.6 else {**stay, **more}, removed)
    assert passage_files(bench, sources, before=before) == passage_files(next(benches), sources)
    event("kept" if bench.report.reused else "read")


LINES = {
    "1.jsonl": [{"id": "a", "text": LONG}, {"id": "b"}],
    "2.jsonl": [{"id": "c", "text": "a b"}],
    "3.jsonl": [{"id": "c", "text": "a b"}],
}


def of_table(found: Any) -> Any:
    """A wrong version: metadata of kept documents as their table holds them."""
    path = found.folder / METADATA
    about = pq.read_table(found.folder / ABOUT)
    texts = [to_text(row) for row in rows_of(read_metadata(path, len(about)), range(len(about)))]
    pq.write_table(about.set_column(0, "metadata", pa.array(texts)), found.folder / ABOUT)
    return found


@pytest.mark.parametrize("wrong", ["order of rejects", "settings", "claims", "numbers", "copies"])
def test_files_that_did_not_change_are_not_read_again(
    benches: Iterator[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    before, bench = next(benches), next(benches)
    old = {name: rows for name, rows in LINES.items() if name != "2.jsonl"}
    more: list[Any] = [{"id": "e"}]
    if wrong == "numbers":  # beside a text, the texts of the numbers are "1" and "2.5"; the old table holds 1.0
        old["4.jsonl"] = [{"id": f"n{year}", "text": "a b", "year": year} for year in (1, 2.5)]
        more = [{"id": "e", "text": "c", "year": "x"}]
    new = {"1.5.jsonl": more, **old, **(LINES if wrong == "claims" else {})}
    lost = {"2.jsonl": LINES["2.jsonl"]} if wrong == "copies" else {}  # 3.jsonl has a copy of its row
    passage_files(before, sources_in(tmp_path / "old", {**old, **lost}, set()))
    sources = sources_in(tmp_path / "new", new, {"a"} if wrong == "order of rejects" else set())
    chosen = {"index": {"chunk_words": 30, "overlap_words": 0}} if wrong == "settings" else CHUNKS
    expected, opened = passage_files(next(benches), sources, chosen), list[str]()

    def read(paths: Any, *more: Any) -> Any:
        opened.extend(path.name for path in paths)
        return read_corpus(paths, *more)

    monkeypatch.setattr(passages, "read_corpus", read)
    assert passage_files(bench, sources, chosen, before) == expected
    are_kept = wrong in ("order of rejects", "numbers")
    assert (opened == ["1.5.jsonl"]) == are_kept
    assert bench.report.reused == ({"order of rejects": 2, "numbers": 5}[wrong] if are_kept else 0)
    planted: dict[str, Any] = {
        "order of rejects": (passages, "in_order", lambda kept, items: [*kept.rejects, *items]),
        "settings": (kept, "_new_removals", lambda params, earlier: set()),
        "claims": (kept, "_meet", lambda db, taken: False),
        "numbers": (passages, "kept_files", lambda work, hashes: of_table(kept_files(work, hashes))),
        "copies": (kept, "_are_apart", lambda documents, rejects, gone, sources: True),
    }
    with patch.object(*planted[wrong]):
        assert passage_files(bench, sources, chosen, before) != expected


def test_files_of_a_folder_that_did_not_change_are_not_read_again(
    tmp_path: Path, benches: Iterator[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.bin", "d.txt"):
        (folder / name).write_text(f"It is {name}.")
    (folder / "d.pdf").write_text("It is no PDF.")  # a reject without an id, as the file that is not read
    steps: list[tuple[str, str]] = [("e.txt", "It is new."), ("b.txt", "It is other."), ("a.txt", ""), ("c.bin", "")]
    opened = list[str]()

    def read(path: Path, *more: Any) -> Any:
        opened.append(path.name)
        return read_file(path, *more)

    monkeypatch.setattr(corpus, "read_file", read)
    before = next(benches)
    passage_files(before, Sources((folder,)))
    for name, text in steps:
        (folder / name).write_text(text)
        if not text:
            (folder / name).unlink()
        opened.clear()
        bench = next(benches)
        files = passage_files(bench, Sources((folder,)), before=before)
        assert opened == [name] * bool(text) and bench.report.reused
        assert files == passage_files(next(benches), Sources((folder,)))
        before = bench


GERMAN = "Der Leuchtturm steht auf einer Insel und wird aus der Ferne gesteuert."


@pytest.mark.parametrize("given", [{}, {LANGUAGE: "cy"}, {"year": 1908}, {"year": 2.5}, {"year": "x"}], ids=str)
@pytest.mark.parametrize("leaves", [False, True])
def test_files_are_kept_whatever_their_metadata_are(
    benches: Iterator[Any], tmp_path: Path, given: dict[str, Any], leaves: bool
) -> None:
    """Their table cannot tell a detected language from one of a file, nor 1 from 1.0 in a column with fractions."""
    rows: dict[str, list[Any]] = {
        "1.jsonl": [{"id": "a", "text": LONG, "year": 1}, {"id": "b", "text": GERMAN}],
        "2.jsonl": [{"id": "c", "text": "a b", **given}],
        "3.jsonl": [{"id": "d", "text": "Anna Stroud was mayor of Tamsin.", "year": 0.5}],
    }
    new = {**rows, "4.jsonl": [{"id": "e", "text": GERMAN}]}
    if leaves:
        del new["3.jsonl"]
    before, bench, fresh = (next(benches) for _ in range(3))
    passage_files(before, sources_in(tmp_path / "old", rows, set()))
    sources = sources_in(tmp_path / "new", new, set())
    assert passage_files(bench, sources, before=before) == passage_files(fresh, sources)
    assert bench.report.reused == 5 - leaves


@pytest.mark.parametrize("twice", [False, True])
def test_sources_in_a_subfolder_are_kept_unless_two_have_one_name(
    benches: Iterator[Any], tmp_path: Path, twice: bool
) -> None:
    texts = {
        "x/c.jsonl": '{"id": "c", "text": "a b"}',
        "x/sub/f/a.txt": LONG,
        "x/sub/d.jsonl": '{"id": "d", "text": "c"}',
    }
    if twice:
        texts["y/sub/f/a.txt"] = "x/sub/f/a.txt and y/sub/f/a.txt have one name in the index."
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    paths = ["x/c.jsonl", "x/sub/d.jsonl", "x/sub/f", *(["y/sub"] if twice else [])]
    sources = Sources(tuple(tmp_path / path for path in paths))
    before, bench, fresh = (next(benches) for _ in range(3))
    passage_files(before, sources)
    (tmp_path / "x/sub/d.jsonl").write_text('{"id": "d", "text": "changed"}')
    assert passage_files(bench, sources, before=before) == passage_files(fresh, sources)
    assert bench.report.reused == (0 if twice else 2)


TEXTS = st.lists(
    st.tuples(st.sampled_from(["", "Kerling", "1"]), st.sampled_from([
        "Marta Orlo designed the bridge of Kerling.", "Anna Stroud, also called Annie, was mayor of Tamsin.", "1 x",
        "nothing here", "x\nMarta Orlo was born in Kerling in 1941.",
    ])), max_size=8,
)  # fmt: skip


def put_texts(bench: Any, texts: list[tuple[str, str]]) -> Any:
    bench.put_passages([text for _, text in texts], [title for title, _ in texts])
    return bench


def files_of(bench: Any, layer: Stage, before: Any = None) -> dict[str, bytes]:
    bench.run(layer, before=before)
    return {path.name: path.read_bytes() for path in sorted(bench.folder(layer.name).iterdir())}


PASSAGE_VECTORS = vector_stage("passage_vectors", ("passages",), passage_texts)


@pytest.mark.parametrize("layer", [extraction_stage, PASSAGE_VECTORS], ids=lambda layer: layer.name)
@given(old=TEXTS, new=TEXTS)
@FREE
def test_texts(benches: Iterator[Any], layer: Stage, old: list[Any], new: list[Any]) -> None:
    before, bench = put_texts(next(benches), old), put_texts(next(benches), new)
    files_of(before, layer)
    expected = files_of(put_texts(next(benches), new), layer)
    assert files_of(bench, layer, before) == expected
    assert bench.report.reused == sum(pair in old for pair in new)


def put_questions(bench: Any, texts: list[tuple[str, str]]) -> Any:
    put_texts(bench, texts).run(vertices_stage)
    columns = {"vertex": np.arange(len(texts)), "text": [f"{title}: {text}?" for title, text in texts]}
    for side in ("in", "out"):
        tables.write_table(questions_file(bench.folder("hop_questions"), side), QUESTIONS, columns)
    return bench


@given(old=TEXTS, new=TEXTS)
@FREE
def test_keywords(benches: Iterator[Any], old: list[Any], new: list[Any]) -> None:
    before, bench = put_questions(next(benches), old), put_questions(next(benches), new)
    files_of(before, keywords_stage)
    expected = files_of(put_questions(next(benches), new), keywords_stage)
    assert files_of(bench, keywords_stage, before) == expected
    assert bench.report.reused == 3 * sum(pair in old for pair in new)


def test_wrong_keywords_are_noticed(benches: Iterator[Any]) -> None:
    old, new = [("", "Marta Orlo"), ("", "Kerling")], [("", "Marta Orlo"), ("", "a town")]
    before, bench = put_questions(next(benches), old), put_questions(next(benches), new)
    files_of(before, keywords_stage)
    expected = files_of(put_questions(next(benches), new), keywords_stage)
    with patch.object(vertices, "rows_by_key", lambda *_: np.arange(2)):
        assert files_of(bench, keywords_stage, before) != expected


DOCUMENTS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.sampled_from(["", "Marta Orlo saw Kerling, Kerling.", "Orlo, Marta", "Kerling is a town.", "the", "1 Kerling"]),
)


def put_documents(bench: Any, texts: dict[str, str]) -> Any:
    rows = [{"id": id, "doc_id": id, "title": "", "text": text, "start": 0, "end": 1} for id, text in texts.items()]
    bench.put("passages", sorted(rows, key=lambda row: str(row["id"])))
    bench.put("documents", [{"id": id, "title": "", "file": "f", "line": None, "pages": []} for id in sorted(texts)])
    return bench


@given(old=DOCUMENTS, new=DOCUMENTS, stay=st.sets(st.sampled_from("abcdefgh")))
@FREE
def test_words(benches: Iterator[Any], old: dict[str, str], new: dict[str, str], stay: set[str]) -> None:
    new |= {id: text for id, text in old.items() if id in stay}
    before, bench = put_documents(next(benches), old), put_documents(next(benches), new)
    files_of(before, bm25_stage)
    assert files_of(bench, bm25_stage, before) == files_of(put_documents(next(benches), new), bm25_stage)
    assert bench.report.reused == len(old.items() & new.items())


def test_words_are_counted_again_where_languages_changed(benches: Iterator[Any]) -> None:
    texts = {"a": "Die Brücken von Kerling", "b": "the bridges"}
    spoken: list[dict[str, str]] = [{"b": "de"}, {}, {"a": "de", "b": "de"}]
    for earlier, now in product(spoken, repeat=2):
        before, bench, fresh = (put_documents(next(benches), texts) for _ in range(3))
        known = {one.folder("passages"): by for one, by in ((before, earlier), (bench, now), (fresh, now))}
        with patch.object(search, "languages_of", known.__getitem__):
            files_of(before, bm25_stage)
            assert files_of(bench, bm25_stage, before) == files_of(fresh, bm25_stage)
            assert bench.report.reused == (2 if earlier == now and len(now) != 1 else 0)


def test_wrong_words_are_noticed(benches: Iterator[Any]) -> None:
    old = {"a": "Marta Orlo", "b": "Kerling"}
    new = {**old, "b": "a town"}
    before, bench = put_documents(next(benches), old), put_documents(next(benches), new)
    files_of(before, bm25_stage)
    expected = files_of(put_documents(next(benches), new), bm25_stage)
    with patch.object(search, "unchanged_rows", lambda *_: np.arange(2)):
        assert files_of(bench, bm25_stage, before) != expected


NAMES_OF_FILES = json.dumps({"1.txt": "0", "2.txt": "0"}).encode()
FOREIGN = {
    "no stream": b"PK\x03\x04 of another format",
    "nothing": zlib.compress(b""),
    "half a number": zlib.compress(b"\x01" * 7),
    "too few": zlib.compress(np.ones(1, np.int64).tobytes()),
    "too many": zlib.compress(np.ones(10**6, np.int64).tobytes()),
    "below zero": zlib.compress(np.full(2, -(2**62) - 2**30).tobytes()),
    "no numbers": zlib.compress(np.full(2, np.nan).tobytes()),
    "no names": zlib.compress(b'{"1.txt": [1]}'),
    "too long": zlib.compress(b" " * 10**6 + NAMES_OF_FILES),
}


@pytest.mark.parametrize("layer", ["mentions", "passages"])
@pytest.mark.parametrize("name", FOREIGN)
def test_arrays_of_a_foreign_index_that_do_not_fit_are_made_anew(
    benches: Iterator[Any], tmp_path: Path, name: str, layer: str
) -> None:
    old, stated = {"a": "orlo kerling", "b": "orlo"}, {"Orlo": {"a"}, "Kerling": {"b"}}
    before, bench, fresh = (put_mentions(next(benches), old, stated, True) for _ in range(3))

    def made(one: Any, previous: Any = None) -> dict[str, bytes]:
        if layer == "passages":
            return passage_files(
                one, sources_in(tmp_path / "corpus", {"1.jsonl": [{"text": LONG}]}, set()), before=previous
            )
        return files_of(one, mentions.mentions_stage, previous)

    made(before)
    content, file = FOREIGN[name], before.folder(layer) / CARRIED
    file.write_bytes(xxhash.xxh3_128_digest(content) + content)
    with patch.object(work, "_MAX_CARRIED", 10**5):
        assert made(bench, before) == made(fresh) and not bench.report.reused


@pytest.mark.parametrize(("column", "row"), [("passage", 9), ("passage", -1), ("entity", 9), ("entity", -1)])
def test_mentions_of_a_foreign_index_outside_its_tables_are_made_anew(
    benches: Iterator[Any], column: str, row: int
) -> None:
    old, stated = {"a": "orlo kerling", "b": "orlo"}, {"Orlo": {"a"}, "Kerling": {"b"}}
    before, bench, fresh = (put_mentions(next(benches), old, stated, True) for _ in range(3))
    files_of(before, mentions.mentions_stage)
    path = before.folder("mentions") / "mentions.parquet"
    table = tables.read_table(path, tables.MENTIONS)
    columns = {name: table[name].to_pylist() for name in table.column_names}
    tables.write_table(path, tables.MENTIONS, columns | {column: [row] * len(table)})
    files = (files_of(bench, mentions.mentions_stage, before), files_of(fresh, mentions.mentions_stage))
    assert files[0] == files[1] and not bench.report.reused


def test_words_of_other_passages_than_the_table_has_are_counted_anew(benches: Iterator[Any]) -> None:
    texts = {"a": "Marta Orlo", "b": "Kerling", "c": "Halden"}
    before, fewer, bench, fresh = (put_documents(next(benches), texts) for _ in range(4))
    for one in (before, put_documents(fewer, {"a": "Marta Orlo"})):
        files_of(one, bm25_stage)
    for file in fewer.folder("bm25").iterdir():
        (before.folder("bm25") / file.name).write_bytes(file.read_bytes())
    assert files_of(bench, bm25_stage, before) == files_of(fresh, bm25_stage)


PLACES = {
    "Orlo": ["orlo"],
    "Kerling": ["Kerling", "the  town"],
    "the": ["the"],
    "Ölo": ["Ölo", "ORLO,"],
    "東京": ["東京"],
    "Strasse": ["Strasse", "x strasse"],
}
TOWNS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.lists(
        st.sampled_from(["Orlo", "orlo,", "kerling", "the town", "ÖLO", "東京都", "the", "ＯＲＬＯ", "Straße", "x"]),
        max_size=5,
    ).map(" ".join),
)
STATED = st.dictionaries(st.sampled_from(sorted(PLACES)), st.sets(st.sampled_from("abcdef")))


def put_mentions(bench: Any, texts: dict[str, str], stated: dict[str, set[str]], aliases: bool) -> Any:
    put_documents(bench, texts)
    bench.put_entities(list(stated), PLACES if aliases else {})
    rows, entities = sorted(texts), sorted(stated)
    pairs = sorted((rows.index(id), entities.index(name)) for name in stated for id in stated[name] if id in texts)
    bench.put("extracted", [{"passage": passage, "entity": entity} for passage, entity in pairs])
    return bench


@given(TOWNS, TOWNS, STATED, STATED, st.tuples(st.booleans(), st.booleans()), st.integers(1, 4), st.randoms())
@FREE
def test_mentions(
    benches: Iterator[Any], old: Any, new: Any, then: Any, now: Any, aliases: Any, most: int, draw: random.Random
) -> None:
    new |= {id: text for id, text in old.items() if draw.random() < 0.7}
    now |= {name: ids for name, ids in then.items() if draw.random() < 0.7}
    before = put_mentions(next(benches), old, then, aliases[0])
    bench, other = (put_mentions(next(benches), new, now, aliases[1]) for _ in range(2))
    with patch.multiple(mentions, MAX_PASSAGES_OF_A_SEARCHED_NAME=most, _ROWS=most, _TOGETHER=most):
        files_of(before, mentions.mentions_stage)
        assert files_of(bench, mentions.mentions_stage, before) == files_of(other, mentions.mentions_stage)
    assert bench.report.reused == len(old.items() & new.items())


def test_no_other_character_folds_to_words_of_ascii() -> None:
    """Otherwise a text that names something would be left out."""
    characters = (chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    others = {
        character
        for character in characters
        if {*"".join(*ascii_words([character]))} - {*unicodedata.normalize("NFKC", character).lower()}
    }
    assert others <= {*mentions._FOLDS_TO_ASCII}


PLACES_IN_TEXTS = [
    ("new york", "in NEW\u00a0York."), ("s\u01f0 x", "SJ\u030c  X"), ("h\u0331 x", "H\u3099\u0331 x, H\u0331 X"),
    ("x 2", "X\t\u00b2"), ("stra\u00dfe 1", "Strasse 1"), (".net", "by .NET"), ("\u6771", "in\u6771"),
    ("kg", "5 \u338f"), ("a-b", "A-B"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), PLACES_IN_TEXTS)
def test_an_old_passage_is_searched_for_a_new_name_if_all_its_words_follow_each_other(
    benches: Iterator[Any], name: str, text: str
) -> None:
    texts = {"a": text, "b": f"{name[-1]} {name}s and {name[::-1]}".replace("x", "")}
    before = put_mentions(next(benches), texts, {"orlo": set()}, False)
    bench, other = (put_mentions(next(benches), texts, {"orlo": set(), name: {"b"}}, False) for _ in range(2))
    files_of(before, mentions.mentions_stage)
    expected = files_of(other, mentions.mentions_stage)
    assert files_of(bench, mentions.mentions_stage, before) == expected
    planted = {"new york": "_BETWEEN_RUNS", "s\u01f0 x": "_MARKED", "\u6771": "_NOT_ASCII"}
    if name in planted:
        with patch.object(mentions, planted[name], "~"):
            assert files_of(bench, mentions.mentions_stage, before) != expected


@pytest.mark.parametrize("wrong", ["new names", "left passages", "rare again", "extracted"])
def test_wrong_mentions_are_noticed(benches: Iterator[Any], wrong: str) -> None:
    """With at most one passage, "orlo" counts where it was extracted, until one of its two passages is left."""
    old, stated = {"a": "orlo kerling", "b": "orlo"}, {"Orlo": {"a"}}
    new = {"b": "orlo"} if wrong in ("left passages", "rare again") else {**old, "c": "Orlo"}
    now = {"Orlo": {"a", "b"}, "Kerling": {"c"}} if wrong in ("new names", "extracted") else stated
    before = put_mentions(next(benches), old, stated, True)
    bench, other = (put_mentions(next(benches), new, now, True) for _ in range(2))
    planted: dict[str, Any] = {
        "new names": ("ascii_words", lambda texts: ([] for _ in texts)),
        "left passages": ("_found", lambda *given: (all_found(*given)[0], np.zeros(given[-1], np.int64))),
        "rare again": ("_texts", lambda *_: iter(())),
        "extracted": ("_texts", lambda folder, wanted, words=None: iter(()) if words else all_texts(folder, wanted)),
    }
    all_texts, all_found = mentions._texts, mentions._found
    with patch.object(mentions, "MAX_PASSAGES_OF_A_SEARCHED_NAME", 2):
        files_of(before, mentions.mentions_stage)
        expected = files_of(other, mentions.mentions_stage)
        with patch.object(mentions, *planted[wrong]):
            assert files_of(bench, mentions.mentions_stage, before) != expected
        assert files_of(bench, mentions.mentions_stage, before) == expected


def test_extractions_of_more_text_than_arrow_joins_are_made_anew(
    benches: Iterator[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [("", f"Marta Orlo{n} designed the bridge of Kerling.") for n in range(4)]
    before, bench = put_texts(next(benches), texts), put_texts(next(benches), texts)
    expected = files_of(before, extraction_stage)
    monkeypatch.setattr(tables, "joined_chunks", lambda table: pa.concat_tables([table[:2], table[2:]]))
    assert files_of(bench, extraction_stage, before) == expected and bench.report.reused == 0


def test_a_text_that_moved_keeps_its_vector_and_costs_nothing(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(50)]
    turned = [*texts[::-1], "new"]
    assert rows_by_key(text_hashes(turned), text_hashes(texts)).tolist() == [*range(49, -1, -1), -1]
    keys = text_hashes(texts)
    assert rows_by_key(keys[:0], keys).tolist() == [] and rows_by_key(keys, keys[:0]).tolist() == [-1] * 50
    half = keys.copy()
    half[:, 1] += 1  # a wrong version compares half of the hash
    assert rows_by_key(keys, half).tolist() == [-1] * 50


def test_an_added_file_computes_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "_cache_dir", tmp_path / "cache")
    chosen: Any = {"models": {"embedder": "hash", "llm": "none"}}
    for n in range(6):
        (tmp_path / f"d{n}.txt").write_text(f"Marta Orlo{n} designed the bridge of Kerling{n}. Anna saw it.")
    files = sorted(tmp_path.glob("d*.txt"))
    gpu_rag.build(files[:5], tmp_path / "ix", methods=["ppr"], settings=chosen)
    made = gpu_rag.add(tmp_path / "ix", files[5], settings=chosen).index
    stages = made.report.stages
    assert {name: stages[name].reused for name in ("extraction", "passage_vectors")} == {
        "extraction": 5, "passage_vectors": 5,
    }  # fmt: skip
    assert stages["synonyms"].reused >= 10 and stages["relation_vectors"].reused >= 5
    again = gpu_rag.build(files, tmp_path / "again", methods=["ppr"], settings=chosen)
    assert again.manifest.digest() == made.manifest.digest()
