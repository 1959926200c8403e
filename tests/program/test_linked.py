"""Names of several nodes as the entities that a question may mean."""

from types import SimpleNamespace

import pytest
from kb_in_memory import knowledge_base

from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.program.knowledge_base import names
from gpu_rag.program.knowledge_base.names import Mention, linked, node_names

NODES = [("a", "Paris (France)", "entity"), ("b", "Paris", "city"), ("c", "Paris", "person"), ("d", "Rome", "entity")]


def test_a_node_without_a_type_joins_its_namesakes_and_does_not_name_them():
    kb = knowledge_base(NODES, [("b", "r", "c")])
    read = linked(kb, kb.named("paris"), Mention(0, 5, 3.0))
    assert [(e.name, e.type, e.nodes) for e in read] == [("Paris", "city", (0, 1)), ("Paris", "person", (0, 2))]
    assert [(e.name, e.type) for e in linked(kb, kb.named("Rome"), Mention(0, 4, 3.0))] == [("Rome", "entity")]


@pytest.mark.parametrize(("type", "rows"), [("city", [0, 1, 3]), ("person", [0, 2, 3]), (None, [0, 1, 2, 3])])
def test_names_near_a_type_include_nodes_without_a_type(
    type: str | None, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kb = knowledge_base(NODES, [("b", "r", "c")], embed=HashEmbedder().embed)
    monkeypatch.setattr(names, "kb_of", lambda index: kb)
    index = SimpleNamespace(loaded=lambda part, load: load(index), threads=1)
    monkeypatch.setattr(kb.__class__, "may_be", lambda *_: pytest.fail("a list of all nodes"))
    assert node_names(index, type)[0].tolist() == rows
