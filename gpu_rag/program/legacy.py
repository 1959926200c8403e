"""Executors of methods that are not yet steps, until each is converted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from gpu_rag.program.kinds import GRAPH, TEXT
from gpu_rag.runtime.step import RANK_GRAPH, RANK_TEXT, Step
from gpu_rag.runtime.step import Call as StepCall

__all__ = ["RANK_GRAPH", "RANK_TEXT", "Call", "Executor"]
FACTORIES = {
    "web_search web_read": "methods.hydrarag.web.web_executors",
    "name_nodes match_mentions question_graph start_paths expand_paths score_paths join_paths chain_paths best_paths "
    "passages_of prune_paths": "methods.hydrarag.batched.path_executors",
    "kb_named kb_near_names kb_mentioned kb_relations kb_shown reach_nodes search_documents kb_walks kb_held": (
        "program.knowledge_base.kb_executors"
    ),
}
TEXTS = ("web_search", "web_read", "name_nodes", "kb_named", "kb_mentioned")


@dataclass(frozen=True)
class Executor:
    """Answers one verb for many questions at once."""

    run: Callable[[tuple[Any, ...], list[Any]], Sequence[Any]]
    service: str
    rank: int
    max_batch: int = 1024


@cache
def _step(verb: str) -> Step[Any, Any, Any, Any]:
    name = next(name for verbs, name in FACTORIES.items() if verb in verbs.split())
    module, _, factory = f"gpu_rag.{name}".rpartition(".")

    def run(index: Any, queries: list[Any], static: tuple[Any, ...]) -> Sequence[Any]:
        make: Any = getattr(import_module(module), factory)
        executors = index.loaded(name, lambda index: make(index) if "web" in factory else make(index, index.threads))
        found: Sequence[Any] = executors[verb].run(static, queries)
        return found

    return Step(run, TEXT if verb in TEXTS else GRAPH, name=verb)


def Call(verb: str, static: tuple[Any, ...], args: Any) -> StepCall[Any]:
    """The call of a verb."""
    return _step(verb)(args, static)
