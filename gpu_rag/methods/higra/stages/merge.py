"""The semantic merge: entities whose texts are near, and which a decider takes for one, become one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from gpu_rag.index import tables
from gpu_rag.index.build import Sources, Work
from gpu_rag.methods.higra.merge_edits import FORCED, SEMANTIC, Edits, edits_params, merge_id, pairs
from gpu_rag.methods.higra.stages.clusters import entity_clusters
from gpu_rag.methods.higra.stages.decide import Decision, by_llm, by_similarity, decider_of, merge_prompt, roles_of
from gpu_rag.methods.higra.stages.exact import relation_rows
from gpu_rag.methods.higra.stages.union import Joined
from gpu_rag.methods.higra.tables import (
    EXACT_ENTITIES,
    HIGRA_ENTITIES,
    HIGRA_MERGES,
    HIGRA_RELATIONS,
    HIGRA_SOURCES,
)
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.extraction import title_name

Row = dict[str, Any]
BY_HAND = "by hand"


class SemanticMerge:
    """Tables `entities` (HIGRA_ENTITIES), `relations` between them as extracted, `sources` (where they were extracted)
    and `merges`: everything that became one, and why."""

    name = "higra_merge"
    version = 2
    needs: tuple[str, ...] = ("passages", "higra_exact", "higra_exact_vectors")
    retry: tuple[str, ...] = ("higra_merge_failed",)

    def params(self, settings: Settings, sources: Sources) -> dict[str, Any]:
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

    def roles(self, settings: Settings) -> tuple[str, ...]:
        """The language model, where it decides."""
        return roles_of(settings)

    def run(self, work: Work) -> dict[str, int]:
        """Clusters, decides, applies the decisions and the edits, and writes what came out."""
        exact = work.stage_folders["higra_exact"]
        table = tables.read_table(exact / "higra_exact_entities.parquet", EXACT_ENTITIES)
        entities: list[Row] = table.to_pylist()
        decisions, counts = _decided(work, entities)
        applied = apply_decisions(entities, decisions, Edits.of(work.sources))
        merged, row_of = merged_rows(entities, applied.group_of)
        tables.write_rows(work.out / "higra_entities.parquet", HIGRA_ENTITIES, merged)
        n_relations = _write_relations(work, exact, merged, row_of)
        _write_sources(work, entities, row_of)
        log = [*_exact_log(exact, entities), *applied.log]
        for row in log:
            row["entity"] = merged[row_of[row["entity"]]]["id"]
        log.sort(key=lambda row: (row["why"], -row["score"], row["id"]))
        tables.write_rows(work.out / "higra_merges.parquet", HIGRA_MERGES, log)
        counts |= {f"higra_{why}_merges": n for why, n in Counter(row["why"] for row in applied.log).items()}
        return counts | {
            "higra_entities": len(merged),
            "higra_extracted_relations": n_relations,
            "higra_merges_refused": applied.n_refused,
            "higra_edits_unused": applied.n_unused,
        }


def _decided(work: Work, entities: list[Row]) -> tuple[list[Decision], dict[str, int]]:
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


@dataclass(frozen=True)
class Applied:
    """group_of: the smallest row of each entity's group; log: rows of HIGRA_MERGES whose `entity` is an exact row;
    n_refused: joins that a rejected pair forbade; n_unused: edits that name no entity of this index."""

    group_of: list[int]
    log: list[Row]
    n_refused: int
    n_unused: int


def apply_decisions(entities: Sequence[Row], decisions: Iterable[Decision], edits: Edits) -> Applied:
    """Forced merges first, then the decisions, the nearest first; rejected pairs never become one, unless forced."""
    of_name: dict[str, set[int]] = defaultdict(set)
    for row, entity in enumerate(entities):
        of_name[normalise_name(entity["name"])].add(row)
    of_id = {entity["id"]: {row} for row, entity in enumerate(entities)}

    def rows_of(name: str) -> set[int]:
        return of_id.get(name) or of_name.get(name, set())

    forced_pairs = frozenset(pairs(edits.forced))
    apart = [tuple(sorted(pair)) for pair in edits.rejected - forced_pairs]
    forbidden = {(a, b) for one, other in apart for a in rows_of(one) for b in rows_of(other)}
    joined = Joined(len(entities), forbidden)
    log: dict[str, Row] = {}
    n_unused = sum(not all(map(rows_of, edit.members)) for edit in edits.edits)
    n_refused = 0
    todo = [Decision(tuple(sorted(set().union(*map(rows_of, names)))), FORCED, 1.0) for names in sorted(edits.forced)]
    todo += sorted(decisions, key=lambda found: (-found.score, found.rows))
    for decision in todo:
        kept = list(decision.rows[:1])
        for row in decision.rows[1:]:
            if joined.join(kept[0], row):
                kept.append(row)
            else:
                n_refused += 1
        if len(kept) > 1:
            found = _log_row(entities, kept, decision)
            log.setdefault(found["id"], found)
    return Applied(joined.groups(), list(log.values()), n_refused, n_unused)


def _log_row(entities: Sequence[Row], rows: Sequence[int], decision: Decision) -> Row:
    members = [entities[row]["id"] for row in rows]
    why = FORCED if decision.rule == FORCED else SEMANTIC
    rule = BY_HAND if why == FORCED else decision.rule
    id = merge_id(why, members)
    return {"id": id, "why": why, "rule": rule, "score": decision.score, "members": members, "entity": rows[0]}


def merged_rows(entities: Sequence[Row], group_of: Sequence[int]) -> tuple[list[Row], list[int]]:
    """(rows of HIGRA_ENTITIES sorted by id, the row that each exact entity became).

    The part in most passages gives name and id, ties by id; every name, alias, type and description is kept.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(group_of):
        groups[group].append(row)
    made = {group: _one(sorted((entities[row] for row in rows), key=_weight)) for group, rows in groups.items()}
    order = sorted(made, key=lambda group: made[group]["id"])
    row_of = {group: row for row, group in enumerate(order)}
    return [made[group] for group in order], [row_of[group] for group in group_of]


def _weight(entity: Row) -> tuple[int, str]:
    return -len(entity["passages"]), entity["id"]


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


# --- writing ---------------------------------------------------------------------------------------


def _write_relations(work: Work, exact: Any, merged: Sequence[Row], row_of: Sequence[int]) -> int:
    found: dict[tuple[int, str, int], set[int]] = defaultdict(set)
    for row in tables.read_table(exact / "higra_exact_relations.parquet", HIGRA_RELATIONS).to_pylist():
        found[row_of[row["subject"]], row["label"], row_of[row["object"]]] |= set(row["passages"])
    rows = relation_rows([row["id"] for row in merged], found)
    return tables.write_rows(work.out / "higra_extracted_relations.parquet", HIGRA_RELATIONS, rows)


def _write_sources(work: Work, entities: Sequence[Row], row_of: Sequence[int]) -> None:
    links = sorted({(row_of[row], passage) for row, entity in enumerate(entities) for passage in entity["passages"]})
    columns = {"entity": [entity for entity, _ in links], "passage": [passage for _, passage in links]}
    tables.write_table(work.out / "higra_sources.parquet", HIGRA_SOURCES, columns)


def _exact_log(exact: Any, entities: Sequence[Row]) -> list[Row]:
    row_of = {entity["id"]: row for row, entity in enumerate(entities)}
    log: list[Row] = tables.read_table(exact / "higra_exact_merges.parquet", HIGRA_MERGES).to_pylist()
    return [{**row, "entity": row_of[row["entity"]]} for row in log]
