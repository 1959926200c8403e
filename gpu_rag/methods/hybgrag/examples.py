"""Examples for HybGRAG's prompts, from JSONL files: routes of questions, and actions with verified feedback."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from gpu_rag.errors import BadInput
from gpu_rag.methods.hybgrag.state import HYBRID, MODULES, Action, Fault, Feedback, Topic
from gpu_rag.program.ask import embed
from gpu_rag.program.run import Run


@dataclass(frozen=True)
class Experience:
    """A question, an action of the router, and the feedback that gold answers proved right (None: of a route)."""

    question: str
    action: Action
    feedback: Feedback | None = None

    def route(self) -> str:
        """The example for the router."""
        entities = [
            {"name": topic.entity, "type": topic.type, "relations": list(topic.relations)}
            for topic in self.action.topics
        ]
        return f"Question: {self.question}\nReply: {json.dumps({'entities': entities}, ensure_ascii=False)}"

    def comment(self) -> str:
        """The example for the commentor."""
        assert self.feedback is not None
        return f"Question: {self.question}\n{'; '.join(self.action.lines())}\nVerdict: {self.feedback.text()}"


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
        topics = tuple(Topic(str(e["name"]), str(e["type"]), tuple(map(str, e["relations"]))) for e in row["entities"])
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
