"""Question files: our rows, OpenAI batches, benchmarks; every row in is a question or a reject out."""

import json

import pytest
from source_files import id_of, lines
from source_files import questions_of as read

from gpu_rag.errors import BadInput
from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.questions import read_questions
from gpu_rag.types import Document


@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz"])
def test_our_rows(tmp_path, name):
    path = lines(
        tmp_path / name,
        [
            {"id": "1", "question": "Where?", "gold_ids": ["p", 7], "answers": ["Vell", "the town"], "hops": 2},
            {"id": 2, "question": "Who?", "answer": "Mara", "answer_ids": [3, "x"]},
            {"question": "When?", "answers": None, "gold_ids": None},
            {"id": "4", "question": "Why?", "answers": ["a"], "answer": "b"},
        ],
    )
    found, rejects = read(path)
    assert not rejects and {row.style for row in found} == {"jsonl"}
    assert [(row.question.id, row.question.text) for row in found][:2] == [("1", "Where?"), ("2", "Who?")]
    assert (found[0].gold_ids, found[0].answers, found[0].meta) == (("p", "7"), ("Vell", "the town"), {"hops": 2})
    assert (found[1].answers, found[1].meta) == (("Mara",), {"answer_ids": [3, "x"]})
    assert (found[2].gold_ids, found[2].answers, found[2].question.id[:2]) == ((), (), "q_")
    assert (found[3].answers, found[3].meta) == (("a",), {"answer": "b"})


BAD = [
    ("oops\n", "broken JSON"),
    ({"id": "x"}, "question is missing"),
    ({"id": "x", "query": "Where?"}, "the row has id, query; expected question"),
    ({"id": "x", "question": ""}, "question is empty"),
    ({"id": "x", "question": ["a"]}, "question is a list"),
    ({"id": "x", "question": "a\x00"}, "NUL"),
    ({"id": "x", "question": "a", "gold_ids": "p"}, "gold_ids is a string"),
    ({"id": "x", "question": "a", "gold_ids": [None]}, "an item of gold_ids"),
    ({"id": "x", "question": "a", "answers": "p"}, "answers is a string"),
    ({"id": "x", "question": "a", "answers": [3]}, "an item of answers"),
    ({"id": "x", "question": "a", "answer": 3}, "answer is a number"),
    ({"id": "x", "question": "a", "answer_ids": 3}, "answer_ids is a number"),
    ({"id": "1", "question": "Where?"}, "duplicate of '1'"),
    ({"id": "1", "question": "Other?"}, "already used, with another text"),
    ({"id": [], "question": "a"}, "id is a list"),
    ([], "a list; expected a JSON object"),
]


def check_rejects(path):
    found, rejects = read(path)
    assert [row.question.id for row in found] == ["1", "9"]
    assert [r.line for r in rejects] == list(range(2, 2 + len(BAD)))
    for reject, (_, said) in zip(rejects, BAD):
        assert said in reject.reason


def test_every_bad_row_is_a_reject(tmp_path):
    path = tmp_path / "q.jsonl"
    good = {"id": "1", "question": "Where?"}
    check_rejects(lines(path, [good, *[row for row, _ in BAD], {"id": "9", "question": "z"}]))


def test_limits_are_passed_on(tmp_path):
    path = lines(tmp_path / "q.jsonl", [{"id": "1", "question": "x" * 500}, {"id": "2", "question": "y"}])
    assert [r.line for r in read(path, max_line_bytes=100)[1]] == [1]
    assert [r.id for r in read(path, max_document_chars=100)[1]] == ["1"]


def test_missing_paths_and_unknown_types(tmp_path):
    (tmp_path / "q.xlsx").touch()
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "absent.jsonl", tmp_path / "q.xlsx", tmp_path / "empty"):
        with pytest.raises(BadInput, match="OpenAI batch"):
            read_questions(path)


def test_texts_and_tables_of_questions(tmp_path):
    (tmp_path / "q.txt").write_text("Where is Vell?\n\n  Who is Mara?  \nWhere is Vell?\n")
    found, rejects = read(tmp_path / "q.txt")
    assert [row.question.text for row in found] == ["Where is Vell?", "Who is Mara?"]
    assert len({row.question.id for row in found}) == 2 and [reject.line for reject in rejects] == [4]
    (tmp_path / "q.csv").write_text('Question;ID;answer;hops\n"Where; is Vell?";007;12;2\n;x;;\nWho?;y;;1\n')
    found, rejects = read(tmp_path / "q.csv")
    assert [(row.question.id, row.question.text) for row in found] == [("007", "Where; is Vell?"), ("y", "Who?")]
    assert (found[0].answers, found[0].meta) == (("12",), {"hops": 2})
    assert [(reject.line, reject.id) for reject in rejects] == [(3, "x")]
    (tmp_path / "none.csv").write_text("id,text\n1,Where?\n")
    assert "question" in read(tmp_path / "none.csv")[1][0].reason


def batch(id, messages, **more):
    body = {"model": "m", "messages": messages, "temperature": 0}
    return {"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body, **more}


def test_openai_batch(tmp_path):
    parts = [{"type": "text", "text": "Where is"}, {"type": "text", "text": "Vell?"}]
    path = lines(
        tmp_path / "b.jsonl",
        [
            batch("1", [{"role": "system", "content": "s"}, {"role": "user", "content": "Where?"}]),
            batch(
                "2",
                [
                    {"role": "user", "content": "first"},
                    {"role": "assistant", "content": "a"},
                    {"role": "user", "content": "last"},
                ],
                gold_ids=["p"],
                answers=["Vell"],
            ),
            batch("3", [{"role": "user", "content": parts}]),
        ],
    )
    found, rejects = read(path)
    assert not rejects and {row.style for row in found} == {"openai"}
    assert [row.question.text for row in found] == ["Where?", "last", "Where is\nVell?"]
    assert found[0].meta == {"method": "POST", "url": "/v1/chat/completions", "model": "m"}
    assert (found[1].gold_ids, found[1].answers) == (("p",), ("Vell",))


def test_openai_rows_that_are_wrong(tmp_path):
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    path = lines(
        tmp_path / "b.jsonl",
        [
            {"custom_id": "1"},
            {"custom_id": "2", "body": {"input": "x"}},
            batch("3", []),
            batch("4", [{"role": "system", "content": "x"}]),
            batch("5", [{"role": "user", "content": image}]),
            batch("6", [{"role": "user", "content": None}]),
            batch("7", [{"role": "user", "content": " "}]),
            {"id": "8", "body": {"messages": []}},
        ],
    )
    found, rejects = read(path)
    assert not found and [r.line for r in rejects] == list(range(1, 9))
    for reject, said in zip(
        rejects, ["messages", "messages", "no user", "no user", "not text", "null", "empty", "custom_id"]
    ):
        assert said in reject.reason


def test_folder_with_questions(tmp_path):
    lines(tmp_path / "questions.jsonl", [{"id": "1", "question": "Where?"}])
    assert [row.question.text for row in read(tmp_path)[0]] == ["Where?"]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "n"), [("musique_openie", 56), ("2wiki_openie", 51), ("hotpotqa/questions.jsonl", 554)]
)
def test_real_questions(shared_data, name, n):
    found, rejects = read(shared_data / name)
    assert (len(found), rejects) == (n, [])
    folder = (shared_data / name).parent if "." in name else shared_data / name
    corpus = folder / "corpus.jsonl.gz" if name.startswith("hotpotqa") else folder
    ids = {d.id for d in read_corpus([corpus]) if isinstance(d, Document)}
    assert all(row.gold_ids and set(row.gold_ids) <= ids and row.answers and row.meta["hops"] >= 2 for row in found)


HOTPOT = {
    "_id": "h1",
    "question": "On which river lies the town of Mara?",
    "answer": "Orn",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Mara", 0], ["Vell", 1], ["Vell", 0]],
    "context": [["Bell", ["A bell."]], ["Vell", ["A town.", " On the Orn."]], ["Mara", ["Mara lives in Vell."]]],
}


@pytest.mark.parametrize("name", ["h.json", "h.jsonl"])
@pytest.mark.parametrize("extra", [{}, {"evidences": [["Mara", "lives in", "Vell"]]}])
def test_hotpotqa_and_2wiki(tmp_path, name, extra):
    path = tmp_path / name
    row = {**HOTPOT, **extra}
    path.write_text(json.dumps([row]) if name.endswith("json") else json.dumps(row))
    (found,), rejects = read(path)
    assert not rejects
    assert (found.question.id, found.question.text, found.answers) == ("h1", HOTPOT["question"], ("Orn",))
    assert found.gold_ids == (id_of(path, "Mara"), id_of(path, "Vell"))
    assert found.meta["context_ids"] == [id_of(path, title) for title in ("Bell", "Vell", "Mara")]
    assert {key: found.meta[key] for key in ("type", "level", "hops")} == {"type": "bridge", "level": "hard", "hops": 2}
    assert found.meta.get("evidences") == extra.get("evidences") and "context" not in found.meta


def test_a_supporting_title_that_is_not_there_leaves_no_partial_gold(tmp_path):
    path = tmp_path / "h.json"
    path.write_text(json.dumps([{**HOTPOT, "supporting_facts": [["Mara", 0], ["Elsewhere", 0]]}]))
    (found,), _ = read(path)
    assert found.gold_ids == () and found.meta["gold_missing"] == ["Elsewhere"]


def test_of_contexts_with_one_title_the_first_is_the_gold(tmp_path):
    path = tmp_path / "h.json"
    path.write_text(json.dumps([{**HOTPOT, "context": [*HOTPOT["context"], ["Vell", ["A second Vell."]]]}]))
    (found,), _ = read(path)
    texts = {d.id: d.text for d in read_corpus([path])}
    assert [texts[id] for id in found.gold_ids] == ["Mara lives in Vell.", "A town. On the Orn."]


def test_hotpotqa_rows_that_are_wrong(tmp_path):
    path = tmp_path / "h.json"
    rows = [{**HOTPOT, "_id": "1", "supporting_facts": 3}, {**HOTPOT, "_id": "2", "question": None}, HOTPOT, HOTPOT]
    path.write_text(json.dumps(rows))
    found, rejects = read(path)
    assert len(found) == 1 and [(r.line, r.id) for r in rejects] == [(1, "1"), (2, "2"), (4, "h1")]


def musique(**changes):
    paragraphs = [
        {"idx": 0, "title": "Orn", "paragraph_text": "The Orn is long.", "is_supporting": True},
        {"idx": 1, "title": "Bell", "paragraph_text": "A bell.", "is_supporting": False},
        {"idx": 2, "title": "Vell", "paragraph_text": "Vell is on the Orn.", "is_supporting": True},
    ]
    steps = [
        {"id": 1, "question": "Where is Vell?", "answer": "Orn", "paragraph_support_idx": 2},
        {"id": 2, "question": "How is #1?", "answer": "long", "paragraph_support_idx": 0},
    ]
    row = {
        "id": "2hop__1_2",
        "question": "How is the river of Vell?",
        "answer": "long",
        "answer_aliases": ["Long", "long"],
    }
    return {**row, "paragraphs": paragraphs, "question_decomposition": steps, "answerable": True, **changes}


@pytest.mark.parametrize("name", ["m.json", "m.jsonl"])
def test_musique_gold_is_in_the_order_of_the_hops(tmp_path, name):
    path = tmp_path / name
    path.write_text(json.dumps([musique()]) if name.endswith("json") else json.dumps(musique()))
    (found,), rejects = read(path)
    vell, orn = id_of(path, "Vell"), id_of(path, "Orn")
    assert not rejects and found.gold_ids == (vell, orn) and found.answers == ("long", "Long")
    assert (found.meta["hops"], found.meta["type"], found.meta["answerable"]) == (2, "2hop", True)
    assert [hop["gold_id"] for hop in found.meta["decomposition"]] == [vell, orn]
    assert found.meta["decomposition"][0]["question"] == "Where is Vell?"


def test_musique_without_decomposition_and_with_a_broken_gold_paragraph(tmp_path):
    rows = [musique(question_decomposition=None), musique(id="x"), musique(id="y", question_decomposition=3)]
    rows[1]["paragraphs"][0] = {**rows[1]["paragraphs"][0], "paragraph_text": ""}
    path = lines(tmp_path / "m.jsonl", rows)
    found, rejects = read(path)
    assert found[0].gold_ids == (id_of(path, "Orn"), id_of(path, "Vell")) and found[0].meta["hops"] == 2
    assert found[1].gold_ids == () and "empty" in found[1].meta["gold_missing"][0]
    assert [r.id for r in rejects] == ["y"]


def test_beir_folder(tmp_path):
    lines(tmp_path / "queries.jsonl", [{"_id": q, "text": f"Question {q}?", "metadata": {}} for q in ("1", "2", "3")])
    (tmp_path / "qrels").mkdir()
    qrels = tmp_path / "qrels" / "test.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\n3\td9\t1\n1\td2\t2\n1\td1\t1\n1\td0\t0\n")
    found, rejects = read(tmp_path)
    assert not rejects
    assert [(row.question.id, row.gold_ids) for row in found] == [("1", ("d2", "d1")), ("3", ("d9",))]
    assert found[0].question.text == "Question 1?" and found[0].meta["qrels"] == {"d2": 2, "d1": 1, "d0": 0}
    qrels.write_text("1\td1\t1\n1\td1\t2\n1\td2\n1\td3\tyes\n8\td1\t1\n")
    found, rejects = read(tmp_path)
    assert [row.gold_ids for row in found] == [("d1",)]
    assert sorted(r.line for r in rejects) == [2, 3, 4, 5]
    assert [row.question.id for row in read(tmp_path / "queries.jsonl")[0]] == ["1", "2", "3"]
    qrels.unlink()
    assert [row.gold_ids for row in read(tmp_path)[0]] == [(), (), ()]
