"""Extractions -> entities and relations: one row a normalised name, one row a normalised triple."""

from __future__ import annotations

from collections import Counter, defaultdict

from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Work
from gpu_rag.text.normalise import normalise_name

MAX_NAME_CHARS = 300  # longer "names" are sentences that an extractor returned whole


@stage("entities", needs=("extraction",), size="extracted")
def entities_stage(work: Work) -> dict[str, int]:
    """Table `entities` (sorted by normalised name) and table `relations` (sorted by subject, label, object).

    Names that are equal when normalised become one. Names that normalise to nothing are counted as dropped.
    """
    table = tables.read_table(work.stage_folders["extraction"] / "extractions.parquet", tables.EXTRACTIONS)
    written: dict[str, Counter[str]] = defaultdict(Counter)
    where: dict[str, set[int]] = defaultdict(set)
    relations: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    dropped = 0
    rows = zip(table["passage"].to_pylist(), table["entities"].to_pylist(), table["triples"].to_pylist())
    for passage, names, triples in rows:
        ends = [name for subject, _, object_ in triples for name in (subject, object_)]
        for name in [*names, *ends]:
            key = normalise_name(name)
            if not key or len(key) > MAX_NAME_CHARS:
                dropped += 1
                continue
            written[key][" ".join(name.split())] += 1
            where[key].add(passage)
        for triple in triples:
            s, r, o = map(normalise_name, triple)
            if s in written and o in written:
                relations[s, r, o].add(passage)
        work.progress.advance(1)
    ids = sorted(written)
    row_of = {name: row for row, name in enumerate(ids)}
    _write(work, ids, written, where)
    _write_relations(work, row_of, relations)
    return {"entities": len(ids), "relations": len(relations), "dropped_names": dropped}


def _write(work: Work, ids: list[str], written: dict[str, Counter[str]], where: dict[str, set[int]]) -> None:
    # the commonest way of writing names the entity; ties by the alphabet
    ranked = [[way for way, _ in sorted(written[key].items(), key=lambda item: (-item[1], item[0]))] for key in ids]
    columns = {
        "id": ids,
        "name": [ways[0] for ways in ranked],
        "aliases": [ways[1:] for ways in ranked],
        "n_passages": [len(where[key]) for key in ids],
    }
    tables.write_table(work.out / "entities.parquet", tables.ENTITIES, columns)


def _write_relations(work: Work, row_of: dict[str, int], relations: dict[tuple[str, str, str], set[int]]) -> None:
    keys = sorted(relations)
    columns = {
        "id": [" | ".join(key) for key in keys],
        "subject": [row_of[s] for s, _, _ in keys],
        "label": [label for _, label, _ in keys],
        "object": [row_of[o] for _, _, o in keys],
        "passages": [sorted(relations[key]) for key in keys],
        "origin": ["extraction"] * len(keys),
    }
    tables.write_table(work.out / "relations.parquet", tables.RELATIONS, columns)
