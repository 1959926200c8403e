"""Readers of a model's words, against thousands of broken replies each."""

import os
import re

import pytest

from gpu_rag.program.reader import clean_answer

pytestmark = pytest.mark.slow
N = 2_000 if os.environ.get("CI") else 10_000

LONG = (
    "[",
    '{"a":',
    "<think>",
    "```json\n",
    '"',
    "\\",
    "1",
    "-",
    " ",
    "<think></think>",
    "\ud83d",
    "\u2028",
    "Answer:",
    ".",
)


def test_answers(mutator):
    rand = mutator.random
    seeds = (
        "Answer: Vell.",
        "Short answer: 1902",
        "\n\n Orn\nbecause",
        "U.S.A.",
        "Answer: Short answer: x",
        "...",
        "Ünï 🌊",
    )
    for _ in range(N):
        raw = mutator.raw(rand.choice(seeds).encode(), [seed.encode() for seed in seeds])
        text = raw.decode("utf-8", rand.choice(("replace", "surrogateescape", "ignore")))
        if rand.random() < 0.02:
            text += rand.choice(LONG) * 5_000
        check_answer(text, clean_answer(text))


def check_answer(text, answer):
    """The first line that says something, without labels before it and full stops behind it, and no word less."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    at = line.rfind(answer)
    assert at >= 0 and answer == answer.strip(), (text, answer)
    assert re.fullmatch(r"(\s*(Short answer:|Answer:))*\s*", line[:at] if answer else line.rstrip(". ")), (text, answer)
    assert not line[at + len(answer) :].strip(". \t"), (text, answer)
