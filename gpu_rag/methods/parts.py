"""Files that a method's folder may have beside its program (`explain`, `report`, ...), found by name when wanted."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

from gpu_rag import methods


@cache
def parts(file: str) -> list[Any]:
    """The modules called `file`, of each method that has one, in the order of the methods' names.

    explain: `WORDS`, step name -> words. report: `figures(report)`, what a method adds to the --json of a build,
    `summary(document)`, lines of text, and `section(document, page)`, a part of the report. relations: `stated(index)`,
    (subject, label, object, passages) of relations that only the method has.
    """
    packages = sorted(found.name for found in pkgutil.iter_modules(methods.__path__) if found.ispkg)
    (root,) = map(Path, methods.__path__)
    return [part(name, file) for name in packages if (root / name / f"{file}.py").is_file()]


def part(method: str, file: str) -> Any:
    """The module `file` of one method's folder."""
    return importlib.import_module(f"gpu_rag.methods.{method}.{file}")
