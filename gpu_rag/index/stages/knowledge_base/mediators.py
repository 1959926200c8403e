"""Removal of mediators: nameless nodes that tie several things together, such as Freebase's compound values.

A marriage m with "Ada - spouse -> m", "m - partner -> Ben" and "m - from -> 1931" becomes "Ada - spouse/partner -> Ben"
and two more, "Ada - spouse/from -> 1931" and "Ben - partner/from -> 1931": a search spends no hop on m.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.stages.knowledge_base.columns import Edges, SourceColumns

MAX_ENDS = 8  # facts of a mediator; pairs of them become facts
# ids of Freebase, blank nodes, and statement nodes of Wikidata; only if they have no other name
_NAMELESS = r"^(?:(?:.*/)?[mg]\.[0-9a-z_]+|_:.*|https?://www\.wikidata\.org/entity/statement/.*)$"


def collapse_mediators(source: SourceColumns) -> SourceColumns:
    """Source with the facts of each mediator joined between its ends, and without the mediators.

    A mediator has at most MAX_ENDS facts, none of them with another nameless node; other nodes are unchanged. Of two
    facts, the one that leads to the mediator comes first, else the earlier by relation and end. Memory: 100 bytes a
    fact of a mediator.
    """
    edges, local = source.edges, pc.replace_substring_regex(source.ids, r"^.*/", "")
    nameless = np.asarray(pc.match_substring_regex(source.ids, _NAMELESS))
    nameless &= np.asarray(pc.or_(pc.equal(source.names, source.ids), pc.equal(source.names, local)))
    both = nameless[edges.head] & nameless[edges.tail]
    chained = np.zeros(source.n, bool)
    chained[edges.head[both]] = chained[edges.tail[both]] = True
    n_facts = np.bincount(edges.head, minlength=source.n) + np.bincount(edges.tail, minlength=source.n)
    taken = nameless & ~chained & (n_facts <= MAX_ENDS) & (n_facts > 1)
    out = taken[edges.head]
    fact = np.flatnonzero(out | taken[edges.tail])
    if not len(fact):
        return source
    out = out[fact]
    middle, end = np.where(out, edges.head[fact], edges.tail[fact]), np.where(out, edges.tail[fact], edges.head[fact])
    order = np.lexsort((end, edges.relation[fact], out, middle))
    fact, middle, end = fact[order], middle[order], end[order]
    pair_starts = [np.flatnonzero(middle[:-k] == middle[k:]) for k in range(1, min(MAX_ENDS, len(fact)))]
    first = np.concatenate(pair_starts)
    second = first + np.repeat(np.arange(1, len(pair_starts) + 1), [len(rows) for rows in pair_starts])
    apart = end[first] != end[second]
    first, second = first[apart], second[apart]
    pairs, number = np.unique(
        np.stack([edges.relation[fact[first]], edges.relation[fact[second]]], 1), axis=0, return_inverse=True
    )
    named = [(source.relations[a], source.relations[b]) for a, b in pairs.tolist()]
    joined = [(f"{a[0]}/{b[0]}", f"{a[1]}/{b[1]}") for a, b in named]
    stays = np.flatnonzero(~(taken[edges.head] | taken[edges.tail]))
    rows = np.concatenate([stays, fact[first]])
    kept = ~taken
    row = np.cumsum(kept, dtype=np.int32) - 1
    made = Edges(
        row[np.concatenate([edges.head[stays], end[first]])],
        np.concatenate([edges.relation[stays], len(source.relations) + number.reshape(-1)]).astype(np.int32),
        row[np.concatenate([edges.tail[stays], end[second]])],
        edges.line[rows],
        None if edges.note is None else edges.note.take(pa.array(rows)),
    )
    chosen = pa.array(np.flatnonzero(kept))
    columns = {name: getattr(source, name).take(chosen) for name in ("ids", "names", "aliases", "types")}
    return replace(source, edges=made, relations=[*source.relations, *joined], **columns)
