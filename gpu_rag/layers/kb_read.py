"""The sources of a knowledge base as records: what each one says of each thing, before things are linked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from gpu_rag.index.build import NamedSource
from gpu_rag.layers.passages import short_name
from gpu_rag.sources.json_rows import has_suffix
from gpu_rag.sources.kg import NT_SUFFIXES, Triple, read_kg
from gpu_rag.sources.kg_ntriples import RDF
from gpu_rag.sources.rows import shown
from gpu_rag.sources.skb import read_edges, read_nodes, skb_files
from gpu_rag.sources.skb_types import LITERAL, UNTYPED
from gpu_rag.types import Reject

MOST_ALIASES = 50
_TYPE = RDF + "type"
_LABELS = ("http://www.w3.org/2000/01/rdf-schema#label", "http://www.w3.org/2004/02/skos/core#prefLabel")
_OTHER_LABEL = "http://www.w3.org/2004/02/skos/core#altLabel"
OnReject = Callable[[Reject], None]


@dataclass
class Record:
    """What one source says of one thing. types: the first is the one that counts, none: untyped."""

    id: str
    name: str
    aliases: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)


@dataclass
class SourceRecords:
    """One source, read. edges: (head, relation, tail) by ids, each once, with provenance; relations: id to name;
    passages: of the edges of the own extraction, the passages that state them; repeated: triples given again."""

    name: str
    kind: str
    files: list[str]
    records: dict[str, Record] = field(default_factory=dict)
    edges: dict[tuple[str, str, str], str] = field(default_factory=dict)
    relations: dict[str, str] = field(default_factory=dict)
    passages: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    repeated: int = 0

    def add_edge(self, key: tuple[str, str, str], provenance: str) -> None:
        """Takes an edge, or counts it where it was given before."""
        if key in self.edges:
            self.repeated += 1
        else:
            self.edges[key] = provenance


def read_source(source: NamedSource, on_reject: OnReject, max_document_chars: int) -> SourceRecords:
    """Reads a source of kind kg or skb; rows that cannot be used go to on_reject. Raises BadInput, as the readers."""
    if source.kind == "skb":
        return _skb(source, on_reject, max_document_chars)
    found = SourceRecords(source.name, "kg", [source.path.name])
    triples = _kept(read_kg(source.path), on_reject)
    if has_suffix(source.path, NT_SUFFIXES):
        statements = _Rdf(found)
        for triple in triples:
            statements.take(triple)
        statements.finish(source.path.name)
    else:
        for triple in triples:
            for id in (triple.head, triple.tail):
                found.records.setdefault(id, Record(id, " ".join(id.split())))
            _take(found, triple, source.path.name)
    return found


def _kept(rows: Iterable[Triple | Reject], on_reject: OnReject) -> Iterator[Triple]:
    for row in rows:
        if isinstance(row, Reject):
            on_reject(row)
        else:
            yield row


def _take(found: SourceRecords, triple: Triple, file: str) -> None:
    relation = " ".join(triple.relation.split())
    found.relations.setdefault(relation, relation)
    note = f" ({triple.note})" if triple.note else ""
    found.add_edge((triple.head, relation, triple.tail), f"{file}:{triple.line}{note}")


def _skb(source: NamedSource, on_reject: OnReject, max_document_chars: int) -> SourceRecords:
    """Nodes, then edges; an edge of which an end is no node is a Reject."""
    files = skb_files(source.path)
    names = [short_name(shown(path), (source.path,)) for path in dict.fromkeys((files.nodes, files.edges))]
    found = SourceRecords(source.name, "skb", names)
    for node in read_nodes(source.path, max_document_chars=max_document_chars):
        if isinstance(node, Reject):
            on_reject(node)
            continue
        types = [] if node.type == UNTYPED else [node.type]
        aliases = list(dict.fromkeys(node.aliases))[:MOST_ALIASES]
        found.records[node.id] = Record(node.id, " ".join(node.name.split()), aliases, types)
    for triple in _kept(read_edges(source.path), on_reject):
        lost = next((id for id in (triple.head, triple.tail) if id not in found.records), None)
        if lost is None:
            _take(found, triple, names[-1])
        else:
            on_reject(Reject(shown(files.edges), triple.line, f"no node has the id {lost[:100]!r}"))
    return found


# --- RDF -------------------------------------------------------------------------------------------


@dataclass
class _Labels:
    """The labels of one IRI, in the order of the file: plain or English ones, others, and alternatives."""

    plain: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)


class _Rdf:
    """The statements of one file, sorted by what they say.

    Labels become names, the first without a language or in English, and aliases; rdf:type becomes the type. What has no
    label is called by the last part of its IRI; a blank node by its id, which names its source too.
    """

    def __init__(self, found: SourceRecords):
        self._found = found
        self._labels: dict[str, _Labels] = {}
        self._types: list[tuple[str, str]] = []
        self._kept: list[Triple] = []

    def take(self, triple: Triple) -> None:
        """Sorts one statement in: names may come behind what they name, so nothing is named yet."""
        value = triple.literal
        if value is not None and value.text.strip() and triple.relation in (*_LABELS, _OTHER_LABEL):
            _note(self._labels.setdefault(triple.head, _Labels()), triple.relation, value.text, value.language)
        elif triple.relation == _TYPE and value is None:
            self._types.append((triple.head, triple.tail))
        else:
            self._kept.append(triple)

    def finish(self, file: str) -> None:
        """Makes the records and edges."""
        for triple in self._kept:
            self._edge(triple, file)
        for subject, type in self._types:
            types = self._record(subject).types
            if (name := _names(type, self._labels.get(type))[0]) not in types:
                types.append(name)
        for id in self._labels.keys() - self._found.relations.keys() - {type for _, type in self._types}:
            self._record(id)

    def _edge(self, triple: Triple, file: str) -> None:
        head, relation, tail = self._record(triple.head).id, triple.relation, triple.tail
        if triple.literal is None:
            tail = self._record(tail).id
        else:
            text = " ".join(triple.literal.text.split())
            self._found.records.setdefault(tail, Record(tail, text or tail, types=[LITERAL]))
        self._found.relations.setdefault(relation, _names(relation, self._labels.get(relation))[0])
        self._found.add_edge((head, relation, tail), f"{file}:{triple.line}")

    def _record(self, id: str) -> Record:
        is_blank = id.startswith("_:")
        key = f"{id}@{self._found.name}" if is_blank else id
        if key not in self._found.records:
            names = [key] if is_blank and id not in self._labels else _names(id, self._labels.get(id))
            self._found.records[key] = Record(key, names[0], names[1:])
        return self._found.records[key]


def _note(labels: _Labels, relation: str, text: str, language: str) -> None:
    text = " ".join(text.split())
    if relation == _OTHER_LABEL:
        labels.other.append(text)
    elif not language or language == "en" or language.startswith("en-"):
        labels.plain.append(text)
    else:
        labels.foreign.append(text)


def _names(iri: str, labels: _Labels | None) -> list[str]:
    """Name and aliases of an IRI."""
    found = [*labels.plain, *labels.foreign, *labels.other] if labels else []
    if not labels or not (labels.plain or labels.foreign):
        found.insert(0, local_name(iri))
    return list(dict.fromkeys(found))[: MOST_ALIASES + 1]


def local_name(iri: str) -> str:
    """The part of an IRI behind the last "/", "#" or ":", decoded; the IRI itself where that is empty.

    >>> local_name("http://dbpedia.org/resource/Marie_Curie")
    'Marie_Curie'
    """
    last = iri.rstrip("/#")
    last = last[max(last.rfind("/"), last.rfind("#"), last.rfind(":")) + 1 :]
    return " ".join(unquote(last).replace("\x00", "").split()) or iri
