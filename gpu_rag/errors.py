"""All errors that gpu-rag raises. Each message is one line: the problem, given, expected, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class GpuRagError(Exception):
    """Base class of all errors. `exit_code` is the exit status of the command line for this error.

    what: the problem, one sentence without a final full stop.
    given, expected, do: optional; they are printed as "given ...; expected ...; DO".
    """

    exit_code = 1

    def __init__(self, what: str, *, given: object = None, expected: object = None, do: str | None = None):
        self.what, self.given, self.expected, self.do = what, given, expected, do
        parts = [what]
        if given is not None:
            parts.append(f"given {given}")
        if expected is not None:
            parts.append(f"expected {expected}")
        if do is not None:
            parts.append(do)
        super().__init__("; ".join(" ".join(str(p).split()) for p in parts))


class UsageError(GpuRagError):
    """Bad usage: an option, a setting or a combination of them."""

    exit_code = 2


class BadInput(UsageError):
    """An input from outside (file, row, tensor) cannot be used."""


class MissingBackend(UsageError):
    """A requested backend is not installed. The message names the extra that installs it."""


@contextmanager
def needing(what: str, do: str) -> Iterator[None]:
    """Turn an import that fails inside the block into MissingBackend."""
    try:
        yield
    except ImportError as error:
        raise MissingBackend(what, given=str(error), do=do) from error


class MissingLayer(UsageError):
    """The index lacks a stage that the method needs. The message names the command that builds it."""


class IndexMismatch(UsageError):
    """The index was built with another model, format version or setting than the one given."""


class IndexLocked(GpuRagError):
    """Another process is writing this index."""


class IndexCorrupt(GpuRagError):
    """A file of the index is missing, altered, or contradicts another."""


class StorageError(GpuRagError):
    """The disk cannot be used: full, read-only or gone."""


class ModelError(GpuRagError):
    """A model could not be loaded, or its server does not answer. The whole run is affected.

    request: the request that caused it, where an engine knows it. question: the id of its question.
    """

    request: object = None
    question: str | None = None


class RequestFailed(GpuRagError):
    """One model request failed. Other requests of the same batch are not affected."""


class ContextOverflow(RequestFailed):
    """A prompt does not fit the model's context. The message gives the sizes."""


class BudgetExceeded(GpuRagError):
    """A question used up its budget of calls, tokens or seconds."""


class Cancelled(GpuRagError):
    """The work was cancelled by Ctrl-C, or because another task of the same group failed."""
