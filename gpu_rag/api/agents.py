"""Tools for agents over an index, by the Model Context Protocol: search, fetch, answer, explain, neighbours, paths.

Each result fits `max_tokens`: a list ends early, or a text is cut; `truncated` says so, and `total_available_tokens` is
the size of the whole. A token is counted as three bytes of UTF-8, more than tokenizers count for most languages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field
from typing_extensions import TypedDict  # pydantic asks for it before Python 3.12

from gpu_rag import __version__
from gpu_rag.api.indexes import Index
from gpu_rag.errors import GpuRagError
from gpu_rag.index.facts import Fact
from gpu_rag.types import Answer, Evidence, GroundingSentence, Sentence

DEFAULT_TOKENS = 8000
BYTES_A_TOKEN = 3
_MIN_TEXT_BYTES = 120  # bytes: a shorter rest of a text is left out

Tokens = Annotated[int, Field(ge=200, le=200_000, description="the result's largest size in tokens")]
Count = Annotated[int, Field(ge=1, le=100)]
Filter = Annotated[str, Field(description='a filter of documents by metadata, such as year >= 2020 and lang = "de"')]
Reply = dict[str, Any]

INSTRUCTIONS = """Questions about the documents of one index. search finds passages, fetch reads one in full, answer
answers with the sentences and passages that support it, neighbours and paths read the graph of facts. Cite passages by
their id and url."""


class _Sized(TypedDict):
    truncated: bool
    total_available_tokens: int


class Found(TypedDict):
    """One passage of a search. url: url of its document if known, else gpu-rag://passage/ID."""

    id: str
    title: str
    url: str
    text: str
    score: float


class SearchResult(_Sized):
    """Passages, best first."""

    results: list[Found]


class FetchResult(_Sized):
    """One passage. start: the offset of `text` in the passage; metadata: metadata of its document, with file and
    place."""

    id: str
    title: str
    text: str
    url: str
    start: int
    metadata: dict[str, Any]


class Citation(TypedDict):
    """A sentence, and the passage that holds it. start, end: character offsets in the passage."""

    id: str
    title: str
    url: str
    start: int
    end: int
    text: str


class AnswerResult(_Sized):
    """status: answered | retrieved (no language model: the citations are the best sentences) | unsupported | failed.
    grounding: supported | mentioned | unsupported | none."""

    question: str
    answer: str
    status: str
    grounding: str
    method: str
    citations: list[Citation]


class ExplainResult(_Sized):
    """The decisions, paths and evidence of an answer, in words."""

    text: str


class Stated(TypedDict):
    """A fact. source: the id of a passage that states it, or a file and line."""

    subject: str
    label: str
    object: str
    source: str


class NeighboursResult(_Sized):
    """Facts around a name."""

    facts: list[Stated]


class Chain(TypedDict):
    """A chain of facts."""

    facts: list[Stated]


class PathsResult(_Sized):
    """Chains of facts between two names, shortest first."""

    paths: list[Chain]


def make_server(
    index: Index, options: Mapping[str, Any], in_words: Callable[[Answer], str], *, method: str = "auto"
) -> MCPServer:
    """A server of the tools. options: keyword arguments of all calls of the index, such as settings and api_key.

    in_words: the explanation of an answer. method: method of search, answer and explain. Concurrent calls share
    batches.
    """
    server = MCPServer("gpu-rag", title="gpu-rag", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    hints = ToolAnnotations(read_only_hint=True, open_world_hint=False, idempotent_hint=True)
    tools = _Tools(index, {**options, "method": method}, in_words)
    for tool in (tools.search, tools.fetch, tools.answer, tools.explain, tools.neighbours, tools.paths):
        server.add_tool(_reported(tool), annotations=hints)
    return server


class _Tools:
    """The tools over an index. given: keyword arguments of the calls that ask a method."""

    def __init__(self, index: Index, given: Mapping[str, Any], in_words: Callable[[Answer], str]):
        self._index, self._given, self._in_words = index, given, in_words

    async def search(
        self, query: str, k: Count = 10, where: Filter = "", max_tokens: Tokens = DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, SearchResult]:
        """Find the passages that bear on a question, best first, by the graph and by meaning. Returns their ids for
        fetch."""
        result: Any = await self._index.aretrieve(query, k=k, where=where, **self._given)
        _check(result)
        results = [_passage(item, score=item.score, text=item.text) for item in result.evidence]
        return _listed({}, "results", results, max_tokens)

    async def fetch(
        self, id: str, start: Annotated[int, Field(ge=0)] = 0, max_tokens: Tokens = DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, FetchResult]:
        """Read one passage in full. start: the character to begin at, to read on after a truncated text."""
        item = await asyncio.to_thread(self._index.passage, id)
        metadata = {**item.metadata, "file": item.file, "place": item.place}
        return _text(_passage(item, start=start, metadata=metadata), item.text[start:], max_tokens)

    async def answer(
        self, question: str, where: Filter = "", max_tokens: Tokens = DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, AnswerResult]:
        """Answer a question from the documents, with the sentences that support it and their places in passages."""
        result = await self._index.aask(question, where=where, **self._given)
        _check(result)
        head = {
            "question": question, "answer": result.text or "", "status": result.status, "method": result.method,
            "grounding": result.grounding.status,
        }  # fmt: skip
        return _listed(head, "citations", _citations(result), max_tokens)

    async def explain(
        self, question: str, where: Filter = "", max_tokens: Tokens = DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, ExplainResult]:
        """Answer a question, and tell how: each decision, the paths in the graph, the evidence and its files."""
        result = await self._index.aask(question, where=where, **self._given)
        return _text({}, self._in_words(result), max_tokens)

    async def neighbours(
        self, name: str, k: Count = 20, max_tokens: Tokens = DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, NeighboursResult]:
        """Facts around a name of the graph: who or what it is joined to, and where that is stated."""
        facts = await asyncio.to_thread(self._index.neighbours, name, k=k)
        return _listed({}, "facts", [vars(fact) for fact in facts], max_tokens)

    async def paths(
        self,
        start: str,
        end: str,
        k: Count = 5,
        hops: Annotated[int, Field(ge=1, le=6)] = 4,
        max_tokens: Tokens = DEFAULT_TOKENS,
    ) -> Annotated[CallToolResult, PathsResult]:
        """Chains of facts between two names of the graph, shortest first."""
        chains = await asyncio.to_thread(self._index.paths, start, end, k=k, hops=hops)
        return _listed({}, "paths", [_chain(chain) for chain in chains], max_tokens)


def _reported(tool: Callable[..., Any]) -> Callable[..., Any]:
    """The tool, with errors of gpu-rag as errors that an agent can read."""

    @wraps(tool)
    async def reported(*args: Any, **keywords: Any) -> Any:
        try:
            return await tool(*args, **keywords)
        except GpuRagError as error:
            raise ToolError(str(error)) from error

    return reported


def _check(answer: Answer) -> None:
    if answer.error is not None:
        raise ToolError("{type}: {message}".format(**answer.error))


def _url(item: Evidence) -> str:
    url = item.metadata.get("url")
    return str(url) if url else f"gpu-rag://passage/{item.passage_id}"


def _passage(item: Evidence, **more: Any) -> Reply:
    return {"id": item.passage_id, "title": item.title, "url": _url(item), **more}


def _citations(answer: Answer) -> list[Reply]:
    """Sentences of the grounding, else the sentences that bear on the question, each once."""
    passages = {item.passage_id: item for item in answer.evidence}
    sentences: tuple[GroundingSentence | Sentence, ...] = (*answer.grounding.sentences, *answer.support)
    cited: dict[tuple[str, int], Reply] = {}
    for sentence in sentences:
        item = passages.get(sentence.passage_id)
        if item is None:
            continue
        span = {"start": sentence.start, "end": sentence.end, "text": item.text[sentence.start : sentence.end]}
        cited.setdefault((sentence.passage_id, sentence.start), _passage(item, **span))
    return list(cited.values())


def _chain(facts: Sequence[Fact]) -> Reply:
    return {"facts": [vars(fact) for fact in facts]}


# --- sizes ------------------------------------------------------------------------------------------


def _json(reply: Reply) -> str:
    return json.dumps(reply, ensure_ascii=False, separators=(",", ":"))


def _size(reply: Reply) -> int:
    """Bytes of a reply as JSON."""
    return len(_json(reply).encode("utf-8", "surrogatepass"))


def _tokens(size: int) -> int:
    return -(-size // BYTES_A_TOKEN)


def _sent(reply: Reply) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=_json(reply))], structured_content=reply)


def _listed(head: Reply, name: str, items: Sequence[Reply], max_tokens: int) -> CallToolResult:
    """A reply with as many items as fit, in order. The text of the first item that does not fit is cut to the room."""
    whole = {**head, name: list(items), "truncated": False, "total_available_tokens": 10**9}
    total = _tokens(_size(whole))
    room = max_tokens * BYTES_A_TOKEN - _size({**whole, name: []})
    kept: list[Reply] = []
    for item in items:
        size = _size(item) + 1  # and a comma
        if size > room:
            shortened = _cut(item, room - 1)
            kept += [shortened] if shortened else []
            break
        kept.append(item)
        room -= size
    cut = kept != list(items)
    return _sent({**head, name: kept, "truncated": cut, "total_available_tokens": total})


def _text(head: Reply, text: str, max_tokens: int) -> CallToolResult:
    """A reply whose field `text` is cut where the reply would be too long."""
    whole = {**head, "text": text, "truncated": False, "total_available_tokens": 10**9}
    total = _tokens(_size(whole))
    fitting = _cut(whole, max_tokens * BYTES_A_TOKEN, min_bytes=0) or {**whole, "text": ""}
    return _sent({**fitting, "truncated": fitting["text"] != text, "total_available_tokens": total})


def _cut(item: Reply, room: int, min_bytes: int = _MIN_TEXT_BYTES) -> Reply | None:
    """The item with its `text` cut at a space so that it fits `room` bytes; None if fewer than `min_bytes` stay."""
    if _size(item) <= room:
        return item
    if "text" not in item:
        return None
    low, high = 0, len(item["text"])
    while low < high:  # the longest beginning that fits
        middle = (low + high + 1) // 2
        if _size({**item, "text": item["text"][:middle]}) <= room:
            low = middle
        else:
            high = middle - 1
    text = item["text"][:low]
    text = text[: text.rfind(" ")] if " " in text else text
    return {**item, "text": text} if low and len(text) >= min_bytes else None
