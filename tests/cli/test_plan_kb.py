"""`index --plan` of knowledge bases: sizes from the first triples, every stage predicted, and compared afterwards."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kb_rows import read_edges, read_kg, read_nodes

from gpu_rag.index.work import NamedSource
from gpu_rag.plan import index_plan as plan
from gpu_rag.plan.sample import sample_sources

ROWS = [(f"node {k % 40}", f"r{k % 3}", f"node {k * 7 % 60}") for k in range(900)]


def tsv(path: Path, rows: list[tuple[str, str, str]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join("\t".join(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix.lower() == ".gz" else text)
    return path


def skb(folder: Path) -> Path:
    tsv(folder / "edges.tsv")
    names = sorted({end for head, _, tail in ROWS for end in (head, tail)})
    texts = [f"{name} text" if k < 5 else "" for k, name in enumerate(names)]
    rows = [{"id": name, "name": name, "type": "t", "text": text} for name, text in zip(names, texts)]
    (folder / "nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def stark(folder: Path) -> Path:
    folder.mkdir()
    (folder / "node_info.json").write_text(json.dumps({str(k): {"name": f"n{k}"} for k in range(20)}))
    (folder / "edge_type_dict.json").write_text('{"0": "likes"}')
    np.save(folder / "edge_index.npy", np.arange(900).reshape(2, 450) % 20)
    np.save(folder / "edge_types.npy", np.zeros(450, np.int64))
    return folder


def table(path: Path) -> Path:
    columns = dict(zip(("head", "relation", "tail"), map(list, zip(*ROWS))))
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("ending", ["tsv", "TSV", "tsv.gz", "TSV.GZ", "parquet", "PARQUET", "skb", "stark"])
def test_a_sample_is_the_beginning_and_says_how_much_there_is(tmp_path, ending):
    makers = {"skb": skb, "stark": stark, "parquet": table}
    path = makers.get(ending.lower(), tsv)(tmp_path / f"kg.{ending}")
    kind = "skb" if ending in ("skb", "stark") else "kg"
    (found,) = sample_sources([NamedSource("s", kind, path)], tmp_path / "out", 90)
    read = read_edges if kind == "skb" else read_kg
    whole, part = list(read(path)), list(read(found.source.path))
    assert part == whole[:90]
    if ending.lower() == "tsv.gz":  # a packed file of this size is read in one piece, which tells nothing
        assert found.times >= 1
    else:
        assert found.times == pytest.approx(len(whole) / 90, rel=0.05)
    if kind == "skb":
        assert [node.id for node in read_nodes(found.source.path)] == [node.id for node in read_nodes(path)]


def test_a_source_smaller_than_the_sample_is_the_sample(tmp_path):
    (found,) = sample_sources([NamedSource("s", "kg", tsv(tmp_path / "kg.tsv"))], tmp_path / "out", 2000)
    assert (found.times, found.source.path.read_bytes()) == (1.0, (tmp_path / "kg.tsv").read_bytes())


def test_every_stage_of_a_base_is_predicted_and_compared(run, cli, tmp_path):
    base = skb(tmp_path / "base")
    given = ("index", "--skb", base, "--out", tmp_path / "ix", "--for", "hybgrag,hydrarag", *cli.NO_LLM, "--json")
    planned = run(*given, "--plan").document
    built = run(*given).document
    assert planned["kb"] == {"triples": 120, "nodes": 60, "relations": 3, "stand-ins": 55}
    assert {name: built["kb"][name] for name in ("nodes", "relations")} == {"nodes": 60, "relations": 3}
    assert planned["stages"].keys() - {"kb_web"} == built["stages"].keys() - {"kb_web"}
    assert {"kb", "kb_texts", "kb_edge_vectors"} < built["plan"].keys()
    assert built["plan"]["disk"]["ratio"] == pytest.approx(1, abs=0.1)
    assert run(*given, "--plan").document["stages"]["kb"]["skipped"]


def test_sizes_of_a_cut_graph_are_predicted_from_its_beginning(run, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "N_TRIPLES", 450)
    rows = [(f"a{k}", "r", f"b{k % 50}") for k in range(900)]  # a new head each
    given = ("index", "--kg", tsv(tmp_path / "kg.tsv", rows), "--out", tmp_path / "ix", *cli.NO_LLM)
    document = run(*given, "--plan", "--json").document
    assert document["kb"]["triples"] == pytest.approx(900, rel=0.05)
    assert document["kb"]["nodes"] == pytest.approx(950, rel=0.12)
    assert document["passages"] == 0 and any("extrapolated from 450" in note for note in document["notes"])
    assert "predicted: " in run(*given, "--plan").out


@pytest.mark.parametrize("method", ["hybgrag", "hydrarag"])
def test_a_base_of_the_corpus_alone_is_planned_too(run, cli, tiny_corpus, tmp_path, method):
    given = ("index", tiny_corpus, "--out", tmp_path / "ix", "--for", method, *cli.NO_LLM, "--json")
    planned, built = run(*given, "--plan").document, run(*given).document
    assert planned["kb"]["nodes"] == built["kb"]["nodes"] > 0
    assert planned["stages"].keys() - {"kb_web"} == built["stages"].keys() - {"kb_web"}
