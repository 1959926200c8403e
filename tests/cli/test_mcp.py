"""`gpu-rag mcp` spoken to by the SDK's own client: both transports, budgets, citations, malformed calls."""

import asyncio
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.api.agents import BYTES_A_TOKEN, make_server
from gpu_rag.sample import corpus_path, questions_path

mcp = pytest.importorskip("mcp")
from mcp.client import session  # noqa: E402
from mcp.client.stdio import StdioServerParameters  # noqa: E402
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS  # noqa: E402

SETTINGS = {"models": {"embedder": "hash", "llm": "none"}}
TOOLS = {"search", "fetch", "answer", "explain", "neighbours", "paths"}
Work = Callable[[Any], Awaitable[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 30 passages of several lengths and scripts, with a chain of facts."""
    made = tmp_path_factory.mktemp("mcp")
    texts = {
        "bridge": "The Halden Bridge was designed by Marta Orlo. It crosses the river Ves at Kerling.",
        "orlo": "Marta Orlo was born in Tamsin. She studied under Piet Ruyven.",
        "ruyven": "Piet Ruyven was born in Ostrand. He taught at the University of Loss.",
        **{f"more{n}": f"Kerling has {n} mills. " * (1 + 7 * n) for n in range(24)},
        "kana": "東京は日本の首都です。" * 60,
        "odd": 'A "quoted" \\ line\u2028and a tab\t<b>tag</b> \U0001f6f6. ' * 30,
        "empty-ish": "x",
    }
    rows = [
        {"id": key, "title": key.title(), "text": text, "url": f"https://e.org/{key}"} for key, text in texts.items()
    ]
    triples = {
        "bridge": [["Halden Bridge", "designed by", "Marta Orlo"], ["Halden Bridge", "crosses", "Ves"]],
        "orlo": [["Marta Orlo", "born in", "Tamsin"], ["Marta Orlo", "studied under", "Piet Ruyven"]],
        "ruyven": [["Piet Ruyven", "born in", "Ostrand"]],
    }
    corpus, openie = made / "c.jsonl", made / "o.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [{"id": key, "entities": [], "triples": triples.get(key, [])} for key in texts]
    openie.write_text("".join(json.dumps(line) + "\n" for line in lines))
    gpu_rag.build(corpus, made / "ix", methods=["ppr"], openie=openie, settings=SETTINGS)
    return made / "ix"


def talk(server: Any, work: Work) -> Any:
    async def whole() -> Any:
        async with mcp.Client(server) as client:
            return await work(client)

    return asyncio.run(whole())


def server_of(index: gpu_rag.Index) -> Any:
    return make_server(index, {"settings": SETTINGS}, lambda answer: f"method {answer.method}\n" + "word " * 5000)


def content(result: Any) -> dict[str, Any]:
    """The structured content, which the text holds too."""
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return dict(result.structured_content)


async def every_tool(client: Any) -> None:
    """Calls each tool, and compares what they say of one chain."""
    tools = (await client.list_tools()).tools
    assert {tool.name for tool in tools} == TOOLS
    assert all(tool.description and tool.output_schema for tool in tools)
    assert all("max_tokens" in tool.input_schema["properties"] for tool in tools)
    found = content(await client.call_tool("search", {"query": "Who designed the Halden Bridge?", "k": 3}))
    first = found["results"][0]
    assert len(found["results"]) == 3 and first["id"] == "bridge" and first["url"] == "https://e.org/bridge"
    whole = content(await client.call_tool("fetch", {"id": "bridge"}))
    assert whole["text"] == first["text"] and whole["metadata"]["file"].endswith("c.jsonl") and not whole["truncated"]
    answer = content(await client.call_tool("answer", {"question": "Who designed the Halden Bridge?"}))
    assert answer["status"] == "retrieved" and answer["citations"]
    for cited in answer["citations"]:
        passage = content(await client.call_tool("fetch", {"id": cited["id"]}))
        assert passage["text"][cited["start"] : cited["end"]] == cited["text"] != ""
    explained = content(await client.call_tool("explain", {"question": "Who designed the Halden Bridge?"}))
    assert "method" in explained["text"]
    around = content(await client.call_tool("neighbours", {"name": "marta orlo"}))
    assert {(fact["label"], fact["source"]) for fact in around["facts"]} >= {
        ("designed by", "bridge"),
        ("born in", "orlo"),
    }
    chains = content(await client.call_tool("paths", {"start": "Halden Bridge", "end": "Ostrand"}))
    assert [fact["label"] for fact in chains["paths"][0]["facts"]] == ["designed by", "studied under", "born in"]


@pytest.mark.slow
def test_every_tool_over_stdin_and_stdout(folder: Path, cli: Any) -> None:
    command = cli.command_line("mcp", folder, "--set", "models.embedder=hash")
    talk(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)), every_tool)


@pytest.mark.slow
def test_every_tool_over_http(folder: Path, cli: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = cli.command_line("mcp", folder, "--set", "models.embedder=hash", "--http", str(port))
    with subprocess.Popen(command) as process:
        try:
            for _ in range(600):
                with socket.socket() as tried:
                    if tried.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            talk(f"http://127.0.0.1:{port}/mcp", every_tool)
        finally:
            process.terminate()


@pytest.mark.parametrize("version", SUPPORTED_PROTOCOL_VERSIONS)
def test_every_version_of_the_protocol(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LATEST_HANDSHAKE_VERSION", version)  # what the client asks for
    mode = "legacy" if version in HANDSHAKE_PROTOCOL_VERSIONS else version

    async def whole(server: Any) -> None:
        async with mcp.Client(server, mode=mode) as client:
            assert client.protocol_version == version
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
            result = await client.call_tool("search", {"query": "Who designed the Halden Bridge?", "k": 3})
            assert not result.is_error and json.loads(result.content[0].text)["results"][0]["id"] == "bridge"

    with gpu_rag.Index.open(folder) as index:
        asyncio.run(whole(server_of(index)))


def test_200_random_calls_stay_within_their_budget(folder: Path) -> None:
    draw = random.Random(5)
    names = ["Marta Orlo", "Halden Bridge", "Piet Ruyven", "Kerling"]
    words = ["Who designed the Halden Bridge?", "東京は?", "Kerling mills", "tab <b>", "x"]
    with gpu_rag.Index.open(folder) as index:
        passages = list(index.passage_ids)
        whole = {id: index.passage(id).text for id in passages}

        def arguments(tool: str) -> dict[str, Any]:
            k = draw.randint(1, 100)
            return {
                "search": lambda: {"query": draw.choice(words), "k": k},
                "fetch": lambda: {"id": draw.choice(passages), "start": draw.choice((0, 0, 40, 10_000))},
                "answer": lambda: {"question": draw.choice(words)},
                "explain": lambda: {"question": draw.choice(words)},
                "neighbours": lambda: {"name": draw.choice(names[:3]), "k": k},
                "paths": lambda: {
                    "start": names[0],
                    "end": draw.choice(names[1:3]),
                    "k": k,
                    "hops": draw.randint(1, 6),
                },
            }[tool]()

        async def calls(client: Any) -> None:
            n_cut = 0
            for _ in range(200):
                tool, limit = draw.choice(sorted(TOOLS)), draw.choice((200, 300, 1000, 8000))
                given = arguments(tool)
                result = await client.call_tool(tool, {**given, "max_tokens": limit})
                reply = content(result)
                size = len(result.content[0].text.encode()) / BYTES_A_TOKEN
                assert size <= limit, (tool, given, size)
                assert reply["truncated"] == (reply["total_available_tokens"] > limit), (tool, given, limit)
                if tool == "fetch":
                    assert whole[given["id"]][given["start"] :].startswith(reply["text"])
                n_cut += reply["truncated"]
            assert 20 < n_cut < 180

        talk(server_of(index), calls)


def test_every_citation_opens_at_its_sentence_after_a_restart(tmp_path: Path) -> None:
    """Citations of answers to the packaged sample's questions, opened by a server of the moved index."""
    cited: list[dict[str, Any]] = []
    questions = [json.loads(line)["question"] for line in questions_path().read_text("utf-8").splitlines()]

    async def asks(client: Any) -> None:
        for question in questions:
            cited.extend(content(await client.call_tool("answer", {"question": question}))["citations"])

    async def opens(client: Any) -> None:
        for citation in cited:
            passage = content(await client.call_tool("fetch", {"id": citation["id"]}))
            assert passage["text"][citation["start"] : citation["end"]] == citation["text"] != ""

    with gpu_rag.build(corpus_path(), tmp_path / "ix", methods=["ppr"], settings=SETTINGS) as index:
        talk(server_of(index), asks)
    assert len(questions) == 30 and len(cited) >= 60
    (tmp_path / "ix").rename(tmp_path / "moved")
    with gpu_rag.Index.open(tmp_path / "moved") as index:
        talk(server_of(index), opens)


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("fetch", {"id": "nobody"}),
        ("fetch", {}),
        ("fetch", {"id": ["bridge"]}),
        ("search", {"query": "x", "k": 0}),
        ("search", {"query": "x", "k": "many"}),
        ("search", {"query": "x", "where": "year >"}),
        ("search", {"query": "x", "max_tokens": 1}),
        ("neighbours", {"name": "nobody"}),
        ("paths", {"start": "Marta Orlo", "end": "nobody"}),
        ("paths", {"start": "Marta Orlo", "end": "Ostrand", "hops": 99}),
    ],
)
def test_a_malformed_call_is_an_error_that_an_agent_can_read(folder: Path, tool: str, given: dict[str, Any]) -> None:
    with gpu_rag.Index.open(folder) as index:

        async def call(client: Any) -> Any:
            bad = await client.call_tool(tool, given)
            good = await client.call_tool("fetch", {"id": "orlo"})
            return bad, good

        bad, good = talk(server_of(index), call)
    assert bad.is_error and bad.content[0].text and "Traceback" not in bad.content[0].text
    assert content(good)["id"] == "orlo"
