"""The Librarian: answers one sub-question from what was retrieved for it. Stateless; a batch is many of these.

A capable model gives every answer that the passages and relations support, with its evidence, as JSON. Another model
gives the one short answer of the shared reader, from the passages that the reader shows, without the relations.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpu_rag.models.budget import reply_tokens
from gpu_rag.program.ask import ask_text, packed
from gpu_rag.program.reader import Support, is_answer, passage_block, read_blocks
from gpu_rag.program.rerank import reranked
from gpu_rag.program.run import Run
from gpu_rag.text.keywords import keywords
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.types import Evidence, Malformed

MAX_ANSWERS = 5
_COPULA = re.compile(r"\b(?:is|was|are|were)\b", re.IGNORECASE)
_INTRODUCED = re.compile(r"^(?:the |my )?(?:short )?answer is:?\s+", re.IGNORECASE)
_AFTERTHOUGHT = re.compile(r",\s+(?=(?:the|a|an|who|which|where|whose|and)\b)|(?<=[a-z0-9]{3})\.\s+", re.IGNORECASE)

SCHEMA = canonical_schema(
    object_of(
        {
            "evidence": {"type": "string", "maxLength": 600},
            "answers": {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": MAX_ANSWERS},
            "passages": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 10},
        }
    )
)


Find = Callable[[str], Awaitable[Support]]
Said = tuple[tuple[str, ...], str, tuple[Evidence, ...]]  # answers, evidence in words, the passages that it rests on


@dataclass(frozen=True)
class Finding:
    """The Librarian's reply to one sub-question. answers: all that are supported, () for none. evidence: in words.

    cited: the passages that it rests on; retrieved: everything that was retrieved. step: that of the plan which it
    answers, 0 for a free question.
    """

    question: str
    answers: tuple[str, ...]
    evidence: str
    cited: tuple[Evidence, ...]
    retrieved: Support
    step: int = 0


async def consult(run: Run, question: str, find: Find, step: int = 0) -> Finding:
    """Retrieve for one sub-question and answer it."""
    retrieved = await find(question)
    retrieved = Support(*await reranked(run, question, retrieved.evidence, retrieved.paths))
    said: Said = (), "nothing was retrieved", ()
    if retrieved.evidence:
        by = _by_schema if run.models.language_model.capable else _by_reader
        said = await by(run, question, retrieved)
    found = Finding(question, *said, retrieved, step)
    answers = "; ".join(found.answers) or "none"
    cited = tuple(f"passage: {e.passage_id} {e.title}" for e in found.cited)
    lines = (f"question: {question}", f"answer: {answers}", f"evidence: {found.evidence}", *cited)
    run.note("librarian", len(retrieved.evidence), lines)
    return found


async def _by_schema(run: Run, question: str, retrieved: Support) -> Said:
    prompt = Prompt.read("gpu_rag.methods.higra.prompts", "librarian")
    facts = ["Facts\n" + "\n".join(f"- {path.text}" for path in retrieved.paths)] if retrieved.paths else []
    blocks = [*facts, *(passage_block(i, e) for i, e in enumerate(retrieved.evidence, 1))]
    room = reply_tokens(run.models.language_model, SCHEMA)
    text, n_shown, _ = packed(run, prompt, {"question": question}, "library", blocks, max_tokens=room)
    reply = await ask_text(run, prompt, text, schema=SCHEMA, max_tokens=room, name="librarian/reply")
    if isinstance(reply, Malformed):
        return (), f"the reply could not be read: {reply.reason}", ()
    assert isinstance(reply, dict)
    shown = retrieved.evidence[: max(0, n_shown - len(facts))]
    cited = tuple(shown[n - 1] for n in dict.fromkeys(reply["passages"]) if n <= len(shown))
    cleaned = (" ".join(answer.split()) for answer in reply["answers"])
    answers = tuple(dict.fromkeys(answer for answer in cleaned if is_answer(answer)))
    return answers, " ".join(reply["evidence"].split()), cited


async def _by_reader(run: Run, question: str, retrieved: Support) -> Said:
    shown = retrieved.evidence[: run.reader.passages]
    said = await read_blocks(run, question, [passage_block(i, e) for i, e in enumerate(shown, 1)], final=False)
    if said is None:
        return (), "the reader found no support", ()
    answer = short_answer(said, question)
    cited = tuple(e for e in shown if answer.casefold() in f"{e.title}\n{e.text}".casefold())
    return (answer,), f"its words stand in {'the passages' if cited else 'no passage that was read'}", cited


def short_answer(answer: str, question: str) -> str:
    """The part of an answer that does not repeat its question: "The designer was Marta Orlo" becomes "Marta Orlo".

    Small models like to answer in whole sentences, and the answer is to stand in the next question. Cut is "the answer
    is"; what stands before the first "is", "was", "are", "were", where most content words of that part are words of the
    question; what follows the first sentence; and a relative clause or apposition behind a comma.
    """
    rest = _INTRODUCED.sub("", answer, count=1) or answer
    found = _COPULA.search(rest)
    if found is not None:
        known = {word for phrase in keywords(question) for word in phrase.split()}
        content = [word for phrase in keywords(rest[: found.start()]) for word in phrase.split()]
        if 2 * sum(word in known for word in content) > len(content):
            rest = rest[found.end() :].strip() or rest
    return _AFTERTHOUGHT.split(rest, maxsplit=1)[0].strip(" .,") or answer
