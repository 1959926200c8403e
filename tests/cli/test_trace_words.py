"""explain says in words what each step of a method was; none is left to its bare name."""

import pytest

import gpu_rag
from gpu_rag import jobs
from gpu_rag.cli.index_command import kinds_of_rejects
from gpu_rag.cli.trace_text import step_words, styled, trace_text
from gpu_rag.types import Reject


def row_of(**values):
    usage = dict.fromkeys(("llm_calls", "prompt_tokens", "generated_tokens", "cut", "llm_s", "embed_s", "graph_s"), 0)
    row = {
        "question": "q",
        "method": "m",
        "status": "answered",
        "answer": "a",
        "grounding": {"status": "supported", "sentences": []},
        "usage": usage,
    }
    return {**row, "trace": [], "paths": [], "evidence": [], **values}


def test_a_step_without_words_keeps_its_name():
    assert all(step_words(name, 3) is None for name in ("search_new", "own/similarity", "expand_1_x!"))
    step = {"step": 0, "verb": "own/similarity", "n_candidates": 1200, "chosen": ["A"], "reply_hash": "", "s": 0.0}
    assert "own/similarity" in trace_text(row_of(trace=[step]))
    assert "trees/score" not in trace_text(row_of(trace=[{**step, "verb": "trees/score"}]))


def test_paths_are_shown_first_and_without_decisions_five():
    edge = ["Halden Bridge", "designed by", "Marta Orlo", "facts.tsv:1"]
    path = {"text": "Halden Bridge - designed by -> Marta Orlo", "edges": [edge]}
    alone = trace_text(row_of(paths=[path]), decisions=False)
    assert "Halden Bridge - designed by -> Marta Orlo   [facts.tsv:1]" in alone and "evidence  no passages" in alone
    held = {"title": "T", "passage_id": "p", "start": 0, "end": 1, "score": 1.0, "why": "near", "text": "x"}
    many = trace_text(row_of(paths=[path] * 9, evidence=[held]), decisions=False)
    assert many.count("designed by") == 5 and many.index("designed by") < many.index("answer    a ")


def test_sentences_come_before_the_answer_and_an_answer_says_how_it_is_grounded():
    held = {"title": "T", "passage_id": "p", "start": 0, "end": 1, "score": 1.0, "why": "near", "text": "x"}
    sentence = {"passage_id": "p", "start": 0, "end": 9, "text": "She won it.", "score": 0.5}
    text = trace_text(row_of(evidence=[held], support=[sentence]))
    assert text.index("  > She won it. [T]") < text.index("answer    a")
    untitled = {**held, "title": "", "file": "a.csv", "place": "row 2"}
    assert "  > She won it. [a.csv row 2]" in trace_text(row_of(evidence=[untitled], support=[sentence]))
    unstated = trace_text(row_of(status="unsupported", grounding={"status": "unsupported", "sentences": []}))
    assert "answer    a   (unsupported: the evidence does not state it)" in unstated
    undecided = {"grounding": {"status": "none", "sentences": []}}
    usage = {**row_of()["usage"], "llm_calls": 1}
    assert "answer    a   (undecided: " in trace_text(row_of(**undecided, usage=usage))
    assert "answer    a\n" in trace_text(row_of(**undecided)), "a count is exact"
    nothing = row_of(answer=None, status="unsupported", evidence=[])
    assert "answer    none: no model was asked" in trace_text(nothing)
    assert "answer    none: no passage that fits the filter was found" in trace_text({**nothing, "where": "year = 1"})


def test_a_question_without_a_word_in_the_passages_is_said_to_have_none():
    held = {"title": "Halden", "passage_id": "p", "start": 0, "end": 1, "score": 1.0, "why": "near", "text": "Bridges."}

    def is_said(question, **more):
        row = row_of(question=question, status="retrieved", answer=None, evidence=[held], **more)
        return "No word of the question is in these passages." in trace_text(row)

    assert is_said("the qwertz asdf?") and not is_said("qwertz bridging") and not is_said("Where is Halden?")
    assert not is_said("qwertz", nodes=[{"name": "N", "id": "n", "type": "town", "score": 1.0}]) and not is_said("the?")


@pytest.mark.parametrize("status", ["supported", "mentioned", "none", "unsupported"])
def test_only_a_supported_answer_is_green(status):
    row = row_of(grounding={"status": status, "sentences": []})
    styles = {str(span.style) for span in styled(trace_text(row), row).spans}
    assert any("green" in style for style in styles) == (status == "supported")


def test_a_line_feed_in_a_name_does_not_break_a_line():
    held = {"title": "a\nb", "passage_id": "p\n1", "start": 0, "end": 1, "score": 1.0, "why": "near", "text": "x"}
    node = {"name": "N\n", "id": "n\t", "type": "town", "score": 1.0}
    edge = ["A", "r", "B", "facts\n.tsv:1"]
    path = {"text": "A - r -> B", "edges": [edge]}
    text = trace_text(row_of(evidence=[{**held, "file": "a\nb.csv", "place": "row 2"}], nodes=[node], paths=[path]))
    assert r"1. a\nb   [p\n1, a\nb.csv row 2, characters 0-1]  score" in text
    whole = trace_text(row_of(evidence=[{**held, "passage_id": "a.txt", "file": "a.txt", "place": "line 2"}]))
    assert "1. a\\nb   [a.txt line 2, characters 0-1]" in whole  # a file of one passage is named once
    assert r"1. N\n   [n\t, town]" in text and r"A - r -> B   [facts\n.tsv:1]" in text
    assert kinds_of_rejects([Reject("a\nb.png", 0, "not read", "")]) == [r"        1  not read: a\nb.png"]


LAMP = """# Lamp of Skell

## Opening hours

The lamp room opens at 9 on Mondays.

The tower was drawn by Alan Merrow. He never saw the sea. It holds a stair of oak."""
OTHERS = ["Who saw the sea? Nobody saw the sea.", "Never the sea.", "Which stair is oak? A stair of oak.", "Oak is it."]


def test_the_best_sentences_keep_their_headings_apart_and_their_subjects_beside(tmp_path):
    hashing = {"models": {"embedder": "hash"}}
    index = gpu_rag.build([LAMP, *OTHERS], tmp_path / "ix", methods="bm25", settings=hashing)
    expected = {
        "When does the lamp room open?": "# Lamp of Skell / ## Opening hours / The lamp room opens at 9 on Mondays. [",
        "Who never saw the sea?": "The tower was drawn by Alan Merrow. He never saw the sea. [",
        "Which stair of oak is it?": "The tower was drawn by Alan Merrow. He never saw the sea. It holds a stair of",
    }
    for question, line in expected.items():
        row = jobs.row_of(index.retrieve(question, method="bm25"))
        texts = {item["passage_id"]: item["text"] for item in row["evidence"]}
        assert all(item["text"] == texts[item["passage_id"]][item["start"] : item["end"]] for item in row["support"])
        assert f"\n- {line}" in jobs.reply_text(row) and f"  > {line[:60]}" in trace_text(row)
