"""gpu-rag verify-answers: every quotation, offset, path and status, against the index and the corpus; read-only."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.errors import BadInput
from gpu_rag.jobs import digest_of

Row = dict[str, Any]


@pytest.fixture
def out(request, templates, tmp_path) -> Path:
    """Answers to QUESTIONS by ppr, made once a session."""
    files = ("answers.jsonl.config.json", "answers.jsonl.replies.sqlite", "answers.jsonl")
    if not (templates / files[-1]).exists():
        assert request.getfixturevalue("answer")().status == 0
        for name in files:
            shutil.copy(tmp_path / name, templates)
    for name in files:
        shutil.copy(templates / name, tmp_path)
    return tmp_path / files[-1]


def test_answers_as_they_were_made(run, out, index, tiny_corpus, cli):
    rows = cli.read_rows(out)
    result = run("verify-answers", out, index, "--corpus", tiny_corpus, "--json").ok
    assert result.document == {
        "ok": True,
        "rows": 5,
        "evidence": sum(len(row["evidence"]) for row in rows),
        "edges": sum(len(path["edges"]) for row in rows for path in row["paths"]),
        "unchecked": 0,
        "without_digest": 0,
        "differences": [],
        "same_index": True,
        "answers": str(out),
        "index": str(index),
        "corpus": [str(tiny_corpus)],
    }
    assert result.document["evidence"] >= 20 and result.document["edges"] >= 5
    assert "all as in" in run("verify-answers", out, index).out


LOST = object()


def put(*path: Any) -> Callable[[Row], None]:
    """Changes one value of a row: put("evidence", 0, "start", 5); LOST takes it out."""
    *steps, last, value = path

    def change(row: Row) -> None:
        holder: Any = row
        for step in steps:
            holder = holder[step]
        holder[last] = value(holder[last]) if callable(value) else value
        if value is LOST:
            del holder[last]

    return change


def one_letter(text: str) -> str:
    return text[:20] + "#" + text[21:]


DAMAGES: dict[str, tuple[Callable[[Row], None], str, str]] = {
    "another passage": (put("evidence", 0, "passage_id", "d99"), "evidence 1", "passage 'd99' is not in the index"),
    "a letter": (put("evidence", 1, "text", one_letter), "evidence 2", "text differs from the index at character 20"),
    "a cut": (put("evidence", 1, "text", lambda text: text[:-1]), "evidence 2", "text differs from the index at"),
    "no text": (put("evidence", 0, "text", LOST), "evidence 1", "text is None, in the index"),
    "a title": (put("evidence", 0, "title", "Halden"), "evidence 1", "title is 'Halden', in the index"),
    "a start": (put("evidence", 2, "start", 1), "evidence 3", "start is 1, in the index 0"),
    "an end": (put("evidence", 2, "end", lambda end: end + 1), "evidence 3", "end is"),
    "a place": (put("evidence", 0, "place", "line 9"), "evidence 1", "not in tiny.jsonl line 9"),
    "a file": (put("evidence", 0, "file", "other.jsonl"), "evidence 1", "not in other.jsonl line"),
    "a score": (put("evidence", 0, "score", "high"), "evidence 1", "the score is 'high'"),
    "no evidence at all": (put("evidence", 0, None), "evidence 1", "passage None is not in the index"),
    "another relation": (put("paths", 0, "edges", 0, 1, "sold"), "path 1, edge 1", "no relation of the index is"),
    "ends turned": (put("paths", 0, "edges", 0, lambda e: [e[2], e[1], e[0], e[3]]), "path 1, edge 1", "no relation"),
    "an edge elsewhere": (put("paths", 0, "edges", 0, 3, lambda p: "d4" if p != "d4" else "d3"), "path 1, edge 1",
                          "does not state it; d"),
    "an edge nowhere": (put("paths", 0, "edges", 0, 3, "d77"), "path 1, edge 1", "passage 'd77' is not in the index"),
    "an edge of three": (put("paths", 0, "edges", 0, ["a", "b", "c"]), "path 1, edge 1", "it is not [subject, "),
    "answered nothing": (put("answer", " "), "row", "status answered, but there is no answer"),
    "answered from nothing": (put("evidence", []), "row", "status answered, but there is no evidence"),
    "unsupported": (put("status", "unsupported"), "row", "status unsupported, but there is an answer"),
    "retrieved": (put("status", "retrieved"), "row", "status retrieved, but there is an answer"),
    "no model": (put("trace", []), "row", "status answered, but no step asked a model"),
    "no reader": (lambda row: row.update(status="unsupported", answer=None, trace=[]), "row", "but no step asked a"),
    "a mark": (put("grounding", "status", "none"), "grounding", "status is 'none'"),
    "a sentence": (put("grounding", "sentences", [{"passage_id": "d0"}]), "grounding", "sentences is [{"),
    "a relevant sentence": (put("support", [{"passage_id": "d1", "start": 0, "end": 3, "text": "x"}]), "sentences",
                            "sentence 1 is not in the passage"),
    "an error": (put("error", {"type": "X", "message": "y"}), "row", "status answered, but there is an error"),
    "an id twice": (put("id", "q2"), "row", "another row has this id"),
    "a question": (put("question", "Who drew it?"), "digest", "not as it was written"),
    "another score": (put("evidence", 0, "score", lambda score: score + 1), "digest", "not as it was written"),
    "not a number": (put("evidence", 0, "score", float("nan")), "digest", "not as it was written"),
    "an endless score": (put("evidence", 0, "score", float("inf")), "evidence 1", "the score is inf, not a number"),
    "a passage taken out": (lambda row: row["evidence"].pop(), "digest", "not as it was written"),
    "seconds": (put("usage", "wall_s", 0.5), "digest", "not as it was written"),
    "no digest": (put("digest", LOST), "digest", "not as it was written"),
    "another digest": (put("digest", ""), "digest", "not as it was written"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_each_change_is_found_with_its_row_and_place(name, run, out, index, cli):
    change, where, what = DAMAGES[name]
    rows = cli.read_rows(out)
    change(rows[0])
    cli.write_rows(out, rows)
    before = out.read_bytes()
    result = run("verify-answers", out, index, "--json")
    assert result.status == 1 and out.read_bytes() == before
    id = "q2" if name == "an id twice" else "q1"
    differences = result.document["differences"]
    found = next((d for d in differences if d["where"] == where), differences[0])
    assert {d["id"] for d in differences} == {id} and what in found["what"], differences
    assert not result.document["ok"]
    assert f"gpu-rag: differs: {id}: {where}: " in run("verify-answers", out, index).err


def test_every_difference_of_every_row_is_named(run, out, index, cli):
    rows = cli.read_rows(out)
    rows[1]["evidence"][0]["start"] = 3
    rows[1]["evidence"][1]["title"] = "x"
    rows[3]["answer"] = None
    cli.write_rows(out, rows)
    found = run("verify-answers", out, index, "--json").document["differences"]
    places = [(d["id"], d["where"]) for d in found if d["where"] not in ("grounding", "digest")]
    assert places == [("q2", "evidence 1"), ("q2", "evidence 2"), ("q4", "row")]


def test_failed_questions_and_rows_of_before_places_were_recorded_are_sound(run, out, index, cli):
    rows = cli.read_rows(out)
    for item in rows[0]["evidence"]:
        del item["file"], item["place"]
    lost_all = {"answer": None, "evidence": [], "paths": [], "grounding": {"status": "none", "sentences": []}}
    rows[1].update(status="failed", error={"type": "X", "message": "y"}, **lost_all)
    cli.write_rows(out, [{**row, "digest": digest_of(row)} for row in rows])
    assert run("verify-answers", out, index).ok


def test_digests_are_demanded_of_a_file_that_was_begun_with_them(run, answer, out, index, cli):
    sidecar = out.with_name(out.name + ".config.json")
    older = [{key: value for key, value in row.items() if key != "digest"} for row in cli.read_rows(out)]
    config = json.loads(sidecar.read_text())
    assert config.pop("digests") is True
    cli.write_rows(out, older)
    assert run("verify-answers", out, index).status == 1
    sidecar.write_text(json.dumps(config))
    resumed = answer("--json").document
    assert resumed["kept"] == 5 and cli.read_rows(out) == older
    assert "; 5 rows have no digest" in run("verify-answers", out, index).ok.out
    cli.write_rows(out, [{**older[0], "digest": "other"}, *older[1:]])
    assert run("verify-answers", out, index).status == 1
    sidecar.unlink()
    cli.write_rows(out, older)
    assert run("verify-answers", out, index, "--json").ok.document["without_digest"] == 5


def test_an_edited_answer_is_found_by_its_mark_or_by_the_reply(run, out, index, cli):
    """Each answer in turn becomes one that is nowhere, one of another row, and one that is marked well."""
    rows = cli.read_rows(out)
    for n, answer in ((0, "Napoleon Bonaparte in 1812"), (0, rows[2]["answer"]), (3, rows[0]["answer"]), (1, "Tamsin")):
        edited = [dict(row) for row in rows]
        edited[n]["answer"] = answer
        cli.write_rows(out, edited)
        found = [
            d for d in run("verify-answers", out, index, "--json").document["differences"] if d["where"] != "digest"
        ]
        assert found and {d["id"] for d in found} == {edited[n]["id"]}, answer
    out.with_name(out.name + ".replies.sqlite").unlink()
    cli.write_rows(out, rows)
    result = run("verify-answers", out, index)
    assert result.status == 0 and "4 answers are unchecked" in result.out


def cut(item: Row, key: str, n: int) -> None:
    item[key] = item[key][: n % len(item[key])] + item[key][n % len(item[key]) + 1 :]


def test_quotations_are_compared_with_the_source_itself(run, out, index, tiny_corpus, cli, monkeypatch):
    """The corpus changed after indexing: only the source shows it."""
    rows = cli.read_rows(tiny_corpus)
    end = len(rows[5]["text"])
    rows[5]["text"] = rows[5]["text"].replace("1640", "1641")
    cli.write_rows(tiny_corpus, rows[1:])
    assert run("verify-answers", out, index).status == 0
    result = run("verify-answers", out, index, "--corpus", tiny_corpus, "--json")
    assert result.status == 1
    said = {(d["what"], d["id"]) for d in result.document["differences"]}
    cited = {row["id"]: {item["passage_id"] for item in row["evidence"]} for row in cli.read_rows(out)}
    changed = {(f"characters 0:{end} of document d5 are not the text quoted", id) for id in cited if "d5" in cited[id]}
    gone = {("its document d0 is not in the corpus", id) for id in cited if "d0" in cited[id]}
    assert said == changed | gone and changed and gone
    monkeypatch.setattr("gpu_rag.cli.verify_answers_command.MAX_SHOWN", 1)
    first, rest = run("verify-answers", out, index, "--corpus", tiny_corpus).err.splitlines()
    assert f"differs: {result.document['differences'][0]['id']}: " in first
    assert f" {len(result.document['differences']) - 1} more differences" in rest


def test_offsets_into_documents_of_many_passages(run, cli, tmp_path):
    from gpu_rag import Index
    from gpu_rag.jobs import row_of
    from gpu_rag.models.llm.scripted import ScriptedLLM

    text = "\n\n  " + "The Halden Bridge crosses the Ves. Œuvre \U0001f600 of Marta Orlo, who drew it.\r\n\r\n" * 6
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "bridge.md").write_bytes(text.encode())
    small = ("--set", "index.chunk_words=12", "--set", "index.overlap_words=4")
    assert run("index", tmp_path / "texts", "--out", tmp_path / "i", *cli.NO_LLM, *small).status == 0
    answers = Index.open(tmp_path / "i").answer(
        "Who drew the Halden Bridge?", settings={"models": {"embedder": "hash"}}, llm=ScriptedLLM(lambda _: "Marta")
    )
    out = cli.write_rows(tmp_path / "a.jsonl", [row_of(answers[0])])
    given = ("verify-answers", out, tmp_path / "i", "--corpus", tmp_path / "texts")
    assert run(*given).status == 0
    (tmp_path / "texts" / "bridge.md").write_bytes(text.replace("\r\n", "\n").encode())
    assert run(*given).status == 1


def test_answers_of_another_state_of_the_index_are_told(run, answer, out, index, tiny_corpus, cli):
    rows = cli.read_rows(tiny_corpus)
    cli.write_rows(tiny_corpus, [*rows, {"id": "d9", "title": "Moon", "text": "The moon is grey."}])
    assert run("index", tiny_corpus, "--out", index, *cli.NO_LLM, "--for", ",".join(cli.METHODS)).status == 0
    result = run("verify-answers", out, index, "--json")
    assert "another state of this index" in result.err and result.document["same_index"] is False
    assert {d["what"].split(":", 1)[1][:20] for d in result.document["differences"]} <= {" it stands in tiny.js"}
    refused = answer("--limit", 1).error
    assert "another state of the index" in refused and refused.endswith("choose another --out")


def test_an_openai_batch_is_checked_inside_and_outside(run, index, replay, cli, tmp_path):
    body = {"messages": [{"role": "user", "content": cli.QUESTIONS[0]["question"]}]}
    cli.write_rows(tmp_path / "b.jsonl", [{"custom_id": "q1", "method": "POST", "url": "/v1/x", "body": body}])
    out = tmp_path / "o.jsonl"
    llm = (*cli.HASH, "--set", f"models.llm=replay:{replay}")
    assert run("answer", index, tmp_path / "b.jsonl", "--method", "ppr", "--out", out, *llm).status == 0
    assert run("verify-answers", out, index).status == 0
    whole = out.read_text()
    for path, value in (
        (("response", "body", "choices", 0, "message", "content"), "Somebody else"),
        (("custom_id",), "q7"),
        (("response", "status_code"), 500),
    ):
        raw = json.loads(whole)
        put(*path, value)(raw)
        out.write_text(json.dumps(raw) + "\n")
        result = run("verify-answers", out, index)
        assert result.status == 1 and "the batch row around it" in result.err
    raw = json.loads(whole)
    put("response", "body", "gpu_rag", "evidence", 0, "end", 2)(raw)
    out.write_text(json.dumps(raw) + "\n")
    assert "evidence 1: passage d5: end is 2" in run("verify-answers", out, index).err


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Paths to all values below a value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], *path, key)


def test_every_edit_of_a_value_is_a_difference_and_no_crash(index, cli, tmp_path):
    from gpu_rag import Index
    from gpu_rag.evaluation.verify_answers import check_answers
    from gpu_rag.jobs import openai_row, read_pairs, row_of

    opened, seen, out = Index.open(index), set(), tmp_path / "o.jsonl"
    row = json.loads(json.dumps(row_of(opened.retrieve(cli.QUESTIONS[0]["question"], method="bm25"))))
    row["digest"] = digest_of(row)
    put("response", "body", "choices", 0, "message", "content", "")(older := openai_row(row, "bm25", 5))
    assert not check_answers([(older, row)], opened, tmp_path)[1], "older rows do not say the best sentences"
    for whole in (row, openai_row(row, "bm25", 5)):
        for path in places(whole):
            for value in (LOST, None, float("nan"), 10**400, "x", [[]], {"a": 1}):
                put(*path, value)(edited := json.loads(json.dumps(whole)))
                cli.write_rows(out, [edited])
                try:
                    pairs = list(read_pairs(out))
                except BadInput:
                    continue
                seen.add(path)
                if path[-2:] not in {("body", "created"), ("body", "model")}:  # which are not in the row
                    assert edited == whole or check_answers(pairs, opened, tmp_path, with_digests=True)[1], path
    assert {("evidence",), ("support", 0, "text"), ("response", "body", "gpu_rag", "evidence", 0, "title")} <= seen


def test_bad_input(run, out, index, tmp_path):
    assert run("verify-answers", tmp_path / "none.jsonl", index).status == 2
    (tmp_path / "no.jsonl").touch()
    assert "no answers" in run("verify-answers", tmp_path / "no.jsonl", index).error
    assert run("verify-answers", out, tmp_path).status == 2
    assert run("verify-answers", out, index, "--corpus", tmp_path / "none").status == 2
    shutil.rmtree(next((index / "stages").glob("passages-*")))
    assert run("verify-answers", out, index).status == 1


@pytest.mark.slow
def test_every_edit_of_a_real_models_answers_is_refused(run, index, cli, tmp_path):
    from gpu_rag import Index
    from gpu_rag.evaluation.verify_answers import check_answers

    out = tmp_path / "real.jsonl"
    asked, model = cli.write_rows(tmp_path / "q.jsonl", cli.QUESTIONS[:3]), ("--set", "models.llm=smollm2")
    assert run("answer", index, asked, "--method", "ppr", "--out", out, *cli.HASH, *model).status == 0
    opened, replies = Index.open(index), out.with_name(f"{out.name}.replies.sqlite")
    rows = [row for row in cli.read_rows(out) if row["answer"]]
    assert rows
    edits = [lambda _: None]
    fit = {name for name, (_, where, _) in DAMAGES.items() if where != "digest" and "path" not in where}
    edits += [DAMAGES[name][0] for name in fit - {"an id twice"}]
    edits += [put("grounding", "status", mark) for mark in ("supported", "mentioned", "unsupported")]
    edits += [put("answer", edit) for edit in ("{}.".format, " {}".format, str.swapcase, "{} 1812".format)]
    for edit in edits:
        for row in rows:
            edit(edited := json.loads(json.dumps(row)))
            expected = edited != row
            del edited["digest"]
            differences = check_answers([(edited, edited)], opened, replies)[1]
            assert bool(differences) == expected, (edits.index(edit), row["answer"])
