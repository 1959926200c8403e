"""Extractions made elsewhere: ids that meet those of the corpus, and broken triples that are counted."""

import json

import pytest
from source_files import extractions_of as read
from source_files import lines

from gpu_rag.errors import BadInput
from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.corpus.openie import OpenIERow, read_openie


def test_our_rows(tmp_path):
    path = lines(
        tmp_path / "o.jsonl",
        [
            {"id": "a", "entities": ["Vell", "Orn"], "triples": [["Vell", "lies on", "Orn"]]},
            {"id": 2, "entities": [], "triples": [], "model": "m"},
        ],
    )
    assert read(path) == ([OpenIERow("a", ("Vell", "Orn"), (("Vell", "lies on", "Orn"),)), OpenIERow("2", (), ())], [])


def test_hipporag_ids_are_those_of_its_corpus(tmp_path):
    passages = [
        {"title": "Vell", "text": "A town.\nOn the Orn.", "idx": 0},
        {"title": "Orn", "text": "A river.", "idx": 1},
    ]
    (tmp_path / "corpus.json").write_text(json.dumps(passages))
    docs = [
        {
            "idx": f"chunk-{i}",
            "passage": f"{p['title']}\n{p['text']}",
            "extracted_entities": [p["title"]],
            "extracted_triples": [[p["title"], "is", "here"]],
        }
        for i, p in enumerate(passages)
    ]
    path = tmp_path / "openie.json"
    path.write_text(json.dumps({"docs": docs, "avg_ent_chars": 3.5}))
    found, rejects = read(path)
    assert not rejects and [row.id for row in found] == [d.id for d in read_corpus([tmp_path / "corpus.json"])]
    assert [row.entities for row in found] == [("Vell",), ("Orn",)]
    assert found[1].triples == (("Orn", "is", "here"),)


BROKEN = {
    "id": "a",
    "entities": ["Vell", "", 3, "Orn"],
    "triples": [["a", "b", "c"], ["a", "b"], ["a", "", "c"], "x", [1, 2, 3]],
}


def check_broken(reader, path):
    (row,), rejects = reader(path)
    assert row == OpenIERow("a", ("Vell", "Orn"), (("a", "b", "c"),))
    assert [(r.line, r.id, r.reason.split(" is")[0]) for r in rejects] == [
        (1, "a", name) for name in ("entity 2", "entity 3", "triple 2", "triple 3", "triple 4", "triple 5")
    ]


def test_broken_names_and_triples_are_left_out_and_counted(tmp_path):
    path = lines(tmp_path / "o.jsonl", [BROKEN])
    check_broken(read, path)


def test_rows_that_are_wrong(tmp_path):
    good = {"id": "a", "entities": [], "triples": []}
    rows = [
        good,
        good,
        {"entities": [], "triples": []},
        {"id": "b", "triples": []},
        {"id": "c", "entities": {}, "triples": []},
        3,
    ]
    found, rejects = read(lines(tmp_path / "o.jsonl", rows))
    assert [row.id for row in found] == ["a"] and [r.line for r in rejects] == [2, 3, 4, 5, 6]
    for reject, said in zip(
        rejects, ["duplicate of 'a' in line 1", "id is missing", "entities is missing", "an object", "JSON"]
    ):
        assert said in reject.reason


def test_files_that_are_wrong(tmp_path):
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(BadInput, match="HippoRAG"):
            read_openie(path)
    path = tmp_path / "o.json"
    for text, said in (("[]", "docs"), ('{"docs": 3}', "docs"), ("{", "broken"), ("{}", "docs")):
        path.write_text(text)
        found, rejects = read(path)
        assert not found and [r.line for r in rejects] == [0] and said in rejects[0].reason
    path.write_text(json.dumps({"docs": [3, {"passage": 3}, {"passage": "x"}]}))
    assert [r.line for r in read(path)[1]] == [1, 2, 3]
    assert "max_json_bytes" in read(path, max_json_bytes=4)[1][0].reason


@pytest.mark.shared
@pytest.mark.parametrize(("name", "n"), [("musique_openie", 1890), ("2wiki_openie", 841)])
def test_real_extractions(shared_data, name, n):
    found, rejects = read(shared_data / name / "openie.jsonl")
    assert (len(found), rejects) == (n, [])
    assert {row.id for row in found} == {d.id for d in read_corpus([shared_data / name])}
