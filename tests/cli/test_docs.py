"""docs/cli.md is what scripts/make_docs.py makes; its commands parse, and its JSON examples have the keys of today."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from project_scripts import script

from gpu_rag.cli.main import COMMANDS as OWN
from gpu_rag.methods.registry import named_hooks

COMMANDS = (*OWN, *named_hooks("commands"))
ROOT = Path(__file__).resolve().parents[2]
PAGE, EXAMPLES = ROOT / "docs" / "cli.md", ROOT / "docs" / "data" / "json"
make_docs = script("make_docs")
# Maps whose keys are names (of stages, methods, ...): an example may show some of them.
OPEN = {*["graph_ops", "stages", "methods", "paired", "batches", "extraction", "counts", "libraries", "plan"]}
OPEN |= {*["identity", "on_path", "by_hops", "params", "ceiling"]}


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_script_makes(page):
    assert page == make_docs.page(page), "run scripts/make_docs.py"
    assert set(page.splitlines()) >= {f"## gpu-rag {name}" for name in COMMANDS}
    assert re.search(r"^--limit N +only the first N questions \[", page, re.M)
    linked = re.findall(r"\(data/json/([\w-]+)\.json\)", page)
    assert len(linked) == len(set(linked)) and set(linked) == {file.stem for file in EXAMPLES.glob("*.json")}


def test_environment_variables_are_on_the_page(page):
    sources = (Path(__file__).resolve().parents[2] / "gpu_rag").rglob("*.py")
    read = {name for file in sources for name in re.findall(r'environ\.get\("(\w+)"\)', file.read_text())}
    read.remove("OMP_NUM_THREADS")  # of the benchmarks' report, not a setting
    assert read == {"GPU_RAG_CACHE", "GPU_RAG_API_KEY", "OPENAI_API_KEY", "NO_COLOR", "TERM"}
    assert all(f"`{name}`" in page for name in read)


def kind(value: Any) -> str:
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def check_shape(shown: Any, real: Any, place: str = "") -> None:
    """The same keys and kinds of values. Lists may be shorter, open maps smaller, null stands for any value."""
    if shown is None or real is None:
        return
    assert kind(shown) == kind(real), place
    if isinstance(shown, dict):
        if "..." in shown:
            shown = {name: value for name, value in shown.items() if name != "..."}
            assert shown.keys() < real.keys(), place
        elif place.rsplit(".", 1)[-1] in OPEN:
            assert bool(shown) <= bool(real), place
        else:
            assert list(shown) == list(real), place
        for name, value in shown.items():
            if name in real:
                check_shape(value, real[name], f"{place}.{name}")
            else:  # a name of an open map that this run lacks: its value is like the others
                check_shape(value, next(iter(real.values())), f"{place}.*")
    elif isinstance(shown, list) and real:
        assert bool(shown) or not isinstance(real[0], dict), place
        for item in shown:
            check_shape(item, real[0], f"{place}[]")


@pytest.fixture
def documents(run, cli, index, questions, replay, tmp_path, chat_server) -> dict[str, list[Any]]:
    """JSON documents that each command prints now, on the tiny corpus; after `answer` also rows of both styles."""
    llm = (*cli.HASH, "--set", f"models.llm=replay:{replay}")
    out, batch = tmp_path / "answers.jsonl", tmp_path / "batch.jsonl"
    content = [{"role": "user", "content": cli.QUESTIONS[0]["question"]}]
    cli.write_rows(batch, [{"custom_id": "q1", "method": "POST", "url": "/v1/x", "body": {"messages": content}}])
    styled = ("answer", index, batch, "--method", "ppr", "--out", tmp_path / "styled.jsonl", *llm)
    for_all = ("--for", ",".join(cli.METHODS))
    many = [{**row, "id": f"{row['id']}-{at}"} for at in range(10) for row in cli.QUESTIONS]
    cli.write_rows(tmp_path / "many.jsonl", many)
    calls = {
        "index": ("index", tmp_path / "tiny.jsonl", "--out", tmp_path / "new", *for_all, *cli.NO_LLM),
        "add": ("add", tmp_path / "new", tmp_path / "more.txt", *cli.NO_LLM),
        "update": ("update", tmp_path / "new", *cli.NO_LLM),
        "remove": ("remove", tmp_path / "new", "--doc", "more.txt", *cli.NO_LLM),
        "answer": ("answer", index, questions, "--method", "ppr", "--out", out, *llm),
        "ask": ("ask", index, cli.QUESTIONS[0]["question"], "--method", "ppr", *llm),
        "eval": ("eval", index, questions, "--method", "dense,ppr", "--retrieval-only", *cli.NO_LLM),
        "explain": ("explain", out, "q1"),
        "verify": ("verify", index),
        "verify-answers": ("verify-answers", out, index, "--corpus", tmp_path / "tiny.jsonl"),
        "merges": ("merges", tmp_path / "aligned", "--force", "Kerling", "Tamsin"),
        "export": ("export", index, "--format", "parquet", "--out", tmp_path / "tables"),
        "bench": ("bench", "nearest", "--sizes", 200, "--batch", 1, "--rounds", 1),
        "models": ("models", "probe", f"replay:{replay}"),
        "doctor": ("doctor", *llm),
        "sample": ("sample", tmp_path / "sample"),
        "tune": ("tune", index, tmp_path / "many.jsonl", "--among", "bm25,ppr", *cli.NO_LLM),
        "demo": ("demo", "--out", tmp_path / "demo", "--method", "dense,ppr", "--questions", 1, *llm),
    }
    (tmp_path / "more.txt").write_text("Anna Stroud was mayor of Kerling.")
    aligned = ("index", tmp_path / "tiny.jsonl", "--out", tmp_path / "aligned", "--for", "higra-retriever,ppr,hoprag")
    assert run(*aligned, *cli.NO_LLM).status == 0
    printed: dict[str, list[Any]] = {}
    for name, words in calls.items():
        result = run(*words, "--json")
        assert (result.status, result.out.count("\n")) == (0, 1), result.err
        printed[name] = [result.document]
    (demo,) = printed["demo"]
    assert (demo["counts"]["passages"], demo["eval"]["n"], len(demo["answers"])) == (440, 60, 1)
    # the recording knows no question of the sample: the demo's answer fails, and lacks what a found one has
    found = {name: value for name, value in printed["ask"][0].items() if name != "support"}
    demo["answers"] = [{**found, "paths": [], "gold": ["x"]}]  # of a method without a graph
    assert run(*styled).status == 0
    (tmp_path / "model").mkdir()  # stands for a converted model
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_bytes(b"{}")
    printed["models"].insert(0, run("models", "convert", "--out", tmp_path / "model", "--json").document)
    printed["answer"] += [cli.read_rows(out)[0], cli.read_rows(tmp_path / "styled.jsonl")[0]]
    planned = [tmp_path / "planned" if word == tmp_path / "new" else word for word in calls["index"]]
    printed["index"] += [run(*planned, *options, "--json").document for options in (["--plan"], [])]
    for name, document in knowledge_base(run, cli, tmp_path).items():
        printed[name].append(document)
    judge = chat_server(lambda prompt: (200, '{"reason": "", "verdict": "correct"}'))
    judged = ("eval", index, questions, "--method", "ppr", "--judge", "--set", f"eval.judge={judge.spec}")
    printed["eval"].append(run(*judged, *llm, "--json").document)
    seen = (
        "eval",
        tmp_path / "aligned",
        questions,
        "--method",
        "ppr,hoprag",
        "--retrieval-only",
        "--ceiling",
        *cli.NO_LLM,
        "--json",
    )
    printed["eval"].append(run(*seen).document)
    printed["serve"] = served(
        cli.command_line("serve", index, "--port", 0, "--json", *llm), cli.QUESTIONS[0]["question"]
    )
    return printed


def served(command: list[str], question: str) -> list[Any]:
    """JSON that `serve` prints, and its answers."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        ready = json.loads(process.stdout.readline())
        with httpx.Client(base_url=ready["url"], timeout=600) as client:
            said = {"messages": [{"role": "user", "content": question}], "model": "gpu-rag/ppr"}
            rows = [
                client.post("/v1/answer", json={"question": question, "method": "ppr", "words": True}).json(),
                client.post("/v1/retrieve", json={"question": question, "method": "dense"}).json(),
            ]
            passage = rows[0]["evidence"][0]["passage_id"]
            told = [client.get(path).json() for path in ("/v1/methods", "/v1/index", f"/v1/passages/{passage}")]
            methods = {row["method"]: row for row in told[0]["methods"]}
            told[0]["methods"] = [methods["ppr"], methods["hoprag"]]
            chat = [client.post("/v1/chat/completions", json=said).json(), client.get("/v1/models").json()]
            return [ready, *rows, *told, *chat, client.post("/v1/answer", json={"question": 5}).json()]
    finally:
        process.terminate()
        assert process.wait(timeout=600) == 0


def knowledge_base(run, cli, folder: Path) -> dict[str, Any]:
    """JSON that `index` and `eval` print of a knowledge base and questions over it."""
    (folder / "towns").mkdir()
    nodes = [{"id": "t1", "type": "town", "name": "Bern", "text": "Bern has bears."}, {"id": "r1", "name": "Aare"}]
    cli.write_rows(folder / "towns" / "nodes.jsonl", nodes)
    (folder / "towns" / "edges.tsv").write_text("t1\tlies on\tr1\n")
    (folder / "facts.tsv").write_text("Bern\tcapital of\tSwitzerland\n")
    asked = [
        {"id": "1", "question": "Which town has bears?", "answer_ids": ["t1"]},
        {"id": "2", "question": "On which river lies Bern?", "answers": ["Aare"], "hops": 1},
    ]
    questions = cli.write_rows(folder / "kb.jsonl", asked)
    given = ("--skb", folder / "towns", "--kg", folder / "facts.tsv", "--for", "bm25,hydrarag")
    index = run("index", *given, "--out", folder / "kb", *cli.NO_LLM, "--json")
    scored = run("eval", folder / "kb", questions, "--method", "hydrarag", "--retrieval-only", *cli.NO_LLM, "--json")
    assert (index.status, scored.status) == (0, 0), index.err + scored.err
    return {"index": index.document, "eval": scored.document}


def examples(name: str) -> list[Any]:
    """The documents of a command in docs/data/json, in their order."""
    files = [file for file in EXAMPLES.glob("*.json") if file.stem.rpartition("-")[0] == name]
    return [
        json.loads(file.read_text("utf-8")) for file in sorted(files, key=lambda file: int(file.stem.rsplit("-")[-1]))
    ]


def test_json_examples_have_the_keys_that_the_commands_print(documents):
    assert set(documents) == {*COMMANDS} - {"mcp", "completion", "merge"}  # no document; that of index
    for name, real in documents.items():
        shown = examples(name)
        assert len(shown) == len(real), name
        for one, other in zip(shown, real, strict=True):
            check_shape(one, other, name)
