"""The decisions of BubbleRAG: list and reword keywords, group anchors, grow trees, and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct

from gpu_rag.index.index import Index
from gpu_rag.methods.bubblerag.graph import node_texts, passages_of
from gpu_rag.methods.bubblerag.rules import CONCEPT_CHARS, MAX_CANDIDATES, MAX_CHARS, MOST, Group, Keyword, once
from gpu_rag.models.ask import Ask, Choose, Packed, Refused
from gpu_rag.program.oracle import Known
from gpu_rag.program.reader import UNKNOWN, passage_block, read_blocks
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.types import Evidence

PROMPTS = "gpu_rag.methods.bubblerag.prompts"
ENOUGH_OPTIONS = ("no, more has to be found", "yes, they tell the answer")
KEYWORD_TOKENS = 256

Number = Annotated[int, Meta(ge=1)]


class Listed(Struct, frozen=True):
    """Keywords to search for, the most important first."""

    keywords: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=MAX_CHARS)], ...], Meta(max_length=MOST)]


class Change(Struct, frozen=True):
    """A new wording for one keyword, which is given by its number (from 1)."""

    number: Annotated[int, Meta(ge=1, le=MOST)]
    keyword: Annotated[str, Meta(min_length=1, max_length=200)]


class Rewording(Struct, frozen=True):
    """The keywords that get a new wording."""

    changes: Annotated[tuple[Change, ...], Meta(max_length=MOST)]


class Sorted(Struct, frozen=True):
    """One group: numbers (from 1) of the candidates that can stand for one concept of the question."""

    concept: Annotated[str, Meta(max_length=CONCEPT_CHARS)]
    weight: Annotated[float, Meta(ge=0, le=1)]
    candidates: Annotated[tuple[Number, ...], Meta(max_length=MAX_CANDIDATES)]


class Grouping(Struct, frozen=True):
    """Candidates sorted into groups."""

    groups: Annotated[tuple[Sorted, ...], Meta(max_length=MOST)]


def numbered(keywords: Sequence[Keyword]) -> str:
    """The keywords as a list for a prompt, numbered from 1."""
    return "\n".join(f"{i}. {keyword.text}" for i, keyword in enumerate(keywords, 1))


# --- keywords --------------------------------------------------------------------------------------


def as_keywords(reply: Listed, rules: Sequence[Keyword]) -> list[Keyword]:
    """The keywords of a reply. A keyword that the rules also list keeps the kind that they give it."""
    kinds = {keyword.text: keyword for keyword in rules}
    return once(kinds.get(text, Keyword(text)) for text in reply.keywords)


def reworded(reply: Rewording, keywords: Sequence[Keyword]) -> list[Keyword]:
    """The keywords with the changes of a reply. Invalid numbers and empty texts are ignored."""
    changed = list(keywords)
    for change in reply.changes:
        text = " ".join(change.keyword.split())
        if change.number <= len(changed) and text:
            changed[change.number - 1] = replace(changed[change.number - 1], text=text)
    return changed


def _listed(reply: Listed) -> Listed | Refused:
    texts = tuple(text for text in (" ".join(text.split()) for text in reply.keywords) if text)
    return Listed(texts) if texts else Refused("it lists no keyword")


def _in_words(reply: Listed, rules: Sequence[Keyword]) -> list[str]:
    return [f"{keyword.kind}: {keyword.text}" for keyword in as_keywords(reply, rules)]


def _changes(reply: Rewording, keywords: Sequence[Keyword]) -> list[str]:
    pairs = zip(keywords, reworded(reply, keywords))
    return [f"{old.text} -> {new.text}" for old, new in pairs if old != new]


def _rewording(name: str) -> Ask[Rewording]:
    """An Ask that rewords keywords. Without a model they do not change."""
    return Ask(
        name,
        Rewording,
        rule=lambda: Rewording(()),
        prompt=f"{PROMPTS}:{name}",
        show=lambda question, keywords, passages: {
            "question": question,
            "keywords": numbered(keywords),
            **({"passages": Packed(passages())} if name == "relax" else {}),
        },
        words=_changes,
    )


KEYWORDS = Ask(
    "keywords",
    Listed,
    rule=lambda rules: Listed(tuple(keyword.text for keyword in rules)),
    prompt=f"{PROMPTS}:keywords",
    check=_listed,
    words=_in_words,
    max_tokens=KEYWORD_TOKENS,
)
SPECIALISE, RELAX = _rewording("specialise"), _rewording("relax")


# --- groups and growth -----------------------------------------------------------------------------


def as_groups(reply: Grouping, candidates: Sequence[int]) -> list[Group]:
    """The groups of a reply, heaviest first. Weights are scaled to sum to 1; if all are 0, they become equal."""
    ordered = sorted(reply.groups, key=lambda group: -group.weight)
    total = sum(group.weight for group in ordered)
    return [
        Group(
            group.concept,
            tuple(candidates[number - 1] for number in dict.fromkeys(group.candidates)),
            group.weight / total if total > 0 else 1 / len(ordered),
        )
        for group in ordered
    ]


def _groups_in_words(reply: Grouping, index: Index, candidates: Sequence[int]) -> list[str]:
    groups = as_groups(reply, candidates)
    texts = iter(node_texts(index, (v for group in groups for v in group.anchors)))
    return [f"{group.weight:.2f} {group.concept}: {'; '.join(islice(texts, len(group.anchors)))}" for group in groups]


def _sorted(reply: Grouping, shown: Sequence[int]) -> Grouping | Refused:
    """Remove candidates that the prompt did not show, then empty groups. Refused if no group is left."""
    seen = {position + 1 for position in shown}
    kept = (
        Sorted(" ".join(group.concept.split()), group.weight, tuple(n for n in group.candidates if n in seen))
        for group in reply.groups
    )
    groups = tuple(group for group in kept if group.candidates)
    return Grouping(groups) if groups else Refused("it sorts no candidate")


def _of_gold(
    gold: Known, keywords: Sequence[Keyword], pools: Sequence[Ranking], candidates: Sequence[int]
) -> Grouping | None:
    """For each keyword, a group of its candidates that occur in a gold passage. None if no candidate does."""
    right = {v: i for i, v in enumerate(candidates, 1) if not gold.passages.isdisjoint(passages_of(gold.index, [v]))}
    numbers = [tuple(right[v] for v in pool.rows if v in right)[:MAX_CANDIDATES] for pool in pools]
    named = zip(keywords, numbers)
    groups = tuple(Sorted(keyword.text[:CONCEPT_CHARS], 1.0, shown) for keyword, shown in named if shown)
    return Grouping(groups) if groups else None


GROUPS = Ask(
    "groups",
    Grouping,
    rule=lambda rules: rules,
    prompt=f"{PROMPTS}:groups",
    show=lambda question, keywords, lines, rank: {
        "question": question,
        "keywords": numbered(keywords),
        "candidates": Packed(lines(), rank, separator="\n"),
    },
    check=_sorted,
    words=_groups_in_words,
    gold=_of_gold,
)


def stated_by_gold(gold: Known, position: int, relations: Sequence[int]) -> bool:
    """Whether a gold passage states the relation."""
    return not gold.passages.isdisjoint(passages_of(gold.index, [relations[position]]))


EXPAND = Choose(
    "expand",
    f"{PROMPTS}:expand",
    show=lambda question, graph, index: {
        "question": question,
        "evidence": "\n".join(node_texts(index, graph.relations or graph.entities)),
    },
    none=True,
    helps=stated_by_gold,
    shuffled=True,
)


# --- reading ---------------------------------------------------------------------------------------


def told_rightly(gold: Known, position: int, rows: Sequence[int]) -> bool:
    """Whether an option of ENOUGH is right. "Yes" is right if the passages include all gold documents."""
    documents = {gold.index.passage_doc_ids[row] for row in rows}
    return (position == 1) == (bool(gold.gold.documents) and gold.gold.documents <= documents)


ENOUGH = Choose(
    "enough",
    f"{PROMPTS}:enough",
    show=lambda question, evidence: {"question": question, "passages": Packed(blocks_of(evidence))},
    rule=lambda: [0],  # similarity cannot tell
    helps=told_rightly,
)


def blocks_of(evidence: Sequence[Evidence]) -> list[str]:
    """Numbered passages for a prompt."""
    return [passage_block(i, e) for i, e in enumerate(evidence, 1)]


async def _read(run: Run, question: str, evidence: Sequence[Evidence]) -> str:
    """The answer of the shared reader, which sees only the first `run.reader.passages` passages."""
    return await read_blocks(run, question, blocks_of(evidence[: run.reader.passages])) or UNKNOWN


def _facts_and_passages(facts: Sequence[str], evidence: Sequence[Evidence]) -> list[str]:
    listed = ["Facts\n" + "\n".join(f"- {fact}" for fact in facts)] if facts else []
    return [*listed, *blocks_of(evidence)]


ANSWER = Ask(
    "answer",
    str,
    rule=_read,
    prompt=f"{PROMPTS}:answer",
    show=lambda question, facts, evidence: {
        "question": question,
        "evidence": Packed(_facts_and_passages(facts, evidence)),
    },
    unread=lambda: UNKNOWN,
    reads="capable",
)
