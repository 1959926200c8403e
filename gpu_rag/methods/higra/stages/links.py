"""Two kinds of links. Between entities: relations that no passage states, inferred by a language model. From entities
to passages: where they were extracted, and where a search finds a distinctive name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gpu_rag.index import tables
from gpu_rag.index.database import database
from gpu_rag.index.names import changed, one_array
from gpu_rag.index.stage import stage, where_capable
from gpu_rag.index.stages.entities import write_relations
from gpu_rag.index.stages.mentions import Earlier, mention_blocks, updated_blocks
from gpu_rag.index.stages.search import embed_blocks
from gpu_rag.index.work import Sources, Work
from gpu_rag.lazy import torch
from gpu_rag.methods.higra.settings import AlignmentSettings
from gpu_rag.methods.higra.stages.asks import PROMPTS, ask_windows, entity_text, is_left_to_the_model, roles_of
from gpu_rag.methods.higra.stages.exact import STATED
from gpu_rag.methods.higra.stages.windows import entity_windows, near_entities, window_params
from gpu_rag.methods.higra.tables import (
    HIGRA_ENTITIES,
    HIGRA_LINKS,
    HIGRA_RELATIONS,
    Row,
    Triple,
    pair_keys,
    read,
    relation_row,
)
from gpu_rag.models.ask import Ask, read_prompt
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.replies import canonical_schema, object_of

_WORD = re.compile(r"\w+")
_COUNTS = pa.schema([("values", pa.string()), ("counts", pa.int64())])
MAX_RELATIONS = 20  # maximum per reply


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The clusters, the prompt and the minimum confidence; only the decider if no language model decides."""
    chosen = settings.section(AlignmentSettings)
    if not roles_of(settings):
        return {"decider": "similarity" if chosen.refine else "none"}
    return {
        "decider": "llm",
        **window_params(chosen, chosen.link_radius),
        "confidence": chosen.confidence,
        "prompt": read_prompt(f"{PROMPTS}:link").digest,
    }


@stage(
    "higra_links",
    needs=("higra_exact", "higra_merge"),
    version=3,
    retry=("higra_link_failed",),
    params=_params,
    roles=lambda settings: (*roles_of(settings), "embedder") if roles_of(settings) else (),
    settled=where_capable(AlignmentSettings, "alignment", "decider", "similarity"),
    by_capability=is_left_to_the_model,
    size="entities",
)
def links_stage(work: Work) -> dict[str, int]:
    """Write the table `relations` (HIGRA_RELATIONS): the extracted relations, and those that a language model infers.

    With the decider `similarity`, or without refinement, nothing is inferred. A relation that is both extracted and
    inferred stays as extracted.
    """
    folder, path = work.stage_folders["higra_merge"], work.out / "higra_relations.parquet"
    n, n_new, counts = _write_extracted(work, path), 0, dict[str, int]()
    if roles_of(work.settings) and (entities := read(folder, "higra_entities").to_pylist()):
        inferred, counts = _inferred(work, entities)
        relations = read(work.out, "higra_relations")
        ends = pa.array({key[0] for key in inferred}, pa.int32())
        candidates = relations.filter(pc.is_in(relations["subject"], value_set=ends))
        known = set(zip(*(candidates[name].to_pylist() for name in ("subject", "label", "object"))))
        new = [relation_row(key, confidence=inferred[key]) for key in inferred if key not in known]
        relations = pa.concat_tables([relations, pa.Table.from_pylist(new, HIGRA_RELATIONS)])
        relations = relations.sort_by([(name, "ascending") for name in ("subject", "label", "object")])
        columns, n_new = [column.combine_chunks() for column in relations.columns], len(new)
        n = tables.write_columns(path, HIGRA_RELATIONS, columns)
    return counts | {"higra_relations": n, "higra_inferred": n_new}


def _write_extracted(work: Work, path: Path) -> int:
    """Write the extracted relations between merged entities. Returns their number."""
    exact, became = (work.stage_folders[f"higra_{name}"] for name in ("exact", "merge"))
    row_of = read(became, "higra_became")["entity"].to_numpy()
    with database(work) as db:
        db.create("stated", STATED)
        for batch in tables.read_batches(exact / "higra_exact_relations.parquet", HIGRA_RELATIONS):
            owner = pc.list_parent_indices(batch["passages"])
            subject, object_ = (row_of[batch[name].take(owner).to_numpy()] for name in ("subject", "object"))
            columns = [pa.array(subject), batch["label"].take(owner), pa.array(object_), batch["passages"].flatten()]
            db.add("stated", pa.table(columns, STATED))
        return write_relations(
            path, db.batches("SELECT DISTINCT * FROM stated ORDER BY s, label, o, passage"), HIGRA_RELATIONS
        )


class Related(Struct, frozen=True):
    """A relation between two entities of a window, by their numbers from 1."""

    source: int
    label: str
    target: int
    confidence: float


class Relations(Struct, frozen=True):
    """Relations between the entities of a window, most confident first."""

    relations: tuple[Related, ...]


def unrelated() -> dict[Triple, float]:
    """No relations. The rule infers none, since near texts say that two entities may be related, but not how."""
    return {}


def _inferred(work: Work, entities: Sequence[Row]) -> tuple[dict[Triple, float], dict[str, int]]:
    """{(subject, label, object): highest confidence}, and counts of requests and of dropped relations."""
    chosen = work.settings.section(AlignmentSettings)
    vectors = torch.from_numpy(embed_blocks(work, [entity_text(row) for row in entities]))
    near = near_entities(work, vectors, chosen.link_radius)
    windows = entity_windows(work, vectors, chosen.link_radius, near)
    work.progress.start("higra_links", len(windows), "windows")
    replies, unread = ask_windows(work, LINK, entities, windows)
    confidences: dict[Triple, float] = {}
    n_unsure = 0
    for window, relation in ((window, relation) for window, reply in replies for relation in reply.relations):
        source, target = window[relation.source - 1], window[relation.target - 1]
        key, confidence = (source, normalise_name(relation.label), target), relation.confidence
        if source == target or not key[1] or confidence < chosen.confidence:
            n_unsure += 1
        else:
            confidences[key] = max(confidences.get(key, 0.0), confidence)
    return confidences, {**near.counts("link", windows), "higra_inferred_unsure": n_unsure, **unread}


def relations_schema(n: int) -> str:
    """The JSON Schema of relations between the numbers 1 to n."""
    number = {"type": "integer", "minimum": 1, "maximum": n}
    relation = object_of(
        {
            "source": number,
            "label": {"type": "string", "maxLength": 120},
            "target": number,
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        }
    )
    return canonical_schema(
        object_of({"relations": {"type": "array", "items": relation, "maxItems": min(3 * n, MAX_RELATIONS)}})
    )


LINK: Ask[Relations] = Ask("higra_link", Relations, rule=unrelated, prompt=f"{PROMPTS}:link", schema=relations_schema)


# --- to passages -----------------------------------------------------------------------------------


def _mention_params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The two limits, or that the search is off."""
    chosen = settings.section(AlignmentSettings)
    return {"theta": chosen.theta, "top_words": chosen.top_words} if chosen.refine else {"refine": False}


@stage("higra_mentions", needs=("passages", "higra_merge"), params=_mention_params, size="mentions")
def mentions_stage(work: Work) -> dict[str, int]:
    """Write the table `links` (HIGRA_LINKS), sorted by (passage, start, entity, end). An extracted entity that is not
    found verbatim has offsets -1.

    A name or alias that occurs in a passage (whole words) links its entity there. If the entity was not extracted
    there, it is linked only if its NAME occurs fewer than `alignment.theta` times in all texts and is not one of the
    `alignment.top_words` commonest words (the name is tested for aliases too, as in the paper). Without refinement such
    links are not made.
    """
    folder, chosen = work.stage_folders["higra_merge"], work.settings.section(AlignmentSettings)
    sources = read(folder, "higra_sources")
    links = np.stack([sources["passage"].to_numpy(), sources["entity"].to_numpy()], 1)
    links = links[np.lexsort((links[:, 1], links[:, 0]))]
    path, of_text = folder / "higra_entities.parquet", work.stage_folders["passages"] / "passages.parquet"
    work.progress.start("higra_mentions", tables.n_rows(of_text), "passages")
    is_common: np.ndarray | bool = True
    if chosen.refine:
        passages = tables.read_batches(of_text, tables.PASSAGES, ("text",))
        common = pa.array(common_words((batch["text"] for batch in passages), chosen.top_words), pa.large_string())
        names = one_array(read(folder, "higra_entities", ["name"])["name"])
        folded = changed(
            pc.ascii_lower(pc.ascii_trim_whitespace(names)), names, pc.invert(pc.string_is_ascii(names)), fold
        )
        is_common = pc.is_in(folded, value_set=common).to_numpy(zero_copy_only=False)

    def is_frequent(n_named: np.ndarray) -> np.ndarray:
        return is_common | (n_named >= chosen.theta)

    def frequent(n_named: np.ndarray) -> np.ndarray:
        work.carry(n_named << 1 | is_frequent(n_named))
        return is_frequent(n_named)

    n = n_links = n_searched = 0
    blocks, args = None, (path, HIGRA_ENTITIES, links, lambda _, named: named, frequent)
    if work.previous and work.previous_inputs:
        path_before = work.previous_inputs["higra_merge"] / path.name
        carried = work.carried(np.int64, tables.n_rows(path_before), range(1 << 62))
        if carried is not None:
            mentions = work.previous / "higra_links.parquet"
            blocks = updated_blocks(
                work, *args, is_frequent, Earlier(mentions, path_before, carried >> 1, carried & 1 > 0)
            )
    with tables.TableWriter(work.out / "higra_links.parquet", HIGRA_LINKS) as writer:
        for columns in blocks or mention_blocks(work, *args):
            writer.add(columns)
            entity, passage, origin = columns[0], columns[1], columns[4]
            searched = pc.equal(origin, "search").to_numpy(zero_copy_only=False)
            n += len(entity)
            n_links += len(pair_keys(entity, passage))
            n_searched += len(pair_keys(entity[searched], passage[searched]))
    return {"higra_mentions": n, "higra_links": n_links, "higra_searched_links": n_searched}


def common_words(texts: Iterable[pa.Array], k: int) -> list[str]:
    """The k commonest words (runs of letters, digits and "_") of the texts, after `fold`; ties in alphabetical order.
    Texts are split at white space first, so that each distinct part is folded once."""
    parts, weight = _counted([pc.list_flatten(pc.utf8_split_whitespace(part)).value_counts() for part in texts])
    plain = pc.string_is_ascii(parts)
    order = pc.sort_indices(pc.invert(plain))  # the ASCII parts first
    words = pc.split_pattern_regex(pc.ascii_lower(parts.filter(plain)), "[^a-z0-9_]+")
    others = [_WORD.findall(fold(part)) for part in parts.filter(pc.invert(plain)).to_pylist()]
    words = pa.concat_arrays([words, pa.array(others, words.type)])
    n = weight.take(order).take(pc.list_parent_indices(words))
    words, n = _counted([pa.StructArray.from_arrays([words.flatten(), n], ["values", "counts"])])
    table = pa.table({"word": words, "n": n}).filter(pc.not_equal(words, ""))
    order = pc.select_k_unstable(table, k, [("n", "descending"), ("word", "ascending")])
    return table["word"].take(order).to_pylist()  # type: ignore[no-any-return]


def _counted(parts: Sequence[pa.StructArray]) -> tuple[pa.StringArray, pa.Int64Array]:
    """(the distinct values of all parts, their counts in all)."""
    table = pa.Table.from_batches(map(pa.RecordBatch.from_struct_array, parts), _COUNTS)
    summed = table.group_by("values", use_threads=False).aggregate([("counts", "sum")]).combine_chunks()
    return summed["values"].combine_chunks(), summed["counts_sum"].combine_chunks()


def fold(text: str) -> str:
    """The form used to search names: NFKC, casefold, and each run of white space as one space."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())
