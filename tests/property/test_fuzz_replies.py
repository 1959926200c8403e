"""Readers of a model's words, against thousands of broken replies each."""

from __future__ import annotations

import json
import os
import re

import pytest
from jsonschema import Draft202012Validator

from gpu_rag.index.stages.extraction import Extracted
from gpu_rag.program.reader import clean_answer
from gpu_rag.text.replies import canonical_schema, parse_json
from gpu_rag.text.structs import schema_of
from gpu_rag.types import Malformed

pytestmark = pytest.mark.slow
N = 2_000 if os.environ.get("CI") else 10_000

EXTRACTION = {
    "entities": [
        {"name": name, "aliases": ["V"], "types": ["place"], "description": f"the {name}"}
        for name in ("Vell", "Orn", "1902")
    ],
    "triples": [["Vell", "lies on", "Orn"], ["Vell", "founded in", "1902"]],
}
SMALL = {
    canonical_schema(schema): seed
    for schema, seed in (
        (
            {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
            {"answer": "Vell", "reason": "because"},
        ),
        (
            {
                "type": "object",
                "properties": {"chosen": {"type": "array", "items": {"enum": ["A", "B", "none"]}, "maxItems": 2}},
                "required": ["chosen"],
                "additionalProperties": False,
            },
            {"chosen": ["A", "none"]},
        ),
        (
            {
                "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
                "$ref": "#/$defs/node",
            },
            {"next": {"next": {"next": {}}}},
        ),
        ({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}}, {"n": 3}),
    )
}
WRAPS = (
    "{}",
    "```json\n{}\n```",
    "<think>hm {} </think>\n{}",
    "<think>a</think><think>{}",
    "Sure! {}",
    "{}\n{}",
    "```\n{}",
    "  {}  ",
)
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


def reply(mutator, seed):
    """A reply: a JSON value changed, wrapped as models do it, and with characters changed."""
    rand = mutator.random
    body = mutator.dumped(mutator.value(seed) if rand.random() < 0.6 else seed).decode("utf-8", "surrogatepass")
    text = rand.choice(WRAPS).replace("{}", body)
    if rand.random() < 0.5:
        raw = mutator.raw(text.encode("utf-8", "surrogatepass"))
        text = raw.decode("utf-8", rand.choice(("replace", "surrogateescape", "ignore")))
    if rand.random() < 0.02:
        at = rand.randrange(len(text) + 1)
        text = text[:at] + rand.choice(LONG) * rand.choice((100, 5_000)) + text[at:]
    return text


def check_reply(text, schema, found):
    """An object that is valid under the schema and stands in the reply as JSON, or a reason beside the whole reply."""
    if isinstance(found, Malformed):
        assert found.reason and found.raw == text
        return
    assert Draft202012Validator(json.loads(schema)).is_valid(found)
    body = re.sub(r"\A(\s*<think>.*?</think>)+", "", text, flags=re.DOTALL).strip()
    body = body.removeprefix("```json").removeprefix("```JSON").removeprefix("```").removesuffix("```")
    assert json.loads(body) == found


def run(mutator, schema, seed, n):
    kept = 0
    for _ in range(n):
        text = reply(mutator, seed)
        found = parse_json(text, schema)
        try:
            check_reply(text, schema, found)
        except BaseException as error:
            error.add_note(f"reply: {text!r}\nfound: {found!r}")
            raise
        kept += isinstance(found, dict)
    assert n / 20 < kept < n  # both ways were taken


def test_replies_under_the_schema_of_extraction(mutator):
    run(mutator, schema_of(Extracted), EXTRACTION, N)


def test_replies_under_small_schemas(mutator):
    for schema, seed in SMALL.items():
        run(mutator, schema, seed, N // len(SMALL))


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
