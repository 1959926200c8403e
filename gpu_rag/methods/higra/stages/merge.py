"""The semantic merge: entities whose texts are near, and which a decider takes for one, become one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Sources, Work
from gpu_rag.methods.higra.merges import (
    FORCE,
    FORCED,
    REJECT,
    SEMANTIC,
    Edits,
    edited,
    edits_params,
    merge_row,
    name_pairs,
    read_edits,
)
from gpu_rag.methods.higra.stages.clusters import (
    SameEntity,
    by_llm,
    by_similarity,
    decider_of,
    entity_clusters,
    is_left_to_the_model,
    merge_prompt,
    roles_of,
)
from gpu_rag.methods.higra.tables import HIGRA_SOURCES, Row, by_id, read_rows, relation_rows, write
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.extraction import title_name

BY_HAND = "by hand"


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The clusters, the decider and what it reads, and the edits made by hand."""
    chosen = settings.alignment
    if not chosen.refine:
        return {"refine": False, **edits_params(sources)}
    params: dict[str, Any] = {
        "decider": decider_of(settings),
        "clusters": [chosen.tau, chosen.min_samples, chosen.max_cluster],
    }
    if params["decider"] == "llm":
        params["prompt"], params["max_tokens"] = merge_prompt().digest, chosen.merge_tokens
    else:
        params["min_cosine"] = chosen.min_cosine
    return {**params, **edits_params(sources)}


@stage(
    "higra_merge",
    needs=("passages", "higra_exact", "higra_exact_vectors"),
    version=2,
    retry=("higra_merge_failed",),
    params=_params,
    roles=roles_of,
    by_capability=is_left_to_the_model,
)
def merge_stage(work: Work) -> dict[str, int]:
    """Tables `entities` (HIGRA_ENTITIES), `relations` between them as extracted, `sources` (where they were extracted)
    and `merges`: everything that became one, and why."""
    exact = work.stage_folders["higra_exact"]
    entities = read_rows(exact, "higra_exact_entities")
    decisions, counts = _decided(work, entities)
    applied = apply_decisions(entities, decisions, read_edits(work.sources.merges))
    merged, row_of = merged_rows(entities, applied.group_of)
    write(work.out, "higra_entities", merged)
    triples = (
        ((row["subject"], row["label"], row["object"]), row["passages"])
        for row in read_rows(exact, "higra_exact_relations")
    )
    n_relations = write(work.out, "higra_extracted_relations", relation_rows(merged, triples, row_of))
    sources = sorted({(row_of[row], passage) for row, one in enumerate(entities) for passage in one["passages"]})
    columns = {"entity": [entity for entity, _ in sources], "passage": [passage for _, passage in sources]}
    tables.write_table(work.out / "higra_sources.parquet", HIGRA_SOURCES, columns)
    exact_row = {entity["id"]: row for row, entity in enumerate(entities)}
    log = [*read_rows(exact, "higra_exact_merges"), *applied.log]
    for row in log:
        row["entity"] = merged[row_of[exact_row[row["entity"]]]]["id"]
    write(work.out, "higra_merges", sorted(log, key=lambda row: (row["why"], -row["score"], row["id"])))
    counts |= {f"higra_{why}_merges": n for why, n in Counter(row["why"] for row in applied.log).items()}
    return counts | {
        "higra_entities": len(merged),
        "higra_extracted_relations": n_relations,
        "higra_merges_refused": applied.n_refused,
        "higra_edits_unused": applied.n_unused,
    }


def _decided(work: Work, entities: list[Row]) -> tuple[list[SameEntity], dict[str, int]]:
    chosen = work.settings.alignment
    if not chosen.refine or not entities:
        return [], {}
    arrays = tables.read_arrays(work.stage_folders["higra_exact_vectors"] / "vectors.safetensors")
    vectors = torch.from_numpy(arrays["vectors"])
    clusters = entity_clusters(work, vectors, chosen.tau)
    counts = {"higra_merge_clusters": len(clusters)}
    if decider_of(work.settings) == "llm":
        decisions, more = by_llm(work, entities, vectors, clusters)
        return decisions, counts | more
    passages = tables.read_table(work.stage_folders["passages"] / "passages.parquet", tables.PASSAGES)
    return by_similarity(entities, vectors, clusters, named_in(entities, passages), chosen.min_cosine), counts


def named_in(entities: Sequence[Row], passages: pa.Table) -> list[set[int]]:
    """For each entity the passages that name it: where it was extracted, and those whose title is its name."""
    titled: dict[str, set[int]] = defaultdict(set)
    for row, (title, text) in enumerate(zip(passages["title"].to_pylist(), passages["text"].to_pylist())):
        titled[normalise_name(title_name(title, text))].add(row)
    return [set(row["passages"]) | titled.get(normalise_name(row["name"]), set()) for row in entities]


# --- applying --------------------------------------------------------------------------------------


class Joined:
    """Groups of rows 0 .. n-1, at first each its own. apart: pairs of rows that never come into one group.

    Joins are taken in the order given; one that would bring a forbidden pair together is refused. Without forbidden
    pairs the groups are the connected components of the joins, in whatever order.
    """

    def __init__(self, n: int, apart: Iterable[tuple[int, int]] = ()):
        self._parent = list(range(n))
        self._apart: dict[int, set[int]] = defaultdict(set)  # root -> rows that may not join it
        self._rows: dict[int, set[int]] = {}  # root -> its rows, for groups that something may not join
        for a, b in apart:
            if a != b:
                self._apart[a].add(b)
                self._apart[b].add(a)

    def find(self, row: int) -> int:
        """The smallest row of the group."""
        while self._parent[row] != row:
            self._parent[row] = self._parent[self._parent[row]]
            row = self._parent[row]
        return row

    def join(self, a: int, b: int) -> bool:
        """Makes one group of two; False where a forbidden pair refuses it."""
        a, b = sorted((self.find(a), self.find(b)))
        if a == b:
            return True
        if self._apart:
            rows_a, rows_b = self._rows.get(a, {a}), self._rows.get(b, {b})
            if self._apart.get(a, set()) & rows_b or self._apart.get(b, set()) & rows_a:
                return False
            self._rows[a] = rows_a | rows_b
            self._apart[a] = self._apart.get(a, set()) | self._apart.get(b, set())
        self._parent[b] = a
        return True

    def groups(self) -> list[int]:
        """The smallest row of each row's group."""
        return [self.find(row) for row in range(len(self._parent))]


@dataclass(frozen=True)
class Applied:
    """group_of: the smallest row of each entity's group; log: rows of HIGRA_MERGES whose `entity` is the id of an
    exact entity; n_refused: joins that a rejected pair forbade; n_unused: edits that name no entity of this index."""

    group_of: list[int]
    log: list[Row]
    n_refused: int
    n_unused: int


def apply_decisions(entities: Sequence[Row], decisions: Iterable[SameEntity], edits: Edits) -> Applied:
    """Forced merges first, then the decisions, the nearest first; rejected pairs never become one, unless forced."""
    of_name: dict[str, set[int]] = defaultdict(set)
    for row, entity in enumerate(entities):
        of_name[normalise_name(entity["name"])].add(row)
    of_id = {entity["id"]: {row} for row, entity in enumerate(entities)}

    def rows_of(name: str) -> set[int]:
        return of_id.get(name) or of_name.get(name, set())

    forced = edited(edits, FORCE)
    apart = [tuple(pair) for pair in name_pairs(edited(edits, REJECT)) - name_pairs(forced) if len(pair) > 1]
    joined = Joined(len(entities), {(a, b) for one, other in apart for a in rows_of(one) for b in rows_of(other)})
    todo = [SameEntity(tuple(sorted(set().union(*map(rows_of, names)))), BY_HAND, 1.0) for names in sorted(forced)]
    todo += sorted(decisions, key=lambda found: (-found.score, found.rows))
    log: dict[str, Row] = {}
    n_refused = 0
    for decision in todo:
        kept = [row for at, row in enumerate(decision.rows) if at == 0 or joined.join(decision.rows[0], row)]
        n_refused += len(decision.rows) - len(kept)
        if len(kept) > 1:
            why, members = FORCED if decision.rule == BY_HAND else SEMANTIC, [entities[row]["id"] for row in kept]
            found = merge_row(why, decision.rule, decision.score, members, members[0])
            log.setdefault(found["id"], found)
    n_unused = sum(not all(map(rows_of, edit.members)) for edit in edits)
    return Applied(joined.groups(), list(log.values()), n_refused, n_unused)


def merged_rows(entities: Sequence[Row], group_of: Sequence[int]) -> tuple[list[Row], list[int]]:
    """(rows of HIGRA_ENTITIES sorted by id, the row that each exact entity became).

    The part in most passages gives name and id, ties by id; every name, alias, type and description is kept.
    """
    groups: dict[int, list[Row]] = defaultdict(list)
    for entity, group in zip(entities, group_of):
        groups[group].append(entity)
    made = {
        group: _one(sorted(parts, key=lambda part: (-len(part["passages"]), part["id"])))
        for group, parts in groups.items()
    }
    return by_id(made, group_of)


def _one(parts: Sequence[Row]) -> Row:
    ways = dict.fromkeys([*(part["name"] for part in parts), *(way for part in parts for way in part["aliases"])])
    return {
        "id": parts[0]["id"],
        "name": parts[0]["name"],
        "aliases": list(ways)[1:],
        "types": list(dict.fromkeys(kind for part in parts for kind in part["types"])),
        "descriptions": list(dict.fromkeys(text for part in parts for text in part["descriptions"])),
        "members": sorted({row for part in parts for row in part["members"]}),
        "n_passages": len(set().union(*(part["passages"] for part in parts))),
    }
