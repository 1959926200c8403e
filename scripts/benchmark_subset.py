"""A stated subset of a multi-hop set: n seeded questions, and all passages that the set gave to them.

usage: python scripts/benchmark_subset.py FOLDER OUT [--n 200] [--seed 0]

FOLDER holds questions.jsonl (with gold_ids and context_ids) and corpus.jsonl or corpus.jsonl.gz. OUT gets
questions.jsonl and corpus.jsonl. The questions are shuffled by random.Random(seed) and the first n are taken.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import Any


def rows_of(text: str) -> list[dict[str, Any]]:
    """The objects of JSON lines; only newlines end a line."""
    return [json.loads(line) for line in text.split("\n") if line]


def main() -> None:
    """Reads, draws, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    questions = rows_of((options.folder / "questions.jsonl").read_text("utf-8"))
    random.Random(options.seed).shuffle(questions)
    questions = questions[: options.n]
    wanted = {passage for q in questions for passage in [*q["gold_ids"], *q.get("context_ids", [])]}
    packed = options.folder / "corpus.jsonl.gz"
    if packed.exists():
        text = gzip.decompress(packed.read_bytes()).decode("utf-8")
    else:
        text = (options.folder / "corpus.jsonl").read_text("utf-8")
    passages = [row for row in rows_of(text) if row["id"] in wanted]
    options.out.mkdir(parents=True, exist_ok=True)
    for name, rows in (("questions", questions), ("corpus", passages)):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (options.out / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    print(f"{len(questions)} questions, {len(passages)} passages in {options.out}")


if __name__ == "__main__":
    main()
