"""The registry of methods: every method by name, the stages it needs, and its hooks, loaded on demand.

The methods of this package are the folders beside this file. Other packages add methods by the entry point group
"gpu_rag.methods", whose values are packages with METHODS in their `__init__`, like these folders.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpu_rag.errors import MissingLayer, UsageError
from gpu_rag.methods.method import Hook, Method
from gpu_rag.settings import CORE
from gpu_rag.settings.check import FINDERS, SECTIONS, unknown_name

if TYPE_CHECKING:  # `--help` imports this file, so it should import little
    from gpu_rag.index.index import Index
    from gpu_rag.index.manifest import StageRecord
    from gpu_rag.index.stage import Stage
    from gpu_rag.index.work import Sources

GROUP = "gpu_rag.methods"
ALL = "all"  # instead of a method name: every method
VECTORS = "passage_vectors"
AUTO = "auto"  # instead of a method name: the best method for an index


class Program(Protocol):
    """The names that a method's program module must define. It may define more, see `Method`."""

    Params: type
    retrieve: Any


class Entry(NamedTuple):
    """A method and the package that its hooks are relative to."""

    package: str
    method: Method

    def load(self, hook: Hook) -> Any:
        """The object of a hook; a name is imported here. Raises UsageError if the module lacks the attribute."""
        if not isinstance(hook, str):
            return hook
        name, _, attribute = hook.partition(":")
        module = importlib.import_module(f"{self.package}.{name}")
        if attribute and not hasattr(module, attribute):
            given, expected = f"{hook} of {self.method.name}", f"{attribute} in {module.__name__}"
            raise UsageError("an installed method names a missing part", given=given, expected=expected)
        return getattr(module, attribute) if attribute else module


def _built_in() -> list[str]:
    """The packages of the folders beside this file."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))
    return [f"{__package__}.{name}" for name in folders]


def _declared(package: str) -> list[Entry]:
    """The methods of a package. This registers the sections of their settings, which are imported on use."""
    entries = [Entry(package, method) for method in importlib.import_module(package).METHODS]
    for entry in entries:
        for name, cls in entry.method.settings.items():
            SECTIONS.setdefault(name, partial(entry.load, cls))
    return entries


@cache
def _installed() -> dict[str, Entry]:
    """{name: entry} in list order. Raises UsageError for an entry point that is not a package of methods."""
    entries = [entry for package in _built_in() for entry in _declared(package)]
    for point in {point.value: point for point in entry_points(group=GROUP)}.values():
        try:
            entries += _declared(point.value)
        except (ImportError, AttributeError) as error:
            raise UsageError(
                "an installed method cannot be loaded",
                given=f"{point.value}, by the entry point {point.name}: {error}",
                expected="a package with METHODS = (Method(...), ...)",
                do="install it again, or remove it",
            ) from error
    by_name: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.method.order):
        if entry.method.name in by_name:
            raise UsageError("two methods have one name", given=entry.method.name, expected="a name of its own")
        by_name[entry.method.name] = entry
    for field, reserved in (("settings", CORE), ("commands", ()), ("profiles", ()), ("tune", ())):
        names = [*reserved, *(name for entry in by_name.values() for name in getattr(entry.method, field))]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"two methods bring {field} of one name", given=twice[0], expected="a name of its own")
    while lacking := [name for name, entry in by_name.items() if not by_name.keys() >= {*entry.method.uses}]:
        for name in lacking:
            del by_name[name]
    return by_name


def hooks(field: str) -> list[Any]:
    """The objects of one hook, of all methods that have it, in order."""
    given = ((entry, getattr(entry.method, field)) for entry in _installed().values())
    return [entry.load(hook) for entry, hook in given if hook is not None]


def named_hooks(field: str) -> dict[str, Callable[[], Any]]:
    """{name: function that loads the hook} for a field that maps names to hooks, such as `commands`."""
    entries = _installed().values()
    return {name: partial(entry.load, hook) for entry in entries for name, hook in getattr(entry.method, field).items()}


def joined_hooks(field: str) -> dict[str, Any]:
    """One mapping that joins the mappings of all methods for a hook such as `verify`."""
    return {name: value for mapping in hooks(field) for name, value in mapping.items()}


def profiles() -> dict[str, Path]:
    """{name: file} of the profiles that methods bring."""
    return {
        name: Path(str(importlib.import_module(entry.package).__file__)).parent / file
        for entry in _installed().values()
        for name, file in entry.method.profiles.items()
    }


def marked(field: str) -> list[str]:
    """The methods where a field such as `compared` is set, in order."""
    return [name for name, entry in _installed().items() if getattr(entry.method, field)]


def made_for(kind: str) -> list[str]:
    """The methods made for a kind of knowledge base, kg or skb."""
    return [name for name, entry in _installed().items() if entry.method.made_for == kind]


def method_names() -> list[str]:
    """All methods, in the order of the registry."""
    return list(_installed())


def _entry(name: str) -> Entry:
    """The entry of a method. Raises UsageError listing the methods that exist."""
    if name not in _installed():
        raise unknown_name("method", name, method_names())
    return _installed()[name]


def method_of(name: str) -> Method:
    """A method by name. Raises UsageError listing the methods that exist."""
    return _entry(name).method


def needs(name: str) -> tuple[str, ...]:
    """The stages that a method reads. Raises UsageError for an unknown name."""
    return method_of(name).needs


def load_method(name: str) -> Program:
    """The program module of a method. Raises UsageError listing the methods that exist."""
    entry = _entry(name)
    module: Any = importlib.import_module(f"{entry.package}.{entry.method.program}")
    return module


@cache
def all_stages() -> dict[str, Stage]:
    """Every stage by name, in an order in which they can be built."""
    from gpu_rag.index.stage import ordered
    from gpu_rag.index.stages.knowledge_base.texts import kb_stages
    from gpu_rag.index.stages.text import text_stages

    stages = [*text_stages(), *(stage for stages in hooks("stages") for stage in stages()), *kb_stages()]
    return {stage.name: stage for stage in ordered(stages)}


def stage_checks() -> dict[str, Any]:
    """{stage: check} of `verify`, for stages that belong to one method."""
    return joined_hooks("verify")


def stage_narrowers() -> dict[str, Any]:
    """{stage: its masks under a filter, see `index.narrow.Narrow`}, of knowledge bases and of methods."""
    from gpu_rag.index.stages.knowledge_base.narrow import NARROW

    return NARROW | joined_hooks("narrow")


def uses_graph(method: str) -> bool:
    """Whether a stage that the method reads is a graph."""
    return any(all_stages()[need].graph for need in needs(method))


def methods_over(corpus: bool) -> list[str]:
    """All methods; without a corpus only those over a knowledge base."""
    return [name for name in method_names() if corpus or "kb" in needs(name)]


def stages_for(methods: Iterable[str], sources: Sources | None = None, kept: Iterable[str] = ()) -> list[Stage]:
    """The stages that the methods need and their dependencies, in building order.

    kept: stages of an earlier build, which are brought up to date too if these sources can make them.

    methods: names; "all" means every method if there is a corpus, else every method over a knowledge base. sources: the
    inputs of the build; with named sources the knowledge base is always built. None counts as a corpus, so stages that
    read a corpus only if there is one read it too.
    """
    from gpu_rag.index.work import Sources

    sources = Sources(corpus=(Path(),)) if sources is None else sources
    names = [name for given in methods for name in (methods_over(bool(sources.corpus)) if given == ALL else [given])]
    first = ["passages", *(need for name in names for need in needs(name))]
    first += [*(["kb"] if sources.named else []), *(["kb_web"] if sources.of_kind("web") else [])]
    wanted = _with_needs(first, lambda stage: stage.needs_of(sources))
    for name in all_stages().keys() & kept:
        inputs = _with_needs([name], lambda stage: stage.needs_of(sources))
        wanted |= inputs if sources.impossible.isdisjoint(inputs) else set()
    return [stage for name, stage in all_stages().items() if name in wanted]


def _with_needs(first: Iterable[str], needs_of: Callable[[Stage], Iterable[str]]) -> set[str]:
    """The given stages and all their direct and indirect dependencies."""
    stages: set[str] = set()
    stack = list(first)
    while stack:
        need = stack.pop()
        if need not in stages:
            stages.add(need)
            stack.extend(needs_of(all_stages()[need]))
    return stages


def check_stages(method: str, present: Sequence[str], folder: str, sources: Mapping[str, Any]) -> None:
    """Raise MissingLayer if a stage of the method is missing. The error names usable methods and the command to run.

    Inputs of a present stage are not required: the `kb` of a knowledge base alone has no extraction.
    sources: the sources of the index, as in its manifest.
    """
    missing = lacks(method, present)
    if missing:
        names = ", ".join(name for name in all_stages() if name in missing)
        able = served(present)
        raise MissingLayer(
            f"the index lacks what {method} needs",
            given=f"{folder} without {names}",
            expected=f"a method that it is built for: --method {' | '.join(able)}" if able else None,
            do=f"{'or ' if able else ''}run: {build_line(method, folder, sources)} "
            "(corpus, --kg, --skb, --source, --openie and settings as before)",
        )


def build_line(method: str, folder: str, sources: Mapping[str, Any]) -> str:
    """The command that builds the stages of a method into the index `folder`. sources: as in the manifest.

    >>> build_line("hydrarag", "ix", {"corpus": [], "openie": [], "named": [["facts", "kg", "facts.tsv"]]})
    'gpu-rag index --kg FILE --out ix --for hydrarag'
    """
    kinds = [kind for _, kind, _ in sources.get("named", ())]
    given = ["CORPUS"] if len(sources.get("corpus", ())) > kinds.count("documents") or not kinds else []
    given += [words for kind, words in (("kg", "--kg FILE"), ("skb", "--skb DIR")) if kind in kinds]
    given += [f"--source NAME={kind}:PATH" for kind in ("documents", "web") if kind in kinds]
    return f"gpu-rag index {' '.join(given)} --out {folder} --for {method}"


def served(present: Sequence[str]) -> list[str]:
    """The methods that lack none of their stages."""
    return [name for name in method_names() if not lacks(name, present)]


def lacks(method: str, present: Sequence[str]) -> set[str]:
    """The stages that a method needs and that are missing, with their own missing inputs."""

    def absent(names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in present]

    return _with_needs(absent(["passages", *needs(method)]), lambda stage: absent(stage.needs))


def check_passages(method: str, n_passages: int, stages: Collection[str], folder: str) -> None:
    """Raise MissingLayer for a method that ranks passages if there are none. This is the case for a knowledge base
    without documents, unless the method can rank nodes by their texts (stage `kb_text_vectors`) and these exist."""
    standins = "kb_text_vectors" in stages and method_of(method).standins
    if not n_passages and "kb" not in needs(method) and not standins:
        usable = [name for name in method_names() if "kb" in needs(name)]
        raise MissingLayer(
            f"the index has no passages, which {method} ranks",
            given=f"{folder}, a knowledge base without documents",
            expected=f"a corpus too, or --method {' | '.join(usable)}",
        )


def best_method(index: Index) -> str:
    """The best method that an index was built for, by `Method.auto`. Without a corpus, methods over a knowledge base
    come first. If at least half of the documents are not English, methods over a graph that patterns extracted come
    last, and so do methods over vectors of MiniLM: word search found more in seven of eight languages.

    Raises MissingLayer, with the command to run, if the index was built for none.
    """
    methods = [entry.method for entry in _installed().values() if entry.method.auto]
    over_corpus = bool(index.manifest.sources.get("corpus"))
    lacking: list[MissingLayer] = []
    few_facts, poor_vectors = _unfit_for_language(index.manifest.stages)

    def place(method: Method) -> tuple[bool, bool, bool, int]:
        lacks_facts = few_facts and uses_graph(method.name)
        lacks_vectors = poor_vectors and VECTORS in needs(method.name)
        return over_corpus == bool(method.made_for), lacks_facts, lacks_vectors, -method.auto

    for method in sorted(methods, key=place):
        try:
            check_stages(method.name, index.stages, str(index.path), index.manifest.sources)
            check_passages(method.name, index.n_passages, index.stages, str(index.path))
            return method.name
        except MissingLayer as error:
            lacking.append(error)
    raise lacking[0] if lacking else UsageError("no method is installed", do="install gpu-rag again")


def _unfit_for_language(stages: Mapping[str, StageRecord]) -> tuple[bool, bool]:
    """Whether (facts, vectors) come from English tools, patterns and MiniLM, although at least half of the documents
    are in other languages."""
    counts = stages["passages"].counts if "passages" in stages else {"documents": 0}
    n_others = sum(n for name, n in counts.items() if name.startswith("language_"))
    are_others = 2 * n_others >= counts["documents"] > 0
    extractor = stages["extraction"].params["extractor"] if "extraction" in stages else ""
    embedder = stages[VECTORS].models["embedder"]["name"] if VECTORS in stages else ""
    return are_others and extractor == "patterns", are_others and embedder == "minilm"


def _default() -> str:
    """The default method, "" if there is none. Only this package is searched, since another package may fail to
    load."""
    methods = [entry.method for package in _built_in() for entry in _declared(package)]
    return next((method.name for method in sorted(methods, key=lambda m: (not m.default, m.order))), "")


FINDERS.append(_installed)
DEFAULT = _default()  # also registers these methods' settings sections, which a profile may name
