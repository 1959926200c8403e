"""OpenAI's protocol of responses: rows as responses with citations, and as the events of streamed responses."""

from __future__ import annotations

import json
import re
import secrets
import time
from typing import Any

from gpu_rag.serve.chat import unsent
from gpu_rag.serve.refusal import Refusal, check_answered, error_body

_MARK = re.compile(r"\[(\d{1,2})\]")  # an answer cites passages by number
_PLACE = {"output_index": 0, "content_index": 0}


def response_of(row: dict[str, Any], model: str) -> dict[str, Any]:
    """The response of a row, which is under `gpu_rag`. Raises as `check_answered`."""
    check_answered(row)
    text = row["answer"] or ""
    item = _item(_name("msg"), "completed", [_part(text, citations(row))])
    return {**_response(model), "status": "completed", "output": [item], "usage": _usage(row), "gpu_rag": row}


def citations(row: dict[str, Any], offset: int = 0) -> list[dict[str, Any]]:
    """The citations of an answer, in the order of the text: one for each mark such as [2], before it, and one at the
    end for each other passage with a sentence that supports the answer.

    file_id: the passage's id; filename: its document's file, or its title. offset: characters before the answer.
    """
    text, evidence = row["answer"] or "", row["evidence"]
    marks = [(mark.start(), int(mark[1]) - 1) for mark in _MARK.finditer(text)]
    cited = [(start, evidence[number]) for start, number in marks if 0 <= number < len(evidence)]
    marked = {passage["passage_id"] for _, passage in cited}
    support = {sentence["passage_id"] for sentence in row["grounding"]["sentences"]} - marked
    cited += [(len(text), passage) for passage in evidence if passage["passage_id"] in support]
    return [
        {
            "type": "file_citation",
            "file_id": passage["passage_id"],
            "filename": passage.get("file") or passage["title"],
            "index": offset + start,
        }
        for start, passage in cited
    ]


class ResponseEvents:
    """The server-sent events of one response: the answer in pieces, its citations, and the response with the row.

    A failure is the event `response.failed`. Pieces that do not begin the answer stay in the text before it.
    """

    def __init__(self, model: str):
        self._base, self._id = _response(model), _name("msg")
        self._sent, self._number = "", 0

    def __call__(self, item: dict[str, Any] | str) -> bytes:
        """The events of a piece of the answer, or of the final row."""
        if isinstance(item, str):
            return self._begun() + self._delta(item)
        events = self._begun()
        try:
            check_answered(item)
        except Refusal as error:
            message = error_body(error, "/v1/responses")["error"]["message"]
            failed = {"status": "failed", "error": {"code": "server_error", "message": message}, "gpu_rag": item}
            return events + self._event("response.failed", response={**self._base, **failed})
        answer = item["answer"] or ""
        if rest := unsent(answer, self._sent):
            events += self._delta(rest)
        found = citations(item, len(self._sent) - len(answer))
        for index, citation in enumerate(found):
            events += self._at("output_text.annotation.added", annotation_index=index, annotation=citation)
        part = _part(self._sent, found)
        message = _item(self._id, "completed", [part])
        end = {"status": "completed", "output": [message], "usage": _usage(item), "gpu_rag": item}
        events += self._at("output_text.done", text=self._sent, logprobs=[])
        events += self._at("content_part.done", part=part)
        events += self._event("response.output_item.done", output_index=0, item=message)
        return events + self._event("response.completed", response={**self._base, **end})

    def _begun(self) -> bytes:
        """The events before the first piece, once."""
        if self._number:
            return b""
        events = self._event("response.created", response=self._base)
        events += self._event("response.in_progress", response=self._base)
        item = _item(self._id, "in_progress", [])
        events += self._event("response.output_item.added", output_index=0, item=item)
        return events + self._at("content_part.added", part=_part("", []))

    def _delta(self, text: str) -> bytes:
        self._sent += text
        return self._at("output_text.delta", delta=text, logprobs=[])

    def _at(self, name: str, **values: Any) -> bytes:
        return self._event(f"response.{name}", item_id=self._id, **_PLACE, **values)

    def _event(self, name: str, **values: Any) -> bytes:
        value = {"type": name, "sequence_number": self._number, **values}
        self._number += 1
        return f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n".encode()


def _response(model: str) -> dict[str, Any]:
    """A response that has begun."""
    return {
        "id": _name("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "tool_choice": "none",
        "tools": [],
        "usage": None,
    }


def _item(id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _usage(row: dict[str, Any]) -> dict[str, Any]:
    usage = row["usage"]
    given, made = usage["prompt_tokens"], usage["generated_tokens"]
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": usage["cached_tokens"], "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},  # engines do not tell them apart
        "total_tokens": given + made,
    }


def _name(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"
