"""The semantic merge: entities with near texts are merged if a decider takes them for the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gpu_rag.graph.common.dots import exact_dots
from gpu_rag.graph.nearest.pairs import comparisons, distinct
from gpu_rag.index import tables
from gpu_rag.index.checks import outside
from gpu_rag.index.names import SortedRows, inverse, normalised, one_array
from gpu_rag.index.stage import Pairs, stage, where_capable
from gpu_rag.index.stages.search import drop_changed
from gpu_rag.index.work import Sources, Work
from gpu_rag.lazy import torch
from gpu_rag.methods.higra import merges
from gpu_rag.methods.higra.settings import AlignmentSettings
from gpu_rag.methods.higra.stages.asks import PROMPTS, ask_windows, is_left_to_the_model, roles_of
from gpu_rag.methods.higra.stages.graph import same_exact
from gpu_rag.methods.higra.stages.sharing import sharing_pairs
from gpu_rag.methods.higra.stages.windows import (
    Clusters,
    KeptPairs,
    entity_windows,
    near_entities,
    window_pairs,
    window_params,
)
from gpu_rag.methods.higra.tables import (
    EXACT_ENTITIES,
    HIGRA_BECAME,
    HIGRA_ENTITIES,
    HIGRA_SOURCES,
    Row,
    pair_keys,
    read,
    write,
)
from gpu_rag.models.ask import Ask, read_prompt
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.rules.extraction import title_name
from gpu_rag.text.rules.same_name import NameRules, numbers_differ

BY_HAND, BY_LLM = "by hand", "the model's group"
_PAIRS = 1 << 16  # pairs whose names are read at a time: it bounds memory


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The clusters, the decider and its inputs, and the manual edits."""
    chosen, edits = settings.section(AlignmentSettings), merges.edits_params(sources)
    if not chosen.refine:
        return {"refine": False, **edits}
    limit = {"most": chosen.max_cluster} if chosen.aliases == "unambiguous" else {}
    if not roles_of(settings):
        return {"decider": "similarity", "min_cosine": max(chosen.min_cosine, 1 - chosen.tau), **limit, **edits}
    return {
        "decider": "llm",
        **window_params(chosen, chosen.tau),
        "prompt": read_prompt(f"{PROMPTS}:merge").digest,
        **limit,
        **edits,
    }


def _pairs(settings: Settings, sizes: Mapping[str, float]) -> float:
    n, chosen = sizes["entities"], settings.section(AlignmentSettings)
    return 2 / 3 * n * min(comparisons(n, 1 - chosen.tau), n / 2) if roles_of(settings) else 0.0  # measured; pairs once


@stage(
    "higra_merge",
    needs=("passages", "higra_exact", "higra_exact_vectors"),
    version=5,
    retry=("higra_merge_failed",),
    params=_params,
    roles=roles_of,
    settled=where_capable(AlignmentSettings, "alignment", "decider", "similarity"),
    by_capability=is_left_to_the_model,
    size="entities",
    pairs=Pairs("entities squared", _pairs),
)
def merge_stage(work: Work) -> dict[str, int]:
    """Write the tables `entities` (HIGRA_ENTITIES), `became` (the entity that each exact entity is now), `sources`
    (where they were extracted) and `merges`: all merges, and their reasons."""
    exact = work.stage_folders["higra_exact"]
    decisions, counts = _decided(work)
    table = read(exact, "higra_exact_entities")
    entities = EntityRows(table)
    chosen = work.settings.section(AlignmentSettings)
    limit = chosen.max_cluster if chosen.aliases == "unambiguous" else len(entities)
    edits = merges.read_edits(merges.file_of(work.sources))
    group_of, applied, unapplied = apply_decisions(entities, decisions, edits, limit)
    merged, row_of = merged_table(table, np.array(group_of, np.int64))
    columns = [column.combine_chunks() for column in merged.columns]
    tables.write_columns(work.out / "higra_entities.parquet", HIGRA_ENTITIES, columns)
    ids = one_array(merged["id"])
    tables.write_table(work.out / "higra_became.parquet", HIGRA_BECAME, {"entity": row_of})
    passages = table["passages"].combine_chunks()
    owner = row_of[pc.list_parent_indices(passages).to_numpy()]
    sources = pair_keys(owner, passages.flatten().to_numpy())
    pairs = {"entity": sources >> 32, "passage": sources & 0xFFFFFFFF}
    tables.write_table(work.out / "higra_sources.parquet", HIGRA_SOURCES, pairs)
    exact_row = SortedRows(table["id"])
    log = [*read(exact, "higra_exact_merges").to_pylist(), *applied]
    for row in log:
        if row["why"] != merges.QUARANTINED:
            row["entity"] = ids[int(row_of[exact_row[row["entity"]]])].as_py()
    write(work.out, "higra_merges", sorted(log, key=lambda row: (row["why"], -row["score"], row["id"])))
    counts |= {f"higra_{why}_merges": n for why, n in Counter(row["why"] for row in applied).items()}
    return counts | {"higra_entities": len(ids)} | unapplied


class EntityRows(Sequence[Row]):
    """Rows of EXACT_ENTITIES, which become Python objects when read."""

    def __init__(self, table: pa.Table):
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, row: Any) -> Any:
        return self.table.slice(row, 1).to_pylist()[0]


# --- deciding --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SameEntity:
    """Rows that are one entity, the rule that says so, and the lowest cosine among them."""

    rows: tuple[int, ...]
    rule: str
    score: float


def _decided(work: Work) -> tuple[list[SameEntity], dict[str, int]]:
    chosen = work.settings.section(AlignmentSettings)
    arrays = tables.read_arrays(work.stage_folders["higra_exact_vectors"] / "vectors.safetensors")
    vectors = torch.from_numpy(arrays["vectors"])
    if not chosen.refine or not len(vectors):
        return [], {}
    work.progress.start("higra_merge", len(vectors), "entities")
    entities = EntityRows(read(work.stage_folders["higra_exact"], "higra_exact_entities"))
    if roles_of(work.settings):
        return _decided_by_llm(work, entities, vectors, chosen)
    pairs, cosine = near_enough(vectors, sharing_pairs(work, entities.table), max(chosen.min_cosine, 1 - chosen.tau))
    return agreeing(work, entities, pairs, cosine), {}


def _decided_by_llm(
    work: Work, entities: EntityRows, vectors: torch.Tensor, chosen: AlignmentSettings
) -> tuple[list[SameEntity], dict[str, int]]:
    near = near_entities(work, vectors, chosen.tau, _earlier(work, vectors))
    if not near.recall:
        work.carry(near.pairs @ [1 << 31, 1])
    windows = entity_windows(work, vectors, chosen.tau, near)
    decisions, counts = by_llm(work, entities, vectors, windows)
    return decisions, near.counts("merge", windows) | counts


def _earlier(work: Work, vectors: torch.Tensor) -> KeptPairs | None:
    """Near pairs of an earlier run between rows of the same text and vector. None without an earlier run."""
    carried = work.carried(np.int64, values=range(1 << 62))
    if carried is None or not work.previous_inputs:
        return None
    before = work.previous_inputs
    known = tables.read_arrays(before["higra_exact_vectors"] / "vectors.safetensors")["vectors"]
    sides = np.stack(np.divmod(carried, 1 << 31), 1)
    rows = same_exact(work.stage_folders["higra_exact"], before["higra_exact"])
    if vectors.shape[1] != known.shape[1] or outside(sides, len(known)) or outside(rows + 1, len(known) + 1):
        return None
    drop_changed(rows, vectors.numpy(), known)
    sides = inverse(rows, len(known))[sides]
    return KeptPairs(sides[(sides >= 0).all(1)], rows < 0)


def agreeing(work: Work, entities: EntityRows, pairs: np.ndarray, cosine: np.ndarray) -> list[SameEntity]:
    """The pairs to which a rule of `NameRules` applies, and whose types overlap if both have some.

    pairs: i64[2, P], ascending; cosine: f64[P]. Names become objects, so they are first read for _PAIRS pairs at a
    time, without the passages and the other names, which can only rule a pair out.
    """
    parts = np.split(np.arange(pairs.shape[1]), range(_PAIRS, pairs.shape[1], _PAIRS))
    kept = np.concatenate([part[[bool(rule) for rule in _rules(entities, pairs[:, part])]] for part in parts])
    agreed = zip(pairs[:, kept].T.tolist(), _rules(entities, pairs[:, kept], work), cosine[kept].tolist())
    return [SameEntity((a, b), rule, round(score, 6)) for (a, b), rule, score in agreed if rule]


def _rules(entities: EntityRows, pairs: np.ndarray, work: Work | None = None) -> list[str]:
    """The rule that makes each pair one entity, "" if there is none. Without `work` it is a rule by the two names
    alone: other names and passages may forbid it."""
    rows, columns = np.unique(pairs), ["name", "aliases", "types", *(["passages"] if work else [])]
    shown = entities.table.select(columns).take(pa.array(rows))
    near = dict(zip(rows.tolist(), shown.to_pylist()))
    others, named = (_ways(entities), _named(work, near)) if work else (None, {row: {0} for row in near})
    rules = NameRules({row: [entity["name"], *entity["aliases"]] for row, entity in near.items()}, others)
    types = {row: {kind.casefold() for kind in entity["types"]} for row, entity in near.items()}
    return [
        "" if types[a] and types[b] and not types[a] & types[b] else rules.rule(a, b, bool(named[a] & named[b]))
        for a, b in pairs.T.tolist()
    ]


def near_enough(
    vectors: torch.Tensor, parts: Iterable[tuple[np.ndarray, np.ndarray]], least: float
) -> tuple[np.ndarray, np.ndarray]:
    """The pairs a < b whose cosine, rounded to six digits, is at least `least`, and their cosines: i64[2, P],
    ascending, and f64[P].

    Memory: 40 bytes a pair of the largest part, and 50 a pair that is returned.
    """
    n, keys, cosines = max(len(vectors), 1), [np.zeros(0, np.int64)], [np.zeros(0)]
    for a, b in parts:
        key = distinct(a.astype(np.int64) * n + b)
        left, right = map(torch.from_numpy, np.divmod(key, n))
        cosine = exact_dots(vectors, left, vectors, right).numpy()
        is_near = cosine.round(6) >= least
        keys.append(key[is_near])
        cosines.append(cosine[is_near])
    key, first = np.unique(np.concatenate(keys), return_index=True)
    return np.stack(np.divmod(key, n)), np.concatenate(cosines)[first]


def _ways(entities: EntityRows) -> Iterator[list[str]]:
    for batch in entities.table.select(["name", "aliases"]).to_batches(tables.ROWS_A_GROUP):
        for name, aliases in zip(batch["name"].to_pylist(), batch["aliases"].to_pylist()):
            yield [name, *aliases]


def _named(work: Work, entities: Mapping[int, Row]) -> dict[int, set[int]]:
    """The passages that name each entity: it was extracted there, or its name is the title."""
    path, first = work.stage_folders["passages"] / "passages.parquet", 0
    of_name: dict[str, list[int]] = defaultdict(list)
    for row, entity in entities.items():
        of_name[normalise_name(entity["name"])].append(row)
    named = {row: set(entity["passages"]) for row, entity in entities.items()}
    for batch in tables.read_batches(path, tables.PASSAGES, ("title", "text")):
        for passage, (title, text) in enumerate(zip(batch["title"].to_pylist(), batch["text"].to_pylist()), first):
            for row in of_name.get(normalise_name(title_name(title, text)), ()):
                named[row].add(passage)
        first += batch.num_rows
    return named


class Groups(Struct, frozen=True):
    """Groups of entities of a window that are the same, by their numbers from 1."""

    groups: tuple[tuple[int, ...], ...]


def groups_schema(n: int) -> str:
    """The JSON Schema of groups of two or more of the numbers 1 to n."""
    number = {"type": "integer", "minimum": 1, "maximum": n}
    group = {"type": "array", "items": number, "minItems": 2, "maxItems": n}
    return canonical_schema(object_of({"groups": {"type": "array", "items": group, "maxItems": max(2, n // 2)}}))


MERGE: Ask[Groups] = Ask("higra_merge", Groups, rule=agreeing, prompt=f"{PROMPTS}:merge", schema=groups_schema)


def by_llm(
    work: Work, entities: Sequence[Row], vectors: torch.Tensor, windows: Clusters
) -> tuple[list[SameEntity], dict[str, int]]:
    """The groups that a model finds in each window, one request per window, and counts of unusable replies.

    Groups of a reply that share an entity are joined. An unreadable reply merges nothing. A group with two names whose
    numbers differ is not merged either, and is counted.
    """
    work.progress.start("higra_merge", len(windows), "windows")
    replies, unread = ask_windows(work, MERGE, entities, windows)
    decisions: list[SameEntity] = []
    n_numbers = 0
    for window, group in ((window, group) for window, reply in replies for group in reply.groups):
        rows = tuple(sorted({window[number - 1] for number in group}))
        pairs = list(combinations(rows, 2))
        if any(numbers_differ(entities[a]["name"], entities[b]["name"]) for a, b in pairs):
            n_numbers += 1
        elif pairs:
            score = near_enough(vectors, window_pairs([list(rows)]), -2.0)[1].min()
            decisions.append(SameEntity(rows, BY_LLM, round(float(score), 6)))
    return decisions, ({"higra_merge_numbers_differ": n_numbers} if n_numbers else {}) | unread


# --- applying --------------------------------------------------------------------------------------


class Joined:
    """Groups of rows 0 .. n-1; at first each row is its own group. apart: pairs of rows that must stay in different
    groups.

    Joins are made in the given order; a join that would bring a forbidden pair together is refused. Without forbidden
    pairs the groups are the connected components of the joins, and order does not matter.
    """

    def __init__(self, n: int, apart: Iterable[tuple[int, int]] = ()):
        self._n = n
        self._group: dict[int, set[int]] = {}  # row -> all rows of its group, for rows that were joined
        self._apart: dict[int, set[int]] = defaultdict(set)
        for a, b in apart:
            self._apart[a].add(b)
            self._apart[b].add(a)

    def join(self, a: int, b: int) -> bool:
        """Join the groups of two rows. Returns False if a forbidden pair prevents it."""
        small, large = sorted((self._group.setdefault(row, {row}) for row in (a, b)), key=len)
        if small is large:
            return True
        if any(self._apart[row] & large for row in small if row in self._apart):
            return False
        large |= small
        self._group.update(dict.fromkeys(small, large))
        return True

    def size(self, row: int) -> int:
        """The number of rows in the group of a row."""
        return len(self._group.get(row, (row,)))

    def groups(self) -> list[int]:
        """The smallest row of each row's group."""
        least = list(range(self._n))
        for group in {id(group): group for group in self._group.values()}.values():
            first = min(group)
            for row in group:
                least[row] = first
        return least


def apply_decisions(
    entities: EntityRows, decisions: Iterable[SameEntity], edits: merges.Edits, most: int
) -> tuple[list[int], list[Row], dict[str, int]]:
    """Apply forced merges, then the decisions, nearest first. Rejected pairs are never merged unless forced.

    If decisions would merge more than `most` entities into one, all of them are set aside.

    Returns the smallest row of each entity's group, rows of HIGRA_MERGES whose `entity` is the id of an exact entity,
    and counts of joins that a rejected pair prevented and of edits that name no entity of this index.
    """
    of_name: dict[str, set[int]] = defaultdict(set)
    for row, name in enumerate(normalised(one_array(entities.table["name"])) if edits else ()):
        of_name[name.as_py()].add(row)
    of_id = SortedRows(entities.table["id"])

    def rows_of(name: str) -> set[int]:
        return {of_id[name]} if name in of_id else of_name.get(name, set())

    forced, rejected = merges.edited(edits, merges.FORCE), merges.name_pairs(merges.edited(edits, merges.REJECT))
    rejected_pairs = [tuple(pair) for pair in rejected - merges.name_pairs(forced) if len(pair) > 1]
    forbidden = {(a, b) for one, other in rejected_pairs for a in rows_of(one) for b in rows_of(other)}
    todo = [SameEntity(tuple(sorted(set().union(*map(rows_of, names)))), BY_HAND, 1.0) for names in sorted(forced)]
    todo += sorted(decisions, key=lambda same: (-same.score, same.rows))
    joined, joins = _joined(todo, len(entities), forbidden)
    aside = {same for same in todo if same.rule != BY_HAND and joined.size(same.rows[0]) > most}
    quarantined: dict[int, list[SameEntity]] = defaultdict(list)
    if aside:
        whole = joined.groups()
        for same in sorted(aside, key=lambda same: same.rows):
            quarantined[whole[same.rows[0]]].append(same)
        joined, joins = _joined([same for same in todo if same not in aside], len(entities), forbidden)
    log: dict[str, Row] = {}
    for decision, kept in joins:
        if len(kept) > 1:
            members = [entities[row]["id"] for row in kept]
            why = merges.FORCED if decision.rule == BY_HAND else merges.SEMANTIC
            merge = merges.merge_row(why, decision.rule, decision.score, members, members[0])
            log.setdefault(merge["id"], merge)
    for parts in quarantined.values():
        members = [entities[row]["id"] for row in sorted({row for same in parts for row in same.rows})]
        score = min(same.score for same in parts)
        merge = merges.merge_row(merges.QUARANTINED, f"more than {most} entities", score, members, "")
        log[merge["id"]] = merge
    n_refused = sum(len(decision.rows) - len(kept) for decision, kept in joins)
    n_unused = sum(not all(map(rows_of, edit.members)) for edit in edits)
    counts = {"higra_merges_refused": n_refused, "higra_edits_unused": n_unused}
    return joined.groups(), list(log.values()), counts


def _joined(
    decisions: Iterable[SameEntity], n: int, forbidden: set[tuple[int, int]]
) -> tuple[Joined, list[tuple[SameEntity, list[int]]]]:
    """The groups that result from decisions on n rows, in the given order, and the rows that each decision joined."""
    joined = Joined(n, forbidden)
    return joined, [
        (same, [row for i, row in enumerate(same.rows) if i == 0 or joined.join(same.rows[0], row)])
        for same in decisions
    ]


def merged_table(exact: pa.Table, group_of: np.ndarray) -> tuple[pa.Table, np.ndarray]:
    """(HIGRA_ENTITIES sorted by id, i64[N]: the row that each exact entity became).

    exact: EXACT_ENTITIES, N rows sorted by id; group_of: i64[N], the smallest row of each row's group. The member with
    most passages gives name and id, ties by id. All names, aliases, types and descriptions are kept.
    """
    n_passages = pc.list_value_length(exact["passages"]).to_numpy()
    sizes = np.bincount(group_of, minlength=len(group_of))
    is_kept, became = sizes[group_of] == 1, np.arange(len(group_of))
    joined = np.flatnonzero(~is_kept)
    group = group_of[joined]
    order = np.lexsort((joined, -n_passages[joined], group))
    groups = np.split(joined[order], np.flatnonzero(np.diff(group[order])) + 1) if len(joined) else []
    rows = []
    for members in groups:
        rows.append(_one(exact.take(members).to_pylist()))
        became[members] = members[0]
    firsts = np.array([members[0] for members in groups], np.int64)
    kept = np.flatnonzero(is_kept)
    single = (
        exact.drop_columns("passages").take(kept).append_column("n_passages", pa.array(n_passages[kept], pa.int32()))
    )
    order = np.argsort(np.concatenate([kept, firsts]), kind="stable")
    merged = pa.concat_tables([single.cast(HIGRA_ENTITIES), pa.Table.from_pylist(rows, HIGRA_ENTITIES)]).take(order)
    is_kept[firsts] = True
    return merged, (np.cumsum(is_kept) - 1)[became]


def merged_rows(entities: Sequence[Row], group_of: Sequence[int]) -> tuple[list[Row], list[int]]:
    """`merged_table` of rows in memory. group_of: any number for each group."""
    _, first, group = np.unique(np.asarray(group_of, np.int64), return_index=True, return_inverse=True)
    table, row_of = merged_table(pa.Table.from_pylist(list(entities), EXACT_ENTITIES), first[group])
    return table.to_pylist(), row_of.tolist()


def _one(parts: Sequence[Row]) -> Row:
    names = dict.fromkeys([*(part["name"] for part in parts), *(alias for part in parts for alias in part["aliases"])])
    return {
        "id": parts[0]["id"],
        "name": parts[0]["name"],
        "aliases": list(names)[1:],
        "types": list(dict.fromkeys(kind for part in parts for kind in part["types"])),
        "descriptions": list(dict.fromkeys(text for part in parts for text in part["descriptions"])),
        "members": sorted({row for part in parts for row in part["members"]}),
        "n_passages": len(set().union(*(part["passages"] for part in parts))),
    }
