"""What an answer tells of how it was found."""

from __future__ import annotations

from dataclasses import replace

from gpu_rag.types import Answer


def noted(answer: Answer, verb: str) -> list[tuple[str, ...]]:
    """What was chosen at each step of the trace by that name."""
    return [step.chosen for step in answer.trace if step.verb == verb]


def found(answer: Answer, pool: str) -> set[str]:
    """The entities on the paths that were held under that name."""
    return {name for one in answer.pools if one.name == pool for name in one.entities}


def timeless(answer: Answer) -> Answer:
    """The answer without seconds."""
    usage = replace(answer.usage, llm_s=0, graph_s=0, embed_s=0, wall_s=0)
    return replace(answer, usage=usage, trace=tuple(replace(step, s=0) for step in answer.trace))
