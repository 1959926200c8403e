"""All steps of the product: statistics know them by name, so that each name is one step."""

from __future__ import annotations

import importlib
import pkgutil

import gpu_rag.methods
import gpu_rag.program
from gpu_rag.runtime import Kind, Step, batched
from gpu_rag.runtime.step import SERVICES


def all_steps() -> list[Step]:
    found: dict[int, Step] = {}
    for package in (gpu_rag.program, gpu_rag.methods):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(module.name)).values()
            found.update({id(value): value for value in values if isinstance(value, Step)})
    return list(found.values())


def twice(steps: list[Step]) -> list[str]:
    names = [step.name for step in steps]
    return sorted({name for name in names if names.count(name) > 1})


def test_every_step_has_a_name_of_its_own_and_a_docstring() -> None:
    steps = all_steps()
    assert {"llm", "embed", "similarity", "search_dense", "search_bm25", "rank_by_graph"} <= {s.name for s in steps}
    assert twice(steps) == [] and [step.name for step in steps if not step.__doc__] == []
    assert {step.kind.resource for step in steps} == {"index", "models"}
    assert {step.kind.service for step in steps} == {*SERVICES}
    wrong = batched(Kind("index", "graph", 1), name="search_dense")(lambda index, queries: queries)
    assert twice([*steps, wrong]) == ["search_dense"]
