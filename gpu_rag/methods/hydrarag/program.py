"""HydraRAG (Tan et al. 2025): paths through all topics of a question out of knowledge graphs, documents and the web,
explored in three phases, pruned by relevance and by what other kinds of sources say.

Step I names topics, sub-questions and the skyline indicator, and picks sources (`hydrarag_analysis`). Step II explores:
first at the predicted depth in the picked sources, then at the greatest depth in all of them with a follow-up question,
then with predicted answers as further topics (`hydrarag_phases`, `hydrarag_graph`, `hydrarag_texts`). Step III prunes
(`hydrarag_prune`), step IV tries to answer (`hydrarag_answer`); the first accepted answer ends the search. Rules stand
in for a model that is not capable (`hydrarag_rules`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.methods.hydrarag.analysis import allowed_sources
from gpu_rag.methods.hydrarag.answer import evidence_of
from gpu_rag.methods.hydrarag.params import Params
from gpu_rag.methods.hydrarag.phases import Outcome, explored
from gpu_rag.methods.hydrarag.wording import ShownPath
from gpu_rag.program.verbs import Verbs
from gpu_rag.types import Draft, Evidence, Path, Pool, Question, RankedNode

__all__ = ["Params", "check", "program", "retrieve"]


@dataclass(frozen=True)
class Found:
    """What was retrieved: passages, paths, answer nodes best first, and the entities of each pool of paths."""

    evidence: tuple[Evidence, ...]
    paths: tuple[Path, ...]
    nodes: tuple[RankedNode, ...]
    pools: tuple[Pool, ...]


def check(index: Index, params: Params) -> None:
    """Raises UsageError for a source that the index does not have: once before a run, not for each question."""
    allowed_sources(index.loaded("kb", load_kb), params)


async def retrieve(question: Question, verbs: Verbs, params: Params) -> Found:
    """The paths that are left and the passages they are from, at most verbs.limit, by rules and similarity."""
    return _found(await explored(question.text, verbs, params), verbs)


def _found(outcome: Outcome, verbs: Verbs) -> Found:
    paths = tuple(_path(c.candidate.shown) for c in outcome.chosen)
    evidence = evidence_of(outcome.chosen, outcome.progress, verbs, verbs.limit)
    return Found(evidence, paths, outcome.attempt.nodes, tuple(outcome.progress.pools))


def _path(shown: ShownPath) -> Path:
    """A path as it is recorded: edges that the index states, else none, and where the text stands that says it."""
    if shown.stated:
        return Path(shown.text, shown.edges, shown.sources)
    where = ", ".join(dict.fromkeys(edge[3] for edge in shown.edges))
    return Path(f"{shown.text} [{where}]", (), shown.sources)


async def program(question: Question, verbs: Verbs, params: Params) -> Draft:
    """Explore until an answer is accepted; `unsupported` where there is none."""
    outcome = await explored(question.text, verbs, params)
    found, text = _found(outcome, verbs), outcome.attempt.text
    status = "answered" if text is not None else "unsupported"
    return Draft(text, found.evidence, found.paths, status, nodes=found.nodes, pools=found.pools)
