"""Reports: one self-contained HTML file each, true to the numbers, safe against hostile text, drawn by a browser."""

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import chromium

from gpu_rag.methods.registry import method_names
from gpu_rag.report.evaluation import verdict
from gpu_rag.report.page import stacked_bars
from gpu_rag.sample import corpus_path, questions_path

HASH = ("--set", "models.embedder=hash", "--set", "models.llm=none")
VOID = {"meta", "line", "circle", "rect", "polygon", "br"}
HOSTILE = '<script>alert("x")</script> & "quotes"'


class Outline(HTMLParser):
    """Checks that tags nest, and collects what a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script" or any(name in ("src", "href") or name.startswith("on") for name, _ in attrs):
            self.fetched.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def outline(path: Path) -> str:
    """The page's words, after the checks that hold for every report."""
    text = path.read_text(encoding="utf-8")
    page = Outline()
    page.feed(text)
    assert page.open == [] and page.fetched == []
    assert "url(" not in text and "@import" not in text
    return " ".join(" ".join(page.words).split())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, cli: Any) -> Path:
    folder = tmp_path_factory.mktemp("report")
    corpus = folder / "corpus.jsonl"
    hostile = json.dumps({"id": "bad", "title": HOSTILE, "text": f"Marie Curie met {HOSTILE} in Paris."})
    corpus.write_text(corpus_path().read_text(encoding="utf-8") + hostile + "\n" + "not json\n", encoding="utf-8")
    options = ("--for", "all", *HASH)
    assert cli.run("index", corpus, "--out", folder / "index", *options).status == 0
    return folder


@pytest.fixture(scope="module")
def evaluated(built: Path, cli: Any) -> tuple[Path, dict[str, Any]]:
    page = built / "eval.html"
    run = cli.run("eval", built / "index", questions_path(), "--retrieval-only", "--report", page, "--json", *HASH).ok
    return page, run.document


def test_the_eval_report_has_the_numbers_of_the_document(evaluated):
    page, document = evaluated
    words = outline(page)
    for name, entry in document["methods"].items():
        low, high = entry["ci95"]["recall@5"]
        assert name in words and f"{entry['recall@5']:.3f} [{low:.3f}, {high:.3f}]" in words
    for pair, found in document["paired"].items():
        assert pair in words and f"{found['recall@5']['diff']:+.3f}" in words
    assert verdict(document, "recall@5") in words
    assert "hops" in words and "Where the methods differ most" in words


EVERY = tuple(name for name in method_names() if name != "auto")  # `auto` chooses after `tune` alone


@pytest.fixture(scope="module")
def eight(built: Path, cli: Any) -> Path:
    """The page of all methods."""
    page = built / "eight.html"
    options = ("--method", ",".join(EVERY), "--retrieval-only", "--limit", 6, "--report", page, *HASH)
    assert cli.run("eval", built / "index", questions_path(), *options).status == 0
    return page


def test_many_methods_are_compared_with_the_first_only(eight, evaluated):
    first, *others = EVERY
    words = outline(eight)
    shown = {f"{a} - {b}" for a in EVERY for b in EVERY if f"{a} - {b}" in words}
    assert shown == {f"{name} - {first}" for name in others}
    assert f"pairs against {first} only" in words
    assert "only, all pairs" not in outline(evaluated[0])  # four methods: all six pairs are there


def test_amounts_are_written_out():
    rows = [("exact", {"entities": 1_234_639}), ("higra-agent", {"entities": 7})]
    bars = stacked_bars("e", rows, "entities")
    assert ">1,234,639 entities<" in bars and ">7 entities<" in bars
    assert ">2.00 s<" in stacked_bars("s", [("graph", {"a": 1.5, "b": 0.5})], "s")  # seconds keep their decimals


def test_hostile_text_is_shown_and_never_run(run, built):
    questions = built / "hostile.jsonl"
    questions.write_text(json.dumps({"id": "h", "question": HOSTILE, "gold_ids": ["bad"], "type": HOSTILE}) + "\n")
    page = built / "hostile.html"
    assert run("eval", built / "index", questions, "--retrieval-only", "--report", page, *HASH).status == 0
    assert 'alert("x")' in outline(page)


DOCUMENT = {
    "n": 10,
    "methods": {"dense": {"recall@5": 0.5}, "bm25": {"recall@5": 0.6}, "ppr": {"recall@5": 0.7}},
    "paired": {"ppr - bm25": {"recall@5": {"diff": 0.1, "low": 0.05, "high": 0.15}}},
}


def test_the_verdict_is_plain():
    def with_interval(diff: float, low: float, high: float, pair: str = "ppr - bm25") -> str:
        return verdict(
            {**DOCUMENT, "paired": {pair: {"recall@5": {"diff": diff, "low": low, "high": high}}}}, "recall@5"
        )

    assert with_interval(0.1, 0.05, 0.15).startswith("The graph helped here. recall@5 of ppr against bm25: +0.100")
    assert with_interval(0.1, -0.05, 0.15).startswith("It cannot be shown")
    assert with_interval(-0.1, -0.15, -0.05).startswith("The graph did not help here, it hurt")
    # the same pair the other way round: signs turn
    assert with_interval(-0.1, -0.15, -0.05, "bm25 - ppr").startswith("The graph helped here. recall@5 of ppr")
    assert verdict({**DOCUMENT, "methods": {"dense": {"recall@5": 0.5}}}, "recall@5").startswith("No verdict")


FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1100,2000"),
]
MEASURE = """<script>for (const t of document.querySelectorAll("svg text")) {
  const b = t.getBBox(), w = t.ownerSVGElement.viewBox.baseVal.width;
  if (b.x < 0 || b.x + b.width > w) t.setAttribute("data-cropped", "yes");
  t.setAttribute("data-seen", "yes"); }</script>"""


@pytest.mark.slow
def test_a_browser_crops_no_text_of_a_plot(eight, tmp_path):
    def crops(document: str) -> list[str]:
        page = tmp_path / "measured.html"
        page.write_text(document + MEASURE, encoding="utf-8")
        command = [chromium(), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
        drawn = subprocess.run(command, check=True, capture_output=True, timeout=600).stdout.decode()
        assert drawn.count('data-seen="yes"') == document.count("<text ") > 20
        return re.findall(r'data-cropped="yes"[^>]*>([^<]*)<', drawn)

    whole = eight.read_text(encoding="utf-8")
    assert crops(whole) == []
    assert crops(whole.replace('text-anchor="end">', 'text-anchor="end">a label that is far longer than its room'))
