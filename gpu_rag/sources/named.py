"""Sources of a knowledge base from the command line: --kg, --skb and --source NAME=KIND:PATH."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.work import NamedSource
from gpu_rag.sources.formats import refuse_leading_out
from gpu_rag.sources.knowledge_base import skb_files
from gpu_rag.sources.knowledge_graph import read_kg_blocks
from gpu_rag.sources.knowledge_graph.rdf import RDF_SUFFIXES

RESERVED = ("extraction", "documents")
_FORM = "NAME=kg:PATH, NAME=documents:PATH or NAME=web:PATH, no comma in the name"
_ENDINGS = (*RDF_SUFFIXES, ".gz", ".tsv", ".parquet", ".jsonl", ".json")


def named_source(text: str) -> NamedSource:
    """Parse NAME=KIND:PATH. kg with a folder is a semi-structured knowledge base (kind skb). Raises UsageError."""
    name, equals, rest = text.partition("=")
    kind, colon, path = rest.partition(":")
    named = bool(name.strip()) and not set(name) & set(",\n")  # settings list names separated by commas
    if not (equals and colon and named and path) or kind not in ("kg", "documents", "web"):
        raise UsageError("--source cannot be read", given=text, expected=_FORM)
    if kind == "kg" and Path(path).is_dir():
        kind = "skb"
    return NamedSource(name.strip(), kind, Path(path))


def all_sources(
    kg: Sequence[Path] = (), skb: Sequence[Path] = (), named: Sequence[NamedSource] = ()
) -> tuple[NamedSource, ...]:
    """Named sources, and others under the names of their files, sorted by name, so that their order on the command line
    does not matter.

    Raises BadInput for two sources with one name, a reserved name, and a missing path.
    """
    given = [NamedSource(_stem(path), "kg", path) for path in kg]
    given += [NamedSource(path.resolve().name, "skb", path) for path in skb]
    sources = tuple(sorted((*given, *named), key=lambda source: source.name))
    names = [source.name for source in sources]
    taken = next((name for name in names if names.count(name) > 1 or name in RESERVED), None)
    if taken is not None:
        raise BadInput(
            "the name of a source is taken",
            given=taken,
            expected=f"a name of its own for each source, none of them {' or '.join(RESERVED)}",
            do="name it: --source NAME=kg:PATH",
        )
    for source in sources:
        _check(source)
    return sources


def _check(source: NamedSource) -> None:
    """Raise BadInput for a source that cannot be read at all: before a build, not in the middle of it."""
    if source.kind == "kg":
        read_kg_blocks(source.path)
    elif source.kind == "skb":
        skb_files(source.path)
        refuse_leading_out(source.path.iterdir(), source.path)
    elif not source.path.exists():
        raise BadInput(f"the source {source.name} does not exist", given=source.path, expected=f"{source.kind} to read")


def _stem(path: Path) -> str:
    """Name of a file without its endings."""
    name = path.name
    while ending := next((e for e in _ENDINGS if name.lower().endswith(e) and len(name) > len(e)), None):
        name = name[: -len(ending)]
    return name
