"""RDF as records and edges: labels become names, rdf:type becomes the type, everything else edges."""

from __future__ import annotations

from json import loads
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.stages.knowledge_base.columns import (
    EdgeColumns,
    Interner,
    SourceColumns,
    ascending,
    first_of,
    joined,
    lists_of,
    replaced,
    rest_of,
    single_spaced,
    two_halves,
)
from gpu_rag.sources.knowledge_base.nodes import LITERAL
from gpu_rag.sources.knowledge_graph.blocks import Block
from gpu_rag.sources.knowledge_graph.rdf import RDF

MAX_NAMES = 51  # a name and 50 aliases
_TYPE = RDF + "type"
_LABELS = ("http://www.w3.org/2000/01/rdf-schema#label", "http://www.w3.org/2004/02/skos/core#prefLabel")
_OTHER_LABEL = "http://www.w3.org/2004/02/skos/core#altLabel"
_DEFAULT, _PLAIN, _FOREIGN, _OTHER = range(4)  # precedence of names of an IRI
# Dumps of Wikidata: the name of a property belongs to its entity, and "instance of" is a type too. Statements about
# pages, and texts in other languages than English, are left out.
_WIKIDATA = r"^https?://www\.wikidata\.org/"
_PROPERTY = r"^https?://www\.wikidata\.org/prop/(?:[a-z-]+/)*(P[0-9]+)$"
_ENTITY = r"http://www.wikidata.org/entity/\1"
_INSTANCE_OF = r"^https?://www\.wikidata\.org/prop/direct/P31$"
_OF_PAGES = r"^https?://(?:schema\.org/|wikiba\.se/ontology#)"
_FOREIGN_TEXT = r"@(?:[a-df-z]|e[a-mo-z]|en-)[^\"]*$"
# Literals are in canonical N-Triples: a quote, the text with escapes as in JSON, a quote, a language or datatype
# mark.
_PARTS = r'(?s)^"(?P<text>.*)"(?P<mark>[^"]*)$'
_MAY_BE_BLANK = r'^"(?:[\pZ\pC]|\\[tnrf]|\\u00[0-9A-F]{2})*"'
_LOCAL = r"(?P<name>[^/#:]+)[/#]*$"


class RdfStatements:
    """Statements of one file, separated into names, types and edges.

    Labels become names (first those without a language or in English) and aliases; rdf:type becomes the type. A node
    without a label is named by the last part of its IRI; a blank node by its id, which includes its source. A name may
    come after its node, so nothing is named before `finish`. Memory: 20 bytes an edge, some 16 and its text a label.
    """

    def __init__(self) -> None:
        self._ids, self._edges = Interner(), EdgeColumns()
        self._ends: list[int] = []  # columns of the interner: heads, then tails
        self._labelled: list[int] = []
        self._typed: list[int] = []  # subjects, then types
        self._texts: list[pa.LargeStringArray] = []
        self._ranks: list[np.ndarray] = []

    def take(self, block: Block) -> None:
        """Add the statements of one block."""
        block = _without_pages(block)
        literal = np.asarray(pc.starts_with(block["tail"], '"'))
        label = literal & np.asarray(pc.is_in(block["relation"], pa.array([*_LABELS, _OTHER_LABEL], pa.large_string())))
        label[label] = ~_blank(block["tail"].filter(label))
        typed = ~literal & np.asarray(pc.equal(block["relation"], _TYPE))
        chosen = block.take(np.flatnonzero(~label & ~typed))
        typed |= ~literal & np.asarray(pc.match_substring_regex(block["relation"], _INSTANCE_OF))
        self._ends.append(self._ids.add(pa.concat_arrays([chosen["head"], chosen["tail"]])))
        self._edges.add(chosen.line, chosen["relation"], chosen["note"])
        if typed.any():
            self._typed.append(
                self._ids.add(pa.concat_arrays([block["head"].filter(typed), block["tail"].filter(typed)]))
            )
        if label.any():
            text, mark = literal_parts(block["tail"].filter(label))
            self._labelled.append(self._ids.add(block["head"].filter(label)))
            self._texts.append(single_spaced(text))
            self._ranks.append(_rank(block["relation"].filter(label), mark))

    def finish(self, source: str, file: str) -> SourceColumns:
        """Make the records and edges."""
        relations, relation_codes = self._edges.relations.finish()
        own, meant = self._ids.add(relations), self._ids.add(pc.replace_substring_regex(relations, _PROPERTY, _ENTITY))
        strings, codes = self._ids.finish()
        n = len(strings)
        head, tail = two_halves([codes[number] for number in self._ends])
        subject, type = two_halves([codes[number] for number in self._typed])
        labelled = joined([codes[number] for number in self._labelled])
        is_node, aside = np.zeros(n, bool), np.zeros(n, bool)
        is_node[head] = is_node[tail] = is_node[subject] = True
        shown_by = np.where(np.isin(codes[meant], labelled), codes[meant], codes[own])
        aside[codes[own]] = aside[shown_by] = aside[type] = True
        is_node[labelled[~aside[labelled]]] = True
        named = self._named(strings, labelled, source)
        nodes = np.flatnonzero(is_node)
        ids, rank = ascending(_keys(strings, source).take(pa.array(nodes)))
        row = np.full(n, -1, np.int32)
        row[nodes] = rank
        order = np.empty(len(nodes), np.int64)
        order[rank] = nodes
        names = first_of(named).take(pa.array(order))
        literal = np.asarray(pc.starts_with(ids, '"'))
        called = _type_names(strings.take(pa.array(type)), first_of(named), type, ~np.isin(type, labelled))
        types = _types(row[subject], called, literal)
        shown = list(zip(relations.to_pylist(), first_of(named).take(pa.array(shown_by)).to_pylist()))
        relation = np.arange(len(relations), dtype=np.int32)
        edges = self._edges.edges(row[head], row[tail], relation, relation_codes)
        aliases = rest_of(named).take(pa.array(order))
        return SourceColumns(source, "kg", [file], ids, names, aliases, types, edges, shown, file)

    def _named(self, strings: pa.LargeStringArray, labelled: np.ndarray, source: str) -> pa.LargeListArray:
        """Distinct names of each id, at most 51; the first one counts."""
        rank = np.concatenate([np.zeros(0, np.int8), *self._ranks])
        has_name = np.zeros(len(strings), bool)
        has_name[labelled[rank < _OTHER]] = True
        has_label = np.zeros(len(strings), bool)
        has_label[labelled] = True
        lacking = np.flatnonzero(~has_name)
        default = default_names(strings.take(pa.array(lacking)), has_label[lacking], source)
        row = np.concatenate([lacking, labelled])
        ranks = np.concatenate([np.full(len(lacking), _DEFAULT, np.int8), rank])
        texts = pa.concat_arrays([default, *self._texts])
        order = np.argsort(row * 4 + ranks, kind="stable")
        return lists_of(row[order], texts.take(pa.array(order)), len(strings), MAX_NAMES)


def _without_pages(block: Block) -> Block:
    """Statements, without statements about Wikidata pages and without foreign-language texts of Wikidata."""
    stays = np.asarray(pc.match_substring_regex(block["head"], _WIKIDATA))
    if not stays.any():
        return block
    stays &= np.asarray(
        pc.or_(
            pc.match_substring_regex(block["relation"], _OF_PAGES),
            pc.match_substring_regex(block["tail"], _FOREIGN_TEXT),
        )
    )
    return block.take(np.flatnonzero(~stays))


def _type_names(
    ids: pa.LargeStringArray, names: pa.LargeStringArray, row: np.ndarray, unlabelled: np.ndarray
) -> pa.LargeStringArray:
    """Names of types: like names of nodes, but a blank node without a label gets its id in the file."""
    rows = np.flatnonzero(unlabelled & np.asarray(pc.starts_with(ids, "_:")))
    return replaced(names.take(pa.array(row)), rows, [local_name(id) for id in ids.take(pa.array(rows)).to_pylist()])


def _types(row: np.ndarray, names: pa.LargeStringArray, literal: np.ndarray) -> pa.LargeListArray:
    """Types of each record: for things in the given order, `LITERAL` for values."""
    values = np.flatnonzero(literal)
    row = np.concatenate([row, values])
    names = pa.concat_arrays([names, pa.array([LITERAL] * len(values), pa.large_string())])
    order = np.argsort(row, kind="stable")
    return lists_of(row[order], names.take(pa.array(order)), len(literal))


def _keys(strings: pa.LargeStringArray, source: str) -> pa.LargeStringArray:
    """Ids of the knowledge base; ids of blank nodes include their source."""
    rows = np.flatnonzero(pc.starts_with(strings, "_:"))
    return replaced(strings, rows, [f"{id}@{source}" for id in strings.take(pa.array(rows)).to_pylist()])


def default_names(strings: pa.LargeStringArray, has_label: np.ndarray, source: str) -> pa.LargeStringArray:
    """Names of ids without a label: the text of a value, the key of a blank node without any label, the last part of an
    IRI."""
    names = pc.struct_field(pc.extract_regex(strings, _LOCAL), "name")
    usual = pc.and_not(names.is_valid(), pc.match_substring(strings, "%")).fill_null(False)
    literal = np.asarray(pc.starts_with(strings, '"'))
    odd = np.flatnonzero(~np.asarray(usual) & ~literal)
    named = replaced(names.fill_null(""), odd, [local_name(id) for id in strings.take(pa.array(odd)).to_pylist()])
    values = np.flatnonzero(literal)
    ids = strings.take(pa.array(values))
    named = replaced(named, values, literal_parts(ids)[0].to_pylist())
    named = single_spaced(named)
    empty = np.flatnonzero(np.asarray(pc.equal(named, "")))
    named = replaced(named, empty, strings.take(pa.array(empty)).to_pylist())
    blank = np.flatnonzero(np.asarray(pc.starts_with(strings, "_:")) & ~has_label)
    return replaced(named, blank, [f"{id}@{source}" for id in strings.take(pa.array(blank)).to_pylist()])


def _rank(relation: pa.LargeStringArray, mark: pa.LargeStringArray) -> np.ndarray:
    other = np.asarray(pc.equal(relation, _OTHER_LABEL))
    plain = pc.match_substring_regex(mark, r"^(?:$|\^\^|@en$|@en-)")
    return np.where(other, _OTHER, np.where(np.asarray(plain), _PLAIN, _FOREIGN)).astype(np.int8)


def literal_parts(literals: pa.LargeStringArray) -> tuple[pa.LargeStringArray, pa.LargeStringArray]:
    """(text, "", "@language" or "^^<datatype>") of literals in N-Triples form."""
    parts = pc.extract_regex(literals, _PARTS)
    text, mark = (pc.struct_field(parts, name) for name in ("text", "mark"))
    rows = np.flatnonzero(pc.match_substring(text, "\\"))
    return replaced(text, rows, [loads(f'"{escaped}"') for escaped in text.take(pa.array(rows)).to_pylist()]), mark


def _blank(literals: pa.LargeStringArray) -> np.ndarray:
    """bool[n]: whether a literal is only white space."""
    is_blank = np.asarray(pc.match_substring_regex(literals, _MAY_BE_BLANK)).copy()
    rows = np.flatnonzero(is_blank)
    texts = literal_parts(literals.take(pa.array(rows)))[0].to_pylist()
    is_blank[rows] = [not text.strip() for text in texts]
    return is_blank


def local_name(iri: str) -> str:
    """Decoded part of an IRI after the last "/", "#" or ":"; the IRI itself if that is empty.

    >>> local_name("http://dbpedia.org/resource/Marie_Curie")
    'Marie_Curie'
    """
    last = iri.rstrip("/#")
    last = last[max(last.rfind("/"), last.rfind("#"), last.rfind(":")) + 1 :]
    return " ".join(unquote(last).replace("\x00", "").split()) or iri
