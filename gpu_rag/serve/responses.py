"""OpenAI's protocol of responses: rows as responses with citations, and as the events of streamed responses."""

from __future__ import annotations

import json
import re
import secrets
import time
from typing import Any

from gpu_rag.jobs import reply_text
from gpu_rag.serve.bodies import ResponsesBody
from gpu_rag.serve.chat import unsent
from gpu_rag.serve.refusal import Refusal, check_answered

_MARK = re.compile(r"\[(\d{1,2})\]")  # an answer cites passages by number
_NULL = ("error", "incomplete_details", "instructions", "metadata", "previous_response_id", "usage")


def response_of(row: dict[str, Any], model: str) -> dict[str, Any]:
    """The response of a row; the row itself is under `gpu_rag`. Raises as `check_answered`."""
    check_answered(row)
    part = _part(reply_text(row), citations(row))
    return {**_response(model), **_end(row, _item(_name("msg"), "completed", part))}


def citations(row: dict[str, Any], offset: int = 0) -> list[dict[str, Any]]:
    """The citations of an answer: one at each mark such as [2], and one at the end for each other passage with a
    sentence that supports the answer. Marks in quoted sentences, a reply without a model, are none.

    file_id: the passage's id; filename: its document's file, or its title. offset: characters before the answer.
    """
    text, evidence, is_quoted = reply_text(row), row["evidence"], row["status"] == "retrieved"
    marks = [(mark.start(), int(mark[1]) - 1) for mark in _MARK.finditer("" if is_quoted else text)]
    cited = [(start, evidence[number]) for start, number in marks if 0 <= number < len(evidence)]
    sentences = row.get("support", ()) if is_quoted else row["grounding"]["sentences"]
    support = {sentence["passage_id"] for sentence in sentences}
    support -= {passage["passage_id"] for _, passage in cited}
    cited += [(len(text), passage) for passage in evidence if passage["passage_id"] in support]
    rows = [(passage["passage_id"], passage["file"] or passage["title"], offset + start) for start, passage in cited]
    return [{"type": "file_citation", "file_id": id, "filename": name, "index": index} for id, name, index in rows]


class ResponseEvents:
    """The server-sent events of one response: the answer in pieces, its citations, and the response with the row.

    A failure is the event `response.failed`. Pieces that the final answer does not begin with stay in the text before
    it, since they were sent.
    """

    def __init__(self, body: ResponsesBody):
        self._base, self._id = _response(body.model), _name("msg")
        self._sent, self._number = "", 0

    def __call__(self, item: dict[str, Any] | str) -> bytes:
        """The events of a piece of the answer, or of the final row."""
        events = b"" if self._number else self._begun()
        if isinstance(item, str):
            return events + self._delta(item)
        try:
            check_answered(item)
        except Refusal as error:
            failed = {"status": "failed", "error": {"code": "server_error", "message": str(error)}, "gpu_rag": item}
            return events + self._event("failed", response={**self._base, **failed})
        answer = reply_text(item)
        if unsent_text := unsent(answer, self._sent):
            events += self._delta(unsent_text)
        cited = citations(item, len(self._sent) - len(answer))
        for index, citation in enumerate(cited):
            events += self._part_event("output_text.annotation.added", annotation_index=index, annotation=citation)
        part = _part(self._sent, cited)
        message = _item(self._id, "completed", part)
        events += self._part_event("output_text.done", text=self._sent, logprobs=[])
        events += self._part_event("content_part.done", part=part)
        events += self._event("output_item.done", output_index=0, item=message)
        return events + self._event("completed", response={**self._base, **_end(item, message)})

    def _begun(self) -> bytes:
        events = b"".join(self._event(name, response=self._base) for name in ("created", "in_progress"))
        events += self._event("output_item.added", output_index=0, item=_item(self._id, "in_progress"))
        return events + self._part_event("content_part.added", part=_part("", []))

    def _delta(self, text: str) -> bytes:
        self._sent += text
        return self._part_event("output_text.delta", delta=text, logprobs=[])

    def _part_event(self, name: str, **values: Any) -> bytes:
        return self._event(name, item_id=self._id, output_index=0, content_index=0, **values)

    def _event(self, name: str, **values: Any) -> bytes:
        value = {"type": f"response.{name}", "sequence_number": self._number, **values}
        self._number += 1
        return f"event: response.{name}\ndata: {json.dumps(value, allow_nan=False)}\n\n".encode()


def _response(model: str) -> dict[str, Any]:
    """A response that has begun."""
    begun = {"id": _name("resp"), "object": "response", "created_at": int(time.time()), "status": "in_progress"}
    tools = {"tools": [], "tool_choice": "none", "parallel_tool_calls": False}
    return {**begun, "model": model, "output": [], **tools, **dict.fromkeys(_NULL)}


def _item(id: str, status: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": list(content)}


def _part(text: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _end(row: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """The fields of a response that change at its end."""
    n_in, n_out, n_cached = (row["usage"][f"{kind}_tokens"] for kind in ("prompt", "generated", "cached"))
    usage: dict[str, Any] = {"input_tokens": n_in, "output_tokens": n_out, "total_tokens": n_in + n_out}
    usage["input_tokens_details"] = {"cached_tokens": n_cached, "cache_write_tokens": 0}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}  # engines do not count them separately
    return {"status": "completed", "output": [message], "usage": usage, "gpu_rag": row}


def _name(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"
