"""The shared reader: passages in rank order, packed into one prompt, one short answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.program.ask import ask
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Draft, Evidence, Path

_NO_ANSWER = frozenset({"", "unknown", "not known", "none", "no answer", "i don't know"})


@dataclass(frozen=True)
class Support:
    """What a method retrieved: evidence best first, and the paths that led to it."""

    evidence: tuple[Evidence, ...]
    paths: tuple[Path, ...] = ()


def passage_block(number: int, evidence: Evidence) -> str:
    """One passage as the reader sees it."""
    return f"[{number}] {evidence.title}\n{evidence.text}"


def clean_answer(text: str) -> str:
    """The first line, without a leading label or closing full stop."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    for label in ("Short answer:", "Answer:"):
        line = line.removeprefix(label).strip()
    return line.rstrip(".").strip() if line.count(".") <= 1 else line


def is_answer(text: str) -> bool:
    """Whether a reply says something: not empty, and none of the ways to say that nothing was found."""
    return text.casefold().strip(" .") not in _NO_ANSWER


async def read(run: Run, question: str, support: Support) -> Draft:
    """The answer to a question from its evidence; `unsupported` when the reader finds none there."""
    shown: Sequence[Evidence] = support.evidence[: run.reader.passages]
    if not shown:
        return Draft(None, (), support.paths, "unsupported")
    answer = await read_blocks(run, question, [passage_block(i, e) for i, e in enumerate(shown, 1)])
    if answer is None:
        return Draft(None, support.evidence, support.paths, "unsupported")
    return Draft(answer, support.evidence, support.paths)


async def read_blocks(run: Run, question: str, blocks: Sequence[str]) -> str | None:
    """The short answer to a question from texts, best first; None where they do not hold it."""
    reply = await ask(
        run,
        Prompt.read("gpu_rag.program.prompts", "reader"),
        {"question": question},
        schema=None,
        max_tokens=run.reader.max_tokens,
        evidence=blocks,
        slot="passages",
        name="read",
    )
    answer = clean_answer(str(reply))
    return answer if is_answer(answer) else None
