"""Answers of an evaluation in a file, so that memory does not grow with their evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from threading import Lock
from typing import overload

import msgspec
import numpy as np

from gpu_rag.index.folder import storage_errors
from gpu_rag.types import Answer


class Spool(Sequence[Answer]):
    """The answers to n questions, in the order of the questions. They lie in a file without a name and are read one at
    a time; each is added once, in any order. Memory: ids, and 16 bytes an answer."""

    def __init__(self, ids: Sequence[str]):
        self._row = {id: row for row, id in enumerate(ids)}
        self._places, self._end, self._lock = np.zeros((len(ids), 2), np.int64), 0, Lock()
        with storage_errors(Path(gettempdir())):
            self._file = TemporaryFile(prefix="gpu-rag-eval-")  # noqa: SIM115  # closed when the spool goes

    def add(self, answer: Answer) -> None:
        """Add the answer to a question. Raises StorageError."""
        data = json.dumps(msgspec.to_builtins(answer)).encode()
        with self._lock, storage_errors(Path(gettempdir())):
            self._file.seek(self._end)
            self._file.write(data)
            self._places[self._row[answer.question_id]] = self._end, len(data)
            self._end += len(data)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Answer]: ...
    def __getitem__(self, index: int | slice) -> Answer | list[Answer]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        start, size = self._places[index].tolist()
        with self._lock:
            self._file.seek(start)
            return msgspec.convert(json.loads(self._file.read(size)), Answer)

    def __iter__(self) -> Iterator[Answer]:
        return (self[row] for row in range(len(self)))
