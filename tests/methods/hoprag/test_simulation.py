"""Query simulation by a language model: two requests a vertex, repair tries, counts, failures, interrupts."""

import doctest
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import RequestFailed
from gpu_rag.index.index import Index
from gpu_rag.index.verify import verify
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.stages import templates as question_templates
from gpu_rag.methods.hoprag.stages.questions import SIDES, is_question
from gpu_rag.methods.hoprag.stages.templates import answered_questions, raised_questions, types_of_triples
from gpu_rag.methods.hoprag.tables import read_questions
from gpu_rag.methods.registry import stage_checks
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.structs import schema_of
from gpu_rag.types import JsonSchema, Reply, Request

Said = str | Reply | RequestFailed


def questions(*texts: str) -> str:
    return json.dumps({"questions": list(texts)})


IN = questions("Who is Ann?", "Where  is\nAnn?", "Who is Ann?")
OUT = questions("Who is Bo?", "Where is Bo?", "When is Bo?", "Why is Bo?")
GOOD = {"in": IN, "out": OUT}
BAD = "Who is Ann?"

# what is said to the two requests about each passage, at the first and the second attempt
CASES: dict[str, dict[str, tuple[Said, Said]]] = {
    "valid": {"in": (IN, BAD), "out": (OUT, BAD)},
    "repaired": {"in": (BAD, IN), "out": (BAD, OUT)},
    "too-few": {"in": (questions("Who is Ann?"), questions("Who?")), "out": (IN, OUT)},  # two are no four
    "cut": {"in": (Reply(IN[:14], "length", 9, 0, 9), Reply(IN[:14], "length", 9, 0, 9)), "out": (OUT, BAD)},
    "failed": {"in": (RequestFailed("no"), IN), "out": (OUT, BAD)},
    "no-list": {"in": ('{"n": 1}', '{"n": 1}'), "out": (OUT, BAD)},
}
COUNTS = {"hop_replies_ok": 8, "hop_replies_malformed": 2, "hop_replies_truncated": 1, "hop_replies_failed": 1}


def side_of(request: Request) -> str:
    assert isinstance(request.constraint, JsonSchema)
    (side,) = [side for side, ask in SIDES.items() if schema_of(ask.reply) == request.constraint.schema]
    return side


def title_of(request: Request) -> str:
    return request.prompt.split("Title: ")[1].split("\n")[0]


def by_case(request: Request) -> Said:
    return CASES[title_of(request)][side_of(request)][request.attempt]


def write(path: Path, names: list[str]) -> Path:
    rows = [{"id": name, "title": name, "text": f"Ann knows Bo. The case is {name}."} for name in names]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def found(out: Path, side: str) -> dict[str, list[str]]:
    index = Index.open(out)
    texts: dict[str, list[str]] = {name: [] for name in index.passage_ids}
    for row in read_questions(index.folder("hop_questions"), side).to_pylist():
        texts[index.passage_ids[row["vertex"]]].append(row["text"])
    return texts


@pytest.fixture
def build_llm(build_hops: Any) -> Callable[..., Any]:
    def build(corpus: Path, out: Path, llm: ScriptedLLM, min_yield: float = 0.1, **hops: Any) -> Any:
        return build_hops(corpus, out, llm=llm, index={"min_yield": min_yield}, **{"simulate": "llm", **hops})

    return build


def test_every_kind_of_reply_is_counted(build_llm: Any, tmp_path: Path) -> None:
    llm = ScriptedLLM(by_case)
    report = build_llm(write(tmp_path / "c.jsonl", list(CASES)), tmp_path / "ix", llm)
    stage = report.stages["hop_questions"]
    assert {name: n for name, n in stage.counts.items() if "replies" in name} == COUNTS
    assert stage.failures == 4 and stage.llm_calls == len(llm.calls) - 1
    ins, outs = found(tmp_path / "ix", "in"), found(tmp_path / "ix", "out")
    assert {name for name, texts in ins.items() if texts} == {"valid", "repaired"}
    assert all(len(texts) == 4 for texts in outs.values())
    assert ins["valid"] == ["Where is Ann?", "Who is Ann?"]  # sorted, each once, on one line
    assert verify(tmp_path / "ix", stage_checks()) == []


def test_what_is_asked(build_llm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HopSettings, "tokens", 77)
    llm = ScriptedLLM(by_case)
    build_llm(write(tmp_path / "c.jsonl", list(CASES)), tmp_path / "ix", llm)
    first, second = ([r for r in llm.calls if r.attempt == k] for k in (0, 1))
    assert {(title_of(r), side_of(r)) for r in first} == {(name, side) for name in CASES for side in ("in", "out")}
    assert len(first) == 2 * len(CASES) and len({r.system for r in llm.calls}) == 2  # one shared prefix a side
    assert {(r.max_tokens, r.temperature) for r in first} == {(77, 0.0)}
    assert {(title_of(r), side_of(r)) for r in second} == {
        ("repaired", "in"), ("repaired", "out"), ("too-few", "in"), ("too-few", "out"), ("cut", "in"), ("no-list", "in")
    }  # fmt: skip


def test_sentences_are_asked_with_their_title(build_llm: Any, tmp_path: Path) -> None:
    llm = ScriptedLLM(lambda request: GOOD[side_of(request)])
    build_llm(write(tmp_path / "c.jsonl", ["Ann"]), tmp_path / "ix", llm, granularity="sentence")
    shown = (f"<data>\nTitle: Ann\nPassage: {text}\n</data>" for text in ("Ann knows Bo.", "The case is Ann."))
    assert sorted({r.prompt for r in llm.calls}) == list(shown)


def test_failed_requests_are_asked_again_by_the_next_build(build_llm: Any, tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", ["valid", "failed"])
    build_llm(corpus, tmp_path / "ix", ScriptedLLM(by_case))
    healed = ScriptedLLM(lambda request: GOOD[side_of(request)])
    build_llm(corpus, tmp_path / "ix", healed)
    assert [(title_of(r), side_of(r)) for r in healed.calls] == [("failed", "in")]
    assert found(tmp_path / "ix", "in")["failed"] == ["Where is Ann?", "Who is Ann?"]


def test_auto_asks_a_capable_model_and_the_manifest_says_so(build_llm: Any, tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", ["valid"])
    for capable, simulate in ((True, "llm"), (False, "templates")):
        llm = ScriptedLLM(by_case, capable=capable)
        report = build_llm(corpus, tmp_path / simulate, llm, simulate="auto")
        record = report.manifest.stages["hop_questions"]
        assert record.params["simulate"] == simulate and bool(record.models) == bool(llm.calls) == capable


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Where was Joan Clarke born?", True),
        ("Which river crosses the town? ", True),  # no name, but no pronoun either
        ("Did she know Alan Turing?", True),
        ("Where was she born?", False),
        ("What was Her place of birth?", False),
        ("Joan Clarke was born in London.", False),
        ("", False),
    ],
)
def test_what_counts_as_a_question(text: str, kept: bool) -> None:
    assert is_question(text) is kept


def test_statements_and_questions_about_a_pronoun_are_dropped_and_counted(build_llm: Any, tmp_path: Path) -> None:
    def reply(request: Request) -> Said:
        more = ["Ann knows Bo.", "Where was he born?"] if side_of(request) == "in" else ["Who taught them?"]
        return questions(*json.loads(GOOD[side_of(request)])["questions"], *more)

    corpus = write(tmp_path / "c.jsonl", ["valid"])
    report = build_llm(corpus, tmp_path / "ix", ScriptedLLM(reply))
    assert report.stages["hop_questions"].counts["hop_questions_dropped"] == 3


RELATIONS = {
    "is part of": ("What is A part of?", "What is part of B?"),
    "was also born in": ("What was A also born in?", "What was also born in B?"),
    "in": ("What is A in?", "What is in B?"),
    "crosses": ("What does A cross?", "What crosses B?"),
    "has population of": ("What does A have population of?", "What has population of B?"),
    "won": ("What has A won?", "What won B?"),
    "date_of_birth": ("What is the date of birth of A?", "Whose date of birth is B?"),
}


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_words_follow_the_relation(relation: str) -> None:
    assert answered_questions([("A", relation, "B")]) == list(RELATIONS[relation])


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(question_templates).failed == 0


def test_each_question_comes_once_and_in_order() -> None:
    triples = [("Ann", "won", "Cup"), ("Ann", "won", "Medal"), ("Bo", "won", "Cup")]
    assert answered_questions(triples) == [
        "What has Ann won?", "What won Cup?", "What won Medal?", "What has Bo won?"
    ]  # fmt: skip


@pytest.mark.parametrize("triple", [("", "won", "Cup"), ("Ann", " - ", "Cup"), ("Ann", "won", "x" * 301)])
def test_broken_triples_give_none(triple: tuple[str, str, str]) -> None:
    assert answered_questions([triple]) == []


def test_out_questions_are_about_names_that_are_no_subject() -> None:
    triples = [("Halden Bridge", "crosses", "Ves"), ("KERLING", "lies on", "Ves")]
    names = ["Halden Bridge", "Ves", "ves ", "Kerling", "Marta  Orlo"]
    assert raised_questions(names, triples, {"marta orlo": "engineer"}) == [
        "What about Ves?", "What about Marta Orlo, the engineer?"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["1931", "3 May 1904", "-", "37:35", "the", "y" * 301])
def test_dates_numbers_and_nothing_ask_nothing(name: str) -> None:
    assert raised_questions([name], [], {}) == []


def test_a_name_that_is_a_type_asks_nothing() -> None:
    assert raised_questions(["rapper", "Brian May"], [], {}, {"rapper"}) == ["What about Brian May?"]


@pytest.mark.parametrize(
    ("object_", "kind"),
    [
        ("a small town on the river Ves", "small town"),
        ("former radio station licensed to Kerling", "former radio station"),
        ("deep dark cold lake", "deep dark cold"),
        ("British politician", ""),
        ("member of a club", ""),
    ],
)
def test_types_are_the_first_common_words(object_: str, kind: str) -> None:
    found = list(types_of_triples([("Aa", "is", object_), ("Bb", "crosses", object_)]))
    assert found == ([("aa", kind)] if kind else [])


TEXT = st.text(alphabet="AaBb 1-_?of", max_size=12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=5), st.lists(TEXT, max_size=5))
def test_any_text_gives_distinct_questions(triples: list[tuple[str, str, str]], names: list[str]) -> None:
    """No name is asked about twice, and none that is a subject; every question is one line that ends with a ?."""
    answered = answered_questions(triples)
    raised = raised_questions(names, triples, dict(types_of_triples(triples)))
    for questions in (answered, raised):
        assert len(set(questions)) == len(questions)
        assert all(q.endswith("?") and " ".join(q.split()) == q for q in questions)
    subjects = {normalise_name(subject) for subject, _, _ in triples}
    asked = {normalise_name(name) for name in names} - subjects - {""}
    assert len(raised) <= len(asked)
