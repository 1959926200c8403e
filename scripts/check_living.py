"""Check that random changes leave an index as a build from nothing makes it, at the size of a real corpus.

    python scripts/check_living.py CORPUS.jsonl WORK [--calls 200] [--changes 10] [--checkpoints 20] [--embedder hash]

Each call adds, edits and deletes files beside the corpus and runs `update`, or runs `remove`. At each checkpoint the
digest and the evidence for some questions must equal those of a build from nothing. Prints seconds of the processor.
"""

import argparse
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import gpu_rag


def main() -> None:
    """Run the check. Raises AssertionError at the first checkpoint that differs."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("corpus", type=Path)
    options.add_argument("work", type=Path)
    for name, default in (("calls", 200), ("changes", 10), ("checkpoints", 20), ("seed", 1)):
        options.add_argument(f"--{name}", type=int, default=default)
    options.add_argument("--embedder", default="hash")
    options.add_argument("--method", default="ppr")
    given = options.parse_args()
    draw, folder, out, again = (
        random.Random(given.seed),
        given.work / "files",
        given.work / "index",
        given.work / "again",
    )
    shutil.rmtree(given.work, ignore_errors=True)
    folder.mkdir(parents=True)
    texts = [json.loads(line)["text"] for line in given.corpus.read_text("utf-8").splitlines()]
    sources, names = [given.corpus, folder], ["0.txt"]
    chosen: dict[str, Any] = {"settings": {"models": {"embedder": given.embedder, "llm": "none"}}}

    def write(name: str) -> None:
        """Write two halves of passages, so that most names are known and some are new."""
        halves = (text[: len(text) // 2] for text in draw.sample(texts, 2))
        (folder / name).write_text(f"{' '.join(halves)} Marta Orlo{draw.randrange(50)} saw it.", "utf-8")

    def check(call: int) -> None:
        """Compare the index with a build from nothing."""
        before = time.process_time()
        built = gpu_rag.build(sources, again, methods=[given.method], fresh=True, **chosen)
        index = gpu_rag.Index.open(out)
        assert index.manifest.digest() == built.manifest.digest(), f"call {call}: another digest"
        for text in draw.sample(texts, 3):
            answers = [i.retrieve(text[:200], method=given.method, **chosen).evidence for i in (index, built)]
            assert answers[0] == answers[1], f"call {call}: other evidence"
        print(
            f"checkpoint after {call}: {index.manifest.digest()[:12]}, {time.process_time() - before:.1f} s", flush=True
        )

    write("0.txt")
    gpu_rag.build(sources, out, methods=[given.method], **chosen)
    for call in range(1, given.calls + 1):
        before = time.process_time()
        kinds = draw.choices(["add", "edit", "remove"], k=given.changes)
        leaving = draw.sample(names[1:], min(kinds.count("remove"), len(names) - 1))
        names = [name for name in names if name not in leaving]
        for _ in range(kinds.count("edit")):
            write(draw.choice(names))
        added = [f"{call}-{number}.txt" for number in range(kinds.count("add"))]
        for name in added:
            write(name)
        names += added
        if is_removal := bool(leaving) and draw.random() < 0.5:
            gpu_rag.remove(out, documents=leaving, **chosen)
        for name in leaving:
            (folder / name).unlink()
        gpu_rag.update(out, **chosen)
        print(f"call {call}: {len(kinds)} changes, {is_removal=}, {time.process_time() - before:.1f} s", flush=True)
        if call % max(given.calls // given.checkpoints, 1) == 0:
            check(call)


if __name__ == "__main__":
    main()
