"""Pages name scripts that are there; scripts/install.sh."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project_scripts import script

import gpu_rag

FAST = {"models": {"embedder": "hash", "llm": "none"}}
SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_pages_name_scripts_that_are_there_or_the_commit_that_had_them() -> None:
    root, named = SCRIPTS.parent, 0
    for page in [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "gpu_rag").rglob("*.md")]:
        for paragraph in page.read_text(encoding="utf-8").split("\n\n"):
            for path in re.findall(r"scripts/[\w*./-]+\.(?:py|sh)", paragraph):
                named += 1
                assert list(root.glob(path)) or re.search(r"at commit [0-9a-f]{8}", paragraph), f"{page}: {path}"
    assert named > 20


@pytest.mark.slow
def test_a_generated_graph_is_indexed_and_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    large = script("bench_knowledge_base")
    parts = [list(part) for part in large.triples(3000, 900)]
    assert parts == [list(part) for part in large.triples(3000, 900)] and len(parts[0]) == 3000
    tails = [tail for _, _, tail in parts[0]]
    assert tails.count(0) > 20 * len(tails) / 900  # a hub

    def ran(*options: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["script", str(tmp_path), *options])
        large.main()
        return dict(json.loads(capsys.readouterr().out))

    made = ran("--triples", "3000", "--nodes", "900")
    assert made["kb_edges"] > 2500 and made["index_s"] > 0
    asked = ran("--part", "ask")
    assert asked["ordinary"]["n"] == asked["ordinary"]["with_paths"] == 20 and asked["hub"]["n"] == 5


PRETEND = """#!/bin/bash
# a Python that installs nothing and writes down what it is asked for
case "$*" in
*--dry-run*) exit 0 ;; # a wheel of torch is at hand: on this machine, the one for a CPU
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
--version) echo Python 3.12 ;;
*" install "*) echo "$*" >>"$ASKED" ;;
esac
"""


@pytest.mark.parametrize(("extras", "cuda"), [("gpu", True), ("documents,gpu,serve", True), ("cpu,serve", False)])
def test_vllm_never_gets_the_torch_of_a_cpu(tmp_path: Path, extras: str, cuda: bool) -> None:
    """On a machine without nvidia-smi, as where an image is built."""
    pretend, asked = tmp_path / "python", tmp_path / "asked"
    pretend.write_text(PRETEND)
    pretend.chmod(0o755)
    install = SCRIPTS / "install.sh"
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(pretend), "ASKED": str(asked)}
    subprocess.run(["bash", str(install), str(tmp_path / "venv"), extras], check=True, env=environment)
    torch_line, rest, _ = asked.read_text().splitlines()
    assert torch_line.endswith("install --quiet torch==2.13.0") == cuda
    assert ("--no-index" in torch_line) == (not cuda) and f".[{extras}]" in rest


def test_examples_are_kept_by_the_content_of_index_and_questions(tmp_path: Path) -> None:
    content_of, kept = script("train_fused").content_of, set()
    for corpus in ("one", "two"):
        (tmp_path / f"{corpus}.txt").write_text(f"A text of corpus {corpus}.")
        index = gpu_rag.build(tmp_path / f"{corpus}.txt", tmp_path / corpus / "index", methods=["bm25"], settings=FAST)
        for number in "12":
            (tmp_path / number).write_text(f"question {number}")
            kept.add(content_of(index, tmp_path / number))
    assert len(kept) == 4
