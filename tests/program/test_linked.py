"""Names of several nodes as the entities that a question may mean."""

from kb_in_memory import knowledge_base

from gpu_rag.program.knowledge_base.names import Mention, linked


def test_a_node_without_a_type_joins_its_namesakes_and_does_not_name_them():
    nodes = [
        ("a", "Paris (France)", "entity"),
        ("b", "Paris", "city"),
        ("c", "Paris", "person"),
        ("d", "Rome", "entity"),
    ]
    kb = knowledge_base(nodes, [("b", "r", "c")])
    read = linked(kb, kb.named("paris"), Mention(0, 5, 3.0))
    assert [(e.name, e.type, e.nodes) for e in read] == [("Paris", "city", (0, 1)), ("Paris", "person", (0, 2))]
    assert [(e.name, e.type) for e in linked(kb, kb.named("Rome"), Mention(0, 4, 3.0))] == [("Rome", "entity")]
