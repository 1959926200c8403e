"""Every error that gpu-rag raises: one line that says what, given, expected, and what to do."""

from __future__ import annotations


class GpuRagError(Exception):
    """Base of all errors. `exit_code` is the exit status of the command line for this error.

    what: what went wrong, one sentence without a final full stop.
    given, expected, do: optional; they are printed as "given ...; expected ...; do ...".
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
    """An input from outside (file, row, tensor) that cannot be used."""


class MissingBackend(UsageError):
    """A backend that was asked for is not installed. Names the extra that installs it."""


class MissingLayer(UsageError):
    """The index lacks a stage that the method needs. Names the command that builds it."""


class IndexMismatch(UsageError):
    """The index was built with another model, format version or setting than the one given."""


class IndexLocked(GpuRagError):
    """Another process is writing this index."""


class IndexCorrupt(GpuRagError):
    """A file of the index is missing, altered, or contradicts another."""


class StorageError(GpuRagError):
    """The disk refused: full, read-only or gone."""


class ModelError(GpuRagError):
    """A model could not be loaded or its server does not answer: the whole run is affected.

    request: the one that is to blame, where an engine knows it. question: the id of the question that asked it.
    """

    request: object = None
    question: str | None = None


class RequestFailed(GpuRagError):
    """ONE model request failed; others of the same batch are not affected."""


class ContextOverflow(RequestFailed):
    """A prompt does not fit the model's context. Carries the sizes in its text."""


class BudgetExceeded(GpuRagError):
    """A question used up its budget of calls, tokens or seconds."""


class Cancelled(GpuRagError):
    """The work was cancelled: Ctrl-C, or a sibling of it failed."""
