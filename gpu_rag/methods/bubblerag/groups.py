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

from gpu_rag.methods.bubblerag.grow import MOST_GROUPS
from gpu_rag.methods.bubblerag.keywords import BOUND, CONCEPT, OPEN, Keyword
from gpu_rag.program.questions import model_decides
from gpu_rag.program.search import Ranking
from gpu_rag.program.verbs import Verbs
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema
from gpu_rag.types import Malformed

N_OPEN = 2  # anchors of an open keyword
MAX_TOKENS = 512
SCHEMA = canonical_schema(
    {
        "type": "object",
        "properties": {
            "groups": {
                "type": "array",
                "maxItems": MOST_GROUPS,
                "items": {
                    "type": "object",
                    "properties": {
                        "concept": {"type": "string", "maxLength": 120},
                        "weight": {"type": "number", "minimum": 0, "maximum": 1},
                        "candidates": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 40},
                    },
                    "required": ["concept", "weight", "candidates"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["groups"],
        "additionalProperties": False,
    }
)


@dataclass(frozen=True)
class Group:
    """Anchors that realise one concept. weight: of all groups they sum to 1."""

    concept: str
    anchors: tuple[int, ...]
    weight: float


async def find_groups(
    question: str, keywords: Sequence[Keyword], verbs: Verbs, *, k: int, near: int, max_local: int
) -> tuple[list[Group], bool]:
    """At most 16 groups, heaviest first, noted in the trace; and whether the model made them.

    near: steps around the others' anchors within which an OPEN keyword is looked for; 0: everywhere.
    """
    vectors = await verbs.embed([keyword.text for keyword in keywords])
    pools = await verbs.bubble_anchors(vectors, k)
    kept = [i for i, keyword in enumerate(keywords) if keyword.kind == OPEN]
    around = sorted({v for i, pool in enumerate(pools) if i not in kept for v in anchors_of(keywords[i], pool, verbs)})
    if near and kept and around:
        local = await verbs.bubble_anchors_near(vectors[kept], around, radius=near, limit=max_local, k=k)
        for i, pool in zip(kept, local):
            pools[i] = pool if pool.rows else pools[i]
    groups = await _by_model(question, pools, k, verbs) if model_decides(verbs) else []
    by = "model" if groups else "rules"
    groups = groups or by_rules(keywords, pools, verbs)
    told = (f"{g.weight:.2f} {g.concept}: {'; '.join(map(verbs.bubble_text, g.anchors))}" for g in groups)
    verbs.ctx.note(f"groups/{by}", sum(len(pool.rows) for pool in pools), tuple(told))
    return groups, by == "model"


def anchors_of(keyword: Keyword, pool: Ranking, verbs: Verbs) -> tuple[int, ...]:
    """The anchors of a keyword by similarity."""
    if keyword.kind == CONCEPT:
        return pool.rows[:1]
    relation = keyword.kind in (BOUND, OPEN)
    fitting = tuple(v for v in pool.rows if verbs.bubble_is_relation(v) == relation)
    return fitting[: N_OPEN if keyword.kind == OPEN else 1]


def by_rules(keywords: Sequence[Keyword], pools: Sequence[Ranking], verbs: Verbs) -> list[Group]:
    """The groups by similarity."""
    merged: list[tuple[str, tuple[int, ...]]] = []
    for keyword, pool in zip(keywords, pools):
        anchors = anchors_of(keyword, pool, verbs)
        if not anchors:
            continue
        for i, (concept, held) in enumerate(merged):
            if 2 * len(set(held) & set(anchors)) > min(len(held), len(anchors)):
                merged[i] = (f"{concept} / {keyword.text}", tuple(dict.fromkeys(chain(held, anchors))))
                break
        else:
            merged.append((keyword.text, anchors))
    return weighted([Group(concept, anchors, verbs.bubble_rarity(anchors[0])) for concept, anchors in merged])


def weighted(groups: Sequence[Group]) -> list[Group]:
    """The 16 heaviest groups, heaviest first, with weights scaled to sum to 1; equal ones where all are 0."""
    kept = sorted(groups, key=lambda group: -group.weight)[:MOST_GROUPS]
    total = sum(group.weight for group in kept)
    return [Group(g.concept, g.anchors, g.weight / total if total > 0 else 1 / len(kept)) for g in kept]


async def _by_model(question: str, pools: Sequence[Ranking], k: int, verbs: Verbs) -> list[Group]:
    """The groups that the model makes; none where its reply cannot be used."""
    listed = list(dict.fromkeys(v for pool in pools for v in pool.rows[:k]))
    if not listed:
        return []
    prompt = Prompt.read("gpu_rag.methods.bubblerag.prompts", "groups")
    lines = [f"{i}. {verbs.bubble_text(v)}" for i, v in enumerate(listed, 1)]
    text, n_shown, _ = verbs.pack(
        prompt, {"question": question}, "candidates", lines, max_tokens=MAX_TOKENS, separator="\n"
    )
    reply = await verbs.ask_text(prompt, text, schema=SCHEMA, max_tokens=MAX_TOKENS, name="bubblerag_groups")
    if isinstance(reply, Malformed):
        return []
    assert isinstance(reply, dict)
    groups = []
    for group in reply["groups"]:
        anchors = tuple(listed[i - 1] for i in dict.fromkeys(group["candidates"]) if i <= n_shown)
        if anchors:
            groups.append(Group(" ".join(group["concept"].split()), anchors, float(group["weight"])))
    return weighted(groups)
