"""The decisions of HiGraAgent: start entities, the Librarian's replies, and the Seeker's actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from gpu_rag.methods.higra.dialogue import Answered, Dialogue, SubQuestions
from gpu_rag.methods.higra.graph import passages_of_entities
from gpu_rag.methods.higra.rules import MAX_ASKS, short_answer
from gpu_rag.models.ask import Ask, Choose, Packed, Refused
from gpu_rag.program.choose import best
from gpu_rag.program.oracle import Known
from gpu_rag.program.reader import UNKNOWN, Support, is_answer, passage_block, read, read_blocks
from gpu_rag.program.run import Run
from gpu_rag.text.rules.decomposition import references
from gpu_rag.types import Evidence, Path

PROMPTS = "gpu_rag.methods.higra.prompts"
ASK: Final = "ask_librarian"
ANSWER: Final = "answer"
MAX_ANSWERS, MAX_CITED, MAX_EVIDENCE = 5, 10, 20
UNRESOLVED = (
    "\nYour last action was sent back: {questions}. The librarian does not know what #1 is. "
    "Replace every reference by the answer found.\n"
)
_EVIDENCE_CHARS = 600

Number = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(max_length=500)]
Numbers = Annotated[tuple[Number, ...], Meta(max_length=MAX_EVIDENCE)]


def of_gold(gold: Known, position: int, candidates: Sequence[int]) -> bool:
    """Whether a gold passage contains the entity."""
    return not gold.passages.isdisjoint(passages_of_entities(gold.index).get(candidates[position], ()))


def first_seeds(scores: Sequence[float], max_seeds: int, threshold: float) -> list[int]:
    """Positions of the `max_seeds` best options with at least the threshold; a model may take any number."""
    return best(scores, max_seeds, threshold)


SEEDS = Choose("seeds", f"{PROMPTS}:seeds", none=True, rule=first_seeds, helps=of_gold)


# --- the Librarian ---------------------------------------------------------------------------------


class Told(Struct, frozen=True):
    """The Librarian's reply. passages: numbers, from 1, of the passages that support it."""

    evidence: Annotated[str, Meta(max_length=600)]
    answers: Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=MAX_ANSWERS)]
    passages: Annotated[tuple[Number, ...], Meta(max_length=MAX_CITED)]


def _library(passages: Sequence[Evidence], paths: Sequence[Path]) -> list[str]:
    """The relations as one block (if there are any), then the passages."""
    facts = ["Facts\n" + "\n".join(f"- {path.text}" for path in paths)] if paths else []
    return [*facts, *(passage_block(i, e) for i, e in enumerate(passages, 1))]


def _checked(reply: Told, paths: Sequence[Path], shown: Sequence[int]) -> Told:
    """The reply with white space folded, distinct non-empty answers, and only passages that were shown."""
    n_shown = len(shown) - bool(paths)
    answers = (" ".join(answer.split()) for answer in reply.answers)
    return Told(
        " ".join(reply.evidence.split()),
        tuple(dict.fromkeys(answer for answer in answers if is_answer(answer))),
        tuple(number for number in dict.fromkeys(reply.passages) if number <= n_shown),
    )


async def _read(run: Run, question: str, passages: Sequence[Evidence]) -> Told:
    """The single short answer of the shared reader, from the passages that it shows, without relations."""
    shown = passages[: run.reader.passages]
    text = await read_blocks(run, question, [passage_block(i, e) for i, e in enumerate(shown, 1)], final=False)
    if text is None:
        return Told("the reader found no support", (), ())
    answer = short_answer(text, question)
    cited = [i for i, e in enumerate(shown, 1) if answer.casefold() in f"{e.title}\n{e.text}".casefold()]
    words = f"its words stand in {'the passages' if cited else 'no passage that was read'}"
    return Told(words, (answer,), tuple(cited[:MAX_CITED]))


LIBRARIAN = Ask(
    "librarian/reply",
    Told,
    rule=_read,
    prompt=f"{PROMPTS}:librarian",
    show=lambda question, passages, paths: {"question": question, "library": Packed(_library(passages, paths))},
    check=_checked,
    unread=lambda: Told("the reply could not be read", (), ()),
    reads="capable",
)


# --- the Seeker ------------------------------------------------------------------------------------


class Action(Struct, frozen=True):
    """The Seeker's next action. evidence: numbers of the findings that support the answer."""

    action: Literal["ask_librarian", "answer"]
    subquestions: Annotated[tuple[Annotated[str, Meta(min_length=3, max_length=500)], ...], Meta(max_length=MAX_ASKS)]
    answer: Text
    evidence: Numbers


class LastWord(Struct, frozen=True):
    """The answer that closes a dialogue, and the numbers of the findings that support it."""

    answer: Text
    evidence: Numbers


def _history(dialogue: Dialogue) -> Packed:
    """The findings so far, in the format of a prompt."""
    return Packed(
        [
            f"[{number}] {finding.question}\nanswers: {'; '.join(finding.answers) or 'none'}\n"
            f"evidence: {finding.evidence[:_EVIDENCE_CHARS]}"
            for number, finding in enumerate(dialogue.findings, 1)
        ]
    )


def as_action(asks: SubQuestions, answer: Answered | None) -> Action:
    """The rules' decision as an action; an empty answer if they have nothing left to ask or to answer."""
    if asks or answer is None:
        return Action(ASK if asks else ANSWER, tuple(step.question for step in asks), "", ())
    return Action(ANSWER, (), answer.text, answer.cited[:MAX_EVIDENCE])


def unresolved(reply: Action, rules: Action) -> list[str]:
    """The sub-questions that contain references to answers. In a sub-question of the rules "#1" is an ordinary word."""
    return [text for text in reply.subquestions if references(text) and text not in rules.subquestions]


def _usable(reply: Action, dialogue: Dialogue, rules: Action, sent_back: Sequence[str]) -> Action | Refused:
    """The action, limited to valid sub-questions and existing findings.

    Sub-questions with references are sent back once, then dropped. Sub-questions that were asked before are dropped
    too, since the Librarian would repeat its reply. An empty answer closes the dialogue if the rules have no action
    either.
    """
    if reply.action == ANSWER:
        if not is_answer(reply.answer) and (rules.subquestions or rules.answer):
            return Refused("the answer is empty")
        cited = tuple(n for n in dict.fromkeys(reply.evidence) if n <= len(dialogue.findings))
        return Action(ANSWER, (), " ".join(reply.answer.split()), cited)
    folded = Action(ASK, tuple(dict.fromkeys(" ".join(text.split()) for text in reply.subquestions)), "", ())
    if not folded.subquestions:
        return Refused("no sub-question was given")
    left_out = unresolved(folded, rules)
    if left_out and not sent_back:
        return folded
    own = {text.casefold() for text in rules.subquestions}
    before = {finding.question.casefold() for finding in dialogue.findings} - own
    usable = tuple(text for text in folded.subquestions if text not in left_out)
    new = tuple(text for text in usable if text.casefold() not in before)
    return Refused("it asks only what was asked before") if usable and not new else Action(ASK, new, "", ())


NEXT = Ask(
    "seeker/action",
    Action,
    rule=lambda rules: rules,
    prompt=f"{PROMPTS}:seeker",
    show=lambda dialogue, sent_back: {
        "question": dialogue.question,
        "plan": "\n".join(f"#{step.id} {step.question}" for step in dialogue.plan.steps),
        "notice": UNRESOLVED.format(questions="; ".join(sent_back)) if sent_back else "",
        "history": _history(dialogue),
    },
    check=_usable,
    words=lambda reply: (),
)


async def _read_once_more(run: Run, dialogue: Dialogue) -> LastWord:
    """The answer of the shared reader, from the passages of all findings."""
    draft = await read(run, dialogue.question, Support(dialogue.readable()))
    return LastWord(draft.text or UNKNOWN, ())


LAST = Ask(
    "seeker/final",
    LastWord,
    rule=_read_once_more,
    prompt=f"{PROMPTS}:seeker_final",
    show=lambda dialogue: {"question": dialogue.question, "history": _history(dialogue)},
    unread=lambda: LastWord(UNKNOWN, ()),
    words=lambda reply: (),
)
