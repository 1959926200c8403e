"""Batch answering as a job: durable rows, exact resume, OpenAI-batch files in and out.

One row per question is appended as soon as the question ends, so a killed run loses only the questions in flight. Other
files lie beside ANSWERS: `ANSWERS.config.json` (the settings that made it, and "digests": whether each of its rows has
one), `ANSWERS.replies.sqlite` (the model's replies), `ANSWERS.lock` (held by one job at a time), and `ANSWERS.inflight`
(the `Journal`, which finds questions that kill the process). Rows are read and written one by one: the memory of a job
grows only by the ids of its questions.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from gpu_rag.errors import BadInput, IndexMismatch
from gpu_rag.index.folder import (
    canonical_json,
    locked,
    read_json,
    remove_leftovers,
    replacing,
    sha256_text,
    storage_errors,
    sync,
    write_atomic,
)
from gpu_rag.runtime.accounts import add_fallbacks, fallbacks_by_step
from gpu_rag.types import Answer, Evidence, Grounding, Question, Usage

TRIES = 3  # deaths over a question alone before it is set aside
STATUSES = ("answered", "retrieved", "unsupported", "failed")
NO_MODEL = "No model that can answer is set."
_BREAK = re.compile(r"^([ ]{0,3}#{1,6}[^\S\n][^\n]*)\n\s*|\n\s*\n", re.MULTILINE)


def row_of(answer: Answer) -> dict[str, Any]:
    """The row of an answer, as documented for the command line. where, nodes, pools, support, condensed, missing,
    source, unread, barred and sought are included only if they are not empty."""
    row: dict[str, Any] = {
        "id": answer.question_id,
        "question": answer.question,
        "method": answer.method,
        "status": answer.status,
        "answer": answer.text,
        "grounding": grounding_row(answer.grounding),
        "evidence": [evidence_row(e) for e in answer.evidence],
        "paths": [{"text": p.text, "edges": [list(e) for e in p.edges], "source": p.source} for p in answer.paths],
        "trace": [{**vars(step), "chosen": list(step.chosen)} for step in answer.trace],
        "usage": {**vars(answer.usage), "fallbacks": dict(answer.usage.fallbacks)},
        "fallbacks": {step: sum(kinds.values()) for step, kinds in fallbacks_by_step(answer.usage.fallbacks).items()},
        "error": answer.error,
        "config_hash": answer.config_hash,
    }
    if answer.where:
        row["where"] = answer.where
    if answer.nodes:
        row["nodes"] = [dict(vars(node)) for node in answer.nodes]
    if answer.support:
        row["support"] = [dict(vars(sentence)) for sentence in answer.support]
    if answer.condensed:
        row["condensed"] = answer.condensed
    if answer.source:
        row["source"] = answer.source
    for name in ("missing", "unread", "barred", "sought"):
        if lines := getattr(answer, name):
            row[name] = list(lines)
    if answer.pools:
        row["pools"] = [{**vars(pool), "entities": list(pool.entities)} for pool in answer.pools]
    return row


def grounding_row(grounding: Grounding) -> dict[str, Any]:
    """The grounding of an answer as it is written in rows."""
    sentences = [{**vars(s), "answer": s.answer and list(s.answer)} for s in grounding.sentences]
    return {"status": grounding.status, "sentences": sentences}


def digest_of(row: dict[str, Any]) -> str:
    """The digest of a row without its own digest: it shows an edit, unless its author computed the digest again."""
    return sha256_text(canonical_json({key: value for key, value in row.items() if key != "digest"}))


def _json_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def evidence_row(evidence: Evidence) -> dict[str, Any]:
    """A passage as it is written in rows; metadata only if there is some."""
    row = dict(vars(evidence))
    if not row["metadata"]:
        del row["metadata"]
    return row


def openai_row(row: dict[str, Any], model: str, created: int) -> dict[str, Any]:
    """The same row in the output format of OpenAI batch files. The answer is the message's content; a failed row has an
    error as its body. created: seconds since 1970."""
    name, error, body = _name(row), None, completion(row, model, created)
    if row["status"] == "failed":
        error = {"code": row["error"]["type"], "message": row["error"]["message"]}
        body = {"error": {"message": error["message"], "type": "server_error", "param": None, "code": error["code"]}}
    response = {"status_code": 500 if error else 200, "request_id": f"req_{name}", "body": {**body, "gpu_rag": row}}
    return {"id": f"batch_req_{name}", "custom_id": row["id"], "response": response, "error": error}


def in_one_line(text: str) -> str:
    """A text as one line, in which " / " stands for the line end after a heading and for an empty line."""
    return " ".join(_BREAK.sub(r"\1 / ", text.strip()).split())


def title_of(passage: dict[str, Any]) -> str:
    """The title of a passage, or else the place of its document."""
    place = " ".join(filter(None, [passage.get("file"), passage.get("place")]))
    return str(passage["title"] or place or passage["passage_id"])


def best_sentences(row: dict[str, Any]) -> list[str]:
    """The sentences of a row that bear on its question, each with the title of its passage."""
    titles = {passage["passage_id"]: title_of(passage) for passage in row["evidence"]}
    return [f"{in_one_line(sent['text'])} [{titles[sent['passage_id']]}]" for sent in row.get("support", ())]


def no_answer(row: dict[str, Any]) -> str:
    """The line above the best sentences of a row that no model answered."""
    return NO_MODEL + (" The best sentences are:" if row.get("support") else "")


def reply_text(row: dict[str, Any]) -> str:
    """The reply of a row in words: the answer, or without a model that can answer the best sentences."""
    if row["status"] != "retrieved":
        return row["answer"] or ""
    return "\n".join([no_answer(row), *(f"- {line}" for line in best_sentences(row))])


def completion(row: dict[str, Any], model: str, created: int) -> dict[str, Any]:
    """A row as a chat completion. The message is `reply_text`."""
    usage: dict[str, Any] = row["usage"]
    message = {"role": "assistant", "content": reply_text(row)}
    return {
        "id": f"chatcmpl-{_name(row)}",
        "created": created,
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["generated_tokens"],
            "total_tokens": usage["prompt_tokens"] + usage["generated_tokens"],
        },
    }


def _name(row: dict[str, Any]) -> str:
    return sha256_text(canonical_json([row["id"], row["config_hash"]]))[:24]


_ROW_KEYS = frozenset(row_of(Answer("", "", "", "failed", None)))


def _check_row(row: Any) -> None:
    """Raise ValueError for a row that `row_of` cannot have made, so that a missing key is found here and not by a
    reader."""
    if not isinstance(row, dict) or not row.keys() >= _ROW_KEYS:
        raise ValueError("a row lacks keys")
    if not isinstance(row["id"], str) or row["status"] not in STATUSES:
        raise ValueError("a row has no id or status")
    if not isinstance(row["usage"], dict) or not vars(Usage()).keys() <= row["usage"].keys():
        raise ValueError("a row has no usage")
    if row["status"] == "failed" and not isinstance(row["error"], dict):
        raise ValueError("a failed row has no error")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The plain rows of an answers file. A torn last line (of a killed run) is left out.

    Raises BadInput for any other damage.
    """
    return (row for _, row in read_pairs(path))


def read_pairs(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(row as written in the file, its plain form) for each line; as `read_rows`."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            row = raw["response"]["body"]["gpu_rag"] if "custom_id" in raw else raw
            _check_row(row)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if not line.endswith(b"\n"):  # the last line: its write was cut
                return
            expected = "rows made by gpu-rag answer"
            raise BadInput("not a row of answers", given=f"{path}:{number}", expected=expected) from error
        yield raw, row


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        given, expected = f"{path}: {error.strerror}", "a file made by gpu-rag answer"
        raise BadInput("cannot read the answers", given=given, expected=expected) from error


class Journal:
    """A record of the questions in flight when a process died. A question that kills every run is set aside.

    A line is appended when a question begins, before any of its requests is sent; its row in ANSWERS ends it. So a
    question with a line and no row was in flight when the process died. Such questions are suspects. The next run
    answers them last, fewer at a time after each death (the square root of `runtime.max_live`, then one). A stop that
    is not a death (Ctrl-C, a lost model server, any reported error) creates no suspects. File format: {"deaths": {id:
    number}, "alone": {id: number}}, then a line with the id of each question begun since.

    deaths: how often a question was in flight when a process died; alone: how often that process had begun no other
    question. A question is set aside after 3 deaths alone, or when an engine names it as the cause. A death of a
    process that began another question counts for `deaths` only. So kills from outside set no question aside, as long
    as each run ends a question or is killed before it begins one.
    """

    def __init__(self, path: Path):
        self.path = path
        self.deaths: dict[str, int] = {}
        self.alone: dict[str, int] = {}
        self._file: IO[bytes] | None = None

    def open(self, ended: set[str]) -> None:
        """Read the state that an earlier run left, and start a new record. ended: questions that have a row. Raises
        BadInput for a file of another format, StorageError."""
        if self.path.exists():
            begun = self._read()
            in_flight = begun - ended
            self.deaths = {id: n for id, n in self.deaths.items() if id not in ended or self.is_set_aside(id)}
            self.alone = {id: n for id, n in self.alone.items() if id in self.deaths}
            for id in in_flight:
                self.deaths[id] = self.deaths.get(id, 0) + 1
                if len(begun) == 1:
                    self.alone[id] = self.alone.get(id, 0) + 1
        self._save()
        with storage_errors(self.path):
            self._file = self.path.open("ab")

    def begin(self, question: Question) -> None:
        """Record that a question begins. The line is flushed to the operating system before this returns."""
        if self._file is None:
            raise BadInput("the journal is not open", given=self.path)
        with storage_errors(self.path):
            self._file.write(json.dumps(question.id).encode() + b"\n")
            self._file.flush()

    def blame(self, id: str) -> None:
        """Set a question aside at once: an engine says that its request killed it again and again."""
        self.deaths[id] = self.alone[id] = TRIES
        self._save()

    def is_set_aside(self, id: str) -> bool:
        """Whether the question has used up its tries."""
        return self.alone.get(id, 0) >= TRIES

    def retry(self) -> None:
        """Give all questions that were set aside their tries again, each alone."""
        self.alone = {id: n for id, n in self.alone.items() if not self.is_set_aside(id)}
        self._save()

    def waves(self, questions: Iterable[Question], max_live: int) -> list[tuple[int, Sequence[Question]]]:
        """(questions open at once, questions), by how many deaths each was in flight at: none, then one, then more."""
        groups: tuple[list[Question], ...] = ([], [], [])
        for question in questions:
            groups[min(self.deaths.get(question.id, 0), 2)].append(question)
        groups[2].sort(key=lambda question: self.alone.get(question.id, 0))
        widths = (max_live, max(1, math.isqrt(max_live)), 1)
        return [(width, group) for width, group in zip(widths, groups) if group]

    def close(self) -> None:
        """Close the file at the end of a run, successful or not: nothing is in flight. Suspects are kept."""
        if self._file is None:
            return
        with storage_errors(self.path):
            self._file.close()
            self._file = None
        if self.deaths:
            self._save()
        else:
            self.path.unlink(missing_ok=True)

    def _save(self) -> None:
        write_atomic(self.path, json.dumps({"deaths": self.deaths, "alone": self.alone}).encode() + b"\n")

    def _read(self) -> set[str]:
        with storage_errors(self.path):
            lines = self.path.read_bytes().split(b"\n")
        if not lines[-1]:
            lines.pop()
        elif len(lines) > 1:
            lines.pop()  # a torn line: its question had not begun
        try:
            head = json.loads(lines[0])
            self.deaths = {str(id): int(n) for id, n in head["deaths"].items()}
            self.alone = {str(id): int(n) for id, n in head["alone"].items()}
            return {str(json.loads(line)) for line in lines[1:]}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            do = f"remove it: questions that it set aside are asked again ({os.fspath(self.path)})"
            raise BadInput("not a journal of questions", given=self.path, do=do) from error


class AnswersFile:
    """An answers file open for appending. `done`: ids of rows that exist and need not be asked again.

    Opening repairs a torn last line, and refuses a file made with other settings. Failed rows of an earlier run are
    dropped and asked again, except questions that `journal` sets aside; `retry_set_aside` asks those again too.
    `retry_unread` also drops rows for which a model reply could not be read. In the end each id has one row.
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        *,
        style: str = "jsonl",
        retry_set_aside: bool = False,
        retry_unread: bool = False,
    ):
        self.path, self.style, self._config, self._retry = path, style, config, retry_set_aside
        self._retry_unread = retry_unread
        self.done: set[str] = set()
        self.journal = Journal(path.with_name(path.name + ".inflight"))
        self._file: IO[bytes] | None = None
        self._sidecar = path.with_name(path.name + ".config.json")

    def __enter__(self) -> AnswersFile:
        with ExitStack() as stack:  # release the lock if opening fails, also by Ctrl-C
            self._open(stack)
            self._close = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Make the rows durable against a power cut, and release the lock."""
        with storage_errors(self.path):
            self._close.close()

    def _open(self, stack: ExitStack) -> None:
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(self.path.with_name(self.path.name + ".lock"), self.path, "these answers"))
            remove_leftovers(self.path)
            if not self.path.exists():  # a new job: an older journal is not about its questions
                self.journal.path.unlink(missing_ok=True)
            ended, digests = set[str](), True
            if self.path.exists() and self.path.stat().st_size:
                digests = self._check_config()
                ended = self._mend()
            stack.callback(self.journal.close)
            self.journal.open(ended)
            if self._retry:
                self.journal.retry()
            write_atomic(self._sidecar, (canonical_json({**self._config, "digests": digests}) + "\n").encode())
            self._file = stack.enter_context(self.path.open("ab"))
            stack.callback(sync, self.path)
            stack.callback(self._file.flush)

    def _mend(self) -> set[str]:
        """Drop a torn line and rows to be asked again, and fill `done`. Returns all ids, also of dropped rows."""
        ended: set[str] = set()
        with replacing(self.path) as file:
            for raw, row in read_pairs(self.path):
                ended.add(row["id"])
                again = row["status"] == "failed" or (self._retry_unread and row["usage"]["malformed"])
                if not again and row["id"] not in self.done:
                    self.done.add(row["id"])
                    file.write(self._line(row, None if raw is row else raw["response"]["body"].get("created")))
        return ended

    def _check_config(self) -> bool:
        """Raise IndexMismatch if the file has other settings. Returns whether each of its rows has a digest."""
        if not self._sidecar.exists():
            raise IndexMismatch(
                "--out holds answers of unknown settings", given=self.path, expected=f"{self._sidecar.name} beside it",
                do="choose another --out",
            )  # fmt: skip
        now = json.loads(canonical_json(self._config))  # JSON turns tuples into lists in both
        before = read_json(self._sidecar)
        differing = [name for name in _differences(before, now) if not name.startswith("digests ")]
        differing = [name for name in differing if name.startswith("method ")] or differing
        if differing:
            is_index = any(name.startswith("index (") for name in differing)  # nobody can give it again
            raise IndexMismatch(
                f"--out holds answers made with {'another state of the index' if is_index else 'other settings'}",
                given=f"{self.path}; differing: {', '.join(differing)}",
                do=f"choose another --out{'' if is_index else ', or give the same settings to continue'}",
            )
        return before.get("digests") is True

    def _line(self, row: dict[str, Any], created: int | None = None) -> bytes:
        """The line of a row. created: its creation time, where known."""
        now = int(time.time()) if created is None else created
        shaped = openai_row(row, row["method"], now) if self.style == "openai" else row
        return _json_bytes(shaped) + b"\n"

    def add(self, answer: Answer) -> dict[str, Any]:
        """Append one row and return it. From then on it survives the end of this process."""
        if self._file is None:
            raise BadInput("the answers file is not open", given=self.path)
        row = json.loads(_json_bytes(row_of(answer)))  # as it will be read
        row["digest"] = digest_of(row)
        with storage_errors(self.path):
            self._file.write(self._line(row))
            self._file.flush()
        return row

    def set_aside(
        self, questions: Iterable[Question], method: str, config_hash: str, where: str = ""
    ) -> list[dict[str, Any]]:
        """Append failed rows for the questions that have used up their tries."""
        message = (
            f"the process died {TRIES} times over this question alone, or the engine named it as what killed it; "
            "add --retry-set-aside to have it asked again"
        )
        reason = {"type": "SetAside", "message": message}
        return [
            self.add(Answer(q.id, q.text, method, "failed", None, error=reason, config_hash=config_hash, where=where))
            for q in questions
            if self.journal.is_set_aside(q.id)
        ]


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """The differences of two configurations, by name: "params.damping (0.85, now 0.5)"."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"{name or 'the settings file'} ({json.dumps(old)}, now {json.dumps(new)})"


class Tally:
    """Counts by status and summed usage of rows, added one by one."""

    def __init__(self) -> None:
        self.n, self.statuses, self.usage = 0, dict.fromkeys(STATUSES, 0), vars(Usage())
        self.fallbacks: dict[str, int] = self.usage.pop("fallbacks")
        self.rerank: dict[str, float] = {}  # cost of a reranker; empty without one

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> Tally:
        """The tally of answers."""
        tally = cls()
        for answer in answers:
            tally.add(row_of(answer))
        return tally

    def add(self, row: dict[str, Any]) -> None:
        """Add one row."""
        self.n += 1
        self.statuses[row["status"]] += 1
        for name in self.usage:
            self.usage[name] += row["usage"][name]
        add_fallbacks(self.fallbacks, row["usage"]["fallbacks"])
        for step in row["trace"]:
            if step["verb"].startswith("rerank_"):
                for name, n in (("requests", 1), ("pairs", step["n_candidates"]), ("s", step["s"])):
                    self.rerank[name] = self.rerank.get(name, 0) + n

    def document(self) -> dict[str, Any]:
        """{"n", a number for each status, "usage", "fallbacks" by step and kind}, and "rerank" if a reranker ran."""
        document = {"n": self.n, **self.statuses, "usage": self.usage, "fallbacks": fallbacks_by_step(self.fallbacks)}
        return {**document, **({"rerank": self.rerank} if self.rerank else {})}
