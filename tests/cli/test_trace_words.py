"""explain says in words what each step of a method was; none is left to its bare name."""

from gpu_rag.cli.trace_text import step_words, trace_text


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
    assert (
        step_words("search_new", 75) is None
        and step_words("own/similarity", 3) is None
        and step_words("expand_1_x!", 1) is None
    )
    step = {"step": 0, "verb": "own/similarity", "n_candidates": 1200, "chosen": ["A"], "reply_hash": "", "s": 0.0}
    text = trace_text(row_of(trace=[step]))
    assert "  1. own/similarity among 1,200, 0.0 ms\n       - A" in text
    told = trace_text(row_of(trace=[{**step, "verb": "trees/score"}]))
    assert "  1. evidence graphs: of 1,200 trees those of highest score, 0.0 ms" in told


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
    assert "answer    none: no model was asked" in trace_text(row_of(answer=None, status="unsupported"))
