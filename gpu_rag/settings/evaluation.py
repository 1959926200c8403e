"""Settings of `gpu-rag eval --judge`: the section `[eval]`."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.settings.ranges import NATURAL, Allowed, Range


@dataclass(frozen=True)
class EvalSettings:
    """Who judges answers, and how.

    judge: a model, named as in models.llm; empty: models.llm itself. judge_capable: whether it may judge; empty asks
    the backend. judge_tokens: room for a verdict with its reason. controls: planted right answers, planted wrong ones
    and exact answers, at most so many of each, that the judge itself is checked on.
    """

    judge: str = ""
    judge_capable: bool | None = None
    judge_tokens: int = 160
    controls: int = 20


ALLOWED: dict[str, Allowed] = {"judge_tokens": Range(16), "controls": NATURAL}
