"""Questions of HotpotQA, 2Wiki, MuSiQue and BEIR, with gold ids that are those of the corpus."""

from __future__ import annotations

import json

import pytest
from source_files import id_of, lines
from source_files import questions_of as read

from gpu_rag.sources.corpus import read_corpus

# --- benchmarks --------------------------------------------------------------------------------------

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
