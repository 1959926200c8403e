"""Packer of evidence into a prompt, in rank order, until the model's context is full."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpu_rag.errors import ContextOverflow, UsageError
from gpu_rag.models.llm.interface import Model, fits
from gpu_rag.text.prompts import Prompt

SEPARATOR = "\n\n"
# Scripts without spaces (Thai, kana, Han): each of their characters counts as a word.
_UNSPACED = r"\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def pack(
    prompt: Prompt,
    fields: Mapping[str, str],
    slot: str,
    evidence: Sequence[str],
    *,
    llm: Model,
    max_tokens: int,
    separator: str = SEPARATOR,
    ending: str = "",
) -> tuple[str, int, int]:
    """Render `prompt` with as much of `evidence` in `{{slot}}` as fits. Returns (user text, n_kept, n_cut_tokens).

    Room for evidence = llm.context_tokens - max_tokens - tokens of the system part and of the user part without
    evidence. Evidence is taken in the given order (best first) as long as it fits whole; the first piece that does not
    fit is cut after a word, and nothing after it is taken. n_kept counts the pieces shown, with the cut one;
    n_cut_tokens: tokens of evidence that are not shown. fields: the other slots, which are never cut; ending: a text
    after the evidence in its slot, never cut. Raises ContextOverflow with the sizes if the prompt does not fit even
    without evidence; UsageError for fields that do not match the prompt.
    """
    if slot in fields:
        raise UsageError("the slot of the evidence is filled by the packer", given=f"{slot} among the fields")

    def render(pieces: Sequence[str]) -> str:
        text = prompt.render(**fields, **{slot: separator.join(pieces)})
        return f"{text}\n{ending}" if ending else text

    full = render(evidence)
    if fits(llm, prompt.system, full, max_tokens):
        return full, len(evidence), 0
    bare = render(())
    room = llm.context_tokens - max_tokens - _count(llm, prompt.system, bare)
    if room < 0:
        raise overflow(llm, prompt, llm.context_tokens - max_tokens - room, max_tokens)
    counts = [llm.count_tokens(separator + piece) for piece in evidence]
    while room > 0:
        kept, n_shown = _take(llm, evidence, counts, room, separator)
        text = render(kept)
        # The whole can have a few more tokens than its parts: subtract the excess and take less.
        excess = _count(llm, prompt.system, text) + max_tokens - llm.context_tokens
        if excess <= 0:
            return text, len(kept), max(0, sum(counts) - n_shown)
        room = min(room, n_shown) - excess
    return bare, 0, sum(counts)


def overflow(llm: Model, prompt: Prompt, n_tokens: int, max_tokens: int) -> ContextOverflow:
    """Error of a prompt that does not fit."""
    return ContextOverflow(
        f"the prompt {prompt.name} does not fit the context of {llm.name}",
        given=f"{n_tokens} tokens and {max_tokens} for the reply",
        expected=f"<= {llm.context_tokens} together",
        do="shorten the question or configure a model with a longer context",
    )


def _count(llm: Model, system: str, text: str) -> int:
    return llm.count_tokens(system) + llm.count_tokens(text)


def _take(
    llm: Model, evidence: Sequence[str], counts: Sequence[int], room: int, separator: str
) -> tuple[list[str], int]:
    """Pieces that fit in `room` tokens, the last one cut, and their number of tokens."""
    kept: list[str] = []
    used = 0
    for piece, n in zip(evidence, counts):
        if used + n > room:
            piece, n = _cut(llm, piece, room - used, separator)
            if piece:
                kept.append(piece)
                used += n
            break
        kept.append(piece)
        used += n
    return kept, used


def _cut(llm: Model, piece: str, room: int, separator: str) -> tuple[str, int]:
    """Longest prefix of whole words of `piece` within `room` tokens, and its tokens; or ("", 0)."""
    ends = [match.end() for match in _WORD.finditer(piece)]
    low, high, best = 0, len(ends), 0  # words known to fit, largest number to try
    while low < high:
        middle = (low + high + 1) // 2
        n = llm.count_tokens(separator + piece[: ends[middle - 1]])
        if n <= room:
            low, best = middle, n
        else:
            high = middle - 1
    return (piece[: ends[low - 1]], best) if low else ("", 0)
