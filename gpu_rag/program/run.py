"""The run of one question: its context, its index and models, and the notes of its evidence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Protocol, TypeVar

from gpu_rag.index.index import Index
from gpu_rag.models.ask import Ask, Choose, Fields, Options, Taken
from gpu_rag.program.kinds import Models
from gpu_rag.program.search import Ranking
from gpu_rag.runtime.trace import Context
from gpu_rag.settings import ReaderSettings
from gpu_rag.types import Evidence, Reply


class Decider(Protocol):
    """The interface of deciders, see `program.decide`."""

    async def reply(self, run: Run, ask: Ask[Any], fields: Fields) -> Taken:
        """Return the reply to an Ask."""
        ...

    async def choice(self, run: Run, choose: Choose, options: Options, fields: Fields) -> Taken:
        """Return positions among one or more options."""
        ...


COPIES = 20  # places ranked beyond the limit, to be shown in the place of copies
DEEPER = 50  # times as many are ranked if copies leave too few
NAMED = 3  # copies named by the passage that is shown
R = TypeVar("R", bound=Ranking)
OnChoice = Callable[["Run", Choose, Fields, Sequence[int]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Run:
    """One question over one index.

    limit: number of passages that `retrieve` returns; keep: how many of them a reranker keeps, 0 for all. on_text:
    called in a thread of the model with each new piece of the answer. on_saw: called with the passages that the
    structure of a method reached; on_choice: awaited with each choice, its fields and the positions taken; both for
    evaluation. most_calls: limit of model requests for the question; rules take a decision that would exceed it.
    """

    ctx: Context
    index: Index
    models: Models
    decider: Decider
    reader: ReaderSettings
    limit: int
    on_text: Callable[[str], None] | None = None
    keep: int = 0
    on_saw: Callable[[Iterable[int]], None] | None = None
    most_calls: int | None = None
    on_choice: OnChoice | None = None

    def note(self, name: str, n_candidates: int, chosen: tuple[str, ...] = (), reply: Reply | None = None) -> None:
        """Note a decision in the trace, with the hash of its reply."""
        self.ctx.note(name, n_candidates, chosen, "" if reply is None else reply.hash)

    @property
    def depth(self) -> int:
        """The number of passages to rank, see `depth_for`."""
        return depth_for(self.limit)

    async def searched(
        self, rank: Callable[[int], Awaitable[R]], why: str, name: str, limit: int = 0
    ) -> tuple[tuple[Evidence, ...], R]:
        """The `evidence` of a ranking, and the ranking. rank: ranks a number of passages; awaited once more, for DEEPER
        times as many, if copies leave fewer than the limit."""
        limit = limit or self.limit
        for depth in (depth_for(limit), DEEPER * depth_for(limit)):
            ranking = await rank(depth)
            passages = self.different(ranking.rows, ranking.scores, why, limit)
            if len(passages) == limit or len(ranking.rows) < depth:
                break
        return self._noted(passages, name), ranking

    def evidence(self, ranking: Ranking, why: str, name: str = "search", limit: int = 0) -> tuple[Evidence, ...]:
        """The first passages of a ranking, see `different`, noted in the trace. limit: 0 for that of the run."""
        return self._noted(self.different(ranking.rows, ranking.scores, why, limit or self.limit), name)

    def _noted(self, passages: tuple[Evidence, ...], name: str) -> tuple[Evidence, ...]:
        self.note(name, self.index.n_passages, tuple(f"{e.passage_id} {e.title}" for e in passages))
        return passages

    def different(
        self, rows: Sequence[int], scores: Sequence[float], why: str | list[str], limit: int
    ) -> tuple[Evidence, ...]:
        """The first `limit` passages without copies of others: rows beyond are read if there are copies among the
        first. why: as in `Index.evidence`."""
        whys = why if isinstance(why, str) else why[:limit]
        passages = self.index.evidence(rows[:limit], scores[:limit], whys)
        if len(set(map(content, passages))) < len(passages):
            passages = _without_copies(self.index.evidence(rows, scores, why))[:limit]
        return passages

    def saw(self, passages: Callable[[], Iterable[int]]) -> None:
        """Report the passage rows that a method's structure reached; they are computed only for evaluation."""
        if self.on_saw is not None:
            self.on_saw(passages())

    def fact(self, row: int) -> tuple[str, str, str, tuple[str, ...]]:
        """(subject, label, object, ids of the passages that state it) of a relation row."""
        passages = self.index.relation_passages[row]
        return (*self.index.relation_text(row), tuple(self.index.passage_ids[p] for p in passages))


def depth_for(limit: int) -> int:
    """The number of passages to rank: `limit` are left if at most COPIES of them are copies."""
    return limit + COPIES


def content(passage: Evidence) -> Hashable:
    """The text, title and metadata of a passage, equal for copies. A title that is the name of the file does not
    distinguish copies, unless it has a digit, such as a year."""
    title, name = passage.title, PurePath(passage.file).stem
    if not any(map(str.isdigit, name)):
        title = title.removeprefix(name)
    return passage.text, title, tuple(sorted((key, str(value)) for key, value in passage.metadata.items()))


def _without_copies(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The first passage of each content, its `why` naming the others."""
    copies: dict[Hashable, list[Evidence]] = {}
    for passage in evidence:
        copies.setdefault(content(passage), []).append(passage)
    return tuple(
        replace(first, why=f"{first.why}; the same text is in {_some(others)}") if others else first
        for first, *others in copies.values()
    )


def _some(copies: Sequence[Evidence]) -> str:
    named, n_more = ", ".join(e.passage_id for e in copies[:NAMED]), len(copies) - NAMED
    return f"{named} and {n_more} {'other' if n_more == 1 else 'others'}" if n_more > 0 else named
