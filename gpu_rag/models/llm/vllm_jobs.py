"""A request as the pieces of work that an engine knows: sequences of token ids to continue. Bookkeeping only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpu_rag.types import Choice, JsonSchema

# As many token ids as vLLM scores in one request.
SCORES_A_PIECE = 128


@dataclass(frozen=True)
class Piece:
    """A piece of work: continue `ids`. scored: token ids whose log-probability as the next one is wanted.

    on_ids: called in the engine's thread with all ids generated so far, as they come.
    """

    ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    constraint: JsonSchema | Choice | None = None
    scored: tuple[int, ...] = ()
    on_ids: Callable[[Sequence[int]], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Finished:
    """A finished piece: the generated ids, why they ended (stop, length, or what the engine says), how many prompt
    tokens were cached, and the log-probabilities that were wanted.

    n_preempted: how often it gave its place to others, None where the engine does not say; queued_s: its wait inside.
    """

    ids: tuple[int, ...]
    finish_reason: str
    n_cached: int
    scores: dict[int, float] = field(default_factory=dict)
    n_preempted: int | None = None
    queued_s: float = 0.0


class Job(Protocol):
    """One request: the pieces it begins with, and what each finished piece leads to."""

    def start(self) -> list[Piece]:
        """The first pieces; called again when the engine died and everything begins anew."""
        ...

    def take(self, piece: Piece, finished: Finished) -> list[Piece]:
        """Note a finished piece; the pieces that can run now."""
        ...


class Generation:
    """One sequence to generate."""

    def __init__(self, piece: Piece):
        self.piece = piece
        self.result: Finished | None = None

    def start(self) -> list[Piece]:
        """The sequence."""
        return [self.piece]

    def take(self, piece: Piece, finished: Finished) -> list[Piece]:
        """The end."""
        self.result = finished
        return []


class Ranking:
    """The mean log-probability per token of each option after one prompt.

    The options form a trie of token ids. A node that has children is one piece: prompt and path as the prompt, one
    token to generate, the children's ids scored. The root runs first, so that the engine's prefix cache knows the
    prompt when the others, which run side by side, begin: the prompt is computed once. Options of one token, such as
    yes and no, cost one piece in all.
    """

    def __init__(self, prompt: Sequence[int], options: Sequence[Sequence[int]]):
        """options: at least one token each."""
        self.prompt, self.options = tuple(prompt), [tuple(ids) for ids in options]
        self._children: dict[tuple[int, ...], list[int]] = {}
        for ids in self.options:
            for i, token in enumerate(ids):
                known = self._children.setdefault(ids[:i], [])
                if token not in known:
                    known.append(token)
        self._scores: dict[tuple[int, ...], float] = {}
        self.n_cached = 0

    def start(self) -> list[Piece]:
        """The pieces of the root: one, unless there are very many options."""
        self._scores.clear()
        return self._pieces(())

    def take(self, piece: Piece, finished: Finished) -> list[Piece]:
        """After the root, all other nodes."""
        path = piece.ids[len(self.prompt) :]
        first = not self._scores
        for token in piece.scored:
            self._scores[(*path, token)] = finished.scores[token]
        if not first:
            return []
        self.n_cached = finished.n_cached
        return [piece for node in self._children if node for piece in self._pieces(node)]

    def scores(self) -> tuple[float, ...]:
        """One score an option, in the order given, once every piece is finished."""
        return tuple(
            sum(self._scores[ids[: i + 1]] for i in range(len(ids))) / len(ids) for ids in self.options
        )  # fmt: skip

    def _pieces(self, node: tuple[int, ...]) -> list[Piece]:
        tokens = self._children[node]
        return [
            Piece((*self.prompt, *node), 1, scored=tuple(tokens[i : i + SCORES_A_PIECE]))
            for i in range(0, len(tokens), SCORES_A_PIECE)
        ]
