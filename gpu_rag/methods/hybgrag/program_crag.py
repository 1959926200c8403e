"""HybGRAG's variant for CRAG (Lee et al. 2024, appendix C): questions over web pages, with the answer inside the loop.

In each iteration the router gives the type, dynamism and domain of the question, names entities with their relations,
and picks a source: the graph extracted from the pages, which gives paths, or a batch of the pages, which gives pieces
of text. The generator answers from these, or finds the question invalid. The validator checks the answer. If it rejects
it, the commentor names the fault, and the router tries again. The answer of the last of `iterations` is returned
without validation. If a model decides, it is asked at most 4 * iterations - 2 times, and once more for each unreadable
reply.
"""

from __future__ import annotations

from gpu_rag.methods.hybgrag.crag.critic import answer, comment, holds
from gpu_rag.methods.hybgrag.crag.references import (
    Item,
    material_of,
    retrieve_by,
    shown_evidence,
    shown_paths,
)
from gpu_rag.methods.hybgrag.crag.router import router_of
from gpu_rag.methods.hybgrag.crag.state import TEXT, History, Params
from gpu_rag.program.run import Run
from gpu_rag.types import Draft, Question

__all__ = ["Params", "program", "retrieve"]

N_NOTED = 5  # lines of a reference shown in the trace


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Run the loop for one question. The draft is `unsupported` if the last reference gave no answer."""
    material = await material_of(question, run, params)
    history = History(question.text, query_time=question.query_time)
    router = await router_of(question.text, material, run, params)
    items, prediction = tuple[Item, ...](), None
    for turn in range(1, params.iterations + 1):
        action = await router.route(history)
        if action is None:
            break
        history.actions.append(action)
        items = await retrieve_by(action, material, params, run)
        shown = (f"{item.text[:200]} {item.score:.2f}" for item in items[:N_NOTED])
        run.note(f"crag_action_{turn}", len(items), (*action.lines(), *shown))
        prediction = await answer(run, history, action, items, material)
        run.note(f"crag_prediction_{turn}", 0, (prediction or "none",))
        if turn == params.iterations or await holds(run, params, history, prediction, items, material):
            break
        fault = await comment(run, history, action, items, prediction)
        history.feedback.append(fault)
        run.note(f"crag_feedback_{turn}", 0, (f"{fault}: {fault.text()}",))
    of_index = material.evidence and history.actions and history.actions[-1].module == TEXT
    paths = () if of_index else shown_paths(items, material)  # these passages are in the evidence already
    evidence = shown_evidence(items, material, run.keep or run.limit)
    text = None if run.models.llm is None else prediction
    return Draft(text, evidence, paths, "answered" if text is not None else "unsupported")


retrieve = program  # rules and similarity decide; gives the reference of the last iteration
