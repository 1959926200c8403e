"""The order in which sources are named changes no digest."""

import itertools
from pathlib import Path
from typing import Any

import gpu_rag

FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}


def test_sources_in_any_order_give_one_digest(tiny_corpus: Path, tmp_path: Path) -> None:
    """Names and facts overlap, so that another order would number and fuse them in another way."""
    (tmp_path / "b.txt").write_text("Ada Lovelace was born in London. Bern lies near Thun.\n")
    (tmp_path / "one.tsv").write_text("Ada\tborn in\tBern\nBern\tnear\tThun\n")
    (tmp_path / "two.tsv").write_text("ada\tknows\tBo\nBo\tborn in\tBern\n")
    (tmp_path / "web.jsonl").write_text('{"url": "https://w/1", "title": "Thun", "text": "A town."}\n')
    web = [f"net=web:{tmp_path / 'web.jsonl'}", f"more=kg:{tmp_path / 'two.tsv'}"]
    graphs = [tmp_path / "one.tsv", tmp_path / "two.tsv"]
    corpus = [tiny_corpus, tmp_path / "b.txt"]
    digests = set()
    for number, (files, kg, named) in enumerate(
        itertools.product(*([part, part[::-1]] for part in (corpus, graphs, web)))
    ):
        out = tmp_path / f"ix{number}"
        index = gpu_rag.build(files, out, methods=["hydrarag", "ppr"], kg=kg, sources=named, settings=FAST)
        digests.add(index.manifest.digest())
    assert len(digests) == 1
