"""The command `gpu-rag sample`: the larger sample as files, to index and ask like your own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

HELP = "Write the larger sample as files: 440 passages, questions, ready triples, a knowledge graph and base."
EXAMPLE = "gpu-rag sample my-sample"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder for the files")


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Copy the files."""
    from gpu_rag.errors import UsageError
    from gpu_rag.index.folder import storage_errors
    from gpu_rag.methods.registry import made_for, marked, method_of
    from gpu_rag.sample import world_files

    folder: Path = options.folder
    with storage_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError("DIR is not empty", given=folder, expected="a new folder, or an empty one")
        files = world_files()
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    counts = {name: text.count("\n") for name, text in files.items()}
    compared, over = ",".join(marked("compared")), {kind: ",".join(made_for(kind)) for kind in ("skb", "kg")}
    baselines = ",".join(name for name in marked("compared") if method_of(name).standins)
    steps = [
        f"gpu-rag index {folder}/corpus.jsonl --openie {folder}/openie.jsonl --out my-index",
        f"gpu-rag eval my-index {folder}/questions.jsonl --method {compared} --retrieval-only",
        f"gpu-rag index --skb {folder}/world --out my-kb --for {baselines},{over['skb']}",
        f"gpu-rag eval my-kb {folder}/kb-questions.jsonl --method {baselines},{over['skb']} --retrieval-only",
        f"gpu-rag index --kg {folder}/facts.tsv --out my-kg --for {over['kg']}",
        f"gpu-rag eval my-kg {folder}/kg-questions.jsonl --method {over['kg']} --retrieval-only",
    ]
    text = "\n".join(
        [*(f"{folder}/{name}: {n} lines" for name, n in counts.items()), "Next:", *(f"  {s}" for s in steps)]
    )
    return 0, {"folder": str(folder), "lines": counts}, text
