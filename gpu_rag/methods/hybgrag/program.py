"""HybGRAG (Lee et al. 2024): retrieval from a semi-structured knowledge base by a router, two modules and a critic.

In each iteration the router names topic entities with their relations, and picks a module. The hybrid module ranks the
nodes that the relations of all entities lead to; the text module ranks all documents. The validator finds the first
node that answers the question, and moves it to the front. If there is none, the commentor names the fault, and the
router tries again. The result of the last of `iterations` is returned without validation, or, unless chains=false,
the first result of a sure route that leads to nodes.

If the route is not sure of the relations, the rankings of the modules are fused. If the result then has no document,
the answer is `unsupported`, and the trace lists possible relations. If a model decides, it is asked at most
4 * iterations - 2 times, and once more for each unreadable reply. The reader comes after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_rag.index.folder import sha256_text
from gpu_rag.index.index import Index
from gpu_rag.methods.hybgrag.critic import comment, fitting
from gpu_rag.methods.hybgrag.examples import NONE, own_examples
from gpu_rag.methods.hybgrag.near import Entities
from gpu_rag.methods.hybgrag.retrieve import DEPTH, behind, edge_paths, first_nodes, fused, retrieve_by
from gpu_rag.methods.hybgrag.router import Router, router_of
from gpu_rag.methods.hybgrag.state import TEXT, Action, History, Params, Retrieved
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.query import LISTED, count_path
from gpu_rag.program.knowledge_base.views import kb_of, node_passages, ranked_nodes
from gpu_rag.program.reader import read_blocks
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.types import Draft, Question

__all__ = ["Params", "program", "retrieve"]

N_PATHS = 5  # ranked nodes whose reasoning paths are in the answer


def check(index: Index, params: Params) -> None:
    """Raise BadInput if the collected examples cannot be used."""
    own_examples(index)


def config(index: Index, params: Params) -> dict[str, Any]:
    """Inputs of an answer besides the parameters: the examples collected for the index."""
    own = own_examples(index)
    return {} if own == NONE else {"examples": sha256_text(repr(own))[:16]}


@dataclass(frozen=True)
class Refined:
    """The end of the loop: the last action, its result, and the remarks of the answer, see `Router.remarks`."""

    action: Action
    result: Retrieved
    remarks: Mapping[str, Any]


async def refined(question: str, run: Run, params: Params) -> Refined:
    """Run the loop. The trace records actions and feedback. An accepted result is returned unchanged."""
    (vector,) = await embed([question])
    router, history, kb = await router_of(question, vector, run, params), History(question), kb_of(run.index)
    tries = list[tuple[Action, Retrieved]]()
    for turn in range(1, params.iterations + 1):
        action = await router.route(history)
        if action is None:
            break
        result = await _retrieved(action, router)
        history.actions.append(action)
        tries.append((action, result))
        flags = () if result.met else ("no intersection: nodes of any entity",)
        first = (f"node: {kb.node_names[row]}" for row in result.rows[:N_PATHS])
        run.note(f"hybgrag_action_{turn}", len(result.rows), (*action.lines(), *flags, *first))
        if turn == params.iterations:
            break
        place = await fitting(run, params, question, action, result)
        if place is not None:
            tries = [(action, result.promoted(place))]
            break
        feedback = await comment(run, params, question, action, result)
        history.feedback.append(feedback)
        run.note(f"hybgrag_feedback_{turn}", 0, (f"{feedback.kind}: {feedback.text()}",))
    sure = (pair for pair in tries if params.chains and pair[0].sure and pair[1].met and pair[1].rows)
    action, result = next(sure, tries[-1])  # the first action is always new
    if params.chains and not action.sure:
        chains = tuple(dict.fromkeys(topic.text() for candidate in router.ranked for topic in candidate.chains))
        run.note("hybgrag_unsure", len(chains), chains)
    return Refined(action, result, router.remarks(action, result))


async def _retrieved(action: Action, router: Router) -> Retrieved:
    """The result of an action. If its relations are not sure, graph and documents are fused. Nodes that the question
    rules out are removed at the end."""
    params, kb, contrary = router.params, kb_of(router.run.index), router.spoken.ruled_out(action.query)
    is_exact = params.chains and action.sure and action.module != TEXT
    deep = replace(params, n_nodes=max(LISTED if is_exact else DEPTH, params.n_nodes)) if params.chains else params
    result = await retrieve_by(action, router.vector, kb, deep)
    if params.chains and not action.sure and result.n_answers < 0:
        ranked = router.ranked
        groups = tuple(candidate.linked.nodes for candidate in ranked if not candidate.negated)
        named = Entities(groups, router.vector, router.spoken.types, tuple(contrary))
        if action.module != TEXT and len(action.topics) == 1 and all(candidate.plain for candidate in ranked):
            result = behind(result, await fused(replace(result, rows=()), named, deep, kb), deep)
        else:
            result = await fused(replace(result, rows=()) if action.module == TEXT else result, named, deep, kb)
    barred = {*contrary, *result.barred}
    result = result.without(barred) if barred else result
    most = deep.n_nodes if is_exact and result.met else params.n_nodes
    return result.ordered(range(min(len(result.rows), most)))


async def supported(outcome: Refined, run: Run) -> Draft:
    """A draft without a text: nodes of a result, at most run.limit passages of them, and paths to the first nodes."""
    kb, best, result = kb_of(run.index), dict[int, float](), outcome.result
    for row, score in zip(result.rows, result.scores):
        for passage in node_passages(kb, row, run.depth):
            best.setdefault(passage, score)
    shown = Ranking(tuple(best)[: run.depth], tuple(best.values())[: run.depth])
    evidence = run.evidence(shown, "of a node that the question's entities lead to", "hybgrag_nodes")
    paths = await edge_paths(outcome.action, result, N_PATHS, kb)
    counts = outcome.action.operations.aggregate == "count" and outcome.action.sure and result.n_answers > 0
    count = str(result.n_answers) if counts else ""
    if count:
        paths = (count_path(outcome.action.query, result.n_answers), *paths)
    return Draft(None, evidence, paths, "unsupported", nodes=ranked_nodes(kb, result), count=count, **outcome.remarks)


async def retrieve(question: Question, run: Run, params: Params) -> Draft:
    """Run the loop. Returns its ranked nodes with their passages and paths."""
    return await supported(await refined(question.text, run, params), run)


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Run the loop, then read the first nodes once, each with its document and the paths that lead to it. The answer to
    "how many" is the number of exact answers."""
    outcome = await refined(question.text, run, params)
    draft, action, result = await supported(outcome, run), outcome.action, outcome.result
    if draft.count:
        return replace(draft, text=draft.count, status="answered")
    if not (result.sure or draft.evidence):
        return draft
    nodes = enumerate(await first_nodes(run, action, result, run.reader.passages), 1)
    blocks = ["\n".join((f"[{place}] {node.name}", node.text, *node.paths)) for place, node in nodes]
    if action.sure and result.n_answers > 0:
        names = "; ".join(kb_of(run.index).node_names[row] for row in result.rows)
        blocks.insert(0, f"By the graph these answer the question: {names}")
    text = await read_blocks(run, question.text, blocks) if blocks else None
    if text is None or not (draft.evidence or draft.paths):
        return draft
    return replace(draft, text=text, status="answered")
