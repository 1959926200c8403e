"""The registry: every method by name, what it needs, and the parts of its folder, loaded when they are asked for.

A method is a package with `METHODS` in its `__init__` (see `method.Method`) and, by file name, what it has:
program    or the module that its METHODS name: Params, retrieve, program
stages     `stages()`: the index stages that only it has
settings   its sections of settings, declared with `section`
verify     `CHECKS`: the checks of these stages
narrow     `NARROW`: what makes these stages for a part of the documents, see `index.narrow`
explain    `WORDS`: step name -> words
report     `figures(report)` for the --json of a build, `summary(document)`, `section(document, page)`
relations  `stated(index)`: (subject, label, object, passages) of relations that only the method has
Other packages add methods by the entry point group "gpu_rag.methods", whose values are such packages.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from gpu_rag.errors import MissingLayer, UsageError
from gpu_rag.index.stage import Stage, ordered
from gpu_rag.index.work import Sources
from gpu_rag.methods.method import Method
from gpu_rag.settings.check import SECTIONS, unknown_name

FOLDERS = ("dense", "bm25", "hybrid", "ppr", "hoprag", "bubblerag", "higra", "fused", "hybgrag", "hydrarag")
BUILT_IN = tuple(f"gpu_rag.methods.{name}" for name in FOLDERS)
GROUP = "gpu_rag.methods"
ALL = "all"  # in place of a method: every one


class Program(Protocol):
    """What the program module of a method defines; it may define more, see `Method`."""

    Params: type
    retrieve: Any
    program: Any


@cache
def _packages() -> dict[str, str]:
    """{package: who brings it}, the built-in ones first. Raises UsageError for an entry point that is none."""
    found = dict.fromkeys(BUILT_IN, "gpu-rag")
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.value, f"the entry point {entry.name}")
    return found


@cache
def _found() -> dict[str, tuple[str, Method]]:
    """{name: (package, method)}."""
    found: dict[str, tuple[str, Method]] = {}
    for package, whose in _packages().items():
        try:
            methods = _declare(package)
        except (ImportError, AttributeError) as error:
            raise UsageError(
                "an installed method cannot be loaded",
                given=f"{package}, by {whose}: {error}",
                expected="a package with METHODS = (Method(...), ...)",
                do="install it again, or remove it",
            ) from error
        for method in methods:
            if method.name in found:
                raise UsageError("two methods have one name", given=method.name, expected="a name of its own")
            found[method.name] = (package, method)
    return found


def method_names() -> list[str]:
    """All methods, in the order of the registry."""
    return list(_found())


def _entry(name: str) -> tuple[str, Method]:
    """(package, method). Raises UsageError listing the methods that exist."""
    if name not in _found():
        raise unknown_name("method", name, method_names())
    return _found()[name]


def needs(name: str) -> tuple[str, ...]:
    """The stages that a method reads. Raises UsageError for an unknown name."""
    return _entry(name)[1].needs


def load_method(name: str) -> Program:
    """The program module of a method. Raises UsageError listing the methods that exist."""
    package, method = _entry(name)
    module: Any = importlib.import_module(f"{package}.{method.program}")
    return module


@cache
def parts(file: str) -> list[Any]:
    """The modules of this name (see the head of this file) of all methods that have one, in order."""
    names = [f"{package}.{file}" for package in _packages()]
    return [importlib.import_module(name) for name in names if importlib.util.find_spec(name) is not None]


def part(folder: str, file: str) -> Any:
    """The module of this name in one method's folder."""
    return importlib.import_module(f"gpu_rag.methods.{folder}.{file}")


@cache
def all_stages() -> dict[str, Stage]:
    """Every stage by name, in an order in which they can be built."""
    from gpu_rag.index.stages.knowledge_base.texts import kb_stages
    from gpu_rag.index.stages.text import text_stages

    stages = [*text_stages(), *(stage for part in parts("stages") for stage in part.stages()), *kb_stages()]
    return {stage.name: stage for stage in ordered(stages)}


def stage_checks() -> dict[str, Any]:
    """The checks for `verify` of the stages that one method alone has, by stage."""
    return {name: check for part in parts("verify") for name, check in part.CHECKS.items()}


def stage_narrowers() -> dict[str, Any]:
    """What narrows the stages of knowledge bases and those that one method alone has, by stage."""
    from gpu_rag.index.stages.knowledge_base.narrow import NARROW

    return NARROW | {name: narrow for part in parts("narrow") for name, narrow in part.NARROW.items()}


def inexact_ops(method: str) -> list[str]:
    """The families of graph ops that a method runs and whose implementations are not equal bit by bit.

    PageRank of the whole graph and of blocks (HiGraAgent's; the only one among `ops`) is within its tolerance by each,
    and scores of torch and faiss may differ in the last bit. Told by the stages that the ops work on.
    """
    families = {"graph": "pagerank", "higra_graph": "ops", "passage_vectors": "neighbours"}
    return [family for stage, family in families.items() if stage in needs(method)]


def methods_over(corpus: bool) -> list[str]:
    """Every method; without a corpus those over a knowledge base."""
    return [name for name in method_names() if corpus or "kb" in needs(name)]


def stages_for(methods: Iterable[str], sources: Sources | None = None) -> list[Stage]:
    """The stages that the methods need, with all that those need, in building order.

    methods: names; "all" stands for every method over a corpus, else for those over a knowledge base. sources: what
    is to be built from; with named ones the knowledge base is built whatever the methods. Without sources stages that
    read the corpus too, where there is one, do.
    """
    sources = Sources(corpus=(Path(),)) if sources is None else sources
    names = [name for given in methods for name in (methods_over(bool(sources.corpus)) if given == ALL else [given])]
    first = ["passages", *(need for name in names for need in needs(name))]
    first += [*(["kb"] if sources.named else []), *(["kb_web"] if sources.of_kind("web") else [])]
    wanted = _with_needs(first, lambda stage: stage.needs_of(sources))
    return [stage for name, stage in all_stages().items() if name in wanted]


def _with_needs(first: Iterable[str], needs_of: Callable[[Stage], Iterable[str]]) -> set[str]:
    """Stages with all that they need, theirs included."""
    found: set[str] = set()
    stack = list(first)
    while stack:
        need = stack.pop()
        if need not in found:
            found.add(need)
            stack.extend(needs_of(all_stages()[need]))
    return found


def check_stages(method: str, present: Sequence[str], folder: str, sources: Mapping[str, Any]) -> None:
    """Raises MissingLayer, with the methods that can run and the line to run, when a stage of the method is missing.

    What a stage was made of is there when the stage is: `kb` of a knowledge base alone has no extraction.
    sources: what the index was built from, as its manifest has it.
    """
    missing = lacks(method, present)
    if missing:
        names = ", ".join(name for name in all_stages() if name in missing)
        able = [name for name in method_names() if not lacks(name, present)]
        raise MissingLayer(
            f"the index lacks what {method} needs",
            given=f"{folder} without {names}",
            expected=f"a method that it is built for: --method {' | '.join(able)}" if able else None,
            do=f"{'or ' if able else ''}run: {build_line(method, folder, sources)} "
            "(corpus, --kg, --skb, --source, --openie and settings as before)",
        )


def build_line(method: str, folder: str, sources: Mapping[str, Any]) -> str:
    """The command that builds what a method needs into the index `folder`, of sources as its manifest has them.

    >>> build_line("hydrarag", "ix", {"corpus": [], "openie": [], "named": [["facts", "kg", "facts.tsv"]]})
    'gpu-rag index --kg FILE --out ix --for hydrarag'
    """
    kinds = [kind for _, kind, _ in sources.get("named", ())]
    given = ["CORPUS"] if len(sources.get("corpus", ())) > kinds.count("documents") or not kinds else []
    given += [words for kind, words in (("kg", "--kg FILE"), ("skb", "--skb DIR")) if kind in kinds]
    given += [f"--source NAME={kind}:PATH" for kind in ("documents", "web") if kind in kinds]
    return f"gpu-rag index {' '.join(given)} --out {folder} --for {method}"


def lacks(method: str, present: Sequence[str]) -> set[str]:
    """The stages that a method needs and that are not there, with what is missing under these."""

    def absent(names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in present]

    return _with_needs(absent(["passages", *needs(method)]), lambda stage: absent(stage.needs))


def check_passages(method: str, n_passages: int, stages: Collection[str], folder: str) -> None:
    """Raises MissingLayer for a method that ranks passages where there are none: a knowledge base without documents,
    and without the texts (stage `kb_text_vectors`) by which some rank nodes in their place."""
    standins = "kb_text_vectors" in stages and _entry(method)[1].standins
    if not n_passages and "kb" not in needs(method) and not standins:
        over = [name for name in method_names() if "kb" in needs(name)]
        raise MissingLayer(
            f"the index has no passages, which {method} ranks",
            given=f"{folder}, a knowledge base without documents",
            expected=f"a corpus beside it, or --method {' | '.join(over)}",
        )


def _declare(package: str) -> tuple[Method, ...]:
    """The methods of a package; the sections of their settings become known, and are imported when they are wanted."""
    methods: tuple[Method, ...] = importlib.import_module(package).METHODS
    for name in (name for method in methods for name in method.sections):
        SECTIONS.setdefault(name, f"{package}.settings")
    return methods


for _package in BUILT_IN:  # a profile may name these sections before any method is asked for
    _declare(_package)
