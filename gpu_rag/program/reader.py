"""The shared reader: passages in rank order are packed into one prompt, which gives one short answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_rag.models.ask import Ask, Packed
from gpu_rag.program.decide import decide
from gpu_rag.program.rerank import reranked
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import CLOSE, OPEN
from gpu_rag.text.replies import spoken
from gpu_rag.types import Draft, Evidence, Path

UNKNOWN = "unknown"
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
