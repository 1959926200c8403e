"""Examples for HybGRAG's prompts: routes of questions, actions with verified feedback, judgements of references.

They come from JSONL files, else from the examples that `gpu-rag tune` collected for the index, else from the package.
Collected examples are fenced as untrusted text, since an index may come from elsewhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gpu_rag.errors import BadInput
from gpu_rag.index.index import Index
from gpu_rag.index.tuned import TUNED, tuned
from gpu_rag.methods.hybgrag.state import HYBRID, MODULES, Action, Fault, Feedback
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.query import ALL, Operations, Query, Topic
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import CLOSE, OPEN, Prompt

OWN = "examples of hybgrag"
MAX_ROWS, MAX_CHARS = 200, 1_200_000  # limits of each kind of collected example, and of all together


class Experience(Struct, frozen=True, omit_defaults=True):
    """A question, an action of the router, and the feedback that gold answers proved right (None for a route). One line
    of a file."""

    question: str
    entities: tuple[Topic, ...]
    module: str = HYBRID
    feedback: Feedback | None = None
    sure: bool = True
    operations: Operations = ALL

    def __post_init__(self) -> None:
        if self.module not in MODULES or (self.feedback is not None and self.feedback.kind == Fault.REJECTED):
            raise ValueError(f"module {self.module}, feedback {self.feedback}")
        if any(topic.ways and len(topic.ways) != len(topic.relations) for topic in self.entities):
            raise ValueError("ways are one for each relation, or none")

    @classmethod
    def from_action(cls, question: str, action: Action, feedback: Feedback | None = None) -> Experience:
        """The experience of an action."""
        return cls(question, action.topics, action.module, feedback, action.sure, action.operations)

    @property
    def action(self) -> Action:
        """The action."""
        return Action(self.module, self.entities, self.sure, self.operations)

    def route(self) -> str:
        """The example for the router."""
        reply = msgspec.to_builtins(Query(self.entities, self.sure, self.operations))
        return f"Question: {self.question}\nReply: {json.dumps(reply, ensure_ascii=False)}"

    def comment(self) -> str:
        """The example for the commentor."""
        assert self.feedback is not None
        return f"Question: {self.question}\n{'; '.join(self.action.lines())}\nVerdict: {self.feedback.text()}"


class Validation(Struct, frozen=True):
    """A question, references as the validator sees them, and the position from 0 of the one that fits (None: none
    does).

    type: type of the nodes that answer the question.
    """

    question: str
    type: str
    references: tuple[str, ...]
    fits: int | None

    def __post_init__(self) -> None:
        if self.fits is not None and not 0 <= self.fits < len(self.references):
            raise ValueError(f"fits {self.fits} is none of {len(self.references)} references")

    def text(self) -> str:
        """The example for the validator."""
        verdict = "none" if self.fits is None else f"[{self.fits + 1}]"
        return "\n".join((f"Question: {self.question}", *self.references, f"Verdict: {verdict}"))


Limited = Meta(max_length=MAX_ROWS)


class OwnExamples(Struct, frozen=True, forbid_unknown_fields=True):
    """The examples that `gpu-rag tune` collected for an index."""

    routes: Annotated[tuple[Experience, ...], Limited]
    validations: Annotated[tuple[Validation, ...], Limited]
    experiences: Annotated[tuple[Experience, ...], Limited]


NONE = OwnExamples((), (), ())


def own_examples(index: Index) -> OwnExamples:
    """The examples in the folder of an index; none if it was not tuned. Raises BadInput."""
    return index.loaded(OWN, _own)


def _own(index: Index) -> OwnExamples:
    document, where = tuned(index.path).get("hybgrag"), index.path / TUNED
    if document is None:
        return NONE
    try:
        return examples_of(document, str(where))
    except BadInput as error:
        raise BadInput(
            "the examples of tune for hybgrag cannot be used", given=str(error),
            expected="a file written by gpu-rag tune --method hybgrag", do="run it again, or remove the file",
        ) from error  # fmt: skip


def examples_of(document: Any, where: str) -> OwnExamples:
    """The examples in a document that `tune` wrote. The document is not trusted. Raises BadInput."""
    if len(json.dumps(document)) > MAX_CHARS:
        raise BadInput("examples cannot be read", given=where, expected=f"at most {MAX_CHARS} characters")
    try:
        examples = msgspec.convert(document, OwnExamples)
        if any(experience.feedback is None for experience in examples.experiences):
            raise msgspec.ValidationError("an experience without feedback")
        return examples
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadInput("examples cannot be read", given=f"{where}: {error}", expected="see docs/cli.md") from error


def fenced(prompt: Prompt) -> Prompt:
    """The prompt with its examples inside a fence; they come before the question if the prompt has no slot for them."""
    slot, inside = "{{examples}}", f"{OPEN}\n{{{{examples}}}}\n{CLOSE}"
    whole = (
        prompt.template.replace(slot, inside) if slot in prompt.template else f"Examples\n{inside}\n\n{prompt.template}"
    )
    return replace(prompt, template=whole)


def read_examples(file: str | None, packaged: str, needs_feedback: bool) -> tuple[Experience, ...]:
    """The examples of a file, or the packaged ones if `file` is None or empty. Raises BadInput with file and line."""
    path = Path(file) if file else resources.files("gpu_rag.methods.hybgrag.prompts").joinpath(f"{packaged}.jsonl")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("the examples cannot be read", given=f"{file}: {error}", expected="a JSONL file") from error
    return _examples(text, file or packaged, needs_feedback)


@lru_cache(16)
def _examples(text: str, name: str, needs_feedback: bool) -> tuple[Experience, ...]:
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return tuple(_read(line, f"{name}:{number}", needs_feedback) for number, line in lines)


def _read(line: str, where: str, needs_feedback: bool) -> Experience:
    try:
        experience = msgspec.json.decode(line, type=Experience)
        if needs_feedback and experience.feedback is None:
            raise msgspec.ValidationError("an experience without feedback")
        return experience
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(
            "an example cannot be read", given=f"{where}: {error}", expected="see docs/methods.md"
        ) from error


async def chosen_examples(
    question: str, examples: Sequence[Experience], k: int, selection: str, run: Run
) -> list[Experience]:
    """k of the examples. nearest: highest cosine between the questions, the nearest last; random: the same k for all
    questions, in file order."""
    if k >= len(examples):
        return list(examples)
    if selection == "random":
        picked = random.Random(f"{run.ctx.run_seed}").sample(range(len(examples)), k)
        return [examples[i] for i in sorted(picked)]
    vectors = await embed([question, *(example.question for example in examples)])
    cosines = (vectors[1:] @ vectors[0]).tolist()
    order = sorted(range(len(examples)), key=lambda i: (-cosines[i], i))[:k]
    return [examples[i] for i in reversed(order)]
