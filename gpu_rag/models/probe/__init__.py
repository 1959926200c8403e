"""Probe of a model's abilities with a tiny test of our own: a first look, not a benchmark.

The test has six invented passages. For each passage the model lists the names in it under a JSON schema, judges a true
and a false statement (constrained to yes or no), and answers a question briefly. From the titles of all passages it
picks the passage that has the answer, once as a constrained choice and once by log-probability.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gpu_rag.errors import RequestFailed, StorageError
from gpu_rag.models.llm.interface import LLM
from gpu_rag.models.packaged import keep_json
from gpu_rag.text.lenient import Read, read_reply
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Choice, JsonSchema, Malformed, Rank, Reply, Request

VERSION = 1  # version of the test; results of other versions are not used
NAMES = json.dumps(
    {
        "type": "object",
        "properties": {"names": {"type": "array", "items": {"type": "string", "maxLength": 60}, "maxItems": 8}},
        "required": ["names"],
        "additionalProperties": False,
    },
    sort_keys=True,
)
# A model is good for a use if it reaches these shares of right replies.
EXTRACTS = {"json": 1.0, "names_found": 0.6, "names_verbatim": 0.9}
JUDGES = {"judged": 0.8, "chosen": 0.6}
ANSWERS = {"answered": 0.6}
# {test: (first, end) of its replies among the six replies of an item}
_SIMPLE = {"judged": (1, 3), "answered": (3, 4), "chosen": (4, 5), "ranked": (5, 6)}

_Outcome = Reply | RequestFailed


@dataclass(frozen=True)
class Passage:
    """An item of the test. names: in the text; true, false: statements about it."""

    title: str
    text: str
    names: tuple[str, ...]
    true: str
    false: str
    question: str
    answer: str


@cache
def passages() -> tuple[Passage, ...]:
    """The items of the test."""
    lines = resources.files(__name__).joinpath("passages.jsonl").read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return tuple(Passage(**{**row, "names": tuple(row["names"])}) for row in rows)


def requests() -> list[Request]:
    """Six requests per item, item by item."""
    names, judge, answer, choose = (Prompt.read(__name__, name) for name in ("names", "judge", "answer", "choose"))
    titles = tuple(item.title for item in passages())
    listed, result = "\n".join(titles), []
    for item in passages():
        result.append(Request(names.system, names.render(text=item.text), JsonSchema(NAMES), 160))
        for statement in (item.true, item.false):
            text = judge.render(text=item.text, statement=statement)
            result.append(Request(judge.system, text, Choice(("yes", "no")), 8))
        result.append(Request(answer.system, answer.render(text=item.text, question=item.question), None, 24))
        text = choose.render(question=item.question, titles=listed)
        result += [Request(choose.system, text, Choice(titles), 24), Request(choose.system, text, Rank(titles), 24)]
    return result


def probe(llm: LLM) -> dict[str, Any]:
    """Run the test. Returns {"model", "capable", "tests": {name: [right, of]}, "good_for", "failed", "s"}.

    tests: json (valid replies), names_found (names of the passage that the model lists), names_verbatim (listed names
    that are in the passage), judged (yes or no), answered, chosen, ranked. good_for: the uses (extraction, judging,
    answers) with high enough shares. failed: number of requests without a reply; they count as wrong.
    """
    began = time.perf_counter()
    asked = requests()
    replies = llm.complete(asked)
    tests = {name: [0, 0] for name in ("json", "names_found", "names_verbatim", *_SIMPLE)}
    for i, item in enumerate(passages()):
        own = replies[6 * i : 6 * i + 6]
        _score_names(tests, item, own[0])
        right = {"judged": ("yes", "no"), "chosen": (item.title,), "ranked": (item.title,)}
        for name, (start, end) in _SIMPLE.items():
            tests[name][1] += end - start
            for k, wanted in zip(range(start, end), right.get(name, ())):
                tests[name][0] += _option(asked[6 * i + k], own[k]) == wanted
        tests["answered"][0] += _answers(item, own[3])
    return {
        "model": {"name": llm.name, "content_hash": llm.content_hash},
        "capable": llm.capable,
        "tests": tests,
        "good_for": good_for(tests),
        "failed": sum(isinstance(reply, RequestFailed) for reply in replies),
        "s": time.perf_counter() - began,
    }


def good_for(tests: dict[str, list[int]]) -> list[str]:
    """The uses for which the shares of right replies are high enough."""
    needs = {"extraction": EXTRACTS, "judging": JUDGES, "answers": ANSWERS}
    return [
        use for use, need in needs.items() if all(tests[t][0] >= share * tests[t][1] > 0 for t, share in need.items())
    ]


def kept_probe(folder: Path, llm: LLM) -> dict[str, Any] | None:
    """The stored result of exactly this model, or None. Raises StorageError."""
    path = _file(folder, llm)
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError("a kept probe cannot be read", given=f"{path}: {error}", do="remove it") from error
    return document


def keep_probe(folder: Path, llm: LLM, document: dict[str, Any]) -> None:
    """Store a result in `folder`, under the model's content hash. Raises StorageError."""
    keep_json(_file(folder, llm), document)


def _file(folder: Path, llm: LLM) -> Path:
    return folder / "probes" / f"{llm.content_hash[:32]}-{VERSION}.json"


def _option(request: Request, reply: _Outcome) -> str:
    """The option that a reply names or ranks first; "" if there is none."""
    parsed = read_reply(reply, request.constraint) if isinstance(reply, Reply) else None
    if not isinstance(parsed, Read):
        return ""
    return reply.text if isinstance(request.constraint, Rank) and isinstance(reply, Reply) else str(parsed.value)


def _score_names(tests: dict[str, list[int]], item: Passage, reply: _Outcome) -> None:
    value = read_reply(reply, JsonSchema(NAMES)) if isinstance(reply, Reply) else Malformed(str(reply), "")
    valid = isinstance(value, Read)
    listed = {str(name).strip() for name in value.value["names"]} if isinstance(value, Read) else set()
    for test, right, total in (
        ("json", int(valid), 1),
        ("names_found", sum(name in listed for name in item.names), len(item.names)),
        ("names_verbatim", sum(bool(name) and name in item.text for name in listed), len(listed)),
    ):
        tests[test][0] += right
        tests[test][1] += total


def _answers(item: Passage, reply: _Outcome) -> bool:
    """Whether the short reply contains the answer."""
    return isinstance(reply, Reply) and item.answer.casefold() in reply.text.casefold()
