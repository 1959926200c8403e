"""Which questions were being answered when a process died, so that one that kills every run is set aside.

A line is appended when a question begins, before any request of it is sent; its row in ANSWERS is its end. So what has
begun and has no row was in flight when the process died. Such questions are suspects: the next run answers them last,
fewer at a time after each death (a square root of `runtime.max_live`, then one), until a death finds one alone. A stop
that is not a death (Ctrl-C, a model server that is gone, any error that is reported) makes nobody a suspect.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from gpu_rag.errors import BadInput
from gpu_rag.index.folder import storage_errors, write_atomic
from gpu_rag.types import Question

TRIES = 3  # deaths that a question may be part of, the last of them alone


class Journal:
    """The file beside ANSWERS: {"deaths": {id: number}, "alone": [ids]}, then a line with the id of each question begun
    since.

    deaths: how often a question was in flight when a process died. It is set aside after 3 of them, in the last of
    which nothing else was in flight, or when an engine names it as what killed it.
    """

    def __init__(self, path: Path):
        self.path = path
        self.deaths: dict[str, int] = {}
        self.alone: set[str] = set()
        self._file: IO[bytes] | None = None

    def open(self, ended: set[str]) -> None:
        """Read what an earlier run left, and begin anew. ended: questions that have a row. Raises BadInput where the
        file is none of ours, StorageError."""
        if self.path.exists():
            begun = self._read()
            in_flight = begun - ended
            self.deaths = {id: n for id, n in self.deaths.items() if id not in ended or self.is_set_aside(id)}
            self.alone &= self.deaths.keys()
            for id in in_flight:
                self.deaths[id] = self.deaths.get(id, 0) + 1
            if len(in_flight) == 1:
                self.alone |= in_flight
        self._save()
        with storage_errors(self.path):
            self._file = self.path.open("ab")

    def begin(self, question: Question) -> None:
        """A question begins; the line is with the operating system when this returns."""
        if self._file is None:
            raise BadInput("the journal is not open", given=self.path)
        with storage_errors(self.path):
            self._file.write(json.dumps(question.id).encode() + b"\n")
            self._file.flush()

    def blame(self, id: str) -> None:
        """An engine says that a request of this question killed it, again and again: no further try."""
        self.deaths[id] = TRIES
        self.alone.add(id)

    def is_set_aside(self, id: str) -> bool:
        """Whether the question has had its tries."""
        return self.deaths.get(id, 0) >= TRIES and id in self.alone

    def waves(self, questions: Iterable[Question], max_live: int) -> list[tuple[int, Sequence[Question]]]:
        """(questions open at once, questions): who was in flight at no death, at one, at more, in this order."""
        groups: tuple[list[Question], ...] = ([], [], [])
        for question in questions:
            groups[min(self.deaths.get(question.id, 0), 2)].append(question)
        widths = (max_live, max(1, math.isqrt(max_live)), 1)
        return [(width, group) for width, group in zip(widths, groups) if group]

    def close(self) -> None:
        """The run has ended, well or not, but it has ended: nothing is in flight. Suspects are kept."""
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
        write_atomic(self.path, json.dumps({"deaths": self.deaths, "alone": sorted(self.alone)}).encode() + b"\n")

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
            self.alone = {str(id) for id in head["alone"]}
            return {str(json.loads(line)) for line in lines[1:]}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            do = f"remove it: questions that it set aside are asked again ({os.fspath(self.path)})"
            raise BadInput("not a journal of questions", given=self.path, do=do) from error
