"""Make corpora of any size, and measure the cost of their index by stage: processor seconds and peak memory.

usage: python scripts/bench_large.py make OUT --data FOLDER [--copies N] [--share S]
       python scripts/bench_large.py index OUT [--methods ppr,bubblerag] [--set index.memory=1 ...]
       python scripts/bench_large.py plan OUT [--methods ppr,bubblerag] [--set index.memory=1 ...]
       python scripts/bench_large.py tables OUT [--set index.memory=1 ...]
       python scripts/bench_large.py ask OUT --data FOLDER [--method ppr] [--questions N] [--warm OTHER]

make writes OUT/corpus.jsonl and OUT/openie.jsonl: N copies of the corpus and of the extractions of FOLDER. A copy
renames a share of the capitalised words, each always to the same pseudo-word of that copy; words of many passages (the
hubs) keep their names in every copy. So names grow with the corpus, and hubs gain neighbours, as in a real corpus.
index builds OUT/index. plan predicts the cost of the build, then builds, and compares both by stage in processor
seconds. tables makes the stages entities, mentions and graph alone. ask opens the index and retrieves. --warm first
asks the index of another OUT, so that imports and the loading of kernels are a separate stage. Each command prints one
JSON line, and progress on stderr. Run each in its own process. Memory is RssAnon: pages of mapped files are not
counted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import gpu_rag
from gpu_rag.index import tables
from gpu_rag.index.folder import checksums
from gpu_rag.index.memory import memory_bytes
from gpu_rag.index.stages.entities import entities_stage
from gpu_rag.index.stages.graph import graph_stage
from gpu_rag.index.stages.mentions import mentions_stage
from gpu_rag.index.work import Progress, Silent, Sources, StageReport, Work
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import make_settings
from gpu_rag.types import Question

HUB = 12  # no copy renames a word of this many passages
COUNTS = ("passages", "entities", "relations", "mentions")
UNITS = (1, 1 << 20, 1 << 10)
_CAPITAL = re.compile(r"\b[A-Z][a-z]{2,}\b")
_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


def pseudo_word(word: str, copy: int) -> str:
    """The name of a word in a copy: two to four syllables, drawn by a hash of word and copy."""
    drawn = hashlib.sha256(f"{copy} {word}".encode()).digest()
    return "".join(_SYLLABLES[byte % len(_SYLLABLES)] for byte in drawn[: 2 + drawn[-1] % 3]).capitalize()


def is_renamed(word: str, share: float) -> bool:
    """Whether copies rename a word: a share of all words, drawn by a hash."""
    return hashlib.sha256(word.encode()).digest()[0] < 256 * share


def renamer(texts: list[str], share: float) -> Callable[[str, int], str]:
    """Make rename(text, copy) for a corpus of `texts`; copy 0 is the corpus itself."""
    counts = Counter(word for text in texts for word in set(_CAPITAL.findall(text)))
    renamed = {word for word, n in counts.items() if n < HUB and is_renamed(word, share)}

    def rename(text: str, copy: int) -> str:
        if not copy:
            return text
        return _CAPITAL.sub(lambda m: pseudo_word(m[0], copy) if m[0] in renamed else m[0], text)

    return rename


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def make(out: Path, data: Path, copies: int, share: float) -> dict[str, Any]:
    """Write the corpus and its extractions."""
    corpus, extracted = rows_of(data / "corpus.jsonl"), rows_of(data / "openie.jsonl")
    rename = renamer([f"{row['title']} {row['text']}" for row in corpus], share)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "corpus.jsonl").open("w") as texts, (out / "openie.jsonl").open("w") as triples:
        for copy in range(copies):
            for row in corpus:
                named = {key: rename(row[key], copy) for key in ("title", "text")}
                texts.write(json.dumps({"id": f"{row['id']}-{copy}", **named}) + "\n")
            for row in extracted:
                entities = [rename(name, copy) for name in row["entities"]]
                facts = [[rename(part, copy) for part in triple] for triple in row["triples"]]
                triples.write(json.dumps({"id": f"{row['id']}-{copy}", "entities": entities, "triples": facts}) + "\n")
    size = (out / "corpus.jsonl").stat().st_size
    return {"passages": copies * len(corpus), "corpus_mb": size >> 20}


class Clock(Progress):
    """Processor seconds and peak memory by stage, sampled every 20 ms."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, float]] = {}
        self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._begun = (time.process_time(), time.perf_counter())

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self._peak = max(self._peak, memory_bytes())

    def finish(self, stage: str, skipped: bool) -> None:
        """Record the cost of a stage since the last one ended."""
        now = (time.process_time(), time.perf_counter())
        cpu, wall = (round(b - a, 2) for a, b in zip(self._begun, now))
        peak = max(self._peak, memory_bytes()) >> 20
        self.stages[stage] = {"cpu_s": cpu, "wall_s": wall, "peak_mb": peak}
        self._peak, self._begun = 0, now
        print(stage, self.stages[stage], file=sys.stderr, flush=True)

    def close(self) -> dict[str, dict[str, float]]:
        """Ends the sampling."""
        self._stop.set()
        self._thread.join()
        return self.stages


def settings_of(given: list[str]) -> dict[str, Any]:
    """Settings with the hashing embedder, no language model and one process, whose seconds are counted; given:
    "section.name=value" as JSON or text."""
    models = {"embedder": "hash", "llm": "none", "vector_cache_gib": 0}
    settings: dict[str, Any] = {"models": models, "index": {"workers": 1}}
    for line in given:
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        settings.setdefault(section, {})[name] = json.loads(value) if value[:1] in "0123456789[{tf-" else value
    return settings


def index(out: Path, methods: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Builds the index."""
    clock = Clock()
    report = gpu_rag.build(
        out / "corpus.jsonl", out / "index", openie=out / "openie.jsonl", methods=methods, fresh=True,
        settings=settings, progress=clock,
    )  # fmt: skip
    stages = clock.close()
    files = [file for file in (out / "index").rglob("*") if file.is_file()]
    disk = sum(file.stat().st_size for file in files if file.name != "vectors.safetensors")
    totals = {"cpu_s": round(sum(stage["cpu_s"] for stage in stages.values()), 1)}
    totals["peak_mb"] = max(stage["peak_mb"] for stage in stages.values())
    wanted = ("passages", "entities", "relations", "mentions", "synonyms")
    counts = {name: n for name, n in report.counts().items() if name in wanted}
    text = (out / "corpus.jsonl").stat().st_size
    return {
        **counts, **totals, "disk_without_vectors": round(disk / text, 2), "stages": stages,
        "digest": report.manifest.digest(),
        "tables": {name: record.output_hash[:12] for name, record in report.manifest.stages.items()},
    }  # fmt: skip


def planned_and_built(part: str, out: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The plan or the cost of a build: counts, and by stage (seconds, bytes of memory, bytes of disk)."""
    time.perf_counter = time.process_time  # the load of the machine may change between plan and build
    given = {"openie": out / "openie.jsonl", "fresh": True, **given}
    if part == "plan":
        made = gpu_rag.plan_build(out / "corpus.jsonl", out / "index", **given)
        rows = {name: (row["s"], row["peak_memory_bytes"], row["disk_bytes"]) for name, row in made["stages"].items()}
        return {"counts": {name: made[name] for name in COUNTS}, "stages": rows}
    report = gpu_rag.build(out / "corpus.jsonl", out / "index", **given).report
    assert report is not None
    files = {name: record.files.values() for name, record in report.manifest.stages.items()}
    disk = {name: sum(file["bytes"] for file in some) for name, some in files.items()}
    rows = {name: (stage.s, stage.peak_memory_bytes, disk[name]) for name, stage in report.stages.items()}
    return {"counts": {name: report.count(name) for name in COUNTS}, "stages": rows}


def plan(out: Path, methods: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    """[predicted, actual] counts; [predicted, actual] seconds, MB of memory and kB of disk by stage and in total."""
    results = []
    for part in ("plan", "build"):  # each in its own process, so that the memory is its own
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            given = {"methods": methods, "settings": settings}
            results.append(pool.submit(planned_and_built, part, out, given).result())
    table = {name: list(zip(*(half["stages"][name] for half in results))) for name in results[1]["stages"]}
    rows = {name: [[round(n / unit, 2) for n in pair] for pair, unit in zip(row, UNITS)] for name, row in table.items()}
    for name, row in rows.items():
        print(name, dict(zip(("s", "peak_mb", "disk_kb"), row)), file=sys.stderr, flush=True)
    sides = [[[row[k][side] for row in rows.values()] for side in (0, 1)] for k in range(3)]
    totals = {"s": [*map(sum, sides[0])], "peak_mb": [*map(max, sides[1])], "disk_kb": [*map(sum, sides[2])]}
    return {**{name: [half["counts"][name] for half in results] for name in COUNTS}, **totals}


def put_inputs(out: Path) -> dict[str, Path]:
    """Write passages, extractions and no synonyms as their stages do. Returns their folders."""
    folders = {name: out / "tables" / name for name in ("passages", "extraction", "entities", "mentions", "synonyms")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    passages = tables.TableWriter(folders["passages"] / "passages.parquet", tables.PASSAGES)
    extractions = tables.TableWriter(folders["extraction"] / "extractions.parquet", tables.EXTRACTIONS)
    first = 0
    with passages, extractions, (out / "corpus.jsonl").open() as texts, (out / "openie.jsonl").open() as openie:
        while rows := [json.loads(line) for line in islice(texts, tables.ROWS_A_GROUP)]:
            ids, numbers = [row["id"] for row in rows], range(first, first + len(rows))
            written = [[row[name] for row in rows] for name in ("title", "text")]
            passages.add([ids, ids, *written, [0] * len(rows), [len(row["text"]) for row in rows]])
            rows = [json.loads(line) for line in islice(openie, len(rows))]
            parts = [[row[name] for row in rows] for name in ("entities", "triples")]
            extractions.add([list(numbers), *parts, ["ok"] * len(rows)])
            first += len(rows)
    tables.write_table(
        folders["synonyms"] / "synonyms.parquet", tables.SYNONYMS, {"left": [], "right": [], "score": []}
    )
    return folders


def stages_alone(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Run the stages entities, mentions and graph alone, on ready passages and extractions, without synonyms."""
    folders, chosen, models = put_inputs(out), make_settings(settings), cast(ModelSet, None)
    counts: dict[str, int] = {}
    clock = Clock()
    clock.finish("inputs", False)
    for layer in (entities_stage, mentions_stage, graph_stage):
        folders[layer.name] = out / "tables" / layer.name
        folders[layer.name].mkdir(exist_ok=True)
        work = Work(
            folders[layer.name], out / "tables" / "work", folders, chosen, Sources(), models, Silent(), StageReport()
        )
        counts |= layer.run(work)
        clock.finish(layer.name, False)
    sums = {name: checksums(folders[name]) for name in ("entities", "mentions", "graph")}
    digest = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()
    return {**counts, "stages": clock.close(), "digest": digest}


def ask(
    out: Path, data: Path, method: str, n: int, settings: dict[str, Any], warm: Path | None = None
) -> dict[str, Any]:
    """Open the index, and retrieve for one question, then for n together."""
    questions = [Question(row["id"], row["question"]) for row in rows_of(data / "questions.jsonl")[: n + 1]]
    clock = Clock()
    if warm is not None:
        gpu_rag.Index.open(warm / "index").engine(settings).run(method, questions[:1], retrieval_only=True)
        clock.finish("warm", False)
    engine = gpu_rag.Index.open(out / "index").engine(settings)
    clock.finish("open", False)

    def run(part: list[Question]) -> Iterator[str]:
        for answer in engine.run(method, part, retrieval_only=True).answers:
            assert not answer.error, answer.error
            yield from (evidence.passage_id for evidence in answer.evidence)

    results = []
    for stage, part in (("first", questions[:1]), ("one", questions[:1]), ("together", questions[1:])):
        results += list(run(part))
        clock.finish(stage, False)
    rankings = hashlib.sha256(" ".join(results).encode()).hexdigest()[:12]
    return {"asked": n, "rankings": rankings, "stages": clock.close()}


def main() -> None:
    """Read the command line, and run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("make", "index", "plan", "tables", "ask"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, help="a folder with corpus.jsonl, openie.jsonl, questions.jsonl")
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.8, help="share of the words below HUB that a copy renames")
    parser.add_argument("--methods", default="ppr,bubblerag")
    parser.add_argument("--method", default="ppr")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--warm", type=Path, metavar="OTHER")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    options = parser.parse_args()
    settings = settings_of(options.set)
    if options.part == "make":
        figures = make(options.out, options.data, options.copies, options.share)
    elif options.part == "index":
        figures = index(options.out, options.methods.split(","), settings)
    elif options.part == "plan":
        figures = plan(options.out, options.methods.split(","), settings)
    elif options.part == "tables":
        figures = stages_alone(options.out, settings)
    else:
        figures = ask(options.out, options.data, options.method, options.questions, settings, options.warm)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
