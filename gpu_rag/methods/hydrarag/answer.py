"""HydraRAG, step IV: an answer from the paths that are left, or the finding that they do not suffice.

A capable model sums the paths up (`refinement`), then says in one reply which sub-questions they settle, whether they
settle the question, and the answer. By rule the best path settles it where it goes through all topics and its relevance
is at least `enough`; the answer is what stands at its answer place, and at that of every candidate of the same
relations. A path without such a place (out of a text) is read by the shared reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.methods.hydrarag.params import Params
from gpu_rag.methods.hydrarag.schemas import PROMPTS, json_list, json_object
from gpu_rag.methods.hydrarag.state import Analysis, Candidate, Chosen, Progress
from gpu_rag.program.reader import is_answer, passage_block, read_blocks
from gpu_rag.program.verbs import Verbs
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema
from gpu_rag.types import Evidence, RankedNode

MOST_ANSWERS = 20
_SHOWN_ANSWERS = 10
ANSWER_SCHEMA = canonical_schema(
    json_object(
        settled=json_list({"type": "boolean"}, 9),
        sufficient={"type": "boolean"},
        answer={"type": "string", "maxLength": 500},
    )
)


@dataclass(frozen=True)
class Attempt:
    """One try to answer. accepted: whether the search may end; text: None where nothing was found."""

    text: str | None
    accepted: bool
    nodes: tuple[RankedNode, ...] = ()


async def attempt(
    analysis: Analysis, chosen: Sequence[Chosen], progress: Progress, last: bool, verbs: Verbs, params: Params
) -> Attempt:
    """A try to answer from chosen paths. last: there is no other phase, so whatever is known is said."""
    nodes = ranked_nodes(chosen, progress, verbs)
    if not chosen:
        return Attempt(None, False)
    if verbs.models.model_decides:
        return await _by_model(analysis, chosen, nodes, last, verbs, params)
    return await _by_rule(analysis, chosen, nodes, progress, last, verbs, params)


async def _by_model(
    analysis: Analysis,
    chosen: Sequence[Chosen],
    nodes: tuple[RankedNode, ...],
    last: bool,
    verbs: Verbs,
    params: Params,
) -> Attempt:
    facts = [f"- {c.candidate.shown.text} (source: {c.candidate.shown.kind})" for c in chosen]
    common = {"question": analysis.question, "subquestions": _numbered(analysis.subquestions)}
    if params.refinement:
        summary = await verbs.ask(
            Prompt.read(PROMPTS, "refine"),
            common,
            schema=None,
            max_tokens=params.max_tokens,
            evidence=facts,
            slot="paths",
            name="refine",
        )
        facts = [str(summary).strip() or "nothing", *facts]
    reply = await verbs.ask(
        Prompt.read(PROMPTS, "answer_last" if last else "answer"),
        common,
        schema=ANSWER_SCHEMA,
        max_tokens=params.max_tokens,
        evidence=facts,
        slot="paths",
        name="answer",
    )
    if not isinstance(reply, dict) or not is_answer(reply["answer"]):
        return Attempt(None, False, nodes)
    text = " ".join(reply["answer"].split())
    return Attempt(text, reply["sufficient"], _named_first(text, nodes, verbs))


def _numbered(texts: Sequence[str]) -> str:
    return "\n".join(f"{i}. {text}" for i, text in enumerate(texts, 1)) or "none"


async def _by_rule(
    analysis: Analysis,
    chosen: Sequence[Chosen],
    nodes: tuple[RankedNode, ...],
    progress: Progress,
    last: bool,
    verbs: Verbs,
    params: Params,
) -> Attempt:
    accepted = any(suffices(c, analysis, params) for c in chosen)
    if not (accepted or last):
        return Attempt(None, False, nodes)
    best = next((c.candidate for c in chosen if c.candidate.answers), chosen[0].candidate)
    answers = [verbs.kb.node_names[n] for n in alike(best, progress.candidates) or best.answers]
    if answers:
        return Attempt("; ".join(answers[:_SHOWN_ANSWERS]), accepted, nodes)
    if verbs.settings.llm is None:
        return Attempt(None, accepted, nodes)
    text = await _read(analysis.question, chosen, progress, verbs)
    return Attempt(text, accepted, nodes)


def suffices(chosen: Chosen, analysis: Analysis, params: Params) -> bool:
    """Whether a path settles the question, by rule."""
    on, rel = set(chosen.candidate.entities), chosen.judged.rel
    holds_answer = bool(chosen.candidate.answers or chosen.candidate.names)
    return holds_answer and rel >= params.enough and all(on & set(mention.nodes) for mention in analysis.mentions)


def alike(best: Candidate, candidates: Sequence[Candidate]) -> list[int]:
    """The answers of all candidates that begin where the best path does and have its relations, best first."""
    if not best.answers:
        return []
    key = (
        best.shown.relations,
        best.entities[0],
        best.entities[-1] if best.answers[0] not in best.entities[-1:] else -1,
    )
    found: dict[int, None] = dict.fromkeys(best.answers)
    for one in candidates:
        if one.answers:
            end = one.entities[-1] if one.answers[0] not in one.entities[-1:] else -1
            if (one.shown.relations, one.entities[0], end) == key:
                found.update(dict.fromkeys(one.answers))
    return list(found)


async def _read(question: str, chosen: Sequence[Chosen], progress: Progress, verbs: Verbs) -> str | None:
    """The shared reader over the paths and the passages that they are from."""
    facts = "\n".join(c.candidate.shown.text for c in chosen)
    blocks = [f"Facts\n{facts}"]
    blocks += [
        passage_block(i, e) for i, e in enumerate(evidence_of(chosen, progress, verbs, verbs.reader.passages), 1)
    ]
    return await read_blocks(verbs, question, blocks)


def evidence_of(chosen: Sequence[Chosen], progress: Progress, verbs: Verbs, limit: int) -> tuple[Evidence, ...]:
    """Passages, at most `limit`: those that the paths are from, best path first, then all that was read, by cosine."""
    scores: dict[int, float] = {}
    for c in [*chosen, *progress.kept]:
        for row in c.candidate.shown.passages:
            scores.setdefault(row, c.judged.cross)
    why = dict.fromkeys(scores, "a path that was kept is from it")
    for row, score in sorted(progress.documents.items(), key=lambda item: (-item[1], item[0])):
        scores.setdefault(row, score)
        why.setdefault(row, "it speaks of a topic of the question")
    rows = list(scores)[:limit]
    found = (verbs.index.evidence([row], [scores[row]], why[row])[0] for row in rows)
    return tuple(found)


def ranked_nodes(chosen: Sequence[Chosen], progress: Progress, verbs: Verbs) -> tuple[RankedNode, ...]:
    """Answer nodes: those of the best path and of paths like it, then of the other kept paths, best first."""
    kb = verbs.kb
    found: dict[int, tuple[float, str]] = {}
    for c in [*chosen, *progress.kept]:
        for node in alike(c.candidate, progress.candidates) or c.candidate.answers:
            found.setdefault(node, (c.judged.cross, c.candidate.shown.sources))
    return tuple(
        RankedNode(kb.node_ids[node], kb.node_names[node], kb.type_names[kb.node_type[node]], source, score)
        for node, (score, source) in list(found.items())[:MOST_ANSWERS]
    )


def _named_first(text: str, nodes: tuple[RankedNode, ...], verbs: Verbs) -> tuple[RankedNode, ...]:
    """The nodes that the answer names, then the others."""
    kb = verbs.kb
    ids = {kb.node_ids[node] for part in (text, *text.split("; ")) for node in kb.named(part)}
    known = {node.id: node for node in nodes}
    named = [
        known.get(id) or RankedNode(id, kb.node_names[row], kb.type_names[kb.node_type[row]], "", 0.0)
        for id in sorted(ids)
        if (row := kb.row_of(id)) is not None
    ]
    return tuple([*named, *(node for node in nodes if node.id not in ids)][:MOST_ANSWERS])
