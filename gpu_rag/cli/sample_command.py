"""gpu-rag sample: the larger sample as files, to index and ask as one's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

HELP = "Write the sample of 440 passages, its 60 questions and its ready triples as files."
EXAMPLE = "gpu-rag sample my-sample"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files go; a new folder, or an empty one")


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Copies the files."""
    from gpu_rag.errors import UsageError
    from gpu_rag.index.folder import storage_errors
    from gpu_rag.sample import WORLD_FILES, world_path

    folder: Path = options.folder
    with storage_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError("DIR is not empty", given=folder, expected="a new folder, or an empty one")
        folder.mkdir(parents=True, exist_ok=True)
        for name in WORLD_FILES:
            (folder / name).write_bytes(world_path(name).read_bytes())
    counts = {name: world_path(name).read_bytes().count(b"\n") for name in WORLD_FILES}
    steps = [
        f"gpu-rag index {folder}/corpus.jsonl --openie {folder}/openie.jsonl --out my-index",
        f"gpu-rag eval my-index {folder}/questions.jsonl --method dense,bm25,hybrid,ppr --retrieval-only",
    ]
    text = "\n".join(
        [*(f"{folder}/{name}: {n} lines" for name, n in counts.items()), "Next:", *(f"  {s}" for s in steps)]
    )
    return 0, {"folder": str(folder), "lines": counts}, text
