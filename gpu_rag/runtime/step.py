"""A batched step: one typed function over the queries of many questions, awaited for one query at a time.

    @batched(GRAPH, tile=64)
    def search(index: Index, queries: list[np.ndarray], k: int = 5) -> list[Ranking]: ...

    ranking = await search(vector, k=10)        # in a program; `search.run(index, vectors, (10,))` without a driver

The arguments after the queries are the batch key: calls share a batch only if the step and the key are equal. Defaults
are applied first, so `search(v)`, `search(v, 5)` and `search(v, k=5)` have one key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from gpu_rag.errors import GpuRagError, UsageError

R = TypeVar("R")  # the resource
Q = TypeVar("Q")  # one query
A = TypeVar("A")  # one answer
P = ParamSpec("P")  # the batch key

SERVICES = ("text", "graph", "embed", "llm")
# Cheap kinds run first, so that the most expensive one gets the largest batch.
RANK_TEXT, RANK_GRAPH, RANK_WALK, RANK_EMBED, RANK_LLM = range(5)


@dataclass(frozen=True, slots=True)
class Kind(Generic[R]):
    """A kind of step. resource: name of the resource that the driver passes to it. service: text | graph | embed | llm,
    where its seconds are booked. rank: batches of a lower rank run first. max_batch: most calls per batch."""

    resource: str
    service: str
    rank: int
    max_batch: int = 1024

    def __post_init__(self) -> None:
        if self.service not in SERVICES:
            raise UsageError("unknown service of a step", given=self.service, expected=" | ".join(SERVICES))
        if self.max_batch < 1:
            raise UsageError("a batch has room for a call", given=f"max_batch={self.max_batch}", expected=">= 1")


@dataclass(frozen=True, slots=True)
class Metered(Generic[A]):
    """An answer with its token costs; the program receives only `value` (raised if it is an error).

    n_prompt, n_cached, n_generated: tokens. malformed: replies that could not be read. llm_calls: model requests made.
    """

    value: A | GpuRagError
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    malformed: int = 0
    llm_calls: int = 1


Answers = Sequence[A | Metered[A] | GpuRagError]
Function = Callable[Concatenate[R, list[Q], P], Answers[A]]
Meter = Callable[[Any], Metered[Any]]
Tile = int | Callable[[R], int] | None  # queries of one call of a function: a number, or one for each resource


class Step(Generic[R, Q, P, A]):
    """A step made by `batched`; calling it makes a `Call` to await. Equal only to itself."""

    def __init__(
        self,
        function: Function[R, Q, P, A],
        kind: Kind[R],
        tile: Tile[R] = None,
        name: str | None = None,
        meter: Meter | None = None,
    ):
        key = list(inspect.signature(function).parameters.values())[2:]
        if any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in key):
            given = str(inspect.signature(function))
            raise UsageError("the parameters of a step have no star and no slash", given=given)
        if isinstance(tile, int) and tile < 1:
            raise UsageError("a tile has room for a query", given=f"tile={tile}", expected=">= 1")
        self.function, self.kind, self.tile, self.meter = function, kind, tile, meter
        self.name: str = name or function.__name__  # type: ignore[attr-defined]
        self.__doc__ = function.__doc__
        self._names = tuple(p.name for p in key)
        self._values = tuple(p.default for p in key)

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    def __call__(self, query: Q, *args: P.args, **kwargs: P.kwargs) -> Call[A]:
        """Call for one query; nothing runs before it is awaited."""
        key: tuple[Any, ...] = args
        if kwargs or len(args) != len(self._names):
            key = self._key(args, kwargs)
        return Call(self, key, query)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        names = self._names[len(args) :]
        key = (*args, *(kwargs.get(name, value) for name, value in zip(names, self._values[len(args) :])))
        unknown = [name for name in kwargs if name not in names]
        if len(args) > len(self._names) or unknown or any(value is inspect.Parameter.empty for value in key):
            takes = f"{self.name}({', '.join(('query', *self._names))})"
            raise TypeError(f"{takes} does not take {1 + len(args)} values and {sorted(kwargs)}")
        return key

    def run(self, resource: R, queries: Sequence[Q], key: tuple[Any, ...] = ()) -> list[A | Metered[A] | GpuRagError]:
        """Answers to all queries, in order; the function gets at most `tile` of them at a time.

        Raises GpuRagError if the function returns another number of answers than queries.
        """
        size = (self.tile(resource) if callable(self.tile) else self.tile) or max(len(queries), 1)
        function: Any = self.function
        answers: list[A | Metered[A] | GpuRagError] = []
        for start in range(0, len(queries), size):
            part = list(queries[start : start + size])
            results = function(resource, part, *key)
            if not isinstance(results, (list, tuple)) or len(results) != len(part):
                given = f"{len(results)} answers" if isinstance(results, (list, tuple)) else type(results).__name__
                raise GpuRagError(
                    f"the step {self.name} broke its contract", given=given, expected=f"{len(part)} answers"
                )
            answers.extend(results if self.meter is None else map(self.meter, results))
        return answers


@dataclass(eq=False, slots=True)  # not frozen: one is made for every await
class Call(Generic[A]):
    """One query to a step: `answer = await step(query, ...)`. key: hashable; query: any object."""

    step: Step[Any, Any, Any, A]
    key: tuple[Any, ...]
    query: Any

    def __await__(self) -> Generator[Call[A], Any, A]:
        return (yield self)


def batched(
    kind: Kind[R], *, tile: Tile[R] = None, name: str | None = None, meter: Meter | None = None
) -> Callable[[Function[R, Q, P, A]], Step[R, Q, P, A]]:
    """Turn a function `(resource, queries, ...) -> answers` into a `Step`.

    The function returns one item per query, in order: an answer, a `Metered`, or a GpuRagError VALUE for a query that
    failed alone. An exception that it raises fails every call of the batch, except ModelError, Cancelled and
    KeyboardInterrupt, which stop the run. Answers must not depend on which queries share a batch. A function that
    meters must be typed `-> Sequence[A | Metered[A]]`: type checkers cannot find A in `Metered[A]` alone. tile: limits
    the queries per call of the function, not the driver's batch; a number, or a function of the resource. name: in
    statistics, else the function's. meter: adds the costs to an answer, also to one of a slow service.
    """

    def made(function: Function[R, Q, P, A]) -> Step[R, Q, P, A]:
        return Step(function, kind, tile, name, meter)

    return made
