"""HybGRAG (Lee et al. 2024): retrieval from a semi-structured knowledge base by a router, two modules and a critic.

An iteration: the router names topic entities with their relations and picks a module; the hybrid module ranks the
nodes that all entities lead to, the text module all documents; the validator accepts or rejects the first nodes;
rejected, the commentor says the fault, and the router tries again. The last of `iterations` is returned
unvalidated. A model that decides is asked at most 4 * iterations - 2 times, and once more for each reply that cannot be
read; then the reader once.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.scores import node_text
from gpu_rag.methods.hybgrag.critic import Critic
from gpu_rag.methods.hybgrag.retrieve import edge_paths, reasoning_paths, retrieve_by
from gpu_rag.methods.hybgrag.router import Router
from gpu_rag.methods.hybgrag.state import Action, History, Params, Retrieved
from gpu_rag.program.ask import embed
from gpu_rag.program.knowledge_base.views import kb_of, node_passages, ranked_nodes
from gpu_rag.program.reader import read_blocks
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.types import Draft, Evidence, Path, Question, RankedNode

__all__ = ["Params", "program", "retrieve"]

N_PATHS = 5  # ranked nodes whose reasoning paths stand in the answer
NODE_WORDS = 200  # of a node's text that the reader is shown


@dataclass(frozen=True)
class Refined:
    """The end of a refinement path: the last action and what it brought."""

    action: Action
    result: Retrieved


@dataclass(frozen=True)
class NodeSupport:
    """The support of an answer: ranked nodes, their passages, and reasoning paths to the first ones."""

    nodes: tuple[RankedNode, ...]
    evidence: tuple[Evidence, ...]
    paths: tuple[Path, ...]


async def refined(question: str, run: Run, params: Params, critic: Critic) -> Refined:
    """The loop; actions and feedback are noted in the trace."""
    (vector,) = await embed([question])
    router, history = Router(run, params, vector), History(question)
    kb = kb_of(run.index)
    last: Refined | None = None
    for turn in range(1, params.iterations + 1):
        action = await router.route(history)
        if action is None:
            break
        result = await retrieve_by(action, vector, kb, params)
        history.actions.append(action)
        last = Refined(action, result)
        run.note(f"hybgrag_action_{turn}", len(result.ranking.rows), (*action.lines(), *_lines(result, kb)))
        if turn == params.iterations or await critic.accepts(question, action, result):
            break
        feedback = await critic.comment(question, action, result)
        history.feedback.append(feedback)
        run.note(f"hybgrag_feedback_{turn}", 0, (f"{feedback.kind}: {feedback.text()}",))
    assert last is not None  # the first action is never one that was taken before
    return last


def _lines(result: Retrieved, kb: KnowledgeBase) -> tuple[str, ...]:
    first = (f"node: {kb.node_names[row]}" for row in result.ranking.rows[:N_PATHS])
    flags = () if result.met else ("no intersection: nodes of any entity",)
    return (*flags, *first)


async def supported(outcome: Refined, run: Run) -> NodeSupport:
    """The last result as nodes, passages (run.limit of them) and paths."""
    kb, ranking = kb_of(run.index), outcome.result.ranking
    scores = dict(zip(ranking.rows, ranking.scores))
    passages = [(p, scores[row]) for row in ranking.rows for p in node_passages(kb, row, run.limit)]
    best: dict[int, float] = {}
    for passage, score in passages:
        best.setdefault(passage, score)
    rows = tuple(best)[: run.limit]
    shown = Ranking(rows, tuple(best[row] for row in rows))
    evidence = run.evidence(shown, "of a node that the question's entities lead to", "hybgrag_nodes")
    return NodeSupport(ranked_nodes(kb, ranking), evidence, await edge_paths(outcome.result, N_PATHS, kb))


async def retrieve(question: Question, run: Run, params: Params) -> NodeSupport:
    """The ranked nodes of the loop."""
    return await supported(await refined(question.text, run, params, Critic(run, params)), run)


async def program(question: Question, run: Run, params: Params) -> Draft:
    """The loop, then one reading of the first nodes."""
    outcome = await refined(question.text, run, params, Critic(run, params))
    found = await supported(outcome, run)
    text = await _read(question.text, outcome, run)
    status = "answered" if text is not None and (found.evidence or found.paths) else "unsupported"
    return Draft(text if status == "answered" else None, found.evidence, found.paths, status, nodes=found.nodes)


async def _read(question: str, outcome: Refined, run: Run) -> str | None:
    """The reader's short answer from the first nodes, each with its document and the paths that lead to it."""
    kb, blocks = kb_of(run.index), []
    for place, row in enumerate(outcome.result.ranking.rows[: run.reader.passages]):
        text = " ".join(node_text(kb, run.index, row).split()[:NODE_WORDS])
        lines = (text, *reasoning_paths(outcome.action, outcome.result, place, kb))
        blocks.append("\n".join((f"[{place + 1}] {kb.node_names[row]}", *lines)))
    return await read_blocks(run, question, blocks) if blocks else None
