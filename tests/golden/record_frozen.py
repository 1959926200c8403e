"""Freezes what a user sees, by the command line and the Python API alone: python tests/golden/record_frozen.py [PART]

frozen/PART.json, one for each of PARTS below: digests of indexes, answers of every method without a model and under
scripted ones with every request these got, rows of `answer`, words of `explain`, names of steps. Modules may move and
be written anew: none of this changes. Make a part again only where a change is meant to alter it, and say why.
frozen/given.json is written by hand: sources, questions, models. frozen/replies.jsonl is what the packaged model said
(`python tests/golden/record_frozen.py replies` asks it again); a request that is not there fails, here too.

All embeddings are hashes, so that no CPU changes a digest (the same with AVX-512, AVX2 and plain kernels). Another
pyarrow does: its version stands in every Parquet file, and so in `versions`. Numbers are compared to five digits.
"""

import contextlib
import functools
import hashlib
import io
import itertools
import json
import math
import os
import random
import re
import runpy
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow

import gpu_rag
from gpu_rag.errors import RequestFailed
from gpu_rag.types import Question, Reply  # what an LLM object is given and gives: types.py and errors.py stay

HERE = Path(__file__).resolve().parent
FROZEN = HERE / "frozen"
GIVEN = json.loads((FROZEN / "given.json").read_text("utf-8"))
METHODS_OF = {name: methods for name, (_, methods) in GIVEN["indexes"].items()}
METHODS = METHODS_OF["sample"]  # all
MODELS = GIVEN["models"]  # name: whether it is capable, its context (a small one has the packer cut), settings
OTHER = MODELS["capable_other"][2]["method"]  # not the defaults: other branches of the methods
SETTINGS = {"models": {"embedder": "hash", "llm": "none", "device": "cpu"}}
FLAGS = ("--set", "models.embedder=hash", "--set", "models.device=cpu", "--set")
WORDS = {"NO_LLM": (*FLAGS, "models.llm=none"), "REPLAY": (*FLAGS, "models.llm=replay:replies.jsonl")}
VERSIONS = {"pyarrow": pyarrow.__version__}  # digests depend on it: under another the test leaves them out


def short_hash(value: Any) -> str:
    """10 digits of the hash of a value."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=asdict)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def plain(answer: Any) -> dict[str, Any]:
    """An answer as a mapping; the filter, and metadata of evidence, only where there is some, as in rows."""
    found = asdict(answer)
    found["where"] or found.pop("where")
    for item in found["evidence"]:
        item["metadata"] or item.pop("metadata")
    return found


def short(value: Any) -> Any:
    """A value without what differs from run to run (times), long texts by their beginnings and hashes. Objects of a
    list have one line each: [texts, number...]."""
    if isinstance(value, str):
        value = re.sub(r"\bgpu_rag(\.\w+)+", "gpu_rag...", value)  # prompts are named by their modules in errors
        return value if len(value) <= 64 and "\n" not in value else f"{value[:30]!r}... {short_hash(value)}"
    if isinstance(value, Mapping):
        dropped = {k for k in value if k in ("s", "created") or k.endswith(("_s", "_idle_share"))}
        dropped.update({"digest"} if "config_hash" in value else ())  # of a row, with its seconds
        # of a question without a history; of one whose sources all answered; of one that they answered
        dropped.update(
            name for name in ("condensed", "missing", "unread", "barred", "sought") if not value.get(name, True)
        )
        if "condensed" in value and not value["source"]:
            dropped.add("source")
        return {k: short(v) for k, v in value.items() if k not in dropped}
    if not isinstance(value, (list, tuple)):
        return value
    if not (value and all(isinstance(item, Mapping) for item in value)):
        return [short(item) for item in value] if len(str(value)) <= 300 else f"{len(value)}: {short_hash(value)}"
    lines = []
    for item in map(short, value):
        told = ("~" if isinstance(v, float) else v if isinstance(v, str) else json.dumps(v) for v in item.values())
        line = "; ".join(f"{k}={v}" for k, v in zip(item, told))
        numbers = [float(f"{v:.7g}") for v in item.values() if isinstance(v, float)]
        lines.append([line if len(line) <= 110 else f"{line[:90]}... {short_hash(line)}", *numbers])
    return lines


class Scripted:
    """A language model whose replies are drawn by a hash of the request: valid under the constraint, but now and then
    unreadable (also twice), and once in a while a request fails. requests: what it was asked, a line each."""

    def __init__(self, capable: bool = True, context_tokens: int = 8192):
        self.name, self.content_hash = "scripted", short_hash(f"scripted {capable}")
        self.capable, self.context_tokens = capable, context_tokens
        self.requests: list[str] = []

    def count_tokens(self, text: str) -> int:
        return len(text) // 4 + 1

    def complete(self, requests: Sequence[Any], on_reply: Any = None) -> list[Any]:
        replies = [self._reply(request) for request in requests]
        for i, reply in enumerate(replies if on_reply is not None else ()):
            on_reply(i, reply)
        return replies

    def close(self) -> None:
        pass

    def _reply(self, request: Any) -> Any:
        form, prompt = request.constraint, request.prompt
        kind = "text" if form is None else f"{type(form).__name__} {short_hash(vars(form))}"
        numbers = f"tokens {request.max_tokens} at {request.temperature:g} seed {request.seed} try {request.attempt}"
        self.requests.append(f"system {short_hash(request.system)} prompt {short_hash(prompt)} {kind} {numbers}")
        drawn = random.Random(short_hash([request.system, prompt, request.attempt, self.capable]))
        names = re.findall(r"[A-Z]\w+(?: (?:of |the )?[A-Z]\w+)*", prompt) or ["nothing"]
        n_prompt = self.count_tokens(request.system) + self.count_tokens(prompt)
        luck = drawn.random()
        if luck < 0.01:
            return RequestFailed("the script fails this request", given=short_hash(prompt))
        if kind.startswith("Rank"):
            scores = tuple(-drawn.random() for _ in form.options)
            return Reply(form.options[scores.index(max(scores))], "rank", n_prompt, 0, 0, scores)
        if luck < 0.08 and form is not None:
            return Reply('{"cut', "length", n_prompt, 0, 5)
        text = drawn.choice(getattr(form, "options", names))
        if kind.startswith("JsonSchema"):
            text = json.dumps(instance(json.loads(form.schema), drawn, names))
        return Reply(text, "stop", n_prompt, 0, self.count_tokens(text))


def instance(schema: Mapping[str, Any], drawn: random.Random, names: Sequence[str]) -> Any:
    """Something valid under a JSON schema; its texts are names, or questions about names."""
    if "enum" in schema:
        return drawn.choice(schema["enum"])
    if schema["type"] == "object":
        made = {name: instance(inner, drawn, names) for name, inner in schema["properties"].items()}
        return {k: [f"Who knows {t}?" for t in v] if k == "questions" else v for k, v in made.items()}
    if schema["type"] == "array":
        least = schema.get("minItems", 0)
        n = drawn.randint(least, max(least, min(schema.get("maxItems", 3), 3)))
        items = [instance(schema["items"], drawn, names) for _ in range(n)]
        return [item for i, item in enumerate(items) if item not in items[:i] or not schema.get("uniqueItems")]
    if schema["type"] == "string":
        return drawn.choice(names)[: schema.get("maxLength", 99)].ljust(schema.get("minLength", 0), "x")
    least = schema.get("minimum", 0)
    integer = drawn.randint(least, min(schema.get("maximum", least + 4), least + 4))
    return {"integer": integer, "number": round(drawn.random(), 2), "boolean": integer % 2 == 0}[schema["type"]]


def read_rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class Work:
    """A folder with the sources, and what is made of them when it is first asked for. All paths are relative to it."""

    def __init__(self, folder: Path):
        self.folder, sample = folder, Path(gpu_rag.__file__).parent / "sample"
        corpus, questions = (read_rows(sample / f"{name}.jsonl") for name in ("corpus", "questions"))
        asked = [row for row in questions if row["id"] in GIVEN["sample questions"]]
        replayed = [row for row in questions if row["id"] in GIVEN["replayed questions"]]
        body = {"messages": [{"role": "user", "content": replayed[0]["question"]}]}
        batch = [{"custom_id": "b1", "method": "POST", "url": "/v1/chat/completions", "body": body}]
        replies = read_rows(FROZEN / "replies.jsonl")
        made = {"corpus": corpus, "few": corpus[:8], "asked": asked, "replayed": replayed, "batch": batch}
        (folder / "base").mkdir()
        for name, rows_of in {**made, "replies": replies, **GIVEN["files"]}.items():
            lines = [row if isinstance(row, str) else json.dumps(row) for row in rows_of]
            (folder / (name if "." in name else f"{name}.jsonl")).write_text("\n".join([*lines, ""]), "utf-8")
        self.questions = {"sample": [Question(row["id"], row["question"]) for row in asked]}
        for name, texts in GIVEN["questions"].items():
            self.questions[name] = [Question(f"{name}{i}", text) for i, text in enumerate(texts, 1)]

    @functools.cached_property
    def built(self) -> dict[str, Any]:
        """The document of `index --json` for each index."""
        return {name: document(f"index {words} --out {name} NO_LLM") for name, (words, _) in GIVEN["indexes"].items()}

    @functools.cached_property
    def written(self) -> list[str]:
        """Requests to a scripted model while it helped to build an index of a few documents."""
        llm = Scripted()
        gpu_rag.build("few.jsonl", "written", methods=["all"], settings=GIVEN["written"], llm=llm)
        return llm.requests

    @functools.cache  # noqa: B019  (one Work a process)
    def index(self, name: str) -> Any:
        assert self.built
        return gpu_rag.Index.open(name)

    def answer(self, name: str, method: str, model: str, questions: Any, driver: str = "rounds") -> Any:
        """({question id: answer}, requests) under a scripted model."""
        capable, context_tokens, given = MODELS[model]
        llm = Scripted(capable, context_tokens)
        settings = {**given, "models": {**SETTINGS["models"], **given.get("models", {})}}
        settings["runtime"] = {**given.get("runtime", {}), "driver": driver}
        answers = self.index(name).answer(questions, method=method, settings=settings, llm=llm)
        return {a.question_id: short(plain(a)) for a in answers}, llm.requests


def run(line: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of `python -m gpu_rag LINE` in this process; NO_LLM, REPLAY: see WORDS."""
    words = [word for part in line.split() for word in WORDS.get(part, (part,))]
    out, err, hook, on_signal = io.StringIO(), io.StringIO(), sys.excepthook, signal.getsignal(signal.SIGINT)
    arguments = mock.patch.object(sys, "argv", ["gpu-rag", *words])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(os.environ), arguments:
        try:
            runpy.run_module("gpu_rag", run_name="__main__")
            status: Any = 0
        except SystemExit as end:
            status = end.code
        finally:
            sys.excepthook = hook
            signal.signal(signal.SIGINT, on_signal)
    return status, out.getvalue(), err.getvalue()


def document(line: str) -> Any:
    """The document that a command prints with --json."""
    status, out, err = run(f"{line} --json")
    assert status in (0, 1, 3) and out, f"{line}: {err}"
    return json.loads(out.splitlines()[-1])


def reply_keys(path: str) -> str:
    """The number of replies in a cache, and the hash of their keys and contents, the checksums left out."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        kept = db.execute("SELECT key, reply FROM replies").fetchall()
    rows = sorted((key, re.sub(r', "sum": "[0-9a-f]{16}"}$', "}", reply)) for key, reply in kept)
    return f"{len(rows)}: {short_hash(rows)}"


def digests(work: Work) -> Any:
    """The digest of each index, and of each stage what tells which one changed."""
    assert work.written
    found = {}
    for name in (*work.built, "written"):
        stages = json.loads((work.folder / name / "manifest.json").read_text("utf-8"))["stages"].items()
        lines = {n: f"{s['fingerprint'][:10]} files {short_hash(s['files'])} {s['counts']}" for n, s in stages}
        found[name] = {"digest": document(f"verify {name} --digest")["digest"], "stages": lines}
    return found


def written(work: Work) -> Any:
    """Requests to a model that helps to make an index, in order, and the keys of its replies."""
    return {"requests": work.written, "reply keys": reply_keys("written/replies.sqlite")}


def retrieved(work: Work) -> Any:
    """Answers without a model: index, parameters -> method -> question."""
    found: dict[str, Any] = {}
    for (name, methods), other in itertools.product(METHODS_OF.items(), (False, True)):
        mine = found[f"{name}, other parameters" if other else name] = {}
        settings = {**SETTINGS, "method": OTHER if other else {}}
        given: dict[str, Any] = {"k": 4, "settings": settings}
        for method in methods:
            answers = work.index(name).retrieve(work.questions[name], method=method, **given)
            mine[method] = {a.question_id: short(plain(a)) for a in answers}
    return found


def scripted(work: Work, model: str) -> Any:
    """Answers under a scripted model, each question run alone, with its requests in the order of their slots."""
    found: dict[str, Any] = {}
    for name, methods in METHODS_OF.items():
        for method, question in itertools.product(methods, work.questions[name]):
            answers, requests = work.answer(name, method, model, [question])
            row = {**answers[question.id], "requests": requests}
            found.setdefault(name, {}).setdefault(method, {})[question.id] = row
    return found


def evaluated(work: Work) -> Any:
    """The result of `evaluate` under a model that also judges, and the keys of the reply cache."""
    given: dict[str, Any] = {"methods": METHODS, "settings": SETTINGS, "judge": True, "llm": Scripted()}
    found = gpu_rag.evaluate(work.index("sample"), "asked.jsonl", replies=Path("evaluated.sqlite"), **given)
    return {"document": short(found.document), "reply keys": reply_keys("evaluated.sqlite")}


def rows(work: Work) -> Any:
    """Rows of `answer` by replay of what the packaged model once said (no request may be missing on record), in both
    drivers and styles; `explain` of one; numbers of batches by step and of costs by note (rounds alone)."""
    found: dict[str, Any] = {}
    assert work.built
    for method in METHODS:
        line = f"answer sample replayed.jsonl --method {method} REPLAY --driver"
        other = document(f"{line} streaming --out {method}-streaming.jsonl")
        said = document(f"{line} rounds --out {method}.jsonl")
        mine = {
            "config": short(read_rows(work.folder / f"{method}.jsonl.config.json")[0]),
            "graph ops": said["graph_ops"],
        }
        answered = read_rows(work.folder / f"{method}.jsonl")
        assert not [row["id"] for row in answered if row["error"]], f"{method}: run record_frozen.py replies first"
        mine["rows"] = {row["id"]: short(row) for row in answered}
        streamed = {row["id"]: short(row) for row in read_rows(work.folder / f"{method}-streaming.jsonl")}
        mine["differences of streaming"] = differences(streamed, mine["rows"])
        mine["steps"] = {name: [b["calls"], b["batches"], b["largest"]] for name, b in said["batches"].items()}
        mine["steps of streaming"] = sorted(other["batches"])
        mine["notes"] = {name: [cost["n_notes"], cost["n_calls"]] for name, cost in said["stages"].items()}
        explained = re.sub(r"(?m)[\d.]+ m?s$", "~ s", run(f"explain {method}.jsonl q01")[1])
        mine["explain"] = re.sub(r"(LLM|embedding|graph) [\d.]+", r"\1 ~", explained).splitlines()
        found[method] = mine
    document("answer sample batch.jsonl --method dense --out batch-out.jsonl REPLAY")
    found["OpenAI batch"] = short(read_rows(work.folder / "batch-out.jsonl")[0])
    return found


PARTS: dict[str, Callable[[Work], Any]] = {
    "versions": lambda _: VERSIONS, "digests": digests, "written": written, "retrieved": retrieved,
    **{f"scripted_{model}": functools.partial(scripted, model=model) for model in MODELS},
    "evaluated": evaluated, "rows": rows,
}  # fmt: skip


def frozen(part: str) -> Any:
    return json.loads((FROZEN / f"{part}.json").read_text("utf-8"))


def differences(found: Any, expected: Any, at: str = "") -> list[str]:
    """Where two values differ, a line each. Numbers may differ in the sixth digit: another CPU rounds otherwise."""
    kinds = type(found), type(expected)
    if kinds == (dict, dict):
        lines = [f"{at} > {k}: is gone" for k in expected if k not in found]
        lines += [f"{at} > {k}: is new" for k in found if k not in expected]
        both = [k for k in expected if k in found]
        return lines + [line for k in both for line in differences(found[k], expected[k], f"{at} > {k}")]
    if kinds == (list, list) and len(found) == len(expected):
        return [line for i, pair in enumerate(zip(found, expected)) for line in differences(*pair, f"{at}[{i}]")]
    if kinds == (list, list):
        gone, new = [v for v in expected if v not in found], [v for v in found if v not in expected]
        return [f"{at}: {len(found)} items, not {len(expected)}; gone: {gone[:3]}, new: {new[:3]}"]
    if kinds == (float, float) and math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-6):
        return []
    return (
        []
        if (found, kinds[0]) == (expected, kinds[1])
        else [f"{at}: {str(found)[:200]!r}, not {str(expected)[:200]!r}"]
    )


def record_replies(work: Work) -> None:
    """Asks the packaged model what `rows` replays."""
    sys.path.insert(0, str(FROZEN.parents[1] / "shared"))
    from recording_llm import RecordingLLM

    from gpu_rag.models.llm import load_llm

    path = FROZEN / "replies.jsonl"
    path.unlink()
    llm = RecordingLLM(load_llm("smollm2", device="cpu"), path)
    asked = [Question(row["id"], row["question"]) for row in read_rows(work.folder / "replayed.jsonl")]
    for method in METHODS:
        work.index("sample").answer(asked, method=method, settings=SETTINGS, llm=llm)


def main(parts: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        work = Work(Path(name))
        if "replies" in parts:
            return record_replies(work)
        for part in parts or PARTS:
            found = json.dumps(PARTS[part](work), indent=0, ensure_ascii=False)
            (FROZEN / f"{part}.json").write_text(found + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
