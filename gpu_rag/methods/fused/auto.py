"""The method that `gpu-rag tune` found best for an index, under the name `auto`."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.errors import UsageError
from gpu_rag.index.index import Index
from gpu_rag.index.tuned import TUNED, tuned
from gpu_rag.settings.check import Declared


@dataclass(frozen=True)
class Params(Declared):
    """None: the method that it stands for has its own."""


def stands_for(index: Index) -> str:
    """The method that answers. Raises UsageError, with the line to run, where none was found yet."""
    name = tuned(index.path).get("auto", {}).get("method")
    if not isinstance(name, str) or name == "auto":
        raise UsageError(
            "auto does not know which method is best here", given=f"{index.path} without {TUNED}",
            expected="an index that was tuned", do=f"run: gpu-rag tune {index.path} QUESTIONS, or name a method",
        )  # fmt: skip
    return name
