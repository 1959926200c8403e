"""Checks of an index and of answers. No model is asked, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_rag.api.arguments import IndexLike, PathLike, checked_names, checked_path, checked_paths
from gpu_rag.errors import BadInput, IndexCorrupt, MissingLayer
from gpu_rag.evaluation.verify_answers import AnswerChecker, Difference, check_answers
from gpu_rag.index.folder import read_json
from gpu_rag.index.index import Index
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.receipt import hashes_in, read_receipt, still_there
from gpu_rag.index.verify import unchecked
from gpu_rag.index.verify import verify as verify_index
from gpu_rag.jobs import read_pairs, read_rows
from gpu_rag.methods.registry import ALL, check_stages, methods_over, stage_checks


@dataclass(frozen=True)
class Verified:
    """The result of `verify`.

    broken: one line per fault; digest: equal for equal inputs, settings and replies, None if the manifest cannot be
    read; unchecked: stages for which installed methods check only checksums.
    """

    broken: list[str]
    digest: str | None = None
    unchecked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return not self.broken


def verify(
    index: IndexLike, *, methods: str | Sequence[str] | None = None, receipt: PathLike | None = None
) -> Verified:
    """Check an index: checksums, tables against each other, graph invariants.

    methods: also check that it has the stages that these methods, or "all", need. receipt: receipt of `remove`; also
    check that what it names is not there. Raises BadInput if there is no index or receipt, IndexMismatch for another
    version, UsageError for an unknown method.
    """
    folder, digest = checked_path("index", index), None
    try:
        digest = Manifest.read(folder).digest()
        checks = stage_checks()
        broken = verify_index(folder, checks)
        if methods is not None:
            broken.extend(_lacking(folder, checked_names(methods)))
        if receipt is not None:
            made = Index.open(folder)
            broken.extend(still_there(read_receipt(checked_path("receipt", receipt)), made, hashes_in(made)))
        return Verified(broken, digest, tuple(unchecked(folder, checks)))
    except IndexCorrupt as error:
        return Verified([str(error)], digest)


def _lacking(folder: Path, methods: list[str]) -> Iterator[str]:
    """The missing stages of the index, one line per method. Raises UsageError for an unknown method."""
    manifest = Manifest.read(folder)
    over = methods_over(bool(manifest.sources.get("corpus")))
    for method in (name for given in methods for name in (over if given == ALL else [given])):
        try:
            check_stages(method, tuple(manifest.stages), str(folder), manifest.sources)
        except MissingLayer as error:
            yield str(error)


@dataclass(frozen=True)
class VerifiedAnswers:
    """checker: has the numbers of checked rows, quotations and edges, and of answers that could not be compared with a
    reply; same_index: whether the answers were made with this state of the index, None if unknown."""

    differences: list[Difference]
    checker: AnswerChecker
    same_index: bool | None


def verify_answers(
    answers: PathLike, index: IndexLike, *, corpus: PathLike | Sequence[PathLike] = ()
) -> VerifiedAnswers:
    """Check every quotation, offset, path, status and grounding of answers against the index, the answers against the
    replies kept beside them, each row against its digest, and the quotations against the corpus if it is given.

    Raises BadInput for a file that has no answers or other rows, and as `Index.open`.
    """
    file, paths = checked_path("answers", answers), checked_paths("corpus", corpus)
    opened = index if isinstance(index, Index) else Index.open(checked_path("index", index))
    replies, beside = (file.with_name(file.name + ending) for ending in (".replies.sqlite", ".config.json"))
    config = read_json(beside) if beside.is_file() else None  # the settings, with the digest of the index
    known = config if isinstance(config, dict) else {}
    demanded = known.get("digests") is True
    checker, differences = check_answers(read_pairs(file), opened, replies, paths, with_digests=demanded)
    if not checker.n_rows:
        raise BadInput("there are no answers", given=file, expected="rows made by gpu-rag answer")
    same_index = known.get("index") == opened.manifest.digest() if known else None
    return VerifiedAnswers(differences, checker, same_index)


def read_answers(path: PathLike) -> Iterator[dict[str, Any]]:
    """The rows of a file of answers, one by one. Raises BadInput."""
    return read_rows(checked_path("path", path))
