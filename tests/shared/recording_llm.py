"""An engine that writes the replies of another one to a file for `ReplayLLM`."""

import json
from pathlib import Path
from typing import Any

from gpu_rag.models.fingerprint import text_hash
from gpu_rag.models.llm.interface import constraint_record, reply_record, request_key
from gpu_rag.types import Reply


class RecordingLLM:
    """Passes requests to `llm`, and appends each of its replies, and each count of tokens, to `path` once."""

    def __init__(self, llm: Any, path: Path):
        self.llm, self.path, self._written = llm, path, set[str]()
        self.name, self.content_hash = llm.name, llm.content_hash
        self.context_tokens, self.capable = llm.context_tokens, llm.capable
        if path.exists():
            rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            self._written = {row.get("key") or row.get("of") or "model" for row in rows}
        about = {"name": llm.name, "context_tokens": llm.context_tokens, "capable": llm.capable}
        self._append("model", {"model": about})

    def count_tokens(self, text: str) -> int:
        n, key = self.llm.count_tokens(text), text_hash(text)
        self._append(key, {"tokens": n, "of": key})
        return n

    def complete(self, requests: Any, on_reply: Any = None) -> Any:
        replies = self.llm.complete(requests, on_reply)
        for request, reply in zip(requests, replies, strict=True):
            if isinstance(reply, Reply):
                row = {"key": request_key(request), "system": request.system, "prompt": request.prompt}
                about = {"constraint": constraint_record(request.constraint), "reply": reply_record(reply)}
                self._append(row["key"], {**row, **about})
        return replies

    def close(self) -> None:
        self.llm.close()

    def _append(self, key: str, row: dict[str, Any]) -> None:
        if key not in self._written:
            self._written.add(key)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
