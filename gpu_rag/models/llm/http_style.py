"""What a model server understands, found by trying it once and kept beside other caches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpu_rag.errors import RequestFailed
from gpu_rag.models.fingerprint import text_hash
from gpu_rag.models.llm.http_wire import CHOICE_STYLES, OBJECT_STYLES, Style, body, read_answer, thought
from gpu_rag.models.packaged import keep_json
from gpu_rag.text.lenient import Read, read_reply
from gpu_rag.types import Choice, JsonSchema, Rank, Request

VERSION = 1
TRIES = 3  # of each form: a server that stumbles once may still know it
TRIAL = "Reply with the word hello and nothing else."
_SCHEMA = '{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}'
_TOKENS = 64
Post = Callable[[dict[str, Any]], Any]


def find_style(model: str, post: Post, think_tokens: int) -> Style | None:
    """The style of a server: some short requests, each asking in words for one word and demanding another form.

    post: the server's JSON for a body, or raises RequestFailed; what else it raises ends the trial. A form counts as
    understood where a reply keeps to it although the words say otherwise, because some servers accept a form and
    ignore it. What none understands is asked for in words. None where the server answers not even plain words.
    """

    def answers(style: Style, request: Request) -> Iterator[Any]:
        for _ in range(TRIES):
            try:
                yield post(body(model, request, style, think_tokens))
            except RequestFailed:  # after all of its tries
                return

    def keeps(style: Style, constraint: JsonSchema | Choice | Rank) -> bool:
        request = Request("", TRIAL, constraint, max_tokens=_TOKENS)
        found = (read_reply(read_answer(request, answer), constraint) for answer in answers(style, request))
        return any(isinstance(said, Read) for said in found)

    plain = Request("", TRIAL, max_tokens=_TOKENS)
    seen = list(answers(Style(), plain))
    if not seen:
        return None
    style = Style(thinks=any(map(thought, seen)))
    if style.thinks:
        silent = replace(style, quiet=True)
        style = replace(style, quiet=not all(map(thought, answers(silent, plain))))
    forms = (replace(style, objects=form) for form in OBJECT_STYLES)
    style = next(form for form in forms if form.objects == "prompt" or keeps(form, JsonSchema(_SCHEMA)))
    forms = (replace(style, choices=form) for form in CHOICE_STYLES)
    style = next(form for form in forms if form.choices == "prompt" or keeps(form, Choice(("yes", "no"))))
    return replace(style, ranks=keeps(style, Rank(("yes", "no"))))


def kept_style(folder: Path, url: str, model: str, find: Callable[[], Style | None], fresh: bool = False) -> Style:
    """The style of a server as an earlier run found it, else as `find` does now; it is written below `folder`.

    A server of which `find` learns nothing is taken for vLLM's until the next run. Raises StorageError.
    """
    path = folder / "servers" / f"{text_hash('style', VERSION, url, model)[:16]}.json"
    if path.is_file() and not fresh:
        try:
            return Style(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            pass  # a file that cannot be read is written anew
    style = find()
    if style is None:
        return Style()
    keep_json(path, asdict(style))
    return style
