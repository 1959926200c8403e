"""Several indexes in one server, and keys that see a part of them: some indexes, some documents."""

import asyncio
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.cli import serve_command
from gpu_rag.errors import UsageError
from gpu_rag.models import set as model_set
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.serve import api
from gpu_rag.serve.changes import Changes
from gpu_rag.serve.guard import Door
from gpu_rag.serve.keys import KeyFile, read_keys
from gpu_rag.serve.live import EngineThread
from gpu_rag.serve.refusal import Refusal
from gpu_rag.settings import make_settings

COLD = ("--set", "serve.warm=false", "--set", "models.llm=none")
KEYS = """
[all]
key = "key-of-all"
rights = ["read", "answer", "metrics", "change"]
[other]
key = "key-of-other"
rights = ["change"]
[south]
key = "key-of-south"
indexes = ["south"]
[ann]
key = "key-of-ann"
where = 'owner = "ann"'
indexes = ["north"]
[nobody]
key = "key-of-nobody"
where = 'owner = "nobody"'
indexes = ["north"]
[spaced]
key = "key-of-spaced"
where = '''owner  =
  "ann"'''
indexes = ["north"]
"""
# Words that only documents of bob have: ids, titles, names, columns of metadata and their values.
HIDDEN = ("doc-b", "Zorvex", "Quillon", "Marbeck", "clearance", "bob")
ANN = {"authorization": "Bearer key-of-ann"}
QUESTION = "Who built the bridge of Kerling, and who owns Zorvex?"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}"}


@pytest.fixture
def north(tmp_path: Path, made_once: Any, cli: Any) -> Path:
    """Documents of ann and of bob, about the same place."""
    ann = [
        {"id": f"doc-a{n}", "title": f"Kerling {n}", "owner": "ann", "year": 2000 + n,
         "text": f"The bridge of Kerling was built by Jan Vos{n}. Jan Vos{n} lived in Halden."}
        for n in range(4)
    ]  # fmt: skip
    bob = [
        {"id": f"doc-b{n}", "title": f"Quillon {n}", "owner": "bob", "year": 2000 + n, "clearance": "high",
         "text": f"The bridge of Kerling was bought by Zorvex{n}. Zorvex{n} lived in Marbeck. Zorvex{n} met Jan Vos1."}
        for n in range(4)
    ]  # fmt: skip
    corpus = cli.write_rows(tmp_path / "north.jsonl", ann + bob)
    return made_once("north", corpus, "--for", "ppr")  # type: ignore[no-any-return]


@pytest.fixture
def south(tmp_path: Path, run: Any, cli: Any) -> Path:
    """Documents about another place. It is made by the command, so that documents can be added."""
    rows = [{"id": f"s{n}", "text": f"The mill of Tamsin was built by Ada Brandt{n}."} for n in range(6)]
    corpus = cli.write_rows(tmp_path / "south.jsonl", rows)
    assert run("index", corpus, "--out", tmp_path / "south", "--for", "ppr", *cli.NO_LLM).status == 0
    return tmp_path / "south"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    (tmp_path / "keys.toml").write_text(KEYS)
    return tmp_path / "keys.toml"


@pytest.fixture
def both(here: Any, north: Path, south: Path, keys_file: Path) -> Any:
    """A server in this process. Its language model repeats what it is shown, which shows more than any real one."""
    llm = lambda: ScriptedLLM(lambda request: request.prompt[-3000:])  # noqa: E731
    return here(index={"north": north, "south": south}, key=read_keys(keys_file, {}), llm=llm)


def evidence(row: dict[str, Any]) -> set[str]:
    return {item["passage_id"] for item in row["evidence"]}


def test_two_indexes_answer_apart(here: Any, north: Path, south: Path) -> None:
    """At once, too: see the test of two hundred requests."""
    server = here(index={"north": north, "south": south})
    listed = server.ask("GET", "/v1/indexes").json()["indexes"]
    assert [(row["name"], row["base"], row["passages"]) for row in listed] == [
        ("north", "/", 8), ("south", "/w/south/", 6),
    ]  # fmt: skip
    for base, row in (("", listed[0]), ("/w/north", listed[0]), ("/w/south", listed[1])):
        index = server.ask("GET", f"{base}/v1/index").json()
        assert (index["index"], index["digest"]) == (row["name"], row["digest"])
        assert server.ask("GET", f"{base}/").text == server.ask("GET", "/").text
        for method in ("ppr", "dense", "bm25", "hybrid"):
            chat = {"model": method, "messages": [{"role": "user", "content": QUESTION}]}
            rows = [
                server.ask("POST", f"{base}/v1/retrieve", json={"question": QUESTION, "method": method}).json(),
                server.ask("POST", f"{base}/v1/chat/completions", json=chat).json()["gpu_rag"],
            ]
            for ids in map(evidence, rows):
                assert ids and all(id.startswith("s" if "south" in base else "doc-") for id in ids), (base, method)
    assert server.ask("GET", "/w/south/v1/passages/s1").status_code == 200
    assert server.ask("GET", "/w/north/v1/passages/s1").status_code == 404
    assert server.ask("GET", "/w/nowhere/v1/index").status_code == 404
    assert server.ask("GET", "/w/nowhere/v1/models").json()["error"]["code"] == "NotFound"  # as OpenAI's clients read


def test_a_key_of_one_index_cannot_tell_whether_another_exists(both: Any) -> None:
    for door in both.app._doors:
        (method, *_) = sorted(door.methods - {"HEAD"})
        path = door.path.replace("{name:path}", "x").replace("{name}", "x")
        options = {"json": {}} if method == "POST" else {}
        if "{index}" in path and door.access.rights:
            real, none = (
                both.ask(method, path.replace("{index}", name), headers=bearer("south"), **options)
                for name in ("north", "nowhere")
            )
            assert real.status_code == none.status_code == 404
            assert real.text.replace("north", "nowhere") == none.text
        elif "" not in door.calls:  # the first index, which this key may not use
            assert both.ask(method, path, headers=bearer("south"), **options).status_code == 403, door.path
    listed = both.ask("GET", "/v1/indexes", headers=bearer("south")).json()["indexes"]
    assert [row["name"] for row in listed] == ["south"] and listed[0]["passages"] == 6
    asked = {"json": {"question": "Who built the mill?", "method": "bm25"}, "headers": bearer("south")}
    assert both.ask("POST", "/w/south/v1/retrieve", **asked).status_code == 200
    listed = both.ask("GET", "/v1/indexes", headers=ANN).json()["indexes"]
    assert listed == [{"name": "north", "base": "/", "digest": None, "passages": None}]


def requests_of(door: Door) -> list[tuple[str, dict[str, Any]]]:
    """(path, options) of requests that try to see documents of bob through a route that keys with a filter may use."""
    filters = ("", 'owner = "bob"', "owner is not missing", 'clearance = "high"', 'owner = "ann") or (owner = "bob"')
    methods = ("ppr", "dense", "bm25", "hybrid", "auto")
    pairs = {*((method, "") for method in methods), *zip(methods, filters)}  # a door knows nothing of methods
    questions = [
        {"question": QUESTION, "method": method, "words": True, "support": True, "where": where}
        for method, where in sorted(pairs)
    ]
    chats = [
        {"model": body["method"], "where": body["where"], "stream": stream,
         "messages": [{"role": "user", "content": "What is Zorvex1?"}, {"role": "assistant", "content": "Quillon"},
                      {"role": "user", "content": "Where did it live?"}]}
        for body in questions for stream in (False, True)
    ]  # fmt: skip
    spoken = [{"input": chat["messages"], **{key: chat[key] for key in ("model", "where", "stream")}} for chat in chats]
    ids = ("doc-b0", "doc-b1", "doc-b%31", "doc-a0/../doc-b0")
    known: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "/v1/answer": [("", {"json": body}) for body in questions],
        "/v1/retrieve": [("", {"json": {**body, "passages": 50}}) for body in questions],
        "/v1/chat/completions": [("", {"json": body}) for body in chats],
        "/v1/responses": [("", {"json": body}) for body in spoken],
        "/v1/embeddings": [("", {"json": {"model": "hash", "input": QUESTION}})],
        "/v1/models": [("", {})], "/v1/methods": [("", {})], "/v1/indexes": [("", {})], "/v1/index": [("", {})],
        "/v1/models/": [("ppr", {}), ("doc-b0", {})],
        "/v1/passages/": [(id, {}) for id in ids],
    }  # fmt: skip
    base = door.path.replace("/w/{index}", "").partition("{")[0]
    start = door.path.replace("{index}", "north").partition("{name")[0]
    return [(start + rest, options) for rest, options in known[base]]  # KeyError: say here how a new route is tried


def shown(server: Any, door: Door) -> list[str]:
    """The parts of documents of bob that a route shows to a key for those of ann alone. The words that a request itself
    has are not counted where the response repeats them."""
    (method, *_) = sorted(door.methods - {"HEAD"})
    found = []
    for path, options in requests_of(door):
        response = server.ask(method, path, headers=ANN, **options)
        text = response.text
        for own in ("doc-b0", "doc-b1", QUESTION, *([options["json"].get("where", "")] if options.get("json") else [])):
            text = text.replace(own, "").replace(json.dumps(own)[1:-1], "") if own else text
        if response.status_code < 400 or "/v1/passages/" not in path:
            found += [f"{path}: {word}" for word in HIDDEN if word in text and word not in str(options)]
        if "/v1/passages/" in path and response.status_code == 200:
            found.append(path)
    return found


def test_a_key_with_a_filter_sees_nothing_else_by_any_route(both: Any, monkeypatch: Any) -> None:
    """All routes of the application are tried. One without requests in `requests_of` fails the test."""
    doors = both.app._doors
    for door in doors:
        if door.access.filtered:
            assert shown(both, door) == [], door.path
        elif door.access.rights:
            path = door.path.replace("{index}", "north").replace("{name:path}", "doc-b0").replace("{name}", "x")
            (method, *_) = sorted(door.methods - {"HEAD"})
            got = both.ask(method, path, headers=ANN, **({"json": {}} if method == "POST" else {}))
            assert got.status_code == 403 and not any(word in got.text for word in HIDDEN), door.path
    rows = [
        both.ask("POST", "/v1/retrieve", headers=ANN, json={"question": QUESTION, "method": method}).json()
        for method in ("ppr", "dense", "bm25", "hybrid")
    ]
    assert all(evidence(row) == {f"doc-a{n}" for n in range(4)} and "where" not in row for row in rows)
    newer = {"question": QUESTION, "method": "dense", "where": "year > 2001"}
    row = both.ask("POST", "/v1/retrieve", headers=ANN, json=newer).json()
    assert evidence(row) == {"doc-a2", "doc-a3"} and row["where"] == "year > 2001"
    index = both.ask("GET", "/v1/index", headers=ANN).json()
    assert (index["counts"], index["digest"], index["sources"]) == ({"documents": 4, "passages": 4}, None, {})
    passage = both.ask("GET", "/v1/passages/doc-a1", headers=ANN).json()
    whole = both.ask("GET", "/v1/passages/doc-a1", headers=bearer("all")).json()
    assert passage == whole and passage["metadata"]["owner"] == "ann"
    # A wrong version, which leaves the filter out: the check above sees it at each route that shows documents.
    monkeypatch.setattr(api, "_filter_of", lambda request: ("", ""))
    caught = {door.path for door in doors if door.access.filtered and "{index}" not in door.path and shown(both, door)}
    asked = {"/v1/answer", "/v1/retrieve", "/v1/chat/completions", "/v1/responses"}
    assert caught == {*asked, "/v1/passages/{name:path}"}


def test_a_filter_of_a_request_stands_alone(both: Any) -> None:
    """It can neither end the filter of the key nor name a column that only excluded documents have."""
    for where in (
        'owner = "ann") or (owner = "bob"', '") or (owner = "bob', "owner is missing) or (year > 0", "(", "year >",
        'clearance = "high"', "clearance is missing",
    ):  # fmt: skip
        got = both.ask("POST", "/v1/retrieve", headers=ANN, json={"question": "x?", "method": "bm25", "where": where})
        message = got.json()["error"]["message"]
        assert got.status_code == 400, where
        assert "expected" in message and "clearance" not in message.replace(where, "").replace("given clearance", "")
    whole = {"question": "x?", "method": "bm25", "where": 'clearance = "high"'}
    assert both.ask("POST", "/v1/retrieve", headers=bearer("all"), json=whole).status_code == 200


def test_a_filter_that_fits_no_document_shows_none(both: Any) -> None:
    nobody = bearer("nobody")
    for path in ("/v1/answer", "/v1/retrieve"):
        row = both.ask("POST", path, headers=nobody, json={"question": QUESTION, "method": "bm25"}).json()
        assert (row["status"], row["evidence"]) == ("unsupported", [])
        for where in ('owner = "ann"', "year > 0) or (year > 0"):
            body = {"question": QUESTION, "method": "bm25", "where": where}
            assert both.ask("POST", path, headers=nobody, json=body).status_code == 400
    assert both.ask("GET", "/v1/passages/doc-a0", headers=nobody).status_code == 404
    assert both.ask("GET", "/v1/index", headers=nobody).json()["counts"] == {"documents": 0, "passages": 0}


def test_the_filter_of_a_key_is_not_told(both: Any) -> None:
    """A method that cannot be filtered, and an index without the column, are refused without a word of the filter."""
    got = both.ask("POST", "/v1/retrieve", headers=ANN, json={"question": "x?", "method": "bm25", "where": "(" * 99})
    assert got.status_code == 400 and "owner" not in got.text
    wanted = {"question": "x?", "method": "bm25", "where": "not " * 99 + "year = 1"}
    got = both.ask("POST", "/v1/retrieve", headers=ANN, json={**wanted, "where": f"not ({wanted['where']})"})
    assert "owner" not in got.text
    deepest = {**wanted, "where": "not " * 100 + "year = 1"}  # by itself; under another filter it is too deep
    for name in ("ann", "spaced"):  # one filter is on one line, the other one on two
        got = both.ask("POST", "/v1/retrieve", headers=bearer(name), json=deepest)
        assert got.status_code == 403 and "owner" not in got.text


def test_files_of_keys_with_wrong_rooms(tmp_path: Path, north: Path, south: Path) -> None:
    folders = {"north": north, "south": south}

    def read(lines: str) -> Any:
        (tmp_path / "k.toml").write_text(f'[a]\nkey = "long-enough"\n{lines}\n')
        return read_keys(tmp_path / "k.toml", {}, lambda client: serve_command._check_client(folders, client))

    for lines, fact in (
        ('indexes = ["west"]', "west of the key a"), ("where = 'owner = \"ann\"'", "a, south"),
        ('indexes = ["north"]\nwhere = "owner ="', "a, north"), ('indexes = ["north"]\nwhere = "boss = 1"', "boss"),
        ("indexes = []", "indexes of a"), ('where = ""', "where of a"),
        ('indexes = ["north"]\nwhere = "year > 1"\nrights = ["read", "change"]', "change of a"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            read(lines)
        assert fact in str(caught.value) and "long-enough" not in str(caught.value), lines
    client = read('indexes = ["north"]\nwhere = "year > 1"').client("Bearer long-enough")
    assert client.may_use("north") and not client.may_use("south") and client.settings.where == "year > 1"


def test_names_of_indexes() -> None:
    folders = serve_command._folders
    assert folders(["a/My Index.v2", "b=x", "c_1-z=y=z"]) == {
        "my-index-v2": Path("a/My Index.v2"), "b": Path("x"), "c_1-z": Path("y=z"),
    }  # fmt: skip
    assert folders(["./a=b"]) == {"a-b": Path("./a=b")} and folders(["first=x"]) == {"first": Path("x")}
    for given, fact in (
        (["x", "y"], "y"), (["x", "B=y"], "B=y"), (["x", f"{'n' * 41}=y"], "n" * 41), (["x", "=y"], "=y"),
        (["x", "x=y"], "x: x and y"), (["x", "é=y"], "é=y"), (["a="], "a="),
    ):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            folders(given)
        assert fact in str(caught.value), given


def test_models_of_one_name_are_loaded_once(north: Path, south: Path, monkeypatch: Any) -> None:
    loaded: list[str] = []
    load_embedder = model_set.load_embedder

    def embedder(name: str, *more: Any, **served: Any) -> Any:
        loaded.append(name)
        return load_embedder(name, *more, **served)

    def llm(spec: str, **options: Any) -> Any:
        loaded.append(spec)
        return ScriptedLLM(lambda request: "x")

    monkeypatch.setattr(model_set, "load_embedder", embedder)
    monkeypatch.setattr(model_set, "load_llm", llm)
    settings = make_settings({"models": {"embedder": "hash", "llm": "http://127.0.0.1:9/v1#M"}})
    folders = {"a": north, "b": south, "c": north}
    thread = EngineThread(
        lambda: serve_command.engines(folders, dict.fromkeys(folders, settings), None), settings.serve, print
    )
    thread.start()
    assert sorted(loaded) == ["hash", "http://127.0.0.1:9/v1#M"] and "bm25" in thread.indexes["c"].answering
    assert len({id(live.engine.models) for live in thread.indexes.values()}) == 1
    thread.stop()


@pytest.mark.slow
def test_indexes_of_two_embedders_share_the_language_model(
    tmp_path: Path, north: Path, served: Any, run: Any, cli: Any, chat_server: Any
) -> None:
    rows = [{"id": f"e{n}", "text": f"The mill of Tamsin was built by Ada Brandt{n}."} for n in range(4)]
    corpus = cli.write_rows(tmp_path / "east.jsonl", rows)
    minilm = ("--set", "models.embedder=minilm")
    words = ("--out", tmp_path / "east", "--for", "ppr,dense", *minilm, "--set", "models.llm=none")
    assert run("index", corpus, *words).status == 0
    model = chat_server(lambda prompt: (200, "Ada Brandt1"))
    process = served(north, f"east={tmp_path / 'east'}", "--set", f"models.llm={model.spec}", settings=())
    for base, prefix in (("", "doc-"), ("/w/east", "e")):
        for method in ("dense", "ppr"):
            row = process.ask(f"{base}/v1/answer", question="Who built the mill of Tamsin?", method=method).json()
            assert row["status"] in ("answered", "unsupported"), row
            assert evidence(row) and all(id.startswith(prefix) for id in evidence(row))
    assert process.stop() == 0, process.err


def test_a_client_keeps_its_requests_when_its_key_changes(tmp_path: Path) -> None:
    file, said = tmp_path / "keys.toml", list[str]()
    file.write_text('[a]\nkey = "first-key"\nper_minute = 2\n[b]\nkey = "key-of-b"\n')
    keys = KeyFile(file, {}, lambda client: None, said.append)
    before = keys.client("Bearer first-key")
    before.begin()
    keys.look()
    assert said == [], "the file has not changed"
    file.write_text('[a]\nkey = "second-key"\nper_minute = 2\nindexes = ["x"]\n')
    keys.look()
    after = keys.client("Bearer second-key")
    assert after is before and after.n_open == 1 and not after.may_use("y")
    after.begin()
    with pytest.raises(Refusal) as caught:
        after.begin()
    assert caught.value.status == 429
    for gone in ("first-key", "key-of-b"):
        with pytest.raises(Refusal) as caught:
            keys.client(f"Bearer {gone}")
        assert caught.value.status == 401
    file.unlink()
    keys.look()
    keys.look()
    assert not keys.is_current and len(said) == 2 and keys.client("Bearer second-key") is after


@pytest.mark.slow
def test_keys_are_read_again_without_a_stop(served: Any, north: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[old]\nkey = "key-of-old"\n[m]\nkey = "key-of-m"\nrights = ["metrics"]\n')
    process = served(north, "--api-key-file", file, *COLD)

    def status(name: str) -> int:
        return int(process.client.get("/v1/index", headers=bearer(name)).status_code)

    def current() -> bool:
        return "gpu_rag_keys_current 1.0" in process.client.get("/metrics", headers=bearer("m")).text

    assert (status("old"), status("new"), current()) == (200, 401, True)
    replacement = tmp_path / "next.toml"
    replacement.write_text('[new]\nkey = "key-of-new"\n[m]\nkey = "key-of-m"\nrights = ["metrics"]\n')
    os.replace(replacement, file)
    process.until(lambda: status("new") == 200)
    assert status("old") == 401
    for broken in ("[new", "", '[new]\nkey = "key-of-new"\nindexes = ["west"]\n'):
        file.write_text(broken)
        process.until(lambda: not current())
        assert status("new") == 200
        file.write_text('[new]\nkey = "key-of-new"\n[m]\nkey = "key-of-m"\nrights = ["metrics"]\n')
        process.until(current)
    n_read = process.err.count("the keys were read again")
    process.process.send_signal(signal.SIGHUP)
    process.until(lambda: process.err.count("the keys were read again") == n_read + 1)
    assert process.err.count("the old keys stay") == 3 and "key-of" not in process.err
    assert process.stop() == 0


@pytest.mark.slow
def test_two_hundred_requests_while_one_index_changes(
    served: Any, north: Path, south: Path, keys_file: Path, cli: Any
) -> None:
    process = served(north, f"south={south}", "--api-key-file", keys_file, *COLD)
    header = bearer("all")
    document = {"id": "s9", "text": "The mill of Tamsin was sold to Otto Fehr."}

    def post(path: str, name: str = "all", **body: Any) -> Any:
        return process.client.post(path, json=body, headers=bearer(name))

    begun = post("/w/south/v1/documents", documents=[document])
    assert begun.status_code == 202, begun.text
    change = f"/v1/changes/{begun.json()['change']}"
    assert process.client.get(f"/w/south{change}", headers=bearer("other")).status_code == 404
    assert process.client.get(change, headers=header).status_code == 404, "a change of another index"

    def ask(n: int) -> tuple[int, Any]:
        base, method = ("/w/south", "")[n % 2], ("ppr", "bm25", "dense")[n % 3]
        name = "ann" if base == "" and n % 4 == 1 else "all"
        if n % 10 == 9:
            return n, process.client.get(f"{base}/v1/methods", headers=header)
        return n, post(f"{base}/v1/retrieve", name, question=f"Who built number {n}?", method=method)

    def done() -> bool:
        got = process.client.get(f"/w/south{change}", headers=header).json()
        assert got["status"] != "failed", got
        return bool(got["status"] == "done")

    responses: list[tuple[int, Any]] = []
    with ThreadPoolExecutor(8) as pool:
        responses += pool.map(ask, range(100))
        process.until(done)
        responses += pool.map(ask, range(100, 200))
    process.until(lambda: process.err.count("the index has changed") == 1)
    assert {response.status_code for _, response in responses} == {200}
    for n, response in responses:
        if n % 10 != 9:
            ids = evidence(response.json())
            allowed = "s" if n % 2 == 0 else "doc-a" if n % 4 == 1 else "doc-"
            assert ids and all(id.startswith(allowed) for id in ids), (n, ids)
    row = post("/w/south/v1/retrieve", question="Who was the mill of Tamsin sold to?", method="bm25").json()
    assert row["evidence"][0]["passage_id"] == "s9"
    assert process.stop() == 0, process.err


def test_a_change_belongs_to_its_client() -> None:
    async def outcome() -> None:
        changes = Changes(["/no/such/program"])
        name = changes.remove(("north", "all"), "ix", "a").change
        assert len(name) == 16 and changes.get(("north", "all"), name).change == name
        for stranger in (("north", "other"), ("south", "all"), None):
            with pytest.raises(Refusal) as caught:
                changes.get(stranger, name)
            assert caught.value.status == 404
        await asyncio.gather(*changes._tasks)

    asyncio.run(outcome())
