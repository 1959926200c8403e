"""HybGRAG's variant for CRAG (Lee et al. 2024, appendix C): questions over web pages, with the answer inside the loop.

In each iteration the router gives the type, dynamism and domain of the question, names entities with their relations,
and picks a source: the graph extracted from the pages, which gives paths, or a batch of the pages, which gives pieces
of text. The generator answers from these, or finds the question invalid. The validator checks the answer. If it rejects
it, the commentor names the fault, and the router tries again. The answer of the last of `iterations` is returned
without validation. If a model decides, it is asked at most 4 * iterations - 2 times, and once more for each unreadable
reply.

No action is taken twice: if the decider repeats one, the proposal of the rules is taken. By rule an answer is right if
the reference is near the question and contains the answer's words. The rule blames the entities and relations at first,
and then the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.methods.hybgrag.crag.asks import AGAIN, ANSWER, COMMENT, ROUTE, VALIDATE
from gpu_rag.methods.hybgrag.crag.references import (
    Item,
    Material,
    blocks,
    material_of,
    retrieve_by,
    shown_evidence,
    shown_paths,
)
from gpu_rag.methods.hybgrag.crag.rules import Candidate, Classes, candidates, classes_of, first_action, next_action
from gpu_rag.methods.hybgrag.crag.state import GRAPH, INVALID, TEXT, Action, Fault, History, Params
from gpu_rag.program.decide import decide
from gpu_rag.program.reader import is_answer
from gpu_rag.program.run import Run
from gpu_rag.text.grounding import UNSUPPORTED, grounding
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


_WORDS = {
    Fault.TYPE: "the type of the question",
    Fault.DYNAMISM: "how fast the answer changes",
    Fault.DOMAIN: "the domain",
    Fault.TOPICS: "the entities or relations",
    Fault.MODULE: "the source: it does not hold the answer",
}


async def answer(run: Run, history: History, action: Action, items: Sequence[Item], material: Material) -> str | None:
    """The generator: the answer that a reference gives, or None."""
    if not items:
        return None
    shown = blocks(items, material)
    reply = await decide(run, ANSWER, run=run, history=history, action=action, items=items, blocks=shown)
    text = " ".join(reply.answer.split())
    if text.casefold().strip(" .") == INVALID:
        return INVALID
    return text if is_answer(text) else None


async def holds(
    run: Run, params: Params, history: History, prediction: str | None, items: Sequence[Item], material: Material
) -> bool:
    """The validator: whether a prediction answers the question, judged by its reference; None does not."""
    if prediction is None:
        return False
    shown = blocks(items, material)
    clean = items[0].score >= params.near and grounding(history.question, prediction, shown) != UNSUPPORTED
    (place,) = await decide(
        run,
        VALIDATE,
        history=history,
        blocks=shown if params.context else (),
        prediction=prediction,
        options=["it holds", "it does not hold"],
        query=history.question,
        scores=[float(clean), float(not clean)],
    )
    return place == 0


async def comment(run: Run, history: History, action: Action, items: Sequence[Item], prediction: str | None) -> Fault:
    """The commentor: the most likely fault of a rejected action."""
    if action.module == GRAPH and not items:
        return Fault.NOTHING
    faults = [fault for fault in _WORDS if fault != Fault.TOPICS or action.module == GRAPH]
    first = action.module == GRAPH and not any(earlier.module == GRAPH for earlier in history.actions[:-1])
    likely = Fault.TOPICS if first else Fault.MODULE
    (place,) = await decide(
        run,
        COMMENT,
        history=history,
        action=action,
        prediction=prediction,
        options=[_WORDS[fault] for fault in faults],
        query=history.question,
        scores=[float(fault == likely) for fault in faults],
    )
    return faults[place]


@dataclass(frozen=True)
class Router:
    """The router of one question. ranked: candidate names of the graph; classes: by rule."""

    run: Run
    params: Params
    material: Material
    ranked: Sequence[Candidate]
    classes: Classes

    async def route(self, history: History) -> Action | None:
        """The next action that was not taken before; None if none is left."""
        proposal, last = self._proposal(history), history.actions[-1] if history.actions else None
        read = {action.batch for action in history.actions if action.module == TEXT}
        batch = next((i for i in range(self.material.n_batches(self.params)) if i not in read), None)
        relations = self._relations(proposal)
        is_left = {GRAPH: bool(relations), TEXT: batch is not None, AGAIN: last is not None and last.module == TEXT}
        sources = [source for source, left in is_left.items() if left]
        if not sources:
            return proposal
        route = await decide(
            self.run,
            ROUTE,
            proposal=proposal or last,
            last=last,
            history=history,
            names=[candidate.name for candidate in self.ranked],
            relations=relations,
            sources=sources,
            max_topics=self.params.max_topics,
        )
        action = route.action(batch or 0, last)
        if not history.seen(action):
            return action
        if proposal is not None:
            self.run.note("crag_repeated", 0, ("the action of the rules is taken",))
        return proposal

    def _proposal(self, history: History) -> Action | None:
        if not history.actions:
            return first_action(self.classes, self.ranked, self.params)
        n_batches = self.material.n_batches(self.params)
        return next_action(history, self.classes, self.ranked, n_batches, self.params)

    def _relations(self, proposal: Action | None) -> list[str]:
        """The relations offered to the decider: the nearest ones of the candidates, then those of the proposal."""
        cosine = {relation: score for candidate in self.ranked for relation, score in candidate.relations}
        nearest = sorted(cosine, key=lambda relation: -cosine[relation])[: self.params.n_shown]
        topics = proposal.topics if proposal is not None else ()
        return list(dict.fromkeys((*nearest, *(relation for topic in topics for relation in topic.relations))))


async def router_of(question: str, material: Material, run: Run, params: Params) -> Router:
    """The router of a question. The candidates are noted in the trace."""
    ranked = await candidates(question, material, params)
    run.note("crag_candidates", len(ranked), tuple(candidate.name for candidate in ranked if candidate.is_asked))
    return Router(run, params, material, ranked, await classes_of(question))
