"""The replies of a perfect decider to HydraRAG's decisions, from the gold data of a question: answers, gold passages,
`topic_entity`, `path` (triples from the topic to the answer) and `decomposition`. A reply is None if the gold data for
it is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.names import name_key, relation_text
from gpu_rag.methods.hydrarag import rules
from gpu_rag.methods.hydrarag.replies import (
    MAX_PREDICTIONS,
    MAX_STEPS,
    NOT_ANSWERED,
    Analysed,
    Answered,
    Predicted,
    Topics,
    chain_of,
    folded,
)
from gpu_rag.methods.hydrarag.rules import joined_answers
from gpu_rag.methods.hydrarag.state import ANSWER, MAX_TOPICS, Analysis, Chain, FoundPath, Mention, Search
from gpu_rag.program.knowledge_base.query import Part, Plan, Query, Topic, solve
from gpu_rag.program.knowledge_base.views import kb_of, relation_row
from gpu_rag.program.oracle import Known
from gpu_rag.runtime.gather import gather


def topics(known: Known) -> Topics | None:
    """The gold topics."""
    given = known.gold.meta.get("topic_entity") or ()
    names = (given,) if isinstance(given, str) else given.values() if isinstance(given, dict) else given
    return Topics(tuple(map(folded, map(str, names)))[:MAX_TOPICS]) if names else None


def analysis(known: Known, question: str, topics: Sequence[str], search: Search) -> Analysed | None:
    """The gold chain and the gold sub-questions. Rules supply one of them if it is missing; None if both are."""
    reply, meta = rules.analysis(question, topics, search), known.gold.meta
    steps, chain = meta.get("decomposition") or (), _chain(meta.get("path") or (), topics)
    if not steps and chain is None:
        return None
    subquestions = tuple(folded(step["question"]) for step in steps) or reply.subquestions
    chain = chain or Chain(reply.entities, reply.relations)
    return Analysed(subquestions[:MAX_TOPICS], chain.entities, chain.relations)


def _chain(path: Sequence[Sequence[str]], topics: Sequence[str]) -> Chain | None:
    """The chain of a gold path. None if it is empty or too long, or if its triples do not follow one another."""
    if (
        not path
        or len(path) >= MAX_STEPS
        or any(triple[2] != following[0] for triple, following in zip(path, path[1:]))
    ):
        return None
    keys = {name_key(topic): topic for topic in topics}
    entities = [keys.get(name_key(head), head) for head, _, _ in path]
    return chain_of((*entities, ANSWER), [relation_text(relation) for _, relation, _ in path], topics)


async def query(known: Known, proposal: Query, mentions: Sequence[Mention], search: Search) -> Query | None:
    """The gold query: the chain of the gold path, or of the proposal, whose ends are most like the gold answers. None
    without a chain to a gold answer."""
    kb = kb_of(known.index)
    answers = {row for name in _answers(known) for row in kb.named(name)}
    entities = [*_topics_of(known.gold.meta.get("path") or (), mentions, kb), *proposal.entities]
    nodes = {mention.text: mention.nodes for mention in mentions}
    plans = []
    for topic in entities:
        rows = tuple(row for name in topic.relations if (row := relation_row(kb, name)) is not None)
        plans.append(Plan((Part(nodes.get(topic.entity, ()), rows, topic.directions),)))
    solutions = await gather(*map(solve, plans))
    worth = [2 * len(answers & {*solved.nodes}) / (len(answers) + len(solved.nodes) or 1) for solved in solutions]
    best = max(range(len(worth)), key=worth.__getitem__, default=-1)
    return Query((entities[best],), True) if best >= 0 and worth[best] else None


def _topics_of(path: Sequence[Sequence[str]], mentions: Sequence[Mention], kb: KnowledgeBase) -> list[Topic]:
    """The topic of a gold path whose triples follow one another; none for another path."""
    topic = next((m for m in mentions if path and name_key(m.text) == name_key(path[0][0].replace("_", " "))), None)
    if topic is None or any(triple[2] != following[0] for triple, following in zip(path, path[1:])):
        return []
    type = kb.type_names[kb.node_type[topic.nodes[0]]]
    directions: list[Literal["out", "in", "either"]] = ["out" for _ in path]
    return [Topic(topic.text, type, tuple(relation for _, relation, _ in path), tuple(directions))]


def predictions(known: Known, analysis: Analysis) -> Predicted | None:
    """The gold answers as predictions."""
    names = _answers(known)[:MAX_PREDICTIONS]
    return Predicted(tuple(rules.prediction(folded(name), analysis) for name in names)) if names else None


def _answers(known: Known) -> Sequence[str]:
    """The gold answers, or the names of the gold nodes if there are no answers."""
    kb = kb_of(known.index)
    return known.gold.answers or [kb.node_names[row] for row in map(kb.row_of, known.gold.nodes) if row is not None]


def has_gold(known: Known, position: int, kinds: Sequence[str]) -> bool:
    """Whether sources of one kind hold gold data: graphs, if a node has the name of a gold answer; documents, if there
    is a gold passage."""
    if kinds[position] == "kg":
        kb = kb_of(known.index)
        return any(kb.named(name) for name in _answers(known))
    return kinds[position] == "document" and bool(known.passages)


def holds_gold(known: Known, position: int, paths: Sequence[FoundPath]) -> bool:
    """Whether a path has gold data and no other path is better. A gold answer at the answer place is best, then a gold
    answer anywhere, then a gold passage."""
    worth = [_worth(path, known) for path in paths]
    return 0 < worth[position] == max(worth)


def _worth(path: FoundPath, known: Known) -> int:
    """3 (best) to 0 (no gold data), see `holds_gold`."""
    kb, answers = kb_of(known.index), set(map(name_key, _answers(known)))

    def stands(nodes: Iterable[int]) -> bool:
        return any(name_key(kb.node_names[node]) in answers for node in nodes if node >= 0)

    if stands(path.answers):
        return 3
    if stands(node for place in path.places for node in place) or not answers.isdisjoint(map(name_key, path.names)):
        return 2
    return int(not known.passages.isdisjoint(path.passages_in(kb)))


def answer(known: Known, chosen: Sequence[FoundPath]) -> Answered | None:
    """The gold answers on the chosen paths. If no path holds one, NOT_ANSWERED, so that the search continues."""
    kb = kb_of(known.index)
    right = list(dict.fromkeys(map(name_key, _answers(known))))
    if not right:
        return None
    nodes = [node for path in chosen for place in (path.answers, *path.places) for node in place if node >= 0]
    names = [*(kb.node_names[node] for node in nodes), *(name for path in chosen for name in path.names)]
    on_paths = {name_key(name): folded(name) for name in reversed(names)}
    answers = [on_paths[key] for key in right if key in on_paths]
    return Answered("", (), True, joined_answers(answers)) if answers else NOT_ANSWERED
