"""HybGRAG's critic: a validator that says which reference answers the question, if any does, and a commentor that says
the fault.

Without a language model that decides, the validator takes the first reference of whatever has no fault that code can
see (an entity was found, and the entities have nodes in common), and the commentor takes a missing entity for the fault
of a single one, the intersection for that of several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.methods.hybgrag.examples import (
    Experience,
    Validation,
    chosen_examples,
    fenced,
    own_examples,
    read_examples,
)
from gpu_rag.methods.hybgrag.retrieve import first_nodes
from gpu_rag.methods.hybgrag.state import TEXT, Action, Fault, Feedback, Params, Retrieved
from gpu_rag.program.ask import choose
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import Prompt

PROMPTS = "gpu_rag.methods.hybgrag.prompts"
MOST_FAULTS = 4  # that the commentor names
N_JUDGED = 2  # collected judgements of each type that the validator is shown
_WORDS = {
    Fault.MISSING: "an entity is missing: the question speaks of one more",
    Fault.WRONG_INTERSECTION: "each entity is right, but the answer does not belong to all of them",
    Fault.WRONG_MODULE: "the source: documents alone would narrow the search better than the graph",
}
_LIKELY = (Fault.MISSING, Fault.WRONG_INTERSECTION)  # without a model that judges


def seen_by_code(action: Action, result: Retrieved) -> Feedback | None:
    """The faults that need no judgement: no entity, then no intersection."""
    n_found = sum(map(bool, result.found))  # topics that are nodes
    if not action.topics or (action.module != TEXT and not n_found):
        return Feedback(Fault.NO_ENTITY)
    return Feedback(Fault.NO_INTERSECTION) if n_found > 1 and not result.met else None


def unknown_entities(action: Action, result: Retrieved) -> tuple[str, ...]:
    """The topics that no node bears the name of."""
    return tuple(topic.entity for topic, nodes in zip(action.topics, result.found) if not nodes)


@dataclass(frozen=True)
class Critic:
    """The critic of one question, by the decider."""

    run: Run
    params: Params

    async def fitting(self, question: str, action: Action, result: Retrieved) -> int | None:
        """The validator: the place of the reference that answers the question, by their documents and reasoning paths;
        None where none of the first ones does."""
        references = []
        for place, node in enumerate(first_nodes(self.run, action, result, self.params.n_references), 1):
            paths = (f"path: {path}" for path in node.paths if self.params.paths)
            references.append("\n".join((f"[{place}] {node.name} ({node.type})", node.text, *paths)))
        if not references:
            return None
        clean = action.module == TEXT or seen_by_code(action, result) is None
        n, prompt = len(references), Prompt.read(PROMPTS, "validate")
        fields = {"references": "\n\n".join(references), "question": question}
        if examples := self._judged(result):
            prompt, fields = fenced(prompt), {**fields, "examples": "\n\n".join(one.text() for one in examples)}
        chosen = await choose(
            self.run,
            prompt,
            fields,
            [*(f"[{place}] meets every requirement" for place in range(1, n + 1)), "none of them does"],
            query=question,
            scores=[float(clean), *[0.0] * (n - 1), float(not clean)],
            name="hybgrag_validator",
        )
        return chosen[0] if chosen[0] < n else None

    def _judged(self, result: Retrieved) -> list[Validation]:
        """Judgements that were collected for the index: of the types of these references, two each."""
        kb, found = kb_of(self.run.index), list[Validation]()
        rows = result.rows[: self.params.n_references]
        for type in dict.fromkeys(kb.type_names[kb.node_type[row]] for row in rows):
            found += [one for one in own_examples(self.run.index).validations if one.type == type][:N_JUDGED]
        return found

    def plain(self, action: Action, result: Retrieved) -> Feedback | None:
        """What is said without a look at the nodes: where feedback is simple, code sees the fault, or only texts were
        searched. None: look closer."""
        if self.params.feedback == "simple":
            return Feedback(Fault.REJECTED)
        seen = seen_by_code(action, result)
        return Feedback(Fault.WRONG_MODULE) if seen is None and action.module == TEXT else seen

    async def comment(self, question: str, action: Action, result: Retrieved) -> Feedback:
        """The commentor: the first that holds, in the order of `first_of`."""
        plain = self.plain(action, result)
        if plain is not None:
            return plain
        options = _options(action, result)
        examples: Sequence[Experience] = ()
        own = () if self.params.experiences else own_examples(self.run.index).experiences
        if self.run.model_chooses:
            known = own or read_examples(self.params.experiences, "experiences", True)
            examples = await chosen_examples(question, known, self.params.n_examples, self.params.examples, self.run)
        prompt = Prompt.read(PROMPTS, "comment")
        chosen = await choose(
            self.run,
            fenced(prompt) if own else prompt,
            {
                "examples": "\n\n".join(example.comment() for example in examples),
                "question": question,
                "action": "\n".join(action.lines()),
            },
            [text for text, _ in options],
            query=question,
            k=min(MOST_FAULTS, len(options)),
            allow_none=True,
            threshold=0.5,
            scores=[float(option.kind in _LIKELY) for _, option in options],
            name="hybgrag_commentor",
        )
        return first_of([options[i][1] for i in chosen], unknown_entities(action, result))


def _options(action: Action, result: Retrieved) -> list[tuple[str, Feedback]]:
    """Everything that may be wrong with an action, each in words."""
    options = []
    for topic in (topic for topic, nodes in zip(action.topics, result.found) if nodes):
        name = topic.entity
        options.append((f'the entity "{name}" ({topic.type}) is wrong', Feedback(Fault.INCORRECT, (name,))))
        for relation in topic.relations:
            wrong = Feedback(Fault.INCORRECT, relations=((name, relation),))
            options.append((f'the relation "{relation}" of "{name}" is wrong', wrong))
    whole = (Fault.MISSING if len(action.topics) == 1 else Fault.WRONG_INTERSECTION, Fault.WRONG_MODULE)
    return [*options, *((_WORDS[kind], Feedback(kind)) for kind in whole)]


def first_of(faults: Sequence[Feedback], unknown: Sequence[str]) -> Feedback:
    """The feedback for what was found wrong: incorrect ones as one list, else the one other, else the module."""
    entities = tuple(dict.fromkeys((*unknown, *(name for fault in faults for name in fault.entities))))
    pairs = (pair for fault in faults for pair in fault.relations)
    relations = tuple((entity, relation) for entity, relation in pairs if entity not in entities)
    if entities or relations:
        return Feedback(Fault.INCORRECT, entities, relations)
    kinds = {fault.kind for fault in faults}
    return Feedback(next((kind for kind in _LIKELY if kind in kinds), Fault.WRONG_MODULE))
