"""Questions that bring web pages: CRAG's rows and one's own; a page that cannot be read costs itself alone."""

from pathlib import Path
from typing import Any

import pytest
from source_files import lines

from gpu_rag.errors import BadInput
from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.questions import n_questions_lost, read_questions
from gpu_rag.types import Document, Page, PageReject, Reject

HTML = "<html><head><title>Halden Bridge</title></head><body><p>It crosses the Ves at Kerling.</p></body></html>"
CRAG = {
    "interaction_id": "i1",
    "query": "which river does the halden bridge cross?",
    "query_time": "03/01/2031, 10:00:00 PT",
    "domain": "open",
    "question_type": "simple",
    "static_or_dynamic": "static",
    "answer": "ves",
    "alternative_answers": '["the ves"]',
    "search_results": [
        {"page_name": "Bridges", "page_url": "https://w/1", "page_result": HTML, "page_snippet": "a bridge"},
        {"page_name": "Bridges", "page_url": "https://w/1", "page_result": HTML, "page_snippet": "a bridge"},
        {"page_name": "Empty", "page_url": "https://w/2", "page_result": "", "page_snippet": "The Ves is a river."},
    ],
}


def read(folder: Path, *rows: Any) -> list[Any]:
    return list(read_questions(lines(folder / "q.jsonl", list(rows))))


def test_a_row_of_crag(tmp_path: Path) -> None:
    (row,) = read(tmp_path, CRAG)
    question = row.question
    assert (question.id, question.text) == ("i1", "which river does the halden bridge cross?")
    assert question.query_time == "03/01/2031, 10:00:00 PT"
    assert question.pages == (
        Page("https://w/1", "Bridges", "It crosses the Ves at Kerling."),  # once
        Page("https://w/2", "Empty", "The Ves is a river."),  # what the search said of it
    )
    assert row.answers == ("ves", "the ves")
    assert row.meta["question_type"] == "simple" and not {"search_results", "answer", "query"} & set(row.meta)


def test_a_row_of_ones_own(tmp_path: Path) -> None:
    pages = [
        {"url": "u", "title": "A  title", "text": "Some text."},
        {"html": HTML},
        {"snippet": "<b>Said</b> of it &amp; us."},
    ]
    (row,) = read(tmp_path, {"id": "7", "question": "Who?", "pages": pages, "query_time": "today"})
    assert row.question.pages == (
        Page("u", "A title", "Some text."),
        Page("", "Halden Bridge", "It crosses the Ves at Kerling."),
        Page("", "", "Said of it & us."),
    )
    assert row.question.query_time == "today" and "pages" not in row.meta


def test_a_list_without_objects_is_no_list_of_pages(tmp_path: Path) -> None:
    (row,) = read(tmp_path, {"id": "7", "question": "Who?", "pages": [3, 4]})
    assert row.question.pages == () and row.meta == {"pages": [3, 4]}


BAD: list[tuple[Any, str, int]] = [
    (3, "page 1: it is a number; expected an object", 0),
    ({"html": 5}, "page 1: html is a number; expected a string", 0),
    ({"url": "u"}, "page 1: text is empty", 0),
    ({"html": "<p> </p>"}, "page 1: the page has no text", 0),
    ({"html": "<p> </p>", "snippet": "Said of it."}, "page 1: the page has no text", 1),
    ({"html": "a\0b", "snippet": "Said of it."}, "page 1: html holds a NUL character", 0),
]


@pytest.mark.parametrize(("page", "reason", "n"), BAD)
def test_a_page_that_cannot_be_read_costs_itself(tmp_path: Path, page: Any, reason: str, n: int) -> None:
    good = {"text": "A good page."}
    row, reject = read(tmp_path, {"id": "1", "question": "Who?", "pages": [page, good]})
    assert [one.text for one in row.question.pages] == ["Said of it."] * n + ["A good page."]
    assert reject == PageReject(str(tmp_path / "q.jsonl"), 1, reason, "1") and n_questions_lost([reject]) == 0
    assert n_questions_lost([reject, Reject("f", 1, "no question")]) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query": ""}, "query is empty"),
        ({"alternative_answers": "['single']"}, "alternative_answers"),
        ({"query_time": "x" * 101}, "query_time has 101 characters; expected 100 at most"),
    ],
)
def test_a_row_that_cannot_be_used_is_a_reject(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    (found,) = read(tmp_path, {**CRAG, **change})
    assert type(found) is Reject and reason in found.reason and found.id == "i1"


def test_the_pages_are_a_corpus_too(tmp_path: Path) -> None:
    other = {**CRAG, "interaction_id": "i2", "query": "what is the ves?"}
    other["search_results"] = [*CRAG["search_results"], {"page_url": "https://w/3"}]
    *found, reject = read_corpus([lines(tmp_path / "q.jsonl", [CRAG, other])])
    assert all(isinstance(one, Document) for one in found)
    assert [(one.title, one.text, one.metadata) for one in found if isinstance(one, Document)] == [
        ("Bridges", "It crosses the Ves at Kerling.", {"url": "https://w/1"}),
        ("Empty", "The Ves is a river.", {"url": "https://w/2"}),
    ]
    assert isinstance(reject, Reject) and reject.line == 2 and reject.reason == "page 4: text is empty"


def test_a_file_without_a_question_says_why(tmp_path: Path) -> None:
    from gpu_rag import load_questions

    with pytest.raises(BadInput, match="query is empty"):
        load_questions(lines(tmp_path / "q.jsonl", [{**CRAG, "query": ""}]))
