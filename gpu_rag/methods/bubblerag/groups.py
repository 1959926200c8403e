"""Step 3 of BubbleRAG: candidates for each keyword, merged into weighted groups of anchors.

Candidates are the k entities and the k relations nearest to a keyword. Those of an OPEN keyword are, with `relax`, the
nearest relations around the anchors of the others: "was born" is said everywhere, and meant there. Where there are none
around, those of everywhere stay.
The model, where it is capable and decides, sorts the candidates into groups by what they realise and weighs these.
By similarity, which is also what stands in for a reply that cannot be used:
- a group a keyword: the nearest entity of a NAME, the nearest relation of a BOUND one, the two nearest relations of
  an OPEN one, the nearest node of any other;
- groups that share more than half of the smaller one are merged;
- the weight of a group is the rarity of its first anchor, log(1 + passages / passages of it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from gpu_rag.graph.bubble import MOST_GROUPS
from gpu_rag.index.index import Index
from gpu_rag.methods.bubblerag.batched import Params, bubble_anchors, bubble_anchors_near
from gpu_rag.methods.bubblerag.graph import is_relation, node_text, node_title, rarity
from gpu_rag.methods.bubblerag.keywords import BOUND, CONCEPT, OPEN, PROMPTS, Keyword, numbered
from gpu_rag.models.budget import reply_tokens
from gpu_rag.program.ask import ask_text, packed
from gpu_rag.program.embed import embed
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of

N_OPEN = 2  # anchors of an open keyword
MOST_MADE, MOST_CANDIDATES = 8, 12  # groups of a reply, candidates of one of them
_GROUP = object_of(
    {
        "concept": {"type": "string", "maxLength": 120},
        "weight": {"type": "number", "minimum": 0, "maximum": 1},
        "candidates": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": MOST_CANDIDATES},
    }
)
SCHEMA = canonical_schema(object_of({"groups": {"type": "array", "maxItems": MOST_MADE, "items": _GROUP}}))


@dataclass(frozen=True)
class Group:
    """Anchors that realise one concept. weight: of all groups they sum to 1."""

    concept: str
    anchors: tuple[int, ...]
    weight: float


async def find_groups(run: Run, question: str, keywords: Sequence[Keyword], params: Params) -> tuple[list[Group], bool]:
    """At most 16 groups, heaviest first, noted in the trace; and whether the model made them."""
    k = params.n_anchors
    vectors = await embed([keyword.text for keyword in keywords])
    pools = await bubble_anchors(vectors, k)
    is_open = [i for i, keyword in enumerate(keywords) if keyword.kind == OPEN]
    settled = (anchors_of(run.index, keywords[i], pool) for i, pool in enumerate(pools) if i not in is_open)
    around = sorted({v for anchors in settled for v in anchors})
    if params.relax and is_open and around:
        local = await bubble_anchors_near((vectors[is_open], tuple(around)), params.near, params.max_local, k)
        for i, pool in zip(is_open, local):
            pools[i] = pool if pool.rows else pools[i]
    groups = await _by_model(run, question, keywords, pools) if run.model_decides else []
    by = "model" if groups else "rules"
    groups = groups or by_rules(run.index, keywords, pools)
    lines = (f"{g.weight:.2f} {g.concept}: {'; '.join(node_text(run.index, v) for v in g.anchors)}" for g in groups)
    run.note(f"groups/{by}", sum(len(pool.rows) for pool in pools), tuple(lines))
    return groups, by == "model"


def anchors_of(index: Index, keyword: Keyword, pool: Ranking) -> tuple[int, ...]:
    """The anchors of a keyword by similarity."""
    if keyword.kind == CONCEPT:
        return pool.rows[:1]
    relation = keyword.kind in (BOUND, OPEN)
    fitting = tuple(v for v in pool.rows if is_relation(index, v) == relation)
    return fitting[: N_OPEN if keyword.kind == OPEN else 1]


def by_rules(index: Index, keywords: Sequence[Keyword], pools: Sequence[Ranking]) -> list[Group]:
    """The groups by similarity."""
    merged: list[tuple[str, tuple[int, ...]]] = []
    for keyword, pool in zip(keywords, pools):
        anchors = anchors_of(index, keyword, pool)
        if not anchors:
            continue
        for i, (concept, earlier) in enumerate(merged):
            if 2 * len(set(earlier) & set(anchors)) > min(len(earlier), len(anchors)):
                merged[i] = (f"{concept} / {keyword.text}", tuple(dict.fromkeys(chain(earlier, anchors))))
                break
        else:
            merged.append((keyword.text, anchors))
    return weighted([Group(concept, anchors, rarity(index, anchors[0])) for concept, anchors in merged])


def weighted(groups: Sequence[Group]) -> list[Group]:
    """The 16 heaviest groups, heaviest first, with weights scaled to sum to 1; equal ones where all are 0."""
    kept = sorted(groups, key=lambda group: -group.weight)[:MOST_GROUPS]
    total = sum(group.weight for group in kept)
    return [Group(g.concept, g.anchors, g.weight / total if total > 0 else 1 / len(kept)) for g in kept]


async def _by_model(run: Run, question: str, keywords: Sequence[Keyword], pools: Sequence[Ranking]) -> list[Group]:
    """The groups that the model makes; none where its reply cannot be used."""
    found_for: dict[int, list[str]] = {}  # numbers of keywords by candidate
    for number, pool in enumerate(pools, 1):
        for v in pool.rows:
            found_for.setdefault(v, []).append(str(number))
    listed = list(found_for)
    if not listed:
        return []
    prompt, room = Prompt.read(PROMPTS, "groups"), reply_tokens(run.models.language_model, SCHEMA)
    lines = [f"{i}. {_candidate(run.index, v, found_for[v])}" for i, v in enumerate(listed, 1)]
    fields = {"question": question, "keywords": numbered(keywords)}
    text, n_shown, _ = packed(run, prompt, fields, "candidates", lines, max_tokens=room, separator="\n")
    reply = await ask_text(run, prompt, text, schema=SCHEMA, max_tokens=room, name="bubblerag_groups")
    if not isinstance(reply, dict):
        return []
    groups = []
    for group in reply["groups"]:
        anchors = tuple(listed[i - 1] for i in dict.fromkeys(group["candidates"]) if i <= n_shown)
        if anchors:
            groups.append(Group(" ".join(group["concept"].split()), anchors, float(group["weight"])))
    return weighted(groups)


def _candidate(index: Index, node: int, found_for: Sequence[str]) -> str:
    """A candidate for the prompt: with its kind, a title that it comes from, and the keywords that it was found for."""
    kind = "relation" if is_relation(index, node) else "entity"
    return " | ".join((node_text(index, node), kind, node_title(index, node), ", ".join(found_for)))
