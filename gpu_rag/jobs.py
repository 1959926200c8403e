"""Batch answering as a job: durable rows, exact resume, OpenAI-batch files in and out.

One row a question is appended as soon as the question ends, so a killed run loses only the questions in flight. Beside
ANSWERS stand `ANSWERS.config.json`, the settings that made it, `ANSWERS.replies.sqlite`, the model's replies,
`ANSWERS.lock`, which one job at a time holds, and `ANSWERS.inflight`, which tells of questions that kill: `journal`.
Rows are read and written one by one: the memory of a job does not grow with its questions but by their ids.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from gpu_rag.errors import BadInput, IndexLocked, IndexMismatch
from gpu_rag.index.folder import canonical_json, read_json, storage_errors, sync_folder, write_atomic
from gpu_rag.runtime.journal import TRIES, Journal
from gpu_rag.types import Answer, Question, Usage

STATUSES = ("answered", "unsupported", "failed")


def row_of(answer: Answer) -> dict[str, Any]:
    """The row of an answer, as the command line documents it; nodes and pools only where the method has some."""
    row: dict[str, Any] = {
        "id": answer.question_id,
        "question": answer.question,
        "method": answer.method,
        "status": answer.status,
        "answer": answer.text,
        "evidence": [dict(vars(e)) for e in answer.evidence],
        "paths": [{"text": p.text, "edges": [list(e) for e in p.edges], "source": p.source} for p in answer.paths],
        "trace": [{**vars(step), "chosen": list(step.chosen)} for step in answer.trace],
        "usage": dict(vars(answer.usage)),
        "error": answer.error,
        "config_hash": answer.config_hash,
    }
    if answer.nodes:
        row["nodes"] = [dict(vars(node)) for node in answer.nodes]
    if answer.pools:
        row["pools"] = [{**vars(pool), "entities": list(pool.entities)} for pool in answer.pools]
    return row


def openai_row(row: dict[str, Any], model: str) -> dict[str, Any]:
    """The same row in the output format of OpenAI batch files; the answer is the message's content."""
    failed = row["status"] == "failed"
    message = {"role": "assistant", "content": row["answer"] or ""}
    usage: dict[str, Any] = row["usage"]
    body = {
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["generated_tokens"],
            "total_tokens": usage["prompt_tokens"] + usage["generated_tokens"],
        },
        "gpu_rag": row,
    }
    response = {"status_code": 500 if failed else 200, "request_id": row["id"], "body": body}
    error = {"code": row["error"]["type"], "message": row["error"]["message"]} if failed else None
    return {"id": f"batch_{row['id']}", "custom_id": row["id"], "response": response, "error": error}


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of either style as the plain row."""
    if "custom_id" in row:
        body: dict[str, Any] = row["response"]["body"]["gpu_rag"]
        return body
    return row


_ROW_KEYS = frozenset(row_of(Answer("", "", "", "failed", None)))


def _check_row(row: Any) -> None:
    """Raises ValueError for what `row_of` cannot have made: a row without a key is found here, not by who reads it."""
    if not isinstance(row, dict) or not row.keys() >= _ROW_KEYS:
        raise ValueError("a row lacks keys")
    if not isinstance(row["id"], str) or row["status"] not in STATUSES:
        raise ValueError("a row has no id or status")
    if not isinstance(row["usage"], dict) or not vars(Usage()).keys() <= row["usage"].keys():
        raise ValueError("a row has no usage")
    if row["status"] == "failed" and not isinstance(row["error"], dict):
        raise ValueError("a failed row has no error")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The plain rows of an answers file; a torn last line (of a killed run) is left out.

    Raises BadInput for any other damage.
    """
    return (row for _, row in read_pairs(path))


def read_pairs(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(row as it stands in the file, plain row in it) for each line, as `read_rows`."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            row = plain_row(raw)
            _check_row(row)
        except (ValueError, KeyError, TypeError) as error:
            if not line.endswith(b"\n"):  # the last one: its write was cut
                return
            raise BadInput(
                "not a row of answers", given=f"{path}:{number}", expected="rows made by gpu-rag answer"
            ) from error
        yield raw, row


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise BadInput(
            "cannot read the answers", given=f"{path}: {error.strerror}", expected="a file made by gpu-rag answer"
        ) from error


class AnswersFile:
    """An answers file open for appending. `done`: ids of rows that are there and need not be asked again.

    Opening mends a torn last line, and refuses a file that other settings made. Failed rows of an earlier run are
    dropped and asked again, but for questions that `journal` sets aside; each id has one row in the end.
    """

    def __init__(self, path: Path, config: dict[str, Any], *, style: str = "jsonl"):
        self.path, self.style, self._config = path, style, config
        self.done: set[str] = set()
        self.journal = Journal(path.with_name(path.name + ".inflight"))
        self._file: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None
        self._sidecar = path.with_name(path.name + ".config.json")

    def __enter__(self) -> AnswersFile:
        try:
            self._open()
        except BaseException:  # also Ctrl-C: a job that did not begin holds no lock
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path)
            if not self.path.exists():  # a new job: what an older one said of its questions is not of this one
                self.journal.path.unlink(missing_ok=True)
            ended: set[str] = set()
            if self.path.exists() and self.path.stat().st_size:
                self._check_config()
                ended = self._mend()
            self.journal.open(ended)
            write_atomic(self._sidecar, (canonical_json(self._config) + "\n").encode())
            self._file = self.path.open("ab")

    def _mend(self) -> set[str]:
        """Drops failed rows and a torn line; fills `done`. Returns the ids of all rows, the failed ones too."""
        ended: set[str] = set()
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with beside.open("wb") as file:
            for row in read_rows(self.path):
                ended.add(row["id"])
                if row["status"] != "failed" and row["id"] not in self.done:
                    self.done.add(row["id"])
                    file.write(self._line(row))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path)
        sync_folder(self.path.parent)
        return ended

    def close(self) -> None:
        """Makes the rows durable against a power cut too, and lets the next job in."""
        self.journal.close()
        if self._file is not None:
            with storage_errors(self.path):
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check_config(self) -> None:
        if not self._sidecar.exists():
            raise IndexMismatch(
                "--out holds answers of unknown settings", given=self.path, expected=f"{self._sidecar.name} beside it",
                do="choose another --out",
            )  # fmt: skip
        now = json.loads(canonical_json(self._config))  # as it was written: a tuple is a list in both
        differing = list(_differences(read_json(self._sidecar), now))
        differing = [name for name in differing if name.startswith("method ")] or differing  # it has other parameters
        if differing:
            raise IndexMismatch(
                "--out holds answers made with other settings",
                given=f"{self.path}; differing: {', '.join(differing)}",
                do="choose another --out, or give the same settings to continue",
            )

    def _line(self, row: dict[str, Any]) -> bytes:
        shaped = openai_row(row, row["method"]) if self.style == "openai" else row
        return json.dumps(shaped, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"

    def add(self, answer: Answer) -> dict[str, Any]:
        """Appends one row and returns it; it survives the end of this process from here on."""
        if self._file is None:
            raise BadInput("the answers file is not open", given=self.path)
        row = row_of(answer)
        with storage_errors(self.path):
            self._file.write(self._line(row))
            self._file.flush()
        return row

    def set_aside(self, questions: Iterable[Question], method: str, config_hash: str) -> list[dict[str, Any]]:
        """Appends the failed rows of those of `questions` that have had their tries."""
        message = (
            f"the process died {TRIES} times while this question was answered, at last with no other beside, or the "
            f"engine named it as what killed it; remove {self.journal.path.name} to have it asked again"
        )
        reason = {"type": "SetAside", "message": message}
        return [
            self.add(Answer(q.id, q.text, method, "failed", None, error=reason, config_hash=config_hash))
            for q in questions
            if self.journal.is_set_aside(q.id)
        ]


def _locked(path: Path) -> IO[bytes]:
    """The lock beside an answers file, held: two jobs that append to one file would lose each other's rows."""
    file = path.with_name(path.name + ".lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise IndexLocked(
            "another process is writing these answers", given=path, do="wait for it to end, or choose another --out"
        ) from error
    return file


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """The differences of two configurations, by name: "params.damping (0.85, now 0.5)"."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"{name or 'the settings file'} ({json.dumps(old)}, now {json.dumps(new)})"


class Tally:
    """Counts by status and summed usage of rows, taken one by one; the first failures are kept."""

    N_FAILURES = 50

    def __init__(self) -> None:
        self.n, self.statuses, self.usage = 0, dict.fromkeys(STATUSES, 0), vars(Usage()).copy()
        self.failures: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """One more row."""
        self.n += 1
        self.statuses[row["status"]] += 1
        for name in self.usage:
            self.usage[name] += row["usage"][name]
        if row["status"] == "failed" and len(self.failures) < self.N_FAILURES:
            self.failures.append({name: row[name] for name in ("id", "error")})

    def document(self) -> dict[str, Any]:
        """{"n", a number for each status, "usage"}."""
        return {"n": self.n, **self.statuses, "usage": self.usage}
