"""HydraRAG, step IV: an answer from the paths that are left, or the finding that they do not suffice.

A capable model sums the paths up (`refinement`), then reasons and says in one reply which sub-questions they settle,
whether they settle the question, and the answer. By rule a path settles it where the question asks for its relations,
or where it goes through all topics and its relevance is at least `enough`; the answer is what stands at its answer
place, and at that of every path of the same relations. A path without such a place (out of a text) is read by the
shared reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.methods.hydrarag.analysis import json_list
from gpu_rag.methods.hydrarag.state import SPENT, SURE, Analysis, FoundPath, Params, Search
from gpu_rag.program.knowledge_base.views import ranked_node
from gpu_rag.program.reader import is_answer, passage_block, read_blocks
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.types import Evidence, RankedNode

MOST_ANSWERS = 20
_SHOWN_ANSWERS = 10
_YES = {"type": "boolean"}
_REASON, _ANSWER = {"type": "string", "maxLength": 600}, {"type": "string", "maxLength": 500}
_FIELDS = {"reason": _REASON, "settled": json_list(_YES, 9), "sufficient": _YES, "answer": _ANSWER}
ANSWER_SCHEMA = canonical_schema(object_of(_FIELDS))


@dataclass(frozen=True)
class Attempt:
    """One try to answer. accepted: whether the search may end; text: None where nothing was found."""

    text: str | None
    accepted: bool
    nodes: tuple[RankedNode, ...] = ()


async def attempt(analysis: Analysis, chosen: Sequence[FoundPath], last: bool, search: Search) -> Attempt:
    """A try to answer from chosen paths. last: there is no other phase, so whatever is known is said."""
    if not chosen:
        return Attempt(None, False)
    nodes = ranked_nodes(chosen, search)
    if not search.run.model_decides:
        return Attempt(*await _by_rule(analysis, chosen, last, search), nodes)
    text, accepted = await _by_model(analysis, chosen, last, search)
    return Attempt(text, accepted, nodes if text is None else _named_first(text, nodes, search))


async def _by_model(
    analysis: Analysis, chosen: Sequence[FoundPath], last: bool, search: Search
) -> tuple[str | None, bool]:
    facts = [f"- {path.text} ({path.said_by})" for path in chosen]
    numbered = "\n".join(f"{i}. {text}" for i, text in enumerate(analysis.subquestions, 1)) or "none"
    common = {"question": analysis.question, "subquestions": numbered}
    if search.params.refinement:
        summary = await search.ask("refine", common, None, "refine", facts, warm=False)
        facts = facts if summary is SPENT else [str(summary).strip() or "nothing", *facts]
    prompt = "answer_last" if last else "answer"
    reply = await search.ask(prompt, common, ANSWER_SCHEMA, "answer", facts, warm=False)
    if not isinstance(reply, dict) or not is_answer(reply["answer"]):
        return None, False
    return " ".join(reply["answer"].split()), reply["sufficient"]


async def _by_rule(
    analysis: Analysis, chosen: Sequence[FoundPath], last: bool, search: Search
) -> tuple[str | None, bool]:
    accepted = any(_suffices(path, analysis) for path in chosen)
    if not (accepted or last):
        return None, False
    best = next((path for path in chosen if path.answers), chosen[0])
    answers = [search.kb.node_names[node] for node in alike(best, search.found)]
    if answers and best.kind == "kg" and best.asked < SURE:
        return _with_relations(chosen, search), accepted
    if answers:
        return "; ".join(answers[:_SHOWN_ANSWERS]), accepted
    return None if search.run.models.llm is None else await _read(analysis.question, chosen, search), accepted


def _with_relations(chosen: Sequence[FoundPath], search: Search) -> str:
    """The answers of each kind of path that is left, with their relations: the question does not say which it is."""
    names, said = search.kb.node_names, dict[str, list[str]]()
    for path in (path for path in chosen if path.answers):
        said.setdefault(" ".join(path.relations), [names[node] for node in alike(path, search.found)][:_SHOWN_ANSWERS])
    return " | ".join(f"{'; '.join(answers)} ({relations})" for relations, answers in said.items())


def _suffices(path: FoundPath, analysis: Analysis) -> bool:
    """Whether a path settles the question, by rule."""
    if path.asked >= SURE:
        return True
    may_answer = bool(path.answers or path.names) and path.scores.rel >= Params.enough
    return may_answer and all(set(path.nodes) & set(mention.nodes) for mention in analysis.mentions)


def alike(best: FoundPath, paths: Sequence[FoundPath]) -> list[int]:
    """The answers of the best path, then of all paths that begin where it does and have its relations."""
    if not best.answers:
        return []
    found = dict.fromkeys(best.answers)
    for path in paths:
        if path.answers and _shape(path) == _shape(best):
            found.update(dict.fromkeys(path.answers))
    return list(found)


def _shape(path: FoundPath) -> tuple[tuple[str, ...], int, int]:
    """The relations of a path with answers, where it begins, and where it ends unless the answer stands there."""
    end = path.nodes[-1] if path.answers[0] not in path.nodes[-1:] else -1
    return path.relations, path.nodes[0], end


async def _read(question: str, chosen: Sequence[FoundPath], search: Search) -> str | None:
    """The shared reader over the paths and the passages that they are from."""
    facts = "\n".join(path.text for path in chosen)
    evidence = evidence_of(chosen, search, search.run.reader.passages)
    blocks = [f"Facts\n{facts}", *(passage_block(i, e) for i, e in enumerate(evidence, 1))]
    return await read_blocks(search.run, question, blocks)


def evidence_of(chosen: Sequence[FoundPath], search: Search, limit: int) -> tuple[Evidence, ...]:
    """Passages, at most `limit`: those that the paths are from, best path first, then all that was read, by cosine."""
    found: dict[int, tuple[float, str]] = {}
    for path in [*chosen, *search.kept]:
        for row in path.passages:
            found.setdefault(row, (path.scores.cross, "a path that was kept is from it"))
    for row, score in sorted(search.documents.items(), key=lambda item: (-item[1], item[0])):
        found.setdefault(row, (score, "it speaks of a topic of the question"))
    rows = list(found.items())[:limit]
    return tuple(search.run.index.evidence([row], [score], why)[0] for row, (score, why) in rows)


def ranked_nodes(chosen: Sequence[FoundPath], search: Search) -> tuple[RankedNode, ...]:
    """Answer nodes: those of the best path and of paths like it, then of the other kept paths, best first."""
    found: dict[int, tuple[str, float]] = {}
    for path in [*chosen, *search.kept]:
        for node in alike(path, search.found):
            found.setdefault(node, (path.sources, path.scores.cross))
    return tuple(ranked_node(search.kb, node, *of) for node, of in list(found.items())[:MOST_ANSWERS])


def _named_first(text: str, nodes: tuple[RankedNode, ...], search: Search) -> tuple[RankedNode, ...]:
    """The nodes that the answer names, then the others."""
    kb = search.kb
    ids = {kb.node_ids[node]: node for part in (text, *text.split("; ")) for node in kb.named(part)}
    known = {node.id: node for node in nodes}
    named = [known.get(id) or ranked_node(kb, ids[id], "", 0.0) for id in sorted(ids)]
    return tuple([*named, *(node for node in nodes if node.id not in ids)][:MOST_ANSWERS])
