"""An engine whose replies come from a function, for tests of code that uses a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_rag.errors import BadInput, RequestFailed
from gpu_rag.models.fingerprint import text_hash
from gpu_rag.models.llm.interface import OnReply, estimate_tokens, in_order
from gpu_rag.types import Choice, Rank, Reply, Request


class ScriptedLLM:
    """Replies are `answer(request)`: a text, a whole Reply, or a RequestFailed that is passed on.

    A text becomes a Reply with estimated token counts. Under Choice and Rank it must be one of the options; under Rank
    that option scores 0.0 and the others -1.0. To imitate an engine that breaks a constraint, return a Reply.
    calls: every request, in order. batches: the size of each `complete` call.
    """

    def __init__(
        self,
        answer: Callable[[Request], str | Reply | RequestFailed],
        *,
        name: str = "scripted",
        capable: bool = True,
        context_tokens: int = 8192,
    ):
        self.name, self.capable, self.context_tokens = name, capable, context_tokens
        self.content_hash = text_hash("scripted", name)
        self.calls: list[Request] = []
        self.batches: list[int] = []
        self._answer = answer

    def count_tokens(self, text: str) -> int:
        """Estimate by `estimate_tokens`."""
        return estimate_tokens(text)

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """Scripted replies, in order."""
        self.batches.append(len(requests))
        return in_order(len(requests), enumerate(map(self._reply, requests)), on_reply)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _reply(self, request: Request) -> Reply | RequestFailed:
        self.calls.append(request)
        reply = self._answer(request)
        if not isinstance(reply, str):
            return reply
        options = request.constraint.options if isinstance(request.constraint, (Choice, Rank)) else None
        if options is not None and reply not in options:
            raise BadInput("the script's reply is not an option", given=repr(reply), expected=f"one of {options}")
        n_prompt = estimate_tokens(request.system) + estimate_tokens(request.prompt)
        if isinstance(request.constraint, Rank):
            scores = tuple(0.0 if option == reply else -1.0 for option in request.constraint.options)
            return Reply(reply, "rank", n_prompt, 0, 0, scores)
        return Reply(reply, "stop", n_prompt, 0, estimate_tokens(reply))
