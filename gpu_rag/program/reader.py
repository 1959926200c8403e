"""The shared reader: passages in rank order are packed into one prompt, which gives one short answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from gpu_rag.models.ask import Ask, Packed
from gpu_rag.program.decide import decide
from gpu_rag.program.rerank import reranked
from gpu_rag.program.run import Run
from gpu_rag.text.lenient import spoken
from gpu_rag.text.prompts import CLOSE, OPEN
from gpu_rag.types import Draft, Evidence, Path, Question

UNKNOWN = "unknown"
FURTHER = 4  # passages asked for in the place of a copy
NAMED = 3  # copies named by the passage that is shown
_NO_ANSWER = frozenset({"", UNKNOWN, "not known", "none", "no answer", "i don't know"})
_LABELS = ("The answer is:", "The answer is ", "Short answer:", "Answer:")
READ = Ask(
    "read",
    str,
    rule=lambda: "",  # rules find evidence but do not read it
    prompt="gpu_rag.program.prompts:reader",
    show=lambda question, blocks: {"question": question, "passages": Packed(blocks)},
    unread=lambda: "",
    reads="any",
)
_MARKUP = ("<", "◁", "`")  # a thought or a fence may begin with these


@dataclass(frozen=True)
class Support:
    """The evidence that a method retrieved, best first, and the paths that led to it."""

    evidence: tuple[Evidence, ...]
    paths: tuple[Path, ...] = ()


async def retrieved(
    retrieve: Callable[[Question, Run, Any], Awaitable[Any]], question: Question, run: Run, params: Any
) -> Any:
    """The support of a method, where no passage takes the place of a copy. If there are copies, the method is asked
    once more, for FURTHER passages in the place of each: of a text with more copies, fewer than run.limit may be left.
    """
    support = await retrieve(question, run, params)
    different, n = _without_copies(support.evidence), len(support.evidence)
    if len(different) == n:
        return support
    if n >= run.limit:
        further = replace(run, limit=run.limit + FURTHER * (n - len(different)))
        support = await retrieve(question, further, params)
        different = _without_copies(support.evidence)
    return replace(support, evidence=different[: run.limit])


def _without_copies(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The first passage of each text and title, its `why` naming the others. A title that is the name of
    the file tells no two copies apart."""
    copies: dict[tuple[str, str], list[Evidence]] = {}
    for passage in evidence:
        title = passage.title.removeprefix(PurePath(passage.file).stem) if passage.file else passage.title
        copies.setdefault((passage.text, title), []).append(passage)
    return tuple(
        replace(first, why=f"{first.why}; the same text is in {_some(others)}") if others else first
        for first, *others in copies.values()
    )


def _some(copies: Sequence[Evidence]) -> str:
    more = f" and {len(copies) - NAMED} others" if len(copies) > NAMED else ""
    return ", ".join(e.passage_id for e in copies[:NAMED]) + more


def passage_block(number: int, evidence: Evidence) -> str:
    """One passage in the format of the prompt."""
    return f"[{number}] {evidence.title}\n{evidence.text}"


def clean_answer(text: str) -> str:
    """The first line, without the fence of the prompt, a leading label or a closing full stop."""
    lines = text.replace(OPEN, "\n").replace(CLOSE, "\n").splitlines()
    line = _unlabelled(next((line.strip() for line in lines if line.strip()), ""))
    return line.rstrip(".").strip() if line.count(".") <= 1 else line


def begun_answer(text: str) -> str:
    """The part of the answer that is certain while a reply is still arriving. Whatever follows, `clean_answer` will
    begin with it and will be an answer. "" while that is open.

    >>> [begun_answer(text) for text in ("Ans", "Answer: unk", "Answer: Tam", "Tamsin.", "Tamsin. It is a port")]
    ['', '', 'Tam', 'Tamsin', 'Tamsin. It is a port']
    """
    reply = spoken(text).lstrip()
    if not reply or reply.startswith(_MARKUP):
        return ""
    line = reply.splitlines()[0]
    if len(line) < len(reply):  # the line has ended
        answer = clean_answer(reply)
        return answer if is_answer(answer) else ""
    line = _unlabelled(line)
    answer = line.partition("<")[0].rstrip(" .\t")  # the fence may begin there
    silent = any(known.startswith(answer.casefold().strip(" .")) for known in _NO_ANSWER)
    return "" if silent or any(label.startswith(line) for label in _LABELS) else answer


def _unlabelled(line: str) -> str:
    for label in _LABELS:
        line = line.removeprefix(label).strip()
    return line


class AnswerText:
    """Passes on the pieces of an answer as its reply grows. Nothing is passed on twice."""

    def __init__(self, on_piece: Callable[[str], None]):
        self._on_piece, self._said = on_piece, ""

    def __call__(self, text: str) -> None:
        """Take the whole reply so far. The text of a new try waits until it continues the text passed on."""
        answer = begun_answer(text)
        if len(answer) > len(self._said) and answer.startswith(self._said):
            piece, self._said = answer[len(self._said) :], answer
            self._on_piece(piece)


def is_answer(text: str) -> bool:
    """Whether a reply is an answer: not empty, and not a phrase for "nothing found"."""
    return text.casefold().strip(" .") not in _NO_ANSWER


async def read(run: Run, question: str, support: Support) -> Draft:
    """The answer to a question from its evidence, reranked if there is a reranker; else `unsupported`."""
    support = Support(*await reranked(run, question, support.evidence, support.paths, run.keep))
    shown: Sequence[Evidence] = support.evidence[: run.reader.passages]
    if not shown:
        return Draft(None, (), support.paths, "unsupported")
    answer = await read_blocks(run, question, [passage_block(i, e) for i, e in enumerate(shown, 1)])
    if answer is None:
        return Draft(None, support.evidence, support.paths, "unsupported")
    return Draft(answer, support.evidence, support.paths)


async def read_blocks(run: Run, question: str, blocks: Sequence[str], *, final: bool = True) -> str | None:
    """The short answer to a question from texts, best first; None if the texts do not contain it, or if no model reads.

    final: whether this is the answer of the program, so that it may be streamed.
    """
    on_text = AnswerText(run.on_text) if final and run.on_text is not None else None
    reply = await decide(run, READ, question=question, blocks=blocks, max_tokens=run.reader.max_tokens, on_text=on_text)
    answer = clean_answer(reply)
    return answer if is_answer(answer) else None
