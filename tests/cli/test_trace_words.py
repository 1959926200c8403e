"""explain says in words what each step of a method was; none is left to its bare name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import gpu_rag.methods
from gpu_rag.cli.trace_text import said, trace_text

FOLDER = Path(gpu_rag.methods.__file__).parent


def names_in(tree: ast.AST) -> Iterator[str]:
    """The names of steps in a file: first argument of a note or a decision, third of `evidence`, or name= of a request.
    Of an f-string every part that is put in is the digit 1, of which a word is made below."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [k.value for k in node.keywords if k.arg == "name" and called in ("ask", "ask_text", "choose")]
        noted = ast.unparse(node.func) == "run.evidence" or called == "_asked"  # `index.evidence` notes nothing
        given += node.args[:1] if called in ("note", "Ask", "Choose") else node.args[2:3] if noted else []
        for value in given:
            if isinstance(value, ast.Constant) and value.value:
                yield str(value.value)
            elif isinstance(value, ast.JoinedStr):
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else "1" for p in value.values)


FILES = [
    *sorted(path for path in FOLDER.rglob("*.py") if "stages" not in path.parts),  # these write no trace
    *(FOLDER.parent / "program" / f"{n}.py" for n in ("reader", "questions", "history", "rerank")),
]


def test_every_step_has_words():
    """A part of an f-string may be a number, a phase, who did it or how; a choice made several times has its step."""
    names = {(path.name, name) for path in FILES for name in names_in(ast.parse(path.read_text(encoding="utf-8")))}
    found = {name for _, name in names}
    assert {"expand", "trees/1", "hybgrag_action_1", "1/scores", "verified_by", "hop_entry/1", "plan", "read"} <= found
    for file, name in names:
        parts = ("1", "initial", "answer", "first", "facts")
        steps = [name.replace("1", part) for part in parts] if "1" in name else [name, f"{name}_1", f"{name}_1_1"]
        assert any(said(step, 1) for step in (*steps, f"{name}_facts")), f"{name} of {file}"


def test_numbers_and_who_decided_are_said():
    for verb, n, parts in (
        ("expand_2_3/rule", 40, ("graph 2", "hop 3", "of 40", "by rule")),
        ("expand_1_1/model", 4, ("graph 1", "by the model")), ("rank_by_graph", 1890, ("of 1,890",)),
        ("hybgrag_action_2", 7, ("iteration 2", "7 nodes")), ("read/malformed", 0, ("could not be read",)),
        ("paths_refined/fallback", 20, ("refined", "of 20", "by rule")),
    ):  # fmt: skip
        assert all(part in said(verb, n) for part in parts), said(verb, n)


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
    assert said("search_new", 75) is None and said("own/similarity", 3) is None and said("expand_1_x!", 1) is None
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
    unstated = trace_text(row_of(status="unsupported", grounding={"status": "unsupported", "sentences": []}))
    assert "answer    a   (unsupported: the evidence does not state it)" in unstated
    assert "answer    none: no model was asked" in trace_text(row_of(answer=None, status="unsupported"))
