"""Offline check of answers against their index and, if given, the corpus. No model is asked, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from gpu_rag.index.checks import stating
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.index.names import SortedRows
from gpu_rag.index.stages.passages import are_of_nodes
from gpu_rag.jobs import digest_of, grounding_row, openai_row
from gpu_rag.methods.registry import hooks
from gpu_rag.models.llm.cache import reply_texts
from gpu_rag.program.reader import READ, clean_answer
from gpu_rag.program.support import grounded
from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.rows import Limits
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.replies import spoken
from gpu_rag.types import Document, Evidence, Grounding, RankedNode
from gpu_rag.types import Path as GraphPath

Row = dict[str, Any]
_QUOTED = ("title", "text", "start", "end")
BLOCK = 1024  # rows whose replies are looked up together
_MAX_NAMED = 5  # citations listed per span that the corpus lacks
_OTHER_FORM = (TypeError, ValueError, LookupError, AttributeError)  # errors of reading an item that was edited


@dataclass(frozen=True)
class Difference:
    """A difference between a row of answers and the index or the corpus. where: "row", "evidence 2", ..."""

    id: str
    where: str
    what: str


class AnswerChecker:
    """Checks rows one after the other; `n_rows`, `n_evidence`, `n_edges` count the checked items, `n_without_digest`
    the rows accepted without a digest.

    A row: its status, answer and error fit together, its id is unique, the engine computes the same grounding for this
    question, answer and evidence, and its digest is right (without with_digests it may lack one). Evidence:
    the passage is in the index, with this title, text, offsets, file and place. An edge of a path: the relation is in
    the index, and the named passage states it; for an edge of a knowledge base, it comes from the named file and line.
    A node: it is in the index, with this name and type. `against_corpus`, called last, for a checker made with_corpus:
    the characters start:end of the source documents are the quoted text. `against_replies`, called for a block of rows:
    a model's reply that the trace names holds the answer; `n_unchecked` counts the answers whose replies are not there.
    Memory: ids, and the answers of a block; with_corpus also a hash for each distinct quotation.
    """

    def __init__(self, index: Index, *, with_corpus: bool = False, with_digests: bool = False):
        self._index = index
        self.n_rows = self.n_evidence = self.n_edges = self.n_unchecked = self.n_without_digest = 0
        self._answers: list[tuple[str, str, list[tuple[str, str]]]] = []  # id, answer, (step, hash of its reply)
        self._seen: set[str] = set()
        self._with_corpus, self._with_digests = with_corpus, with_digests
        self._spans: dict[str, dict[tuple[int, int, bytes], list[tuple[str, int]]]] = {}  # (start, end, hash of text)

    def check(self, raw: Row, row: Row) -> Iterator[Difference]:
        """The differences of one row. raw: the row as written in the file; row: its plain form (`jobs.read_pairs`)."""
        self.n_rows += 1
        id = row["id"]
        yield from _read(id, "row", self._row(raw, row))
        for number, item in enumerate(_list(row["evidence"]), 1):
            self.n_evidence += 1
            yield from (Difference(id, f"evidence {number}", what) for what in self._evidence(id, number, item))
        for number, path in enumerate(_list(row["paths"]), 1):
            for place, edge in enumerate(_list(path.get("edges") if isinstance(path, dict) else None), 1):
                self.n_edges += 1
                yield from (Difference(id, f"path {number}, edge {place}", what) for what in self._edge(edge))
        for number, node in enumerate(_list(row.get("nodes", [])), 1):
            yield from (Difference(id, f"node {number}", what) for what in self._node(node))
        if "digest" not in row and not self._with_digests:
            self.n_without_digest += 1
        elif not _is_as_written(row):
            yield Difference(id, "digest", "the row is not as it was written")
        yield from _read(id, "grounding", _grounding_differs(row))
        yield from _read(id, "sentences", _misquoted(row))
        steps = [step for step in _list(row["trace"]) if isinstance(step, dict) and step.get("reply_hash")]
        is_read = row["answer"] is not None or (row["status"] == "unsupported" and row["evidence"])
        if is_read and not (steps or self._has_kb):
            yield Difference(id, "row", f"status {row['status']}, but no step asked a model")
        if isinstance(row["answer"], str):
            self._answers.append((id, row["answer"], [(str(s.get("verb")), str(s["reply_hash"])) for s in steps]))

    def _row(self, raw: Row, row: Row) -> Iterator[str]:
        if row["id"] in self._seen:
            yield "another row has this id"
        self._seen.add(row["id"])
        status, answer, error = row["status"], row["answer"], row["error"]
        if status == "answered" and not (isinstance(answer, str) and answer.strip()):
            yield "status answered, but there is no answer"
        has_support = row["evidence"] or (self._has_kb and (row["paths"] or row.get("nodes")))
        if status == "answered" and not (has_support or any(map(_of_a_page, _list(row["paths"])))):
            yield "status answered, but there is no evidence"
        if status == "retrieved" and not (has_support or row["paths"]):
            yield "status retrieved, but there is no evidence"
        is_unsupported = row["grounding"].get("status") == "unsupported"
        if answer is not None and status != ("unsupported" if is_unsupported else "answered"):
            yield f"status {status}, but there is an answer"
        if (status == "failed") != (error is not None):
            yield f"status {status}, but " + ("there is no error" if error is None else "there is an error")
        if raw is not row and not _is_made_from(raw, row):
            yield "the batch row around it is not made from it (its message, usage, ids or error)"

    # --- evidence ----------------------------------------------------------------------------------

    @cached_property
    def _passage_rows(self) -> SortedRows:
        return SortedRows(self._index.passage_ids.column)

    def _evidence(self, id: str, number: int, item: Any) -> Iterator[str]:
        name = item.get("passage_id") if isinstance(item, dict) else None
        row = self._passage_rows.get(name) if isinstance(name, str) else None
        if row is None:
            yield f"passage {name!r} is not in the index"
            return
        passage = self._index.passage_rows([row])[0]
        yield from _differing(f"passage {name}", item, {key: passage[key] for key in _QUOTED})
        if "place" in item:  # older rows have no place
            file, place = self._index.places([row])[0]
            if (item.get("file"), item["place"]) != (file, place):
                yield f"passage {name}: it stands in {file} {place}, not in {item.get('file')} {item['place']}"
        if (given := item.get("metadata", {})) != (metadata := self._index.metadata_of(row)):
            yield f"passage {name}: metadata is {given!r}, in the index {metadata!r}"
        start, end, text = item.get("start"), item.get("end"), item.get("text")
        if self._with_corpus and isinstance(start, int) and isinstance(end, int) and isinstance(text, str):
            spans = self._spans.setdefault(passage["doc_id"], {})
            spans.setdefault((start, end, _hash(text)), []).append((id, number))

    # --- paths -------------------------------------------------------------------------------------

    def _stated(self, subject: str, label: str, object_: str) -> set[str] | None:
        """Ids of the passages that state a relation, given by its normalised names; None if there is no such relation.
        Names are normalised, since under a filter they are written as in the matching documents."""
        index, triple = self._index, (subject, label, object_)
        answers: list[set[int] | None] = [relations(index, *triple) for relations in hooks("relations")]
        rows = index.entity_rows if "entities" in index.stages else {}
        if subject in rows and object_ in rows:
            subjects, objects = (range(rows[name], rows[name] + 1) for name in (subject, object_))
            answers.append(stating(index.relations, label, subjects, objects))
        ids = [{index.passage_ids[row] for row in passages} for passages in answers if passages is not None]
        citations = self._stated_by_kb.get(triple)
        ids += [] if citations is None else [citations]
        return set().union(*ids) if ids else None

    @cached_property
    def _stated_by_kb(self) -> dict[tuple[str, str, str], set[str]]:
        """{normalised names of an edge of the knowledge base: passages, or the place in its source, that state it}."""
        stated: dict[tuple[str, str, str], set[str]] = {}
        if self._has_kb:
            kb = self._index.loaded("kb", load_kb)
            passages = kb.edge_passages.values.tolist()
            for edge, (start, end) in enumerate(pairwise(kb.edge_passages.offsets.tolist())):
                *triple, where = kb.triple(edge)
                citations = stated.setdefault(_normal(*triple), set())
                citations.update((kb.passage_ids[p] for p in passages[start:end]) if end > start else (where,))
        return stated

    @property
    def _has_kb(self) -> bool:
        return "kb" in self._index.stages

    def _edge(self, edge: Any) -> Iterator[str]:
        if not (isinstance(edge, list) and len(edge) == 4 and all(isinstance(part, str) for part in edge)):
            yield "it is not [subject, relation, object, passage id]"
            return
        subject, label, object_, passage = edge
        stated = self._stated(*_normal(subject, label, object_))
        if stated is None:
            yield f"no relation of the index is {subject!r} - {label!r} - {object_!r}"
        elif passage in stated or not (passage or stated):
            return
        elif passage not in self._passage_rows:
            yield f"passage {passage!r} is not in the index"
        else:
            yield f"passage {passage} does not state it; {', '.join(sorted(stated)[:_MAX_NAMED]) or 'no passage'} does"

    # --- nodes -------------------------------------------------------------------------------------

    def _node(self, node: Any) -> Iterator[str]:
        if not isinstance(node, dict) or not isinstance(node.get("id"), str):
            yield "it is not {id, name, type, source, score}"
            return
        kb = self._index.loaded("kb", load_kb) if self._has_kb else None
        row = kb.row_of(node["id"]) if kb is not None else None
        if kb is None or row is None:
            yield f"no node of the index has the id {node['id']!r}"
            return
        expected = {"name": kb.node_names[row], "type": kb.type_names[kb.node_type[row]]}
        yield from _differing(f"node {node['id']}", node, expected)

    # --- the model's replies -----------------------------------------------------------------------

    def against_replies(self, path: Path) -> Iterator[Difference]:
        """Compare the answers checked since the last call with the replies kept in a file, which may be absent."""
        hashes = {name for *_, steps in self._answers for _, name in steps}
        replies = reply_texts(path, hashes) if path.is_file() else {}
        for id, answer, steps in self._answers:
            if not steps or not {name for _, name in steps} <= replies.keys():
                self.n_unchecked += 1
            elif steps[-1][0] == READ.name:  # the reply is the answer
                if clean_answer(spoken(replies[steps[-1][1]])) != answer:
                    yield Difference(id, "row", f"the model's reply is not the answer {answer[:40]!r}")
            elif not any(_says(replies[name], answer) for _, name in steps):
                self.n_unchecked += 1  # perhaps a rule answered
        self._answers.clear()

    # --- the corpus --------------------------------------------------------------------------------

    def against_corpus(self, paths: Sequence[Path]) -> Iterator[Difference]:
        """Read the corpus again and compare the characters of every span that the checked rows quote."""
        params = self._index.manifest.stages["passages"].params
        limits = Limits(params["max_document_chars"], columns=tuple(map(tuple, params.get("columns", ()))))
        left_out = are_of_nodes(self._index.folder("passages"), pa.chunked_array([list(self._spans)], pa.string()))
        waiting = {name: spans for (name, spans), is_left_out in zip(self._spans.items(), left_out) if not is_left_out}
        for document in read_corpus(paths, limits):
            if isinstance(document, Document) and document.id in waiting:
                for (start, end, hash), cited in waiting.pop(document.id).items():
                    if start < 0 or _hash(document.text[start:end]) != hash:
                        what = f"characters {start}:{end} of document {document.id} are not the text quoted"
                        yield from (Difference(id, f"evidence {number}", what) for id, number in cited)
        for name, spans in waiting.items():
            for cited in spans.values():
                what = f"its document {name} is not in the corpus"
                yield from (Difference(id, f"evidence {number}", what) for id, number in cited)


def check_answers(
    pairs: Iterable[tuple[Row, Row]],
    index: Index,
    replies: Path,
    corpus: Sequence[Path] = (),
    with_digests: bool = False,
) -> tuple[AnswerChecker, list[Difference]]:
    """(checker with its counts, all differences) of an answers file, in row order; differences from the replies and
    from the corpus come last."""
    checker = AnswerChecker(index, with_corpus=bool(corpus), with_digests=with_digests)
    differences: list[Difference] = []
    beside: list[Difference] = []
    pairs = iter(pairs)
    while block := [list(checker.check(raw, row)) for raw, row in islice(pairs, BLOCK)]:
        differences += chain.from_iterable(block)
        beside += checker.against_replies(replies)
    if corpus:
        beside += checker.against_corpus(corpus)
    return checker, differences + beside


def _read(id: str, where: str, differences: Iterator[str]) -> Iterator[Difference]:
    """The differences at a place of a row. An item of another form is a difference too, the last one."""
    try:
        for what in differences:
            yield Difference(id, where, what)
    except _OTHER_FORM as error:
        yield Difference(id, where, f"an item has another form ({type(error).__name__}: {error})")


def _is_as_written(row: Row) -> bool:
    """Whether a row has its digest."""
    try:
        return bool(row.get("digest") == digest_of(row))
    except ValueError:  # for a number that no row is written with, such as NaN
        return False


def _grounding_differs(row: Row) -> Iterator[str]:
    """Whether the grounding of a row differs from what its question, answer, evidence, paths and nodes give."""
    evidence = [Evidence(**{"metadata": {}, **item}) for item in row["evidence"]]
    paths = [GraphPath(path["text"], tuple(map(tuple, path["edges"]))) for path in row["paths"]]
    nodes = [RankedNode(**node) for node in row.get("nodes", [])]
    asked = row.get("condensed") or row["question"]
    ours = Grounding() if row["answer"] is None else grounded(asked, row["answer"], evidence, paths, nodes)
    given, expected = row["grounding"], grounding_row(ours)
    for key in ("status", "sentences"):
        if given.get(key) != expected[key]:
            yield f"{key} is {given.get(key)!r}; this answer and evidence give {expected[key]!r}"


def _misquoted(row: Row) -> Iterator[str]:
    """The relevant sentences of a row that are not the characters of a passage which they name."""
    texts = {item["passage_id"]: item.get("text") for item in _list(row["evidence"]) if isinstance(item, dict)}
    for number, item in enumerate(_list(row.get("support", [])), 1):
        text = texts.get(item.get("passage_id")) if isinstance(item, dict) else None
        span = slice(item["start"], item["end"]) if isinstance(text, str) and {"start", "end"} <= item.keys() else None
        if span is None or not isinstance(text, str) or item.get("text") != text[span]:
            yield f"sentence {number} is not in the passage at its offsets"


def _says(reply: str, answer: str) -> bool:
    """Whether a reply holds all parts of an answer, as text or as strings of JSON."""
    with suppress(ValueError):
        reply = json.dumps(json.loads(reply), ensure_ascii=False)
    reply_text = " ".join(reply.replace('\\"', '"').split()).casefold()
    return all(" ".join(part.split()).casefold() in reply_text for part in answer.split(";"))


def _hash(text: str) -> bytes:
    return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))


def _normal(subject: str, label: str, object_: str) -> tuple[str, str, str]:
    return normalise_name(subject), normalise_name(label), normalise_name(object_)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [None]  # None is then reported as no evidence or no edge


def _of_a_page(path: Any) -> bool:
    """Whether a path quotes a web page that came with the question; no index has such pages."""
    return isinstance(path, dict) and path.get("source") == "pages" and bool(path.get("text"))


def _is_made_from(raw: Row, row: Row) -> bool:
    """Whether `raw` is the batch row that `row` produces; its time and model may differ."""
    with suppress(*_OTHER_FORM):  # no row is made from an item of another form
        body = raw["response"]["body"]
        created, model = body.get("created", 0), body.get("model", row["method"])
        made = openai_row(row, str(model), created)
        if row["status"] == "retrieved" and body["choices"][0]["message"]["content"] == "":  # an older row
            made["response"]["body"]["choices"][0]["message"]["content"] = ""
        return isinstance(created, int) and bool(raw == made)
    return False


def _differing(what: str, item: Row, expected: Row) -> Iterator[str]:
    """The keys of an item that differ from the index, and a score that is not a number."""
    for key, ours in expected.items():
        given = item.get(key)
        if key == "text" and isinstance(given, str) and given != ours:
            place = next((i for i, (a, b) in enumerate(zip(given, ours)) if a != b), min(len(given), len(ours)))
            quoted, indexed = given[place : place + 20], ours[place : place + 20]
            yield f"{what}: text differs from the index at character {place}: {quoted!r}, in the index {indexed!r}"
        elif given != ours:
            yield f"{what}: {key} is {given!r}, in the index {ours!r}"
    score = item.get("score")
    if not (isinstance(score, (int, float)) and abs(score) < float("inf")):  # NaN is not less
        yield f"{what}: the score is {score!r}, not a number"
