"""HybGRAG's critic: a validator that finds the reference that answers the question, and a commentor that names the
fault.

By rule the validator takes the first reference of a result in which code sees no fault (an entity is a node, and the
entities have nodes in common). By rule the commentor names a missing entity for a single entity, and the intersection
for several.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.methods.hybgrag.asks import COMMENT, MAX_FAULTS, VALIDATE, VALIDATE_ALL
from gpu_rag.methods.hybgrag.examples import Validation, chosen_examples, own_examples, read_examples
from gpu_rag.methods.hybgrag.retrieve import first_nodes
from gpu_rag.methods.hybgrag.state import TEXT, Action, Fault, Feedback, Params, Retrieved
from gpu_rag.program.decide import decide
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.run import Run

N_JUDGED = 2  # collected judgements per type, shown to the validator
_WORDS = {
    Fault.MISSING: "an entity is missing: the question speaks of one more",
    Fault.WRONG_INTERSECTION: "each entity is right, but the answer does not belong to all of them",
    Fault.WRONG_MODULE: "the source: documents alone would narrow the search better than the graph",
}
_LIKELY = (Fault.MISSING, Fault.WRONG_INTERSECTION)


def seen_by_code(action: Action, result: Retrieved) -> Feedback | None:
    """The faults that need no judgement: no entity, then no intersection."""
    n_nodes = sum(bool(nodes) and not topic.negated for topic, nodes in zip(action.topics, result.starts))
    if not action.topics or (action.module != TEXT and not any(result.starts)):
        return Feedback(Fault.NO_ENTITY)
    return Feedback(Fault.NO_INTERSECTION) if n_nodes > 1 and not result.met else None


async def fitting(run: Run, params: Params, question: str, action: Action, result: Retrieved) -> int | None:
    """The validator: the position of the reference that answers the question, judged by documents and reasoning paths;
    None if none of the first ones does. With validator=yes_no 0 if the references answer it."""
    nodes = await first_nodes(run, action, result, params.n_references)
    if not nodes:
        return None
    clean = action.module == TEXT or seen_by_code(action, result) is None
    n, rows = len(nodes), result.rows[: params.n_references]
    if params.validator == "yes_no":
        n, ask = 1, VALIDATE_ALL
        options = ["yes, the references answer the question", "no, they do not"]
    else:
        ask = VALIDATE
        options = [*(f"[{i}] meets every requirement" for i in range(1, n + 1)), "none of them does"]
    (place,) = await decide(
        run,
        ask,
        question=question,
        references=[node.reference(i, params.paths) for i, node in enumerate(nodes, 1)],
        examples=_judged(run, rows),
        options=options,
        query=question,
        scores=[float(clean), *[0.0] * (n - 1), float(not clean)],
        action=action,
        rows=rows,
        nodes=nodes,
        paths=params.paths,
    )
    return place if place < n else None


def _judged(run: Run, rows: Sequence[int]) -> list[Validation]:
    """Judgements collected for the index: N_JUDGED for each node type of these references."""
    kb, known = kb_of(run.index), own_examples(run.index).validations
    types = dict.fromkeys(kb.type_names[kb.node_type[row]] for row in rows)
    return [example for type in types for example in [e for e in known if e.type == type][:N_JUDGED]]


async def comment(run: Run, params: Params, question: str, action: Action, result: Retrieved) -> Feedback:
    """The commentor: the first fault that holds, in the order of `first_of`. Code decides if feedback is simple, if it
    sees the fault, and if only texts were searched."""
    if params.feedback == "simple":
        return Feedback(Fault.REJECTED)
    if (plain := seen_by_code(action, result)) is not None:
        return plain
    if action.module == TEXT:
        return Feedback(Fault.WRONG_MODULE)
    texts, faults = zip(*_options(action, result))
    collected = () if params.experiences else own_examples(run.index).experiences
    known = collected or read_examples(params.experiences, "experiences", True)
    unknown = tuple(topic.entity for topic, nodes in zip(action.topics, result.starts) if not nodes)
    chosen = await decide(
        run,
        COMMENT,
        question=question,
        action=action,
        examples=await chosen_examples(question, known, params.n_examples, params.examples, run),
        collected=bool(collected),
        options=texts,
        query=question,
        k=min(MAX_FAULTS, len(texts)),
        scores=[float(fault.kind in _LIKELY) for fault in faults],
        result=result,
        faults=faults,
        unknown=unknown,
        radius=params.radius,
    )
    return first_of([faults[i] for i in chosen], unknown)


def _options(action: Action, result: Retrieved) -> list[tuple[str, Feedback]]:
    """All possible faults of an action, each in words."""
    options = []
    for topic in (topic for topic, nodes in zip(action.topics, result.starts) if nodes):
        name = topic.entity
        options.append((f'the entity "{name}" ({topic.type}) is wrong', Feedback(Fault.INCORRECT, (name,))))
        for relation in topic.relations:
            wrong = Feedback(Fault.INCORRECT, relations=((name, relation),))
            options.append((f'the relation "{relation}" of "{name}" is wrong', wrong))
    whole = (Fault.MISSING if len(action.topics) == 1 else Fault.WRONG_INTERSECTION, Fault.WRONG_MODULE)
    return [*options, *((_WORDS[kind], Feedback(kind)) for kind in whole)]


def first_of(faults: Sequence[Feedback], unknown: Sequence[str]) -> Feedback:
    """One feedback for several faults: wrong entities and relations together, else another fault, else the module."""
    entities = tuple(dict.fromkeys((*unknown, *(name for fault in faults for name in fault.entities))))
    pairs = (pair for fault in faults for pair in fault.relations)
    relations = tuple((entity, relation) for entity, relation in pairs if entity not in entities)
    if entities or relations:
        return Feedback(Fault.INCORRECT, entities, relations)
    kinds = {fault.kind for fault in faults}
    return Feedback(next((kind for kind in _LIKELY if kind in kinds), Fault.WRONG_MODULE))
