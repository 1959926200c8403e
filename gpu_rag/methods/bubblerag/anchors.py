"""Steps 2 and 3 of BubbleRAG: keywords to find in the graph, and weighted groups of anchors.

Keywords are listed first. With `specialise`, keywords that are too vague alone are tied to others. With `relax`, they
are reworded in the words of the pre-retrieved passages. Candidates are the k entities and the k relations nearest to a
keyword. With `relax`, the candidates of an OPEN keyword are the nearest relations around the anchors of the others,
since a phrase such as "was born" occurs everywhere but is meant there. If there are none around, the global candidates
stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, zip_longest

import numpy as np

from gpu_rag.index.index import Index
from gpu_rag.methods.bubblerag.asks import (
    GROUPS,
    KEYWORDS,
    RELAX,
    SPECIALISE,
    Grouping,
    Sorted,
    as_groups,
    as_keywords,
    reworded,
)
from gpu_rag.methods.bubblerag.batched import Params, bubble_anchors, bubble_anchors_near
from gpu_rag.methods.bubblerag.graph import is_relation, node_texts, node_titles, passages_of
from gpu_rag.methods.bubblerag.rules import OPEN, Group, Keyword, anchors_of, groups_by_rules, keywords_by_rules, once
from gpu_rag.program.choices import Choices
from gpu_rag.program.choose import shuffled
from gpu_rag.program.decide import decide, only_rules
from gpu_rag.program.embed import embed
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.text.mentions import mentioned_names


async def find_keywords(
    run: Run, question: str, passages: Callable[[], Sequence[str]], params: Params
) -> list[Keyword]:
    """The keywords of a question, at most 12. passages: read where a model decides."""
    named = [run.index.entity_names[row] for row in mentioned_names(question, run.index.entity_rows)]
    rules = keywords_by_rules(question, named, specialise=params.specialise)
    keywords = as_keywords(await decide(run, KEYWORDS, question=question, rules=rules), rules)
    for ask, wanted in ((SPECIALISE, params.specialise), (RELAX, params.relax)):
        if wanted and not only_rules(run):  # which reword nothing
            reply = await decide(run, ask, question=question, keywords=keywords, passages=passages)
            keywords = once(reworded(reply, keywords))
    return keywords


async def find_groups(
    run: Run, question: str, keywords: Sequence[Keyword], choices: Choices, params: Params
) -> tuple[list[Group], bool]:
    """The groups, heaviest first, and whether they differ from those of the rules. Choices are added to `choices`."""
    vectors = await embed([keyword.text for keyword in keywords])
    pools = await _candidates(run, keywords, vectors, params)
    nearest = list(dict.fromkeys(v for pool in pools for v in pool.rows))
    if not nearest:
        return [], False
    rank: Sequence[int] = range(len(nearest))
    if not only_rules(run):  # rules do not depend on the order
        rank = shuffled(run, GROUPS.name, node_texts(run.index, nearest[:1])[0], len(nearest))
    candidates = [nearest[i] for i in rank]
    rules = _numbered(groups_by_rules(run.index, keywords, pools), candidates)
    reply = await decide(
        run,
        GROUPS,
        question=question,
        keywords=keywords,
        lines=partial(_lines, run.index, candidates, pools),  # read where a model decides
        rank=rank,
        rules=rules,
        pools=pools,
        candidates=candidates,
        index=run.index,
    )
    groups = as_groups(reply, candidates)
    anchors = {v for group in groups for v in group.anchors}
    by_place = chain.from_iterable(zip_longest(*(pool.rows for pool in pools)))
    offered = [v for v in dict.fromkeys(by_place) if v is not None]
    chosen = [i for i, v in enumerate(offered) if v in anchors]
    choices.add(run, offered, chosen, lambda v: passages_of(run.index, [v]))
    return groups, reply != rules


async def _candidates(run: Run, keywords: Sequence[Keyword], vectors: np.ndarray, params: Params) -> list[Ranking]:
    """The candidates of each keyword, nearest first."""
    k = params.n_anchors
    pools = await bubble_anchors(vectors, k)
    is_open = [i for i, keyword in enumerate(keywords) if keyword.kind == OPEN]
    settled = (anchors_of(run.index, keywords[i], pool) for i, pool in enumerate(pools) if i not in is_open)
    around = sorted({v for anchors in settled for v in anchors})
    if params.relax and is_open and around:
        local = await bubble_anchors_near((vectors[is_open], tuple(around)), params.near, params.max_local, k)
        for i, pool in zip(is_open, local):
            pools[i] = pool if pool.rows else pools[i]
    return pools


def _numbered(groups: Sequence[Group], candidates: Sequence[int]) -> Grouping:
    number = {v: i for i, v in enumerate(candidates, 1)}
    return Grouping(tuple(Sorted(g.concept, g.weight, tuple(number[v] for v in g.anchors)) for g in groups))


def _lines(index: Index, candidates: Sequence[int], pools: Sequence[Ranking]) -> list[str]:
    """Each candidate as a line of the prompt: its number, text, kind, a title that it comes from, and its keywords."""
    numbers: dict[int, list[str]] = {v: [] for v in candidates}  # the keywords that proposed it
    for number, pool in enumerate(pools, 1):
        for v in pool.rows:
            numbers[v].append(str(number))
    kinds = ("relation" if is_relation(index, node) else "entity" for node in numbers)
    columns = zip(node_texts(index, numbers), kinds, node_titles(index, numbers), map(", ".join, numbers.values()))
    return [f"{i}. {' | '.join(parts)}" for i, parts in enumerate(columns, 1)]
