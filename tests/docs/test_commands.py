"""Every command of README, docs and the pages of methods runs as written on the files of `gpu-rag sample`."""

import json
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu_rag.cli.main import main
from gpu_rag.models import packaged, probe

ROOT = Path(__file__).resolve().parents[2]
METHODS = [f"gpu_rag/methods/{name}/README.md" for name in (
    "ppr", "dense", "bm25", "hybrid", "hoprag", "bubblerag", "higra", "fused", "auto", "hybgrag", "hydrarag"
)]  # fmt: skip
PAGES = ["README.md", "docs/methods.md", "docs/cli.md", *METHODS]  # run in this order
SAMPLE = "docs/benchmarks/sample.md"
# Pages whose commands run elsewhere, and why
ELSEWHERE = {
    "docs/write-a-method.md": "test_pages.py",
    "docs/architecture.md": "a drawing",
    "docs/first-folder.md": "a reader's own folder",
    "docs/living.md": "a reader's own files",
    **{f"docs/benchmarks/{name}.md": "data sets that do not lie in the package" for name in (
        "higra-index", "hoprag-edges", "hybgrag", "hydrarag", "oracle", "ranking", "retrieval", "runtime",
    )},
}  # fmt: skip
# Commands that are left out, by what the page says of them
LEFT_OUT = {
    "index YOUR_FOLDER --out your-index": "your own files",
    'ask your-index "YOUR QUESTION" -k 3': "your own files",
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
    "mcp my-index --http 8765": "start it with a command",
    "models misbehave --port 8000 --seed 1 --share 0.3": "Ctrl-C",
    "bench pagerank --sizes 20000 --batch 1,64 --peers --rounds 3 --damping 0.85 --json": "peers",  # .ci/run, smaller
    "index corpus.jsonl --kg facts.tsv --source pages=web:PAGES --out my-both --for hydrarag": "needs a folder of web",
    'ask my-index "Who ordered The Last Supper?" --method ppt': "unknown method",
    "index crag.jsonl.gz --out my-pages --for hybgrag-crag": "needs questions with pages",
    "eval my-pages crag.jsonl.gz --method hybgrag-crag --judge": "needs questions with pages",
    "demo --out demo-index --method dense,ppr --questions 1 --json": "gpu-rag demo",  # cli/test_docs.py, and .ci/run
}
# Without a language model, and one question where it judges: `ask` of README runs with it, and README alone with the
# packaged embedder. Plans of a small sample
WITHOUT, HASH = ["--set", "models.llm=none"], ["--set", "models.embedder=hash"]
ONE = ["--set", "reader.passages=1"]  # a small model reads a passage in seconds
SHORTER = {"answer": WITHOUT, "ask": WITHOUT, "eval": ["--limit", "1"], "tune": ["--among", "bm25,ppr"], "index": HASH}
FEW, PLAN = ["--limit", "5"], ["--plan-sample", "64", *HASH]
# Of the corpus those passages that the questions of the sample and of the pages are about: two in five
NAMED = re.compile("Liszt|Salieri|Stephenson|Telford|Iron Bridge|Sax|uranium|Turandot|Fidelio")


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
    with_commands = {page for page in found if commands(page)}
    assert with_commands <= {*PAGES, SAMPLE, *ELSEWHERE}
    assert {*PAGES, SAMPLE, *ELSEWHERE} <= found


def test_what_is_left_out_says_what_it_needs() -> None:
    calls = {call: page for page in [*PAGES, SAMPLE] for call in commands(page)}
    assert calls.keys() >= LEFT_OUT.keys()
    of_models = {call.removesuffix(" --json") for call in calls if call.startswith("models")}
    assert of_models <= {*commands("README.md"), *LEFT_OUT}, "run with README"
    for call, need in LEFT_OUT.items():
        assert need in (ROOT / calls[call]).read_text(encoding="utf-8"), call


def shorter(words: list[str], page: str) -> list[str]:
    """Options added to a command so that it does less."""
    if "--retrieval-only" in words:
        return FEW
    if page == "README.md" and words[0] in ("ask", "index"):
        return HASH if "--kg" in words else ONE if "models.llm=a-model" in words else []
    return PLAN if "--plan" in words else SHORTER.get(words[0], [])


def run_page(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs the commands of a page in this folder."""
    for call in commands(page):
        words = shlex.split(call)
        if call in LEFT_OUT or (words[0] == "models" and page != "README.md"):  # README has the same ones
            continue
        status = main([*words, *shorter(words, page)])
        assert status == 0, f"{page}: gpu-rag {call}\n{capsys.readouterr().err[-2000:]}"
        if words[0] == "sample":
            keep_named(Path(words[1]))


def keep_named(sample: Path) -> None:
    corpus, questions = sample / "corpus.jsonl", (sample / "questions.jsonl").read_text("utf-8").splitlines()
    gold = {id for line in questions for id in json.loads(line)["gold_ids"]}
    lines = corpus.read_text("utf-8").splitlines(keepends=True)
    corpus.write_text("".join(line for line in lines if json.loads(line)["id"] in gold or NAMED.search(line)), "utf-8")


@pytest.mark.slow
def test_commands_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    converted = packaged.packaged_llm_folder()  # test_packaged.py looks at a conversion
    monkeypatch.setattr(packaged, "_convert", lambda source, folder: shutil.copytree(converted, folder))
    few = probe.passages()[:1]
    monkeypatch.setattr(probe, "passages", lambda: few)
    monkeypatch.setattr(probe, "keep_probe", lambda *_: None)  # a part is no probe of the model
    run_page("README.md", capsys)
    for block in re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S):
        lines = block.splitlines()
        if find_spec("torch_geometric") is None:
            lines = [line for line in lines if "to_pyg" not in line]
        exec("\n".join(lines), {})
    nearest = capsys.readouterr().out.splitlines()[-1]
    assert "Robert Stephenson" in nearest and "Antonio Salieri" in nearest, "who taught Franz Liszt"
    monkeypatch.chdir(tmp_path / "my")  # where README wrote the sample
    for page in PAGES[1:]:
        run_page(page, capsys)


@pytest.mark.slow
def test_the_graph_finds_the_chains_that_its_page_says(tmp_path: Path, monkeypatch, capsys) -> None:
    """The commands without the methods whose figures are not looked at: README's `--for all` builds their stages."""
    monkeypatch.chdir(tmp_path)
    printed = []
    for call in commands(SAMPLE):
        assert main(shlex.split(call.replace(",higra-retriever,hoprag", "") + " --json")) == 0
        out = json.loads(capsys.readouterr().out.splitlines()[-1])
        printed += [out] if call.startswith("eval") else []
    *found, base, graph = printed
    others = ("dense", "bm25", "hybrid")
    for document, least, fused in zip(found, (25, 23), (27, 25), strict=True):  # ready triples, patterns
        whole = {method: round(60 * entry["whole@5"]) for method, entry in document["methods"].items()}
        assert whole["bubblerag"] >= least and whole["ppr"] >= 20 and max(whole[other] for other in others) <= 12
        assert whole["fused"] >= fused - 1  # one question turns on the last bits of this processor's vectors, as by ppr
        for best in ("ppr", "bubblerag", "fused"):
            assert all(document["paired"][f"{best} - {other}"]["whole@5"]["low"] > 0 for other in others)
    assert base["methods"]["hybgrag"]["hit@5"] >= 15 / 16
    assert graph["methods"]["hydrarag"]["answer_on_path_pruned"] >= 12 / 14
