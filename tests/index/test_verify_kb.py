"""verify on a knowledge base: silent on a sound one, and a line for every kind of damage under redone checksums."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from damage import drop, put, repeat, swap, turned

import gpu_rag
import gpu_rag.api.indexes  # before `load_method` is replaced
from gpu_rag.index.verify import verify

LAYERS = ("kb_name_vectors", "kb_edge_vectors", "kb_relation_vectors", "kb_text_vectors")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two graphs that share two nodes, a base with a document, a web page, and every layer over them."""
    from gpu_rag.methods import registry as catalog

    folder = tmp_path_factory.mktemp("kb")
    (folder / "one.tsv").write_text("Ada\tborn in\tBern\nBern\tnear\tThun\n")
    (folder / "two.tsv").write_text("ada\tknows\tBo\nBo\tborn in\tBern\n")
    (folder / "med").mkdir()
    rows = [{"id": "d1", "type": "drug", "name": "Veluxin", "text": "A drug. Bo made it."}, {"id": "d2", "name": "Wex"}]
    (folder / "med/nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "med/edges.tsv").write_text("d1\tlike\td2\n")
    pages = [{"url": f"https://w/{k}", "title": "Thun", "text": "A town."} for k in range(2)]
    (folder / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pages))
    settings = {"models": {"embedder": "hash", "llm": "none"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "needs", lambda name: LAYERS)
        gpu_rag.build(
            (), folder / "ix", kg=[folder / "one.tsv", folder / "two.tsv"], skb=folder / "med", methods=["x"],
            sources=[f"web=web:{folder / 'web.jsonl'}"], settings=settings,
        )  # fmt: skip
    assert verify(folder / "ix") == []
    return folder / "ix"


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "ix"))


KB_DAMAGE = {
    "a type out of order": ("types", swap("name"), "kb types: not sorted"),
    "two relations of one name": ("relations", put("name", 1, "born in"), "kb relations: not sorted and unique"),
    "two relations of one id": ("relations", put("id", 1, "born in"), "one id stands twice"),
    "two sources of one name": ("sources", put("name", 2, "one"), "one name stands twice"),
    "a kind that does not exist": ("sources", put("kind", 0, "rdf"), "no kind is called rdf"),
    "nodes out of order": ("nodes", swap("id"), "kb nodes: not sorted"),
    "a type that does not exist": (
        "nodes",
        put("type", 0, 9),
        "1 with a row number as type that none of the types has",
    ),
    "a passage that does not exist": ("nodes", put("passages", 0, [7]), "1 with a row number as passages"),
    "a passage twice": ("nodes", put("passages", 0, [0, 0]), "1 name a passage twice"),
    "more own passages than passages": ("nodes", put("n_own", 0, 5), "more passages of their own"),
    "an edge from nowhere": ("edges", put("head", 0, -1), "as head that none of the nodes has"),
    "an edge to nowhere": ("edges", put("tail", 0, 99), "as tail that none of the nodes has"),
    "an edge of no relation": ("edges", put("relation", 0, 99), "as relation that none"),
    "an edge of no source": ("edges", put("source", 0, 99), "as source that none"),
    "an edge twice": ("edges", repeat(1), "1 are not behind the one before"),
    "edges out of order": ("edges", swap("relation"), "not behind the one before"),
    "an edge from nowhere known": ("edges", put("provenance", 0, ""), "neither a file nor a passage"),
    "a record of no node": ("records", put("node", 0, 99), "kb records: 1 with a row number as node"),
    "a record of another node": ("records", put("node", 2, 3), "kb links"),
    "records out of order": ("records", swap("id"), "kb records: not sorted"),
    "a link between two nodes": ("links", put("right", 0, 3), "join records of different nodes"),
    "a link that is gone": ("links", drop(0), "kb links"),
    "a passage without a source": ("passages", drop(0), "0 rows for 1 passages"),
    "a passage of no source": ("passages", put("source", 0, 9), "kb passages: 1 with a row number as source"),
    "a link by no rule": ("links", put("rule", 0, "guess"), "kb links: no rule is called guess"),
}


@pytest.mark.parametrize("case", KB_DAMAGE)
def test_damage_to_the_tables_is_named(index, plant, case):
    table, change, said = KB_DAMAGE[case]
    plant(index, "kb", f"kb_{table}.parquet", change)
    broken = verify(index)
    assert broken and any(said in line for line in broken), broken


shorter = turned("vectors", lambda vectors: vectors[1:])
longer = turned("vectors", lambda vectors: vectors * np.float16(2))


def narrower(arrays: dict[str, np.ndarray]) -> None:
    """Vectors of length 1, but of another dimension than the embedder's."""
    cut = arrays["vectors"][:, :-1].astype(np.float32)
    arrays["vectors"] = (cut / np.linalg.norm(cut, axis=1, keepdims=True)).astype(np.float16)


OTHER_DAMAGE = {
    "a stand-in that is gone": ("kb_texts", "kb_texts.parquet", drop(0), "kb_texts: not one text"),
    "a stand-in of another node": ("kb_texts", "kb_texts.parquet", put("node", 0, 5), "kb_texts: not one text"),
    "a page without search": ("kb_web", "web_pages.parquet", drop(0), "a search over 2 pages for 1"),
    "pages out of order": ("kb_web", "web_pages.parquet", swap("id"), "kb_web pages: not sorted"),
    **{f"{n} short": (n, "vectors.safetensors", shorter, f"{n}: ") for n in LAYERS},
    **{f"{n} narrow": (n, "vectors.safetensors", narrower, f"{n}: [") for n in LAYERS},
    **{f"{n} long": (n, "vectors.safetensors", longer, "length 1") for n in LAYERS},
}


@pytest.mark.parametrize("case", OTHER_DAMAGE)
def test_damage_to_other_layers_is_named(index, plant, case):
    stage, file, change, said = OTHER_DAMAGE[case]
    plant(index, stage, file, change)
    broken = verify(index)
    assert broken and any(said in line for line in broken), broken
