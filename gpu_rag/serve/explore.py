"""Routes that show an index: names, the facts around them, chains of facts, documents and rejected rows.

Each answers in a thread, from columns of the index, with lists of at most MAX_ITEMS items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import Request
from starlette.responses import Response

from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.ragged import row_of_value, some_lists
from gpu_rag.index.facts import MAX_HOPS, Fact, Facts, load_facts
from gpu_rag.index.index import Index
from gpu_rag.index.metadata import LANGUAGE, rows_of
from gpu_rag.index.stages.rejected import read_rejects
from gpu_rag.index.tables import DOCUMENTS, EXTRACTIONS
from gpu_rag.lazy import torch
from gpu_rag.serve.guard import Json
from gpu_rag.serve.live import ServedIndex
from gpu_rag.serve.refusal import Refusal
from gpu_rag.text.language import ENGLISH
from gpu_rag.types import Ragged

MAX_ITEMS = 200  # items of a list
MAX_TEXT_CHARS = 400  # maximum characters of a text to search for
MAX_OFFSET = 10**9
N_CLOSE = 2000  # maximum number of names that are sorted, and of facts of all passages of a request


class Explore:
    """The endpoints, over the index that the server answers from."""

    def __init__(self, live: ServedIndex):
        self._live = live

    def routes(self) -> dict[str, Callable[[Request], Response]]:
        """The endpoints by path, all for GET."""
        return {
            "/v1/entities": self.entities,
            "/v1/entities/{name:path}": self.entity,
            "/v1/paths": self.paths,
            "/v1/graph": self.graph,
            "/v1/documents": self.documents,
            "/v1/documents/{name:path}": self.document,
            "/v1/rejects": self.rejects,
        }

    @property
    def _index(self) -> Index:
        return self._live.engine.index

    @property
    def _facts(self) -> Facts:
        return self._index.loaded("facts", load_facts)

    def entities(self, request: Request) -> Response:
        """Names that contain the text `q` in any case: equal ones first, then names that begin with it, then others;
        within each kind by descending number of facts. Without `q`, the names with the most facts."""
        facts, text, limit = self._facts, _text(request, "q"), _number(request, "limit", 20, MAX_ITEMS)
        rows = _matching(facts.names, text) if text else np.arange(len(facts.degree))
        total, low = len(rows), text.lower()
        rows = rows[np.argsort(-facts.degree[rows], kind="stable")[:N_CLOSE]]
        places = [(name.lower() != low, not name.lower().startswith(low)) for name in _take(facts.names, rows)]
        rows = rows[sorted(range(len(rows)), key=places.__getitem__)[:limit]]
        listed = zip(_take(facts.names, rows), facts.degree[rows].tolist())
        return Json({"total": total, "entities": [{"name": name, "n_facts": n} for name, n in listed]})

    def entity(self, request: Request) -> Response:
        """A name: spellings that were merged with it, facts around it, what states them. Raises Refusal (404)."""
        facts, limit = self._facts, _number(request, "limit", 30, MAX_ITEMS)
        nodes = facts.lookup(name := request.path_params["name"])
        if not nodes:
            raise Refusal(404, "no such name in the index", given=name[:80], expected="a name of GET /v1/entities?q=")
        rows = facts.rows_around(nodes)
        stated = some_lists(facts.stated, torch.from_numpy(rows)).values.numpy()
        stating, first = np.unique(self._index.passage_documents[stated], return_index=True)
        documents = pa.array(stating[np.argsort(first)[:limit]])  # in the order of the facts
        (name,) = _take(facts.names, nodes) if len(nodes) == 1 else (name,)
        merged = {alias: None for node in nodes for alias in facts.aliases[node] if alias != name}
        titles = self._index.loaded("titles of documents", _titles_of_documents)
        return Json(
            {
                "name": name, "aliases": list(merged)[:MAX_ITEMS],
                "n_facts": len(rows), "facts": [self._sourced(facts.fact(int(row))) for row in rows[:limit]],
                "n_documents": len(stating), "documents": titles.select(["id", "title"]).take(documents).to_pylist(),
            }
        )  # fmt: skip

    def paths(self, request: Request) -> Response:
        """Chains of facts between the names `from` and `to`, shortest first."""
        ends = _text(request, "from"), _text(request, "to")
        k, hops = _number(request, "limit", 5, MAX_ITEMS), _number(request, "hops", 4, MAX_HOPS, 1)
        chains = self._facts.chains(*ends, k, hops)
        return Json({"paths": [[self._sourced(fact) for fact in chain] for chain in chains]})

    def graph(self, request: Request) -> Response:
        """Facts that the passages with the ids `passage` state; with many passages only the first facts of each."""
        index, facts = self._index, self._facts
        by_passage = index.loaded("facts of passages", _facts_of_passages)
        ids = request.query_params.getlist("passage")[:MAX_ITEMS]
        rows = {id: row for id in ids if (row := index.rows_of_passages.get(id)) is not None}
        stated = (
            (id, fact) for id, row in rows.items() for fact in _list(by_passage, row)[: N_CLOSE // len(rows)].tolist()
        )
        return Json({"facts": [{**vars(facts.fact(fact)), "source": id} for id, fact in stated]})

    def documents(self, request: Request) -> Response:
        """Documents with the text `q` in their title, id or file, in order of ids, and the names of all metadata."""
        index, text = self._index, _text(request, "q")
        limit, offset = _number(request, "limit", 25, MAX_ITEMS), _number(request, "offset", 0, MAX_OFFSET)
        columns = index.loaded("titles of documents", _titles_of_documents)
        rows: Sequence[int] = range(columns.num_rows)
        if text:
            rows = np.unique(np.concatenate([_matching(column, text) for column in columns.columns])).tolist()
        listed = [self._document(row) for row in rows[offset : offset + limit]]
        names = index.metadata.column_names if index.metadata is not None else []
        return Json({"total": len(rows), "metadata": names, "documents": listed})

    def document(self, request: Request) -> Response:
        """A document, and its passages from `offset` on. Raises Refusal (404)."""
        index, name = self._index, request.path_params["name"]
        limit, offset = _number(request, "limit", 25, MAX_ITEMS), _number(request, "offset", 0, MAX_OFFSET)
        row = index.document_rows.get(name)
        if row is None:
            raise Refusal(404, "no such document", given=name[:80])
        rows = _list(index.loaded("passages of documents", _passages_of_documents), row)[offset : offset + limit]
        passages = [{"passage_id": p.pop("id"), **p} for p in index.passage_rows(rows.tolist())]
        return Json({**self._document(row), "passages": passages})

    def rejects(self, request: Request) -> Response:
        """Rows of the sources that could not be used, from `offset` on, each with its reason. Raises IndexCorrupt."""
        limit, offset = _number(request, "limit", 25, MAX_ITEMS), _number(request, "offset", 0, MAX_OFFSET)
        file = self._index.path / "rejects.jsonl"
        listed = [*map(vars, read_rejects(file, offset, offset + limit))] if file.is_file() else []
        return Json({"total": self._index.counts().get("rejects", 0), "rejects": listed})

    # --- rows ---------------------------------------------------------------------------------------

    def _sourced(self, fact: Fact) -> dict[str, Any]:
        """A fact with the title of the passage that states it."""
        row = self._index.rows_of_passages.get(fact.source)
        return {**vars(fact), "title": None if row is None else self._index.passage_titles[row]}

    def _document(self, row: int) -> dict[str, Any]:
        """A document: its names, language, metadata, and how extraction ended for its passages, by status."""
        index = self._index
        (document,) = index.take("passages", "documents.parquet", DOCUMENTS, [row])
        passages = _list(index.loaded("passages of documents", _passages_of_documents), row)
        (metadata,) = rows_of(index.metadata, [row])
        statuses = index.loaded("status of passages", _status_of_passages)
        counted = Counter(_take(statuses, passages[:MAX_ITEMS])) if statuses is not None else None
        return {
            **{name: document[name] for name in ("id", "title", "file", "line")}, "metadata": metadata,
            "language": metadata.get(LANGUAGE, ENGLISH), "n_passages": len(passages), "extraction": counted,
        }  # fmt: skip


def _text(request: Request, name: str) -> str:
    """A parameter of the request that is a text, "" if it is not given. Raises Refusal (400)."""
    text = request.query_params.get(name, "").strip()
    if len(text) > MAX_TEXT_CHARS:
        raise Refusal(400, "the text is too long", given=f"{name}: {len(text)} characters", expected=MAX_TEXT_CHARS)
    return text


def _number(request: Request, name: str, default: int, high: int, low: int = 0) -> int:
    """A parameter of the request that is a whole number from `low` to `high`. Raises Refusal (400)."""
    given = request.query_params.get(name, str(default))
    if not (given.isascii() and given.isdecimal() and len(given) < 12 and low <= int(given) <= high):
        raise Refusal(400, f"{name} is no whole number in its range", given=given[:40], expected=f"{low} to {high}")
    return int(given)


def _matching(column: pa.ChunkedArray, text: str) -> np.ndarray:
    """Rows of a column of texts that contain a text in any case: i64, ascending."""
    return np.flatnonzero(pc.match_substring(column, text, ignore_case=True).to_numpy())


def _take(column: pa.ChunkedArray, rows: Iterable[int]) -> list[str]:
    return [column[int(row)].as_py() for row in rows]


def _titles_of_documents(index: Index) -> pa.Table:
    return index.table("passages", "documents.parquet", DOCUMENTS, ["id", "title", "file"])


def _status_of_passages(index: Index) -> pa.ChunkedArray | None:
    """The status of extraction for each passage; None if the index has no extraction."""
    if "extraction" not in index.stages:
        return None
    return index.table("extraction", "extractions.parquet", EXTRACTIONS, ["status"])["status"]


def _passages_of_documents(index: Index) -> Ragged:
    return _inverse(np.arange(index.n_passages), index.passage_documents, len(index.document_rows))


def _facts_of_passages(index: Index) -> Ragged:
    stated = index.loaded("facts", load_facts).stated
    return _inverse(row_of_value(stated).numpy(), stated.values.numpy(), index.n_passages)


def _list(lists: Ragged, row: int) -> np.ndarray:
    """The values of one list."""
    values: np.ndarray = lists.values[lists.offsets[row] : lists.offsets[row + 1]].numpy()
    return values


def _inverse(rows: np.ndarray, lists: np.ndarray, n: int) -> Ragged:
    """The rows of each of n lists, ascending. lists[i]: the list that rows[i] belongs to; rows ascend."""
    offsets = offsets_of(torch.from_numpy(np.bincount(lists, minlength=n)))
    return Ragged(torch.from_numpy(rows[np.argsort(lists, kind="stable")]), offsets)
