"""Readers of question files in any accepted format. Every row becomes a QuestionRow or a Reject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gpu_rag.errors import BadInput
from gpu_rag.sources.corpus.multihop import contexts_of, gold_of, is_multihop
from gpu_rag.sources.corpus.pages import CRAG_KEY, OWN_KEY, brings_pages, is_crag, pages_of
from gpu_rag.sources.corpus.parser import Parser
from gpu_rag.sources.csv_rows import read_csv
from gpu_rag.sources.formats import ARRAY_SUFFIXES, CSV_SUFFIXES, LINES_SUFFIXES, TSV_SUFFIXES, reader_of
from gpu_rag.sources.json_rows import Row, read_rows
from gpu_rag.sources.lines import read_lines
from gpu_rag.sources.rows import (
    LIMITS,
    Limits,
    RowError,
    SeenIds,
    clean_string,
    document_text,
    kind,
    optional_string,
    question_id,
    row_id,
    shown,
    string_list,
)
from gpu_rag.text.strict_json import JsonError, loads
from gpu_rag.types import Page, PageReject, Question, Reject

_HEADER = ["query-id", "corpus-id", "score"]


_Judged = tuple[int, dict[str, int]]  # for a query: (line of its first judgement, {document id: score} in order)


def _read_qrels(path: Path, limits: Limits, into: dict[str, _Judged]) -> Iterator[Reject]:
    """Read lines "query-id TAB corpus-id TAB score" of `path` into `into`; any other line is a Reject.

    A first line with BEIR's header is skipped. A pair judged twice keeps the first score; the second is a Reject.
    """
    for line in read_lines(path, limits):
        if isinstance(line, Reject):
            yield line
            continue
        fields, problem = line.text.rstrip("\t").split("\t"), ""
        if line.number == 1 and fields == _HEADER:
            continue
        query, document, score = fields if len(fields) == 3 else ("", "", "")
        if not (query and document and score):
            problem = f"{len(fields)} fields; expected query-id, corpus-id and score between tabs"
        elif not (score.lstrip("-").isdecimal() and len(score) < 10):
            problem = f"the score {score[:40]!r} is not an integer"
        elif document in into.setdefault(query, (line.number, {}))[1]:
            problem = f"{document!r} was already judged for {query!r}"
        if problem:
            yield Reject(shown(path), line.number, problem)
        else:
            into[query][1][document] = int(score)


TEXT_SUFFIXES = (".txt", ".txt.gz")
ACCEPTED = (
    ".jsonl / .jsonl.gz of {id, question}, .txt with a question a line, .csv with a column question, "
    "an OpenAI batch file, .json / .jsonl of HotpotQA, 2Wiki, MuSiQue or CRAG, "
    "or a folder with questions.jsonl or with queries.jsonl and qrels/test.tsv (BEIR)"
)
Style = Literal["jsonl", "openai"]
_ROLE_KEYS = frozenset({"id", "_id", "custom_id", "question", "gold_ids", "answers", "body"})
_CONTEXT_KEYS = frozenset({"context", "paragraphs", "supporting_facts", "question_decomposition"})
_ANSWER_KEYS = frozenset({"answer", "answer_aliases"})
_CRAG_KEYS = frozenset({"interaction_id", "query", "answer", "alternative_answers", "alt_ans"})


@dataclass(frozen=True)
class QuestionRow:
    """A question, its known answers, and the format of its row.

    gold_ids: ids of the supporting passages; answers: accepted answers, the main one first. Only `evaluate` gets these
    two. meta: the other keys of the row. style: the format of its answer.
    """

    question: Question
    gold_ids: tuple[str, ...]
    answers: tuple[str, ...]
    meta: dict[str, Any]
    style: Style


def read_questions(path: Path, limits: Limits = LIMITS) -> Iterator[QuestionRow | Reject]:
    """Questions of `path` in order, and a Reject for each row that cannot be used.

    A .txt file has one question per line, a .csv or .tsv file has a column `question` and may have id and answer. Rows
    of JSON Lines or of a JSON array are recognised by their keys:
    - {id, question, gold_ids, answers or answer, ...}: all but the question may be missing (a missing id becomes
      "q_" + sha1(question)[:12]); other keys (hops, type, answer_ids, ...) go to meta.
    - OpenAI batch {custom_id, method, url, body: {messages}}: the question is the last user message; method, url and
      the model go to meta; gold_ids and answers next to custom_id are read too.
    - HotpotQA, 2Wiki, MuSiQue: gold_ids are the ids that `read_corpus` gives the supporting contexts; meta has
      context_ids, and hops and type if known. See `multihop.gold_of` for a missing gold context.
    - CRAG {interaction_id, query, query_time, answer, alternative_answers, search_results}: a question with web pages.
      {id, question, query_time, pages: [{url, title, html or text, snippet}]} is the same with your own pages. See
      `pages`; a page that cannot be used is a PageReject after its question.
    - BEIR {_id, text}. In a BEIR folder, gold_ids are the documents judged above 0 in qrels/test.tsv, meta["qrels"] has
      all judgements, and only the judged queries are questions of the test set.
    Of rows with one id the first is kept; the others are Rejects.

    Rows and files above the limits are Rejects.
    Raises BadInput at once for a missing path or an unknown type. Memory: one row (one file for .json).
    """
    if path.is_dir():
        return _unique(_folder(path, limits))
    formats = {
        LINES_SUFFIXES + ARRAY_SUFFIXES: _file,
        CSV_SUFFIXES + TSV_SUFFIXES: _table,
        TEXT_SUFFIXES: _texts,
    }
    read = reader_of(path, formats, "the question file", ACCEPTED)
    return _unique(read(path, limits))


def question_row(row: dict[str, Any]) -> QuestionRow:
    """One row of a file of questions, without the web pages that it may bring. Raises RowError."""
    return _parser(row)(_id_of(row), row, LIMITS)


def n_questions_lost(rejects: Iterable[Reject]) -> int:
    """Number of rejects that are questions; a question with an unreadable page is not lost."""
    return sum(not isinstance(reject, PageReject) for reject in rejects)


_Found = tuple[int, str, QuestionRow] | Reject
_MAX_TIME_CHARS = 100


def _unique(rows: Iterator[_Found]) -> Iterator[QuestionRow | Reject]:
    seen = SeenIds()
    for item in rows:
        if isinstance(item, Reject):
            yield item
            continue
        line, file, row = item
        _, reason = seen.claim(row.question.id, row.question.text, file, line)
        yield Reject(file, line, reason, row.question.id) if reason else row


def _file(path: Path, limits: Limits) -> Iterator[_Found]:
    return _questions(path, read_rows(path, limits), limits)


def _table(path: Path, limits: Limits) -> Iterator[_Found]:
    return _questions(path, read_csv(path, limits, needed="question"), limits)


def _texts(path: Path, limits: Limits) -> Iterator[_Found]:
    """One question per line; blank lines are skipped."""
    lines = (line for line in read_lines(path, limits) if isinstance(line, Reject) or line.text.strip())
    rows = (line if isinstance(line, Reject) else Row(line.number, {"question": line.text.strip()}) for line in lines)
    return _questions(path, rows, limits)


def _questions(path: Path, rows: Iterable[Row | Reject], limits: Limits) -> Iterator[_Found]:
    with closing(Parser(limits)) as parser:
        for row in rows:
            if isinstance(row, Reject):
                yield row
                continue
            id = None
            try:
                id = _id_of(row.value)
                parsed = _parser(row.value)(id, row.value, limits)
                problems: list[RowError] = []
                if brings_pages(row.value):
                    read = list(pages_of(row.value, limits, parser))
                    problems = [page for page in read if isinstance(page, RowError)]
                    pages = tuple(page for page in read if isinstance(page, Page))
                    question = replace(parsed.question, query_time=_query_time(row.value), pages=pages)
                    meta = _without(parsed.meta, frozenset({CRAG_KEY, OWN_KEY}))
                    parsed = replace(parsed, question=question, meta=meta)
                yield row.line, shown(path), parsed
                yield from (PageReject(shown(path), row.line, str(p), parsed.question.id) for p in problems)
            except RowError as error:
                yield Reject(shown(path), row.line, str(error), id or "")


def _query_time(row: dict[str, Any]) -> str:
    """Time at which the question was asked. Raises RowError."""
    time = " ".join(optional_string(row, "query_time").split())
    if len(time) > _MAX_TIME_CHARS:
        raise RowError(f"query_time has {len(time)} characters; expected {_MAX_TIME_CHARS} at most")
    return time


def _folder(folder: Path, limits: Limits) -> Iterator[_Found]:
    """Questions of a folder. Raises BadInput before the first row if it has none."""
    queries = folder / "queries.jsonl"
    if queries.exists():
        qrels = folder / "qrels" / "test.tsv"
        return _beir(queries, qrels, limits) if qrels.exists() else _file(queries, limits)
    for suffix in LINES_SUFFIXES:
        if (folder / f"questions{suffix}").exists():
            return _file(folder / f"questions{suffix}", limits)
    raise BadInput("the folder has no questions", given=folder, expected=ACCEPTED)


def _beir(queries: Path, path: Path, limits: Limits) -> Iterator[_Found]:
    qrels: dict[str, _Judged] = {}
    yield from _read_qrels(path, limits, qrels)
    unread = dict(qrels)
    for item in _file(queries, limits):
        if isinstance(item, Reject):
            yield item
            continue
        line, file, row = item
        unread.pop(row.question.id, None)
        if row.question.id in qrels:
            scores = qrels[row.question.id][1]
            gold_ids = tuple(document for document, score in scores.items() if score > 0)
            yield line, file, replace(row, gold_ids=gold_ids, meta={**row.meta, "qrels": scores})
    for id, (line, _) in unread.items():
        yield Reject(shown(path), line, f"the query {id!r} is not in {queries.name}", id)


# --- one row -----------------------------------------------------------------------------------------

_Parser = Callable[[str | None, dict[str, Any], Limits], QuestionRow]


def _id_of(row: dict[str, Any]) -> str | None:
    return row_id(row, "custom_id", "id", "_id", "interaction_id")


def _parser(row: dict[str, Any]) -> _Parser:
    if "custom_id" in row or "body" in row:
        return _openai_row
    if is_multihop(row):
        return _multihop_row
    if is_crag(row):
        return _crag_row
    if "question" not in row and "_id" in row and "text" in row:
        return _beir_row
    return _own_row


def _own_row(id: str | None, row: dict[str, Any], limits: Limits) -> QuestionRow:
    if "question" not in row:
        raise RowError(f"question is missing; the row has {', '.join(row) or 'no key'}"[:200] + "; expected question")
    text = document_text(row["question"], limits, "question")
    gold_ids, answers = string_list(row.get("gold_ids"), "gold_ids", ids=True), _answers(row)
    string_list(row.get("answer_ids"), "answer_ids", ids=True)  # checked here, kept unchanged
    taken = _ROLE_KEYS if row.get("answers") is not None else _ROLE_KEYS | {"answer"}
    return QuestionRow(_question(id, text), gold_ids, answers, _without(row, taken), "jsonl")


def _beir_row(id: str | None, row: dict[str, Any], limits: Limits) -> QuestionRow:
    text = document_text(row["text"], limits)
    return QuestionRow(_question(id, text), (), (), _without(row, _ROLE_KEYS | {"text"}), "jsonl")


def _crag_row(id: str | None, row: dict[str, Any], limits: Limits) -> QuestionRow:
    text = document_text(row["query"], limits, "query")
    meta = _without(row, _CRAG_KEYS)
    answers = tuple(dict.fromkeys(_answers(row) + _alternatives(row)))
    return QuestionRow(_question(id, text), (), answers, meta, "jsonl")


def _alternatives(row: dict[str, Any]) -> tuple[str, ...]:
    """Other accepted answers: a list, or a list written as a string."""
    value = row.get("alternative_answers", row.get("alt_ans"))
    if isinstance(value, str):
        try:
            value = loads(value or "[]")
        except JsonError as error:
            raise RowError(f"alternative_answers: {error}") from error
    return string_list(value, "alternative_answers")


def _multihop_row(id: str | None, row: dict[str, Any], limits: Limits) -> QuestionRow:
    text = document_text(row["question"], limits, "question")
    contexts = contexts_of(row, limits)
    gold_ids, more_meta = gold_of(row, contexts)
    meta = _without(row, _ROLE_KEYS | _CONTEXT_KEYS | _ANSWER_KEYS)
    if "paragraphs" in row and "type" not in meta and id and "__" in id:
        meta["type"] = id.split("__", 1)[0]  # MuSiQue writes it into the id: 2hop__482757_12019
    usable = (context.id for context in contexts if not context.problem)
    meta = {**meta, **more_meta, "context_ids": list(dict.fromkeys(usable))}
    aliases = string_list(row.get("answer_aliases"), "answer_aliases")
    return QuestionRow(_question(id, text), gold_ids, tuple(dict.fromkeys(_answers(row) + aliases)), meta, "jsonl")


def _openai_row(id: str | None, row: dict[str, Any], limits: Limits) -> QuestionRow:
    if id is None or "custom_id" not in row:
        raise RowError("custom_id is missing")
    body = row.get("body")
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise RowError("body.messages is missing; expected a chat completion request")
    messages = [m.get("content") for m in body["messages"] if isinstance(m, dict) and m.get("role") == "user"]
    if not messages:
        raise RowError("body.messages has no user message")
    text = document_text(_content(messages[-1]), limits, "the last user message")
    meta = _without(row, _ROLE_KEYS)
    if "model" in body:
        meta["model"] = body["model"]
    return QuestionRow(
        _question(id, text), string_list(row.get("gold_ids"), "gold_ids", ids=True), _answers(row), meta, "openai"
    )


def _content(content: object) -> str:
    """Text of a message: a string, or the text parts of a list, one per line."""
    if not isinstance(content, list):
        return clean_string(content, "the content of the last user message")
    parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(parts) != len(content):
        raise RowError("the last user message has parts that are not text")
    return "\n".join(clean_string(part.get("text"), "a text part") for part in parts)


def _answers(row: dict[str, Any]) -> tuple[str, ...]:
    """Accepted answers: `answers`, or the one `answer`."""
    if row.get("answers") is not None:
        return string_list(row["answers"], "answers")
    answer = row.get("answer")
    if answer is None or isinstance(answer, str):
        return () if answer is None else (clean_string(answer, "answer"),)
    raise RowError(f"answer is {kind(answer)}; expected a string")


def _without(row: dict[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def _question(id: str | None, text: str) -> Question:
    return Question(id or question_id(text), text)
