"""Every reader against thousands of broken files each: no error but ours, and nothing of a file is lost."""

import gzip
import json
import os
import zlib
from collections import Counter
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broken_files import check_table, lines_from, marked_lines, put, read
from pdf_files import pdf

from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.corpus.multihop import contexts_of, is_multihop
from gpu_rag.sources.corpus.openie import read_openie
from gpu_rag.sources.questions import read_questions
from gpu_rag.sources.rows import Limits
from gpu_rag.text.strict_json import JsonError, loads
from gpu_rag.types import Reject

pytestmark = pytest.mark.slow
N = 500 if os.environ.get("CI") else 10_000

DOCS = [
    {"id": "a", "title": "Vell", "text": "Vell lies on the Orn."},
    {"id": 7, "title": None, "text": "Ünïcode 🌊", "extra": [1, {"b": 2}]},
    {"title": "T", "text": "x"},
]
HIPPORAG = [{"title": d["title"] or "", "text": d["text"], "idx": i} for i, d in enumerate(DOCS)]
BEIR = [{"_id": str(i), "title": "t", "text": d["text"], "metadata": {}} for i, d in enumerate(DOCS)]
CONTEXT = [["Vell", ["Vell is a town.", " It lies on the Orn."]], ["Orn", ["A river."]]]
HOTPOT = [
    {"_id": "1", "question": "q?", "answer": "a", "supporting_facts": [["Vell", 0], ["Orn", 0]], "context": CONTEXT},
    {"_id": "2", "question": "r?", "answer": "b", "type": "bridge", "supporting_facts": [], "context": CONTEXT[:1]},
]
TWO_WIKI = [{**row, "evidences": [["Vell", "on", "Orn"]], "answer_id": None} for row in HOTPOT]
MUSIQUE = [
    {
        "id": "2hop__1_2",
        "question": "q?",
        "answer": "a",
        "answer_aliases": ["b"],
        "answerable": True,
        "paragraphs": [
            {"idx": 0, "title": "Vell", "paragraph_text": "A town.", "is_supporting": True},
            {"idx": 1, "title": "Orn", "paragraph_text": "A river.", "is_supporting": False},
        ],
        "question_decomposition": [{"id": 1, "question": "?", "answer": "a", "paragraph_support_idx": 0}],
    }
]
QUESTIONS = [
    {"id": "1", "question": "Who?", "gold_ids": ["a", 7], "answers": ["x"], "hops": 2, "answer_ids": [["a"]]},
    {"question": "What?", "answer": "y"},
]
OPENAI = [
    {
        "custom_id": "r1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Who?"}]},
    },
    {"custom_id": "r2", "body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}]}]}},
]
OPENIE = [
    {"id": "a", "entities": ["Vell", "Orn"], "triples": [["Vell", "on", "Orn"]]},
    {"id": 7, "entities": [], "triples": []},
]
HIPPORAG_OPENIE = {
    "docs": [
        {
            "idx": "c-1",
            "passage": "Vell\nA town.",
            "extracted_entities": ["Vell"],
            "extracted_triples": [["a", "b", "c"]],
        },
        {"idx": "c-2", "passage": "Orn\nA river.", "extracted_entities": [], "extracted_triples": []},
    ],
    "avg_ent_chars": 3.5,
}
HTML = (
    b'<!DOCTYPE html><html><head><meta charset="utf-8"><title>Vell &amp; Orn</title><style>p{}</style></head><body>'
    b"<nav><a href='x'>Home</a></nav><main><h1>Vell</h1><p>It lies on the <b>Orn</b>, caf&eacute; &#x41;.<br>Long."
    b"<ul><li>one<li>two</ul><table><tr><th>a<td>b</table><pre>x\n y</pre><svg><title>i</title></svg>"
    b"<select><option>o</select></main><script>let a = '</p>';</script><template><p>t</template><!-- c --></body>"
)
TEXT = b"# Vell\n\nVell lies on the Orn. ```\n# not\n```\n\xc3\x9cn\xc3\xafcode \xf0\x9f\x8c\x8a\r\n"


def two_pages(packed):
    return pdf(["Vell lies on the Orn.", "It is \\(very\\) old."], "On Vell", packed)


def array_from(mutator, rows):
    """A JSON text of which some values are others, or some bytes."""
    if mutator.random.random() < 0.6:
        return mutator.dumped(mutator.value(rows))
    return mutator.raw(mutator.dumped(rows))


def check_lines(found, raw):
    """Each line gives something, and only lines do; a row of contexts gives a document or a Reject for each context."""
    expected = marked_lines(raw)
    if expected is None:
        assert len(found) == 1 and found[0].line == 0, found
        return
    given = Counter(where(item) for item in found)
    assert given.keys() <= expected, (given, expected)
    split = raw.split(b"\n")
    for number in expected - given.keys():
        check_contexts(json.loads(split[number - 1]), found)
    for number in expected & given.keys():
        assert given[number] == 1 or is_multihop(json.loads(split[number - 1])), (number, given)


def array_in(raw):
    """The rows that a file holds: an array; of an object its one list of objects beside short values, or the object; of
    one that strict JSON refuses, its only member."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return value if isinstance(value, list) else None
    if [*value.values()] == [[]]:
        return []
    try:
        loads(raw.decode())
    except (JsonError, UnicodeDecodeError):
        (member, *others) = value.values()
        return member if isinstance(member, list) and not others else None
    lists = [member for member in value.values() if isinstance(member, list) and member]
    short = all(isinstance(m, list) or not isinstance(m, dict | str) or len(m) <= 1000 * isinstance(m, str)
                for m in value.values())  # fmt: skip
    is_table = len(lists) == 1 and short and all(isinstance(row, dict) for row in lists[0])
    return lists[0] if is_table and not {"text", "question", "query"} & value.keys() else [value]


def check_elements(found, raw):
    """Each element of a JSON array gives something; anything else gives a Reject."""
    rows = array_in(raw)
    if not isinstance(rows, list):
        assert any(isinstance(item, Reject) for item in found)
        return
    given = Counter(where(item) for item in found)
    if 0 in given:  # not read at all: its encoding
        assert len(found) == 1
        return
    assert given.keys() <= set(range(1, len(rows) + 1)), given
    for number, row in enumerate(rows, start=1):
        if number not in given and not stopped_before(found, number):
            check_contexts(row, found)


def stopped_before(found, number):
    last = found[-1] if found else None
    return isinstance(last, Reject) and "not read" in last.reason and last.line <= number


def check_contexts(row, found):
    """A row that gave nothing of its own: all its contexts are documents already."""
    assert is_multihop(row), row
    contexts = contexts_of(row, Limits())
    assert contexts and all(not context.problem for context in contexts), row
    assert {context.id for context in contexts} <= {item.id for item in found if not isinstance(item, Reject)}


def where(item):
    return item.line if hasattr(item, "line") else 0


def examine(check, found, raw):
    """`check`, which shows the input when it fails."""
    try:
        check(found, raw)
    except BaseException as error:
        error.add_note(f"input: {raw!r}\nfound: {found!r}")
        raise


def corpus(path):
    return read_corpus([path])


CORPORA = {
    "own.jsonl": (DOCS, lines_from, check_lines),
    "beir.jsonl": (BEIR, lines_from, check_lines),
    "musique.jsonl": (MUSIQUE, lines_from, check_lines),
    "hotpot.json": (HOTPOT, array_from, check_elements),
    "2wiki.json": (TWO_WIKI, array_from, check_elements),
    "hipporag.json": (HIPPORAG, array_from, check_elements),
}


@pytest.mark.parametrize("name", CORPORA)
def test_corpora(tmp_path, mutator, name):
    rows, make, check = CORPORA[name]
    path = tmp_path / name
    for _ in range(N):
        raw = make(mutator, rows)
        put(path, raw)
        examine(check, read(corpus, path), raw)


def test_gzip(tmp_path, mutator):
    path = tmp_path / "own.jsonl.gz"
    for _ in range(N):
        raw = lines_from(mutator, DOCS)
        if mutator.random.random() < 0.5:
            put(path, gzip.compress(raw, 1))
            examine(check_lines if raw.strip() else check_nothing, read(corpus, path), raw)
        else:
            broken = mutator.raw(gzip.compress(raw, 1))
            put(path, broken)
            found = read(corpus, path)
            assert found or not broken or not unpacked(broken).strip(), broken


def unpacked(raw):
    """The content of gzip data up to where it breaks; b"x" when that cannot be said."""
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error):
        return b"x"


def check_nothing(found, raw):
    assert not found, (found, raw)


def test_parquet(tmp_path, mutator):
    path = tmp_path / "own.parquet"
    tables = [parquet_of(DOCS[:1] * 3), parquet_of([{"text": "x"}, {"text": "y"}])]
    for i in range(N):
        if i % 8 == 0:
            raw = parquet_of(mutator.value(DOCS))
        else:
            raw = mutator.raw(mutator.random.choice(tables), tables)
        put(path, raw)
        found = read(corpus, path)
        examine(check_table, found, raw)


def parquet_of(rows):
    """Rows as Parquet, with the types that Arrow finds for them; a row that fits no column type is left out."""
    sink = BytesIO()
    rows = rows if isinstance(rows, list) else [rows]
    while True:
        try:
            pq.write_table(pa.Table.from_pylist([row for row in rows if isinstance(row, dict)]), sink)
            return sink.getvalue()
        except (pa.ArrowException, UnicodeEncodeError, OverflowError):
            rows = rows[:-1]


QUESTION_FILES = {
    "own.jsonl": (QUESTIONS, lines_from),
    "openai.jsonl": (OPENAI, lines_from),
    "hotpot.json": (HOTPOT, array_from),
    "2wiki.json": (TWO_WIKI, array_from),
    "musique.jsonl": (MUSIQUE, lines_from),
}


@pytest.mark.parametrize("name", QUESTION_FILES)
def test_questions(tmp_path, mutator, name):
    rows, make = QUESTION_FILES[name]
    path = tmp_path / name
    for _ in range(N):
        raw = make(mutator, rows)
        put(path, raw)
        found = read(read_questions, path)
        if make is lines_from:
            expected = marked_lines(raw)
            assert len(found) == (1 if expected is None else len(expected)), (raw, found)
            lines = [item.line for item in found if isinstance(item, Reject)]
            assert expected is None or (set(lines) <= expected and len(set(lines)) == len(lines)), (raw, found)
        else:
            examine(check_row_count, found, raw)


def check_row_count(found, raw):
    """There are as many questions and Rejects as elements; anything that is no array gives a Reject."""
    rows = array_in(raw)
    if isinstance(rows, list):
        assert len(found) == len(rows) or "not" in found[-1].reason, found
    else:
        assert any(isinstance(item, Reject) for item in found)


def test_beir_folder(tmp_path, mutator):
    (tmp_path / "qrels").mkdir()
    qrels = b"query-id\tcorpus-id\tscore\n1\td1\t1\n1\td2\t0\n2\td1\t2\n"
    queries = [{"_id": "1", "text": "Who?"}, {"_id": "2", "text": "What?", "metadata": {}}]
    for _ in range(N):
        raw = lines_from(mutator, queries)
        judged = mutator.raw(qrels)
        put(tmp_path / "queries.jsonl", raw)
        put(tmp_path / "qrels" / "test.tsv", judged)
        found = read(read_questions, tmp_path)
        lost = lost_judgements(judged, found)
        assert not lost, (raw, judged, found, lost)


def lost_judgements(judged, found):
    """Queries of well-formed judgement lines that are neither questions nor Rejects."""
    given = {item.id if isinstance(item, Reject) else item.question.id for item in found}
    refused = {item.line for item in found if isinstance(item, Reject) and item.file.endswith(".tsv")}
    lost = []
    for number, line in enumerate(judged.split(b"\n"), start=1):
        fields = line.strip(b"\r").split(b"\t")
        if len(fields) == 3 and number > 1 and number not in refused and 0 not in refused:
            name = fields[0].decode("utf-8", "replace")
            lost += [] if name in given else [name]
    return lost


OPENIE_FILES = {"own.jsonl": (OPENIE, lines_from), "hipporag.json": (HIPPORAG_OPENIE, array_from)}


@pytest.mark.parametrize("name", OPENIE_FILES)
def test_openie(tmp_path, mutator, name):
    rows, make = OPENIE_FILES[name]
    path = tmp_path / name
    for _ in range(N):
        raw = make(mutator, rows)
        put(path, raw)
        found = read(read_openie, path)
        kept = [item for item in found if not isinstance(item, Reject)]
        rejects = [item for item in found if isinstance(item, Reject)]
        whole = [item for item in rejects if not item.reason.startswith(("entity", "triple"))]
        if make is lines_from:
            expected = marked_lines(raw)
            assert len(kept) + len(whole) == (1 if expected is None else len(expected)), (raw, found)
        else:
            examine(check_docs, kept + whole, raw)


def check_docs(found, raw):
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        content = None
    docs = content.get("docs") if isinstance(content, dict) else None
    if isinstance(docs, list) and [where(item) for item in found if isinstance(item, Reject)] != [0]:
        assert len(found) == len(docs), found
    else:
        assert len(found) == 1


FOLDERS = {"txt": TEXT, "md": TEXT, "html": HTML, "pdf": two_pages(False)}


@pytest.mark.parametrize("ending", FOLDERS)
def test_folders(tmp_path, mutator, ending):
    seed = FOLDERS[ending]
    others = [seed, two_pages(True)] if ending == "pdf" else [seed, TEXT]
    for i in range(N):
        put(tmp_path / f"{i}.{ending}", mutator.raw(others[i % 2] if ending == "pdf" else seed, others))
    found = list(read_corpus([tmp_path], Limits(max_parse_s=10)))
    given = Counter(os.path.basename(item.file) for item in found)
    assert given.keys() == {f"{i}.{ending}" for i in range(N)}
    documents = [item for item in found if not isinstance(item, Reject)]
    assert len({d.id for d in documents}) == len(documents) > N / 20
    for document in documents:
        assert document.text.strip() and "\x00" not in document.text
        document.text.encode("utf-8")
        assert ending != "pdf" or (document.pages[0] == 0 and document.pages[-1] <= len(document.text))
        assert list(document.pages) == sorted(set(document.pages))
    crashes = [item.reason for item in found if isinstance(item, Reject) and "ended the parser" in item.reason]
    assert not crashes, crashes[:5]
