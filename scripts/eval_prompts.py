"""Every prompt of the product, put to a real small model: how its replies are read, strictly and leniently.

    python scripts/eval_prompts.py record DATA REQUESTS.jsonl           about a minute, no language model
    python scripts/eval_prompts.py ask REQUESTS.jsonl RESULT.json [--model M] [--each 8] [--tokens 1024] [--only NAME]
    python scripts/eval_prompts.py table NAME=RESULT.json ... [--csv FILE]

record: runs every method, every index stage and the judge on real questions, under an engine whose replies are well
formed, and writes the requests with the prompt that each was made of. DATA holds `2wiki_openie` (corpus, extractions,
questions), `2wikimultihopqa` (triples) and `advhotpotqa` (questions that do not begin like one). Replies depend on the
names in a request, never on its wording, so that two versions of a prompt get nearly the same inputs.

ask: sends up to `--each` requests of a prompt, with replies of at most `--tokens` tokens, in two ways. forced: the
engine masks what is not in the form, as engines in this process do. words: the form is asked for in words alone, as of
a server that takes none. A reply that cannot be read is asked for once more. The counts are saved after each prompt; a
second run goes on where the first stopped.

table: shares by room, in Markdown. strict: usable when only an exact reply was; road: usable now.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import gpu_rag
from gpu_rag import evaluate
from gpu_rag.errors import RequestFailed
from gpu_rag.methods.registry import method_names
from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.http_wire import Style, body
from gpu_rag.models.llm.interface import LLM
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.misbehave.replies import well_formed
from gpu_rag.program.questions import is_question
from gpu_rag.text.lenient import EXACT, LENIENT, SALVAGED, Read, read_reply, repairs
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Choice, JsonSchema, Malformed, Rank, Reply, Request

N_QUESTIONS, N_UNLIKE, N_PASSAGES, N_WRITTEN = 16, 10, 160, 40
MOST = 64  # recorded requests of a prompt
MOST_CHARS = 28_000  # of the requests of a prompt that are sent: reading them takes most of the time
PRODUCT = Path(gpu_rag.__file__).parent
KINDS = (EXACT, LENIENT, SALVAGED, "repaired", "rule", "failed")
WAYS = ("forced", "words")
SILENT = {"dense", "bm25", "hybrid"}  # beside the one reader that all share
WRITTEN = {
    "index": {"extractor": "llm", "min_yield": 0.0, "coref": "llm"},
    "hops": {"simulate": "llm"},
    "alignment": {"decider": "llm", "tau": 0.6, "link_radius": 0.7},
}
SHORT = {"dual-agent": {"max_turns": 2}}  # so that it comes to the answer that ends a dialogue
_NAME = re.compile(r"\b[A-Z0-9][\w'.-]*(?: [A-Z0-9][\w'.-]*)*")


def product_prompts() -> dict[str, Prompt]:
    """Every prompt file of the product, by its place below the package."""
    found = sorted(path for path in PRODUCT.rglob("prompts/*.txt"))
    names = (path.relative_to(PRODUCT).with_suffix("").as_posix().replace("/prompts/", "/") for path in found)
    return {name: Prompt.parse(name, path.read_text(encoding="utf-8")) for name, path in zip(names, found)}


def prompt_of(request: Request, prompts: dict[str, Prompt]) -> str:
    """The name of the prompt that a request was made of; "" where it is none of these."""
    return next((name for name, prompt in prompts.items() if prompt.system in request.system), "")


class Recorder:
    """Replies that are well formed, made of the names of the data in a request; and the requests, by prompt."""

    def __init__(self, names: set[str]):
        self.prompts, self._names = product_prompts(), names
        self.found: dict[str, dict[Request, None]] = defaultdict(dict)
        self.engine = ScriptedLLM(self._answer)

    def _answer(self, request: Request) -> str:
        name, known = prompt_of(request, self.prompts), self.found
        if len(known[name]) < MOST:
            known[name][request] = None
        names = sorted(self._names.intersection(_NAME.findall(request.prompt)))
        form: dict[str, Any] = {}
        match request.constraint:
            case JsonSchema(schema):
                form = {"json": schema}
            case Choice(options) | Rank(options):
                form = {"choice": options}
        said = {"role": "user", "content": ", ".join(names)}
        return well_formed({"messages": [{"role": "system", "content": name}, said], "structured_outputs": form})


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """The rows as a JSONL file."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def record(data: Path, out: Path) -> None:
    """The requests of every method, stage and the judge, as JSONL."""
    questions = list(islice(read_rows(data / "2wiki_openie" / "questions.jsonl"), N_QUESTIONS))
    unlike = (row for row in read_rows(data / "advhotpotqa" / "questions.jsonl") if not is_question(row["question"]))
    gold = {passage for row in questions for passage in row["gold_ids"]}
    rows = sorted(read_rows(data / "2wiki_openie" / "corpus.jsonl"), key=lambda row: row["id"] not in gold)[:N_PASSAGES]
    kept = {row["id"] for row in rows}
    extractions = [row for row in read_rows(data / "2wiki_openie" / "openie.jsonl") if row["id"] in kept]
    with gzip.open(data / "2wikimultihopqa" / "kg_gold_evidences.tsv.gz", "rt", encoding="utf-8") as file:
        facts = file.read()
    names = {name for row in extractions for name in row["entities"]} | {row["title"] for row in rows}
    names |= {name for row in questions for name in _NAME.findall(row["question"])}
    recorder = Recorder({form for name in names for form in _NAME.findall(name)})
    models = {"embedder": "minilm", "llm": "none", "capable": True, "device": "cpu"}
    with TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "facts.tsv").write_text(facts, encoding="utf-8")
        corpus, openie = write_rows(at / "corpus.jsonl", rows), write_rows(at / "openie.jsonl", extractions)
        pages = [{"url": f"https://page/{row['id']}", "title": row["title"], "text": row["text"]} for row in rows]
        web = f"net=web:{write_rows(at / 'pages.jsonl', pages)}"
        few = write_rows(at / "few.jsonl", rows[:N_WRITTEN])
        asked = write_rows(
            at / "questions.jsonl",
            [
                {key: row[key] for key in ("id", "question", "answers")}
                for row in (*questions, *islice(unlike, N_UNLIKE))
            ],
        )
        given: dict[str, Any] = {"kg": [at / "facts.tsv"], "sources": [f"notes=documents:{corpus}", web]}
        gpu_rag.build((), out=at / "ix", methods=["all"], openie=openie, settings={"models": models}, **given)
        written = {**WRITTEN, "models": models}
        gpu_rag.build(few, out=at / "written", methods=["all"], settings=written, llm=recorder.engine)
        for method in method_names():
            if method not in SILENT:
                settings = {"models": models, "method": {name: keys for name, keys in SHORT.items() if name == method}}
                evaluate(at / "ix", asked, methods=[method], settings=settings, llm=recorder.engine, judge=True)
                print(f"{method}: {sum(map(len, recorder.found.values()))} requests", file=sys.stderr)
    write_rows(
        out,
        ({"prompt": name, **as_row(request)} for name in sorted(recorder.found) for request in recorder.found[name]),
    )
    for name in sorted(recorder.prompts.keys() - recorder.found.keys()):
        print(f"no request of {name}", file=sys.stderr)


def as_row(request: Request) -> dict[str, Any]:
    """A request as JSON."""
    match request.constraint:
        case JsonSchema(schema):
            form: dict[str, Any] = {"schema": schema}
        case Choice(options):
            form = {"options": options}
        case None:
            form = {}
    return {"system": request.system, "text": request.prompt, **form, "max_tokens": request.max_tokens}


def as_request(row: dict[str, Any]) -> Request:
    """The request of a row of `as_row`."""
    constraint: JsonSchema | Choice | None = None
    if "schema" in row:
        constraint = JsonSchema(row["schema"])
    elif "options" in row:
        constraint = Choice(tuple(row["options"]))
    return Request(row["system"], row["text"], constraint, row["max_tokens"])


def in_words(request: Request) -> Request:
    """The request as a server gets it that takes no form."""
    messages = body("", request, Style(objects="prompt", choices="prompt"))["messages"]
    said = {message["role"]: message["content"] for message in messages}
    return replace(request, system=said.get("system", ""), prompt=said["user"], constraint=None)


def spread(requests: Sequence[Request], n: int) -> list[Request]:
    """n of the requests at even distances, or all; fewer of long ones, at least two."""
    mean = sum(len(request.prompt) for request in requests) / len(requests)
    n = min(n, len(requests), max(2, int(MOST_CHARS / mean)))
    return [requests[i * len(requests) // n] for i in range(n)]


def readings(llm: LLM, requests: Sequence[Request], way: str, tokens: int) -> list[tuple[str, str, str]]:
    """For each request how its reply was read (one of KINDS), why not, and its first reply.

    tokens: the most of a reply, also of a second one.
    """
    send = in_words if way == "words" else lambda request: request
    asked = [replace(request, max_tokens=min(request.max_tokens, tokens)) for request in requests]
    first = llm.complete([send(request) for request in asked])
    found = [_reading(request, reply) for request, reply in zip(asked, first)]
    again = {i: _repair(llm, asked[i], said, tokens) for i, said in enumerate(found) if isinstance(said, Malformed)}
    second = dict(zip(again, llm.complete([send(request) for request in again.values()]), strict=True))
    kinds = []
    for i, (said, reply) in enumerate(zip(found, first, strict=True)):
        text = reply.text if isinstance(reply, Reply) else ""
        if isinstance(said, Malformed):
            mended = _reading(again[i], second[i]) in (EXACT, LENIENT, SALVAGED)
            kinds.append(("repaired" if mended else "rule", said.reason, text))
        else:
            kinds.append((said, str(reply) if said == "failed" else "", text))
    return kinds


def _reading(request: Request, reply: Reply | RequestFailed) -> str | Malformed:
    if isinstance(reply, RequestFailed):
        return "failed"
    found = read_reply(reply, request.constraint)
    return found.how if isinstance(found, Read) else found


def _repair(llm: LLM, request: Request, malformed: Malformed, tokens: int) -> Request:
    """The second request, as `program.replies` makes it."""
    room = llm.context_tokens - llm.count_tokens(request.system)
    ways = repairs(request.prompt, request.max_tokens, malformed)
    text, n_tokens = next((way for way in ways if llm.count_tokens(way[0]) + way[1] <= room), ways[-1])
    return replace(request, prompt=text, max_tokens=min(n_tokens, tokens), attempt=1)


def ask(requests: Path, out: Path, spec: str, each: int, tokens: int, only: str, replies: Path | None) -> None:
    """The counts of all prompts as JSON, saved after each; those that `out` holds already are left as they are."""
    by_prompt: dict[str, list[Request]] = defaultdict(list)
    for row in read_rows(requests):
        if only in row["prompt"]:
            by_prompt[row["prompt"]].append(as_request(row))
    llm = load_llm(spec, threads=1, capable=True, max_batch=8)
    document: dict[str, Any] = {"model": spec.rstrip("/").split("/")[-1], "tokens": tokens, "prompts": {}}
    if out.exists():
        document = json.loads(out.read_text(encoding="utf-8"))
    for name, found in sorted(by_prompt.items()):
        if name in document["prompts"]:
            continue
        started = perf_counter()
        counts: dict[str, dict[str, int]] = {}
        chosen = spread(found, each)
        for way in WAYS:
            if way == "words" and chosen[0].constraint is None:
                counts[way] = counts["forced"]  # the same requests
                continue
            read = readings(llm, chosen, way, tokens)
            counts[way] = dict(Counter(kind for kind, _, _ in read))
            if replies is not None:
                with replies.open("a", encoding="utf-8") as file:
                    for kind, why, text in read:
                        row = {"prompt": name, "way": way, "kind": kind, "why": why, "reply": text}
                        file.write(json.dumps(row, ensure_ascii=False) + "\n")
        document["prompts"][name] = counts
        document["date"] = date.today().isoformat()
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{name} {counts} {perf_counter() - started:.0f} s", file=sys.stderr)


def room_of(prompt: str) -> str:
    """The room of a prompt: a method, or the part of the product that asks."""
    parts = prompt.split("/")
    return parts[1] if parts[0] == "methods" else " ".join(parts[:-1])


def shares(counts: Iterable[dict[str, int]]) -> tuple[float, float]:
    """(strict, road): shares of replies that were exact, and that could be read in the end."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    n = total.total()
    return total["exact"] / n, 1 - (total["rule"] + total["failed"]) / n


def table(results: dict[str, dict[str, Any]]) -> str:
    """Percentages "strict, road" by room, one column a result and way, in Markdown."""
    prompts = {name: document["prompts"] for name, document in results.items()}
    rooms = sorted({room_of(prompt) for found in prompts.values() for prompt in found})
    heads = [f"{name}, {way}" for name in results for way in WAYS]
    lines = [f"| room | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for room in [*rooms, "all"]:
        cells = []
        for found in prompts.values():
            for way in WAYS:
                counts = [ways[way] for prompt, ways in found.items() if room in ("all", room_of(prompt))]
                cells.append("{:.0%}, {:.0%}".format(*shares(counts)).replace("%", "") if counts else "-")
        lines.append(f"| {room} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_csv(results: dict[str, dict[str, Any]], path: Path) -> None:
    """One row a result, prompt and way: how many replies were read how."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("run", "model", "tokens", "prompt", "way", *KINDS))
        for name, document in results.items():
            for prompt, ways in sorted(document["prompts"].items()):
                for way in WAYS:
                    counts = (ways[way].get(kind, 0) for kind in KINDS)
                    writer.writerow((name, document["model"], document["tokens"], prompt, way, *counts))


def main() -> None:
    """One of the three steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("record")
    step.add_argument("data", type=Path)
    step.add_argument("out", type=Path)
    step = steps.add_parser("ask")
    step.add_argument("requests", type=Path)
    step.add_argument("out", type=Path)
    step.add_argument("--model", default="smollm2", help="smollm2 or a model folder")
    step.add_argument("--each", type=int, default=8, help="requests of a prompt")
    step.add_argument("--tokens", type=int, default=1024, help="the most of a reply")
    step.add_argument("--only", default="", help="prompts whose names hold this, such as methods/hoprag")
    step.add_argument("--replies", type=Path, help="a file for the replies and why they could not be read")
    step = steps.add_parser("table")
    step.add_argument("results", nargs="+", help="NAME=RESULT.json")
    step.add_argument("--csv", type=Path, help="a file for the counts of each prompt")
    given = parser.parse_args()
    if given.step == "record":
        record(given.data, given.out)
    elif given.step == "ask":
        ask(given.requests, given.out, given.model, given.each, given.tokens, given.only, given.replies)
    else:
        named = (text.partition("=") for text in given.results)
        results = {name: json.loads(Path(path).read_text(encoding="utf-8")) for name, _, path in named}
        print(table(results))
        if given.csv is not None:
            write_csv(results, given.csv)


if __name__ == "__main__":
    main()
