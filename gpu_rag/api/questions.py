"""Questions from a file, from texts, or from mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_rag.api.corpus import cells_of, is_table
from gpu_rag.errors import BadInput, UsageError
from gpu_rag.sources.rows import RowError
from gpu_rag.types import Question, Reject

if TYPE_CHECKING:
    from gpu_rag.sources.questions import QuestionRow

Asked = str | Question | Mapping[str, Any]


def load_questions(path: str | Path, limit: int | None = None) -> tuple[list[QuestionRow], list[Reject]]:
    """(questions, rejects) of a file of questions; at most `limit` questions. Raises BadInput if there is none."""
    from gpu_rag.sources.questions import read_questions

    rows: list[QuestionRow] = []
    rejects: list[Reject] = []
    for item in read_questions(Path(path)):
        if isinstance(item, Reject):
            rejects.append(item)
        elif limit is None or len(rows) < limit:
            rows.append(item)
        else:
            break
    if not rows:
        reason = f"{rejects[0].file}:{rejects[0].line} {rejects[0].reason}" if rejects else "the file is empty"
        raise BadInput("no question could be read", given=f"{path}: {reason}")
    return rows, rejects


def checked_questions(given: object) -> list[Question]:
    """One question or several, as Question objects; of a table the columns id and question. Texts get the ids q1, q2,
    ... Raises UsageError."""
    if isinstance(given, (str, Question, Mapping)):
        given = [given]
    elif is_table(given):
        names = ("id", "question")
        given = [{name: row[name] for name in names if row.get(name) is not None} for row in cells_of(given)]
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise _wrong("questions", given)
    return [_question(item, number) for number, item in enumerate(given, 1)]


def checked_rows(given: object) -> list[QuestionRow]:
    """Rows of `load_questions`, or rows as in a file of questions: mappings, or a table. Raises UsageError."""
    from gpu_rag.sources.questions import QuestionRow, question_row

    items = cells_of(given) if is_table(given) else given
    if isinstance(items, (Mapping, bytes)) or not isinstance(items, Iterable):
        raise _wrong("questions", given, _ROWS)
    rows = list[QuestionRow]()
    for number, item in enumerate(items, 1):
        if not isinstance(item, (QuestionRow, Mapping)):
            raise _wrong(f"question {number}", item, _ROWS)
        try:
            rows.append(item if isinstance(item, QuestionRow) else question_row(dict(item)))
        except RowError as error:
            raise UsageError(f"question {number} cannot be asked: {error}") from error
    return rows


def _question(given: object, number: int) -> Question:
    match given:
        case object(question=Question() as asked, gold_ids=_):  # a `QuestionRow`
            return asked
        case Question():
            question = given
        case str():
            question = Question(f"q{number}", given)
        case {"question": str(text), **others} if not set(others) - {"id"}:
            question = Question(str(others.get("id", f"q{number}")), text)
        case _:
            raise _wrong(f"question {number}", given)
    if not isinstance(question.text, str) or not question.text.strip():
        raise UsageError("the question is empty", given=f"question {number}, {question.text!r}", expected="a text")
    return question


_TEXTS = "a text, a Question, {'id': ..., 'question': ...}, or several of these"
_ROWS = "rows of load_questions, or {'question': ..., 'gold_ids': [...], 'answers': [...]}"


def _wrong(what: str, given: object, expected: str = _TEXTS) -> UsageError:
    return UsageError(f"{what} cannot be asked", given=repr(given)[:80], expected=expected)
