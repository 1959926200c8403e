"""Every command of README, docs and the pages of methods runs as written on the files of `gpu-rag sample`."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu_rag.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
METHODS = [f"gpu_rag/methods/{name}/README.md" for name in (
    "ppr", "dense", "bm25", "hybrid", "hoprag", "bubblerag", "higra", "hybgrag", "hydrarag"
)]  # fmt: skip
PAGES = ["README.md", "docs/methods.md", "docs/cli.md", *METHODS, "docs/benchmarks/sample.md"]
# Pages whose commands run elsewhere, and why
ELSEWHERE = {
    "docs/write-a-method.md": "test_pages.py",
    "docs/architecture.md": "a drawing",
    "docs/scale.md": "a Ray cluster",
    **{f"docs/benchmarks/{name}.md": "data sets that do not lie in the package" for name in (
        "bubblerag", "higra-index", "higra", "hoprag", "hoprag-edges", "hybgrag", "hydrarag", "retrieval", "runtime",
    )},
}  # fmt: skip
# Commands that are left out, by what the page says of them
LEFT_OUT = {
    "models fetch OWNER/NAME": "needs the network",
    'ask my-index "Where was Adolphe Sax born?" --set models.llm=vllm:a-model': "needs vLLM",
    'ask my-index "Where was Adolphe Sax born?" --set models.llm=http://127.0.0.1:8000/v1#M': "needs a server",
    "answer my-index my/questions.jsonl --method higra-agent --out dialogues.jsonl --driver streaming "
    "--set models.llm=http://a:8000/v1#M,http://b:8000/v1#M": "needs a server",
    "index my/corpus.jsonl --out new-index --set index.extractor=llm "
    "--set models.llm=http://127.0.0.1:8000/v1#M": "needs a server",
    "index my/corpus.jsonl --out new-index --profile gpu": "needs a GPU",
    "serve my-index --port 8080": "until Ctrl-C",
    "serve my-index --port 8080 --json": "Ctrl-C",
    "models misbehave --port 8000 --seed 1 --share 0.3": "Ctrl-C",
    "index corpus.jsonl --kg facts.tsv --source pages=web:PAGES --out my-both --for hydrarag": "needs a folder of web",
    'ask my-index "Who ordered The Last Supper?" --method ppt': "unknown method",
    "demo --out demo-index --method dense,ppr --questions 1 --json": "gpu-rag demo",  # cli/test_docs.py, and .ci/run
}
# Fewer questions that the packaged model answers or judges (`explain` shows the fifth), fewer rounds of a clock
FEWER = {"answer": ["--limit", "5"], "eval": ["--limit", "1"], "bench": ["--rounds", "1"]}


def commands(page: str) -> list[str]:
    """The calls of gpu-rag in the code of a page, without the program's name and comments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = [*re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S), *re.findall(r"(?:^ {4}\S.*\n)+", text, re.M)]
    lines = [line.strip() for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    calls = [re.fullmatch(r"(?:\$ )?(?:\.venv/bin/)?gpu-rag (?!: )(.*)", line) for line in lines]
    return [re.sub(r"\s+#\s.*", "", call[1]).strip() for call in calls if call]


def test_every_page_is_run_or_named() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "gpu_rag" / "methods").rglob("*.md")]
    found = {path.relative_to(ROOT).as_posix() for path in pages}
    with_commands = {page for page in found if "docs/data" not in page and commands(page)}
    assert with_commands <= {*PAGES, *ELSEWHERE}
    assert {*PAGES, *ELSEWHERE} <= found


def test_what_is_left_out_says_what_it_needs() -> None:
    calls = {call: page for page in PAGES for call in commands(page)}
    assert calls.keys() >= LEFT_OUT.keys()
    for call, need in LEFT_OUT.items():
        assert need in (ROOT / calls[call]).read_text(encoding="utf-8"), call


@pytest.mark.slow
def test_commands_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for page in PAGES:
        # README and the page of the sample write the sample themselves; the other pages are read in its folder
        inside = page not in ("README.md", "docs/benchmarks/sample.md")
        monkeypatch.chdir(tmp_path / "my" if inside else tmp_path)
        for call in commands(page):
            if call in LEFT_OUT:
                continue
            words = shlex.split(call)
            if words[0] in FEWER and "--retrieval-only" not in words:
                words += FEWER[words[0]]
            status = main(words)
            assert status == 0, f"{page}: gpu-rag {call}\n{capsys.readouterr().err[-2000:]}"
            capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S):
        lines = block.splitlines()
        if find_spec("torch_geometric") is None:
            lines = [line for line in lines if "to_pyg" not in line]
        exec("\n".join(lines), {})
    printed = capsys.readouterr().out
    assert "Thomas Telford" in printed, "the passages nearest to Thomas Telford in the graph"
