"""A stage of an index: a name, the stages it reads, the settings and models it depends on, and one function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from gpu_rag.errors import UsageError
from gpu_rag.index.work import Sources, Work
from gpu_rag.settings import Settings
from gpu_rag.settings.check import Declared

if TYPE_CHECKING:
    from gpu_rag.models.set import ModelSet

P = ParamSpec("P")
Run = Callable[[Work], dict[str, int]]
Params = Callable[[Settings, Sources], dict[str, Any]]
Roles = Callable[[Settings], tuple[str, ...]]
Settled = Callable[[Settings, "ModelSet"], Settings]


def the_embedder(settings: Settings) -> tuple[str, ...]:
    """Roles of a stage that embeds."""
    return ("embedder",)


@dataclass(frozen=True)
class Pairs:
    """Pairs of vectors that a stage compares. name: what their number grows with, in words; number(settings, sizes):
    their number, from the sizes of the index, which include each count of a stage; are_all(sizes): whether `near_pairs`
    compares all pairs, which is faster than `nearest`."""

    name: str
    number: Callable[[Settings, Mapping[str, float]], float]
    are_all: Callable[[Mapping[str, float]], bool] = lambda sizes: False


@dataclass(frozen=True)
class Stage:
    """One stage of an index. The decorator `stage` makes it from the function below it; its arguments are the other
    fields.

    >>> @stage("lengths", needs=("passages",), params=lambda settings, sources: {"block": settings.index.block})
    ... def lengths_stage(work):
    ...     return {}
    >>> lengths_stage.name, lengths_stage.version
    ('lengths', 1)

    run(work): writes files into work.out and returns counts. needs: the stages that it reads; corpus_needs: further
    ones if there is a corpus. version: raised only when the output changes for equal input. retry: counts that, if not
    0, make the next run repeat the stage. params(settings, sources): everything that the output depends on outside the
    needed stages and the models. roles(settings): the models used, "embedder" or "llm". settled(settings, models): the
    settings with `auto` replaced, if that depends on the models. by_capability(settings): whether the LLM makes the
    stage only if it is capable, and rules do otherwise. size: the size that its cost grows with, for a plan:
    characters, passages, extracted (passages that are extracted from), entities, relations, mentions, links, triples,
    nodes, ...; pairs: vectors that it also compares; planned: whether a plan can predict it. graph: whether it makes a
    graph, or facts of one. texts: texts of a stage of vectors, the function that gives their texts from the
    folders of the needed stages.
    """

    name: str
    run: Run
    needs: tuple[str, ...] = ()
    corpus_needs: tuple[str, ...] = ()
    version: int = 1
    retry: tuple[str, ...] = ()
    params: Params = lambda settings, sources: {}
    roles: Roles = lambda settings: ()
    settled: Settled = lambda settings, models: settings
    by_capability: Callable[[Settings], bool] = lambda settings: False
    size: str = "passages"
    pairs: Pairs | None = None
    planned: bool = True
    graph: bool = False
    texts: Callable[..., Sequence[str]] | None = None

    def needs_of(self, sources: Sources) -> tuple[str, ...]:
        """Stages that it reads in a build of these sources."""
        return (*self.needs, *(self.corpus_needs if sources.corpus else ()))


def _above(make: Callable[Concatenate[str, Run, P], Stage]) -> Callable[Concatenate[str, P], Callable[[Run], Stage]]:
    def with_fields(name: str, *args: P.args, **fields: P.kwargs) -> Callable[[Run], Stage]:
        return lambda run: make(name, run, *args, **fields)

    return with_fields


stage = _above(Stage)


def settle(stages: Sequence[Stage], settings: Settings, models: ModelSet) -> Settings:
    """Settings with every `auto` of these stages replaced, so that fingerprints and the manifest hold what ran."""
    for stage in stages:
        settings = stage.settled(settings, models)
    return settings


def where_capable(cls: type[Declared], section: str, name: str, rule: str) -> Settled:
    """A function that replaces `auto` of a setting by llm if a capable language model is there, else by `rule`.

    cls: the class that declares the section."""

    def settled(settings: Settings, models: ModelSet) -> Settings:
        if getattr(settings.section(cls), name) != "auto":
            return settings
        return settings.changed(section, **{name: "llm" if models.is_capable() else rule})

    return settled


def ordered(stages: Iterable[Stage]) -> list[Stage]:
    """Stages, each after those that it needs; otherwise in the given order. Raises UsageError if that is impossible.

    O(S^2) for S stages.
    """
    left = list(stages)
    done: dict[str, Stage] = {}
    while left:
        ready = next((stage for stage in left if {*stage.needs, *stage.corpus_needs} <= done.keys()), None)
        if ready is None:
            missing = {*left[0].needs, *left[0].corpus_needs} - done.keys()
            raise UsageError("a stage needs one that is not made before it", given=f"{left[0].name}: {sorted(missing)}")
        left.remove(ready)
        done[ready.name] = ready
    return list(done.values())
