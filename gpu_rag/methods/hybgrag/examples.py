"""Examples for HybGRAG's prompts: routes of questions, actions with verified feedback, judgements of references.

They come from JSONL files, else from what `gpu-rag tune` collected for the index, else with the package. What was
collected stands between the marks of what others wrote: an index may come from elsewhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.index.index import Index
from gpu_rag.index.tuned import TUNED, tuned
from gpu_rag.methods.hybgrag.state import HYBRID, MODULES, WAYS, Action, Fault, Feedback, Topic
from gpu_rag.program.embed import embed
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import CLOSE, OPEN, Prompt

OWN = "examples of hybgrag"
_DIRECTIONS = {word: direction for direction, word in WAYS.items()}
MOST_ROWS, MOST_CHARS = 200, 400_000  # of each kind of example that was collected


@dataclass(frozen=True)
class Experience:
    """A question, an action of the router, and the feedback that gold answers proved right (None: of a route)."""

    question: str
    action: Action
    feedback: Feedback | None = None

    @property
    def _entities(self) -> list[dict[str, Any]]:
        return [
            {"name": t.entity, "type": t.type, "relations": list(t.relations), "ways": [WAYS[way] for way in t.ways]}
            for t in self.action.topics
        ]

    def route(self) -> str:
        """The example for the router."""
        reply = {"entities": self._entities, "sure": self.action.sure}
        return f"Question: {self.question}\nReply: {json.dumps(reply, ensure_ascii=False)}"

    def comment(self) -> str:
        """The example for the commentor."""
        assert self.feedback is not None
        return f"Question: {self.question}\n{'; '.join(self.action.lines())}\nVerdict: {self.feedback.text()}"

    def row(self) -> dict[str, Any]:
        """The line of a file."""
        row = {"question": self.question, "module": self.action.module, "entities": self._entities}
        if self.feedback is None:
            return row
        said = {"entities": list(self.feedback.entities), "relations": [list(pair) for pair in self.feedback.relations]}
        return {**row, "feedback": {"kind": str(self.feedback.kind), **said}}


@dataclass(frozen=True)
class Validation:
    """A question, references as the validator is shown them, and which fits: its place from 0, None: none does.

    type: of the nodes that answer the question.
    """

    question: str
    type: str
    references: tuple[str, ...]
    fits: int | None

    def text(self) -> str:
        """The example for the validator."""
        verdict = "none" if self.fits is None else f"[{self.fits + 1}]"
        return "\n".join((f"Question: {self.question}", *self.references, f"Verdict: {verdict}"))

    def row(self) -> dict[str, Any]:
        """The example as JSON."""
        return {"question": self.question, "type": self.type, "references": list(self.references), "fits": self.fits}


@dataclass(frozen=True)
class OwnExamples:
    """The examples that `gpu-rag tune` collected for an index."""

    routes: tuple[Experience, ...] = ()
    validations: tuple[Validation, ...] = ()
    experiences: tuple[Experience, ...] = ()


def own_examples(index: Index) -> OwnExamples:
    """Those in the folder of an index, none where it was not tuned. Raises BadInput."""
    return index.loaded(OWN, _own)


def _own(index: Index) -> OwnExamples:
    document, where = tuned(index.path).get("hybgrag"), index.path / TUNED
    if document is None:
        return OwnExamples()
    try:
        return examples_of(document, str(where))
    except BadInput as error:
        raise BadInput(
            "what tune collected for hybgrag cannot be used", given=str(error),
            expected="what gpu-rag tune --method hybgrag writes", do="run it again, or remove the file",
        ) from error  # fmt: skip


def examples_of(document: Any, where: str) -> OwnExamples:
    """The examples of what `tune` wrote, which may be anything. Raises BadInput."""
    names = {field.name for field in fields(OwnExamples)}
    if not isinstance(document, dict) or set(document) != names:
        raise BadInput("examples cannot be read", given=where, expected=f"lists {sorted(names)}")
    for name, rows in document.items():
        if not isinstance(rows, list) or len(rows) > MOST_ROWS or len(json.dumps(rows)) > MOST_CHARS:
            expected = f"at most {MOST_ROWS} rows of {MOST_CHARS} characters together"
            raise BadInput("examples cannot be read", given=f"{where}: {name}", expected=expected)

    def read(name: str, row: Any, number: int) -> Experience:
        return _read(json.dumps(row), f"{where}: {name} {number}", name == "experiences")

    judged = document["validations"]
    return OwnExamples(
        tuple(read("routes", row, number) for number, row in enumerate(document["routes"], 1)),
        tuple(_validation(row, f"{where}: validations {number}") for number, row in enumerate(judged, 1)),
        tuple(read("experiences", row, number) for number, row in enumerate(document["experiences"], 1)),
    )


def _validation(row: Any, where: str) -> Validation:
    try:
        references, fits = row["references"], row["fits"]
        texts = [row["question"], row["type"], *references]
        if isinstance(references, str) or not all(isinstance(text, str) for text in texts):
            raise ValueError("a text is no string")
        if fits is not None and (type(fits) is not int or not 0 <= fits < len(references)):
            raise ValueError(f"fits {fits!r}")
        return Validation(row["question"], row["type"], tuple(references), fits)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("an example cannot be read", given=f"{where}: {error!r}", expected="see docs/cli.md") from error


def fenced(prompt: Prompt) -> Prompt:
    """The prompt with its examples between the marks of what others wrote; before the question where it has none."""
    slot, inside = "{{examples}}", f"{OPEN}\n{{{{examples}}}}\n{CLOSE}"
    whole = (
        prompt.template.replace(slot, inside) if slot in prompt.template else f"Examples\n{inside}\n\n{prompt.template}"
    )
    return replace(prompt, template=whole)


def read_examples(file: str | None, packaged: str, needs_feedback: bool) -> tuple[Experience, ...]:
    """The examples of a file, of the packaged one where `file` is None or empty. Raises BadInput with file and line."""
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
        row = json.loads(line)
        topics = tuple(_topic(entity) for entity in row["entities"])
        action, feedback = Action(row.get("module", HYBRID), topics), None
        if needs_feedback:
            said = row["feedback"]
            pairs = tuple((str(entity), str(relation)) for entity, relation in said.get("relations", ()))
            feedback = Feedback(Fault(said["kind"]), tuple(map(str, said.get("entities", ()))), pairs)
        if action.module not in MODULES or (feedback is not None and feedback.kind == Fault.REJECTED):
            raise ValueError(f"module {action.module}, feedback {feedback}")
        return Experience(str(row["question"]), action, feedback)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(
            "an example cannot be read", given=f"{where}: {error!r}", expected="see docs/methods.md"
        ) from error


def _topic(row: Any) -> Topic:
    relations, ways = tuple(map(str, row["relations"])), tuple(_DIRECTIONS[way] for way in row.get("ways", ()))
    if ways and len(ways) != len(relations):
        raise ValueError(f"{len(ways)} ways for {len(relations)} relations")
    return Topic(str(row["name"]), str(row["type"]), relations, ways)


async def chosen_examples(
    question: str, examples: Sequence[Experience], k: int, how: str, run: Run
) -> list[Experience]:
    """k of the examples. nearest: of highest cosine between the questions, the nearest last; random: the same k for all
    questions, in the order of the file."""
    if k >= len(examples):
        return list(examples)
    if how == "random":
        picked = random.Random(f"{run.ctx.run_seed}").sample(range(len(examples)), k)
        return [examples[i] for i in sorted(picked)]
    vectors = await embed([question, *(example.question for example in examples)])
    cosines = (vectors[1:] @ vectors[0]).tolist()
    order = sorted(range(len(examples)), key=lambda i: (-cosines[i], i))[:k]
    return [examples[i] for i in reversed(order)]
